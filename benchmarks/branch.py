"""What a changed setting does from here on: a run goes on from its newest checkpoint with it.

    python -m benchmarks.branch RUN --steps 50000 --set posterior.entropy_per_dim=-1 --record FILE

Without --set it is the control. Networks, replay and environments are the same for all branches,
so that what a setting does to a policy which has learned is seen in minutes, and not hidden by the
seeds. The run itself is left as it is. A setting that changes the shape of networks cannot be
branched to.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rescore.agent import Agent
from rescore.core import UsageError
from rescore.envs.task import keywords
from rescore.files.json import plain
from rescore.files.run_record import append_result
from rescore.training import checkpoint
from rescore.training.callbacks import Event
from rescore.training.config import overlaid


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """{"critic.lr": 1e-4} as {"critic": {"lr": 1e-4}}."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        *parts, last = name.split(".")
        inner = {last: value}
        for part in reversed(parts):
            inner = {part: inner}
        made = overlaid(made, inner)
    return made


def branched(run: Path, settings: dict[str, Any], folder: Path) -> Agent:
    """The agent of a run's newest checkpoint with other hyperparameters, by a copy in `folder`."""
    kept = checkpoint.stored(run)
    if not kept:
        raise UsageError(f"{run} has no checkpoint to go on from")
    arrays, manifest = checkpoint.load(kept[0])
    config = manifest["config"]
    config["hyperparameters"] = overlaid(config["hyperparameters"], nested(settings))
    about = ("format", "version", "files", "sha256")  # of the file, made anew
    meta = {name: value for name, value in manifest.items() if name not in about}
    return Agent.load(checkpoint.save(folder / "branch", arrays, meta))


def go_on(agent: Agent, steps: int) -> list[tuple[int, float, float]]:
    """Step, mean and standard deviation of every evaluation on the way."""
    found: list[tuple[int, float, float]] = []

    def told(event: Event) -> None:
        if event.kind == "evaluation":
            found.append((event.env_steps, event.values["mean"], event.values["std"]))
            print(f"{event.env_steps:,}: {found[-1][1]:,.1f} ± {found[-1][2]:,.1f}", flush=True)

    agent.learn(steps, callback=told)
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps to go on")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--record", type=Path, help="append the evaluations as one JSON line")
    options = parser.parse_args(words)
    settings = keywords(options.settings, "--set")
    with (
        TemporaryDirectory(prefix="branch-") as folder,
        branched(options.run, settings, Path(folder)) as agent,
    ):
        first, began = agent.run.env_steps, time.monotonic()
        print(f"{options.run} from {first:,} steps with {settings or 'nothing changed'}")
        found = go_on(agent, options.steps)
        about = {"run": options.run.name, "from": first, "changed": settings}
        row = {**about, "config": agent.config, "evaluations": found}
    print(f"mean of all {np.mean([mean for _, mean, _ in found]):,.1f}")
    if options.record:
        row = {"benchmark": "branch", **row, "wall_clock_s": time.monotonic() - began}
        append_result(options.record, plain(row))


if __name__ == "__main__":
    main()
