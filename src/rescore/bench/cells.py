"""A cell of the matrix: one training run, and the commands that start it or go on with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rescore.algorithms import find
from rescore.core import UsageError, did_you_mean
from rescore.training.config import Training, configure


@dataclass(frozen=True)
class Cell:
    """An algorithm on a task for a seed or a group of them, and what differs from its preset."""

    env: str
    algorithm: str
    seeds: tuple[int, ...]
    steps: int
    preset: str = "default"
    settings: tuple[tuple[str, Any], ...] = ()
    variant: str = ""  # of a sensitivity study

    @property
    def label(self) -> str:
        """How its algorithm is called in tables and figures."""
        return f"{self.algorithm} {self.variant}".strip()

    @property
    def name(self) -> str:
        """Its path in the folder of the matrix."""
        seeds = "_".join(map(str, self.seeds))
        return f"{self.env.replace('/', '_')}/{self.label.replace(' ', '-')}/s{seeds}"

    def check(self) -> None:
        """Refuse before anything starts what training would refuse after minutes."""
        settings = dict(self.settings)
        own, shared = (
            {f.name for f in dataclasses.fields(cls)} for cls in (find(self.algorithm), Training)
        )
        for name in settings:
            if name not in own | shared:
                hint = did_you_mean(name, own | shared, "see `rescore train ALGO --help`")
                raise UsageError(f"{name} is no setting of {self.label}: {hint}")
        hyperparameters = {k: v for k, v in settings.items() if k in own}
        rest = {k: v for k, v in settings.items() if k not in own}
        algo, training = configure(self.algorithm, self.preset, hyperparameters, rest)
        if algo.source == "replay" and self.steps < training.warmup + training.stride:
            raise UsageError(
                f"{self.steps:,} steps are not enough for {self.label} on {self.env}: "
                f"{training.warmup:,} are random warm-up; more --steps or --set warmup=..."
            )

    def train(self, run: str) -> list[str]:
        """The words after `rescore` that start it in the folder `run`."""
        seeds = [str(seed) for seed in self.seeds]
        words = ["train", self.algorithm, self.env, "--steps", str(self.steps), "--seeds", *seeds]
        words += ["--preset", self.preset]
        for name, value in self.settings:
            words += flags(name, value)
        return [*words, "--out", run]

    def plain(self) -> dict[str, Any]:
        """The cell in JSON's types."""
        return dataclasses.asdict(self)


def flags(name: str, value: Any) -> list[str]:
    """A setting as the command line takes it."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, dict):
        return [word for inner, v in value.items() for word in flags(f"{name}.{inner}", v)]
    if isinstance(value, bool):
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    if isinstance(value, list | tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]
