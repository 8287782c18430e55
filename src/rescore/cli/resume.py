"""`rescore resume`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from rescore.agent import Agent
from rescore.cli.work import FINAL, work
from rescore.core import UsageError
from rescore.files.json import read_json


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest readable checkpoint, bit for bit as if never stopped."""

    run: Positional[Path]  # folder of the run
    steps: int | None = None  # environment steps in all; default what the run was asked for
    until: float | None = None  # stop once an evaluation's mean return reaches this
    video: bool = False  # record a video of the trained policy
    tensorboard: bool = False  # write TensorBoard events too
    track: tuple[Literal["wandb", "mlflow", "tensorboard"], ...] = ()  # send metrics there too
    quiet: bool = False  # no progress display
    record: Path | None = None  # append the result as one JSON line to this file
    trust_env: bool = False  # import the module that the run names as package:Env-v0

    def execute(self) -> int:
        told: dict[str, Any] = {"tensorboard": self.tensorboard, "track": self.track}
        agent = Agent.load(self.run, **told, trust_env=self.trust_env)
        if agent.folder is None:
            raise UsageError(f"{self.run} is a saved agent, not a run: load it in Python")
        for note in (*agent.fallbacks, *agent.notes):
            print(f"note: {note}")
        done, best = agent.run.env_steps, agent.run.best_return
        total = self.steps or agent.total or done
        if total < done:
            raise UsageError(
                f"{self.run} has done {done:,} steps: give --steps beyond that to extend it"
            )
        solved = self.until is not None and best is not None and best >= self.until
        if solved and agent.run.best_at == done:
            total = done
        if total == done and is_complete(self.run, done) and not (self.video or self.record):
            print(f"{self.run} has done its {done:,} steps: give --steps beyond that to extend it")
            agent.close()
            return 0
        return work(agent, total - done, self.until, self.video, self.quiet, self.record)


def is_complete(run: Path, env_steps: int) -> bool:
    """Whether all that follows the last step was done, too."""
    try:
        return read_json(run / FINAL)["env_steps"] == env_steps
    except (UsageError, KeyError, TypeError):
        return False
