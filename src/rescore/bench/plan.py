"""A plan: which cells of a suite a matrix has. A cell is one training run."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rescore.algorithms import REGISTRY, find
from rescore.bench.suites import (
    SUITES,
    Suite,
    find_suite,
    make_suite,
    registered_tasks,
    unversioned,
)
from rescore.core import UsageError, did_you_mean, known
from rescore.files.json import plain
from rescore.training.config import Training, configure, overlaid


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
        own = {f.name for f in dataclasses.fields(find(self.algorithm))}
        every = own | {f.name for f in dataclasses.fields(Training)}
        for name in sorted(settings.keys() - every):
            hint = did_you_mean(name, every, "see `rescore train ALGO --help`")
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


def flags(name: str, value: Any) -> list[str]:
    """A setting as the command line takes it."""
    name = name.replace("_", "-")
    flag = f"--{name}"
    if isinstance(value, dict):
        return [word for inner, v in value.items() for word in flags(f"{name}.{inner}", v)]
    if isinstance(value, bool):
        *parts, last = name.split(".")
        return [flag if value else f"--{'.'.join([*parts, f'no-{last}'])}"]
    if isinstance(value, list | tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]


@dataclass(frozen=True)
class Plan:
    """What one matrix measures; a folder of results holds one plan, whose lists may grow."""

    suite: Suite
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: Mapping[str, int]  # of each algorithm: seeds 0 to n - 1
    preset: str = "default"
    steps: int | None = None  # for every task; None means the suite's budgets
    group: int = 1  # seeds trained side by side in one cell
    settings: tuple[tuple[str, Any], ...] = ()  # over preset and suite

    def __post_init__(self):
        counts = [("group", self.group), ("steps", self.steps)]
        counts += [("seeds", n) for n in self.seeds.values()]
        for name, value in counts:
            if value is not None and value < 1:
                raise UsageError(f"--{name} must be at least 1, not {value}")
        for n in self.seeds.values():
            if n % self.group:  # else a seed would be in two cells once there are more seeds
                raise UsageError(f"--seeds {n} cannot be shared by groups of {self.group}")
        name = self.suite.name  # this and those below may come from a file, and become paths
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w .+-]*", name):
            raise UsageError(f"{name!r} is no name of a suite: letters, digits, dots and hyphens")
        for name in (*self.tasks, *self.suite.variants):
            if ":" in name or ".." in name:
                raise UsageError(f"{name!r} is no plain id: it would name a module or a folder")
        names = [unversioned(task) for task in dict.fromkeys(self.tasks)]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two versions of {name} are different tasks: use two folders")

    @property
    def labels(self) -> list[str]:
        """Algorithms, or the variants of a study, as tables and figures call them."""
        return [f"{a} {v}".strip() for a in self.algorithms for v in self.suite.variants]

    def seeds_of(self, label: str) -> int:
        """How many seeds a row of a table has."""
        return self.seeds[label.split()[0]]

    def budget(self, algorithm: str, env: str) -> int | None:
        """Environment steps of a cell; none: the suite does not say, and nobody else did."""
        own = self.suite.algorithms.get(algorithm, {})
        return self.steps or own.get("steps") or self.suite.tasks.get(env)

    def plain(self) -> dict[str, Any]:
        """In JSON's types: a suite of the package by its name, any other as it is."""
        content = plain(self)
        if SUITES.get(self.suite.name) == self.suite:
            content["suite"] = self.suite.name
        return content

    @classmethod
    def of_plain(cls, content: dict[str, Any]) -> Plan:
        """The plan that `plain` gave."""
        suite = content["suite"]
        made = find_suite(suite) if isinstance(suite, str) else make_suite(suite)
        lists = {name: tuple(content[name]) for name in ("algorithms", "tasks")}
        settings = tuple((name, value) for name, value in content["settings"])
        seeds = content["seeds"]
        if isinstance(seeds, int):  # of every algorithm
            seeds = dict.fromkeys(lists["algorithms"], seeds)
        return cls(**{**content, **lists, "suite": made, "settings": settings, "seeds": seeds})


def plan(
    suite: str | Suite,
    algorithms: Sequence[str] = (),
    tasks: Sequence[str] = (),
    seeds: int | None = None,
    preset: str | None = None,
    **choices: Any,
) -> Plan:
    """A checked plan; nothing asked for means all of the suite."""
    chosen = find_suite(suite) if isinstance(suite, str) else suite
    algorithms = tuple(algorithms) or tuple(chosen.algorithms)
    for name in algorithms:
        known(name, REGISTRY, "algorithm")
    every = not tasks or tuple(tasks) == ("all",)
    named = chosen.tasks if every else [task_id(task, chosen) for task in tasks]
    counts = {
        name: chosen.algorithms.get(name, {}).get("seeds", chosen.seeds) if seeds is None else seeds
        for name in algorithms
    }
    return Plan(
        chosen, algorithms, tuple(dict.fromkeys(named)), counts, preset or chosen.preset, **choices
    )


def task_id(name: str, suite: Suite) -> str:
    """A task of the suite by its id or by its name without version; or any other Gymnasium id."""
    for task in suite.tasks:
        if name in (task, unversioned(task)):
            return task
    return name if name in registered_tasks() else known(name, suite.tasks, "task")


def cells(plan: Plan) -> list[Cell]:
    """All cells, one seed of every variant, task and algorithm before the second seed of any."""
    most = max(plan.seeds.values(), default=0)
    groups = [tuple(range(first, first + plan.group)) for first in range(0, most, plan.group)]
    return [
        cell(plan, algorithm, task, variant, group)
        for group in groups
        for variant in plan.suite.variants
        for task in plan.tasks
        for algorithm in plan.algorithms
        if group[-1] < plan.seeds[algorithm]
    ]


def cell(plan: Plan, algorithm: str, env: str, variant: str, seeds: tuple[int, ...]) -> Cell:
    """One cell: settings of the suite, the algorithm, the variant, and those asked for."""
    suite = plan.suite
    own = suite.algorithms.get(algorithm, {})
    own = {name: value for name, value in own.items() if name not in ("seeds", "steps")}
    steps = plan.budget(algorithm, env)
    if steps is None:
        raise UsageError(f"{env} is no task of the suite {suite.name}: say --steps for it")
    every = math.ceil(steps / suite.evaluations)
    settings = {
        **suite.settings,
        **(suite.replay if find(algorithm).source == "replay" else {}),
        "eval_every": every,
        "checkpoint_every": every,
    }
    for over in (own, suite.variants[variant], dict(plan.settings)):
        settings = overlaid(settings, over)
    preset = settings.pop("preset", plan.preset)
    return Cell(env, algorithm, seeds, steps, preset, tuple(sorted(settings.items())), variant)
