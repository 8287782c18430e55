"""Rows as what the report needs: algorithms by tasks, checked to be comparable, with references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rescore.bench.matrix import read_plan
from rescore.bench.plan import Plan
from rescore.bench.published import reference
from rescore.bench.rows import Row, find_rows
from rescore.bench.suites import unversioned
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
        return self.plan.labels

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.plan.tasks

    @property
    def is_study(self) -> bool:
        return "" not in self.plan.suite.variants

    def of(self, label: str, task: str) -> list[Row]:
        """The rows of one algorithm on one task, by seed."""
        return [row for row in self.rows if row.label == label and row.env == task]

    def scores(
        self, label: str, tasks: Sequence[str], seeds: Sequence[int], measure: Callable
    ) -> list[np.ndarray]:
        """A normalised number per run of these seeds for each task."""
        found = []
        for task in tasks:
            known = reference(task)
            assert known is not None, "only tasks of `common` are scored"
            low, high = known
            own = [measure(row.curve) for row in self.of(label, task) if row.seed in seeds]
            found.append((np.array(own) - low) / (high - low))
        return found

    def present(self) -> list[str]:
        """Labels with at least one row."""
        return [label for label in self.labels if any(row.label == label for row in self.rows)]

    def common(self, labels: Sequence[str]) -> list[str]:
        """Tasks with a reference and rows of all these algorithms."""
        return [
            task
            for task in self.tasks
            if reference(task) and all(self.of(label, task) for label in labels)
        ]

    def shared_seeds(self, labels: Sequence[str], tasks: Sequence[str]) -> list[int]:
        """Seeds that all these algorithms have on all these tasks.

        Others would give a task more weight for one algorithm than for another.
        """
        own = [{row.seed for row in self.of(label, task)} for label in labels for task in tasks]
        return sorted(set.intersection(*own)) if own else []

    def with_seeds(self, count: int) -> list[str]:
        """Algorithms with so many seeds on every task of a reference that has rows of any."""
        tasks = [task for task in self.tasks if reference(task) and self.rows_of(task)]
        return [
            label
            for label in self.present()
            if tasks and len(self.shared_seeds([label], tasks)) >= count
        ]

    def rows_of(self, task: str) -> list[Row]:
        return [row for row in self.rows if row.env == task]


def load(folder: Path) -> Results:
    """The results of a folder; rows that cannot be compared with each other are refused."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the --out of `rescore bench run`")
    plan, rows = read_plan(folder), find_rows(folder)
    if not rows:
        raise UsageError(f"{folder} holds no result yet: run its cells with `rescore bench run`")
    results = Results(folder, plan, tuple(rows))
    demand_one_version(folder, rows)
    demand_one_plan(results)
    return results


def demand_one_plan(results: Results) -> None:
    """Refuse rows that are not of the plan, come twice, or were made with other settings."""
    plan = results.plan
    first: dict[tuple[str, str], Row] = {}
    seen: dict[tuple[str, str, int], Row] = {}
    for row in results.rows:
        if row.label not in results.labels or row.env not in results.tasks:
            raise UsageError(f"{row.file} is of no cell of {results.folder}/matrix.json: move it")
        steps = plan.budget(row.algorithm, row.env) or row.steps
        if row.steps != steps:
            raise UsageError(f"{row.file} has {row.steps:,} steps, the plan {steps:,}")
        other = seen.setdefault((row.label, row.env, row.seed), row)
        if other is not row:
            raise UsageError(f"{other.file} and {row.file} are of the same seed: move one of them")
        other = first.setdefault((row.label, row.env), row)
        for name in different(settings(row), settings(other)):
            raise UsageError(
                f"{other.file} and {row.file} differ in {name}, so they are no seeds of one "
                f"setting: keep them in folders of their own"
            )


def settings(row: Row) -> dict[str, Any]:
    """What all seeds of a cell have to share."""
    config = row.data.get("config", {})
    own = {**config.get("hyperparameters", {}), **config.get("training", {})}
    return {"preset": row.data.get("preset"), **own}


def different(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def demand_one_version(folder: Path, rows: Sequence[Row]) -> None:
    """Refuse two versions of a task or of its physics: their returns mean different things."""
    seen: dict[tuple[str, str], tuple[str, Row]] = {}
    for row in rows:
        task = unversioned(row.env)
        facts = {"version": row.env, **{name: row.versions.get(name) for name in PHYSICS}}
        for name, value in facts.items():
            first, other = seen.setdefault((task, name), (value, row))
            if first != value:
                what = "" if name == "version" else f"{name} "
                raise UsageError(
                    f"{folder} mixes {what}{first} ({other.file}) and {value} ({row.file}) on "
                    f"{task}, which are different tasks: keep them in folders of their own"
                )
