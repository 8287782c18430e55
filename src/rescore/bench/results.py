"""Rows as what the report needs: algorithms by tasks, checked to be comparable, with references."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from rescore.bench.matrix import read_plan
from rescore.bench.rows import Row, find_rows
from rescore.bench.suites import SUITES, Plan
from rescore.core import UsageError

PHYSICS = ("gymnasium", "mujoco")  # versions that decide what a task is


@dataclass(frozen=True)
class Results:
    """The rows of one matrix, and the cells that it asked for."""

    folder: Path
    plan: Plan
    rows: tuple[Row, ...]

    @property
    def labels(self) -> list[str]:
        """Algorithms, or the variants of a study, in the order of the plan."""
        variants = SUITES[self.plan.suite].variants
        return [f"{a} {v}".strip() for a in self.plan.algorithms for v in variants]

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.plan.tasks

    @property
    def is_study(self) -> bool:
        return len(SUITES[self.plan.suite].variants) > 1

    def of(self, label: str, task: str) -> list[Row]:
        """The rows of one algorithm on one task, by seed."""
        return [row for row in self.rows if row.label == label and row.env == task]

    def scores(
        self, label: str, tasks: Sequence[str], measure: Callable, normal: bool = False
    ) -> list[np.ndarray]:
        """A number per run for each task, normalised if asked."""
        found = [np.array([measure(row.curve) for row in self.of(label, t)]) for t in tasks]
        if not normal:
            return found
        bounds = [reference(task) for task in tasks]
        return [(s - low) / (high - low) for s, (low, high) in zip(found, bounds)]

    def present(self) -> list[str]:
        """Labels with at least one row."""
        return [label for label in self.labels if any(row.label == label for row in self.rows)]

    def common(self) -> list[str]:
        """Tasks with a reference and rows of every algorithm that has rows at all."""
        return [
            task
            for task in self.tasks
            if reference(task) and all(self.of(label, task) for label in self.present())
        ]

    def versions(self) -> dict[str, list[str]]:
        """Versions of the physics that the rows were made with."""
        return {
            name: sorted({str(row.versions.get(name)) for row in self.rows}) for name in PHYSICS
        }


def load(folder: Path) -> Results:
    """The results of a folder; rows that cannot be compared with each other are refused."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the --out of `rescore bench run`")
    plan, rows = read_plan(folder), find_rows(folder)
    if not rows:
        raise UsageError(f"{folder} holds no result yet: run its cells with `rescore bench run`")
    demand_one_version(folder, rows)
    for row in rows:
        if plan.steps is not None and row.steps != plan.steps:
            raise UsageError(f"{row.file} has {row.steps:,} steps, the plan {plan.steps:,}")
    return Results(folder, plan, tuple(rows))


def demand_one_version(folder: Path, rows: Sequence[Row]) -> None:
    """Refuse two versions of a task or of its physics: their returns mean different things."""
    seen: dict[tuple[str, str], tuple[str, Row]] = {}
    for row in rows:
        task = row.env.rpartition("-")[0]
        told = {"version": row.env, **{name: row.versions.get(name) for name in PHYSICS}}
        for name, value in told.items():
            first, other = seen.setdefault((task, name), (value, row))
            if first != value:
                what = "" if name == "version" else f"{name} "
                raise UsageError(
                    f"{folder} mixes {what}{first} ({other.file}) and {value} ({row.file}) on "
                    f"{task}, which are different tasks: keep them in folders of their own"
                )


@cache
def data(name: str) -> dict[str, Any]:
    """A data file of this package."""
    return json.loads((files("rescore.bench") / "data" / f"{name}.json").read_text("utf-8"))


def published(task: str) -> dict[str, list[float]]:
    """The paper's Table 1 on this task, by algorithm: mean and deviation; empty if not in it."""
    return data("published")["returns"]["tasks"].get(task.rpartition("-")[0], {})


def reference(task: str) -> tuple[float, float] | None:
    """What normalised scores call 0 and 1: random actions, and the paper's best mean."""
    random, best = data("random")["tasks"].get(task), published(task)
    return (random["mean"], max(mean for mean, _ in best.values())) if random and best else None
