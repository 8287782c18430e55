"""`rescore render`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from rescore.agent import Agent
from rescore.cli.runs import load
from rescore.core import UsageError
from rescore.envs.task import Task
from rescore.show.video import record

LONGEST_S = 3_600


@dataclass(frozen=True)
class Render:
    """Record a video of a trained run as mp4."""

    run: Positional[Path]  # folder of a run or of a saved agent
    out: Path | None = None  # file to write; default RUN/video.mp4
    seconds: float = 10.0  # length of the video
    seed: int = 0  # start of the episode
    best: bool = False  # the best evaluation's policy instead of the newest
    trust_env: bool = False  # import the module that the run names as package:Env-v0

    def execute(self) -> int:
        if not 0 < self.seconds <= LONGEST_S or self.seed < 0:
            raise UsageError(f"--seconds are above 0, at most {LONGEST_S:,}; --seed from 0 upwards")
        with load(self.run, self.best, self.trust_env) as agent:
            print(record_video(agent, self.out or self.run / "video.mp4", self.seconds, self.seed))
        return 0


def record_video(agent: Agent, path: Path, seconds: float = 10.0, seed: int = 0) -> str:
    """Record the policy; its file, and what drew it."""
    info = record(
        Task.of(agent.env).pictured,
        lambda obs: agent.predict(obs, deterministic=True)[0],
        path,
        seconds=seconds,
        seed=seed,
    )
    return f"{info.path} ({info.renderer})"
