"""What is measured: named sets of tasks with budgets, and the studies of the paper's section 5."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rescore.algorithms import REGISTRY, find, known
from rescore.algorithms.presets import COMPARISON
from rescore.bench.cells import Cell
from rescore.core import UsageError


@dataclass(frozen=True)
class Suite:
    """Tasks with their environment steps, and what differs from a preset when they are run."""

    about: str
    tasks: Mapping[str, int]  # Gymnasium id -> environment steps
    algorithms: tuple[str, ...] = tuple(REGISTRY)
    training: Mapping[str, Any] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)  # only for learners from replay
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    evaluations: int = 20  # of a run, evenly spread: every 50k steps of the paper's million


NAMES = ("HalfCheetah", "Reacher", "Humanoid", "Pusher", "InvertedPendulum")
NAMES += ("Ant", "Hopper", "Swimmer", "Walker2d", "InvertedDoublePendulum")


def unversioned(task: str) -> str:
    """Ant of Ant-v4; an id without version as it is."""
    return re.sub(r"-v\d+$", "", task)


def paper_tasks(version: str) -> dict[str, int]:
    """The ten tasks of Table 1 in its order; Humanoid is trained five times as long."""
    # Pusher-v4 refuses MuJoCo 3, so its place is taken by v5 and called so everywhere.
    ids = {name: f"{name}-{'v5' if name == 'Pusher' else version}" for name in NAMES}
    return {ids[name]: 5_000_000 if name == "Humanoid" else 1_000_000 for name in NAMES}


# Five environments and an update for every fifth step, whatever the preset samples.
PAPER = {"eval_episodes": COMPARISON["eval_episodes"], "keep_checkpoints": 1}
RHYTHM = {name: COMPARISON[name] for name in ("num_envs", "utd", "chunk", "warmup")}
ANT = {"tasks": {"Ant-v4": 1_000_000}, "algorithms": ("dpmd",), "training": PAPER, "replay": RHYTHM}

# How much work an update needs. Each variant changes one thing of what was the default when the
# study began; `8 x 20`, best of 8 samples of 20 steps, stands for the work of the released code.
# One environment and one update per step, where returns rise within few updates.
FRONTIER_TASKS = {"HalfCheetah-v4": 15_000, "Hopper-v4": 15_000}
FRONTIER_TASKS |= {"InvertedDoublePendulum-v4": 15_000, "Reacher-v4": 8_000}
BEGINNING = {"T": 10, "act_candidates": 4, "target_candidates": 1, "noisy_copies": 4}
BEGINNING |= {"policy_delay": 2, "ranking_critics": None}
DEEP = {"hidden": (256, 256, 256)}
FRONTIER = {
    "default": {},
    # Best of so many samples of so many steps, each with noise of its own.
    **{
        f"{n} x {T}": {"target_candidates": n, "T": T, "noisy_copies": 1}
        for n, T in ((8, 20), (8, 5), (4, 5), (4, 3))
    },
    **{f"T={T}": {"T": T} for T in (3, 5, 20)},
    **{f"candidates={n}": {"target_candidates": n} for n in (2, 4)},
    **{f"copies={n}": {"noisy_copies": n} for n in (1, 8, 16)},
    "act=1": {"act_candidates": 1},
    "delay=1": {"policy_delay": 1},
    # These have candidates enough without noisy copies.
    **{f"candidates={n}": {"target_candidates": n, "noisy_copies": 1} for n in (8, 32)},
}
OF_DPMD = {"own samples": {"loss_at": "obs"}}
OF_DPMD |= {"three layers T=5": DEEP | {"T": 5}}
OF_DPMD |= {"4 x 3 one judge": FRONTIER["4 x 3"] | {"ranking_critics": 1}}
OF_SDAC = {f"K={k}": {"reverse_draws": k, "near_draws": k // 2} for k in (4, 8, 32)}
OF_SDAC |= {"own samples": {"proposal": "perturbed_policy"}}
OF_SDAC |= {"T=5 K=8": {"T": 5, "reverse_draws": 8, "near_draws": 4}}
OF_SDAC |= {f"{n} x {T} K=8": FRONTIER[f"{n} x {T}"] | OF_SDAC["K=8"] for n, T in ((4, 5), (4, 3))}
OF_SDAC |= {"three layers T=5 K=8": DEEP | OF_SDAC["T=5 K=8"]}
OF_SDAC |= {f"T={T} K=8 one judge": OF_SDAC["K=8"] | {"T": T, "ranking_critics": 1} for T in (5, 3)}
OF_SDAC |= {"T=3 K=4 one judge": OF_SDAC["K=4"] | {"T": 3, "ranking_critics": 1, "noisy_copies": 2}}
FRONTIER_SDAC = BEGINNING | {"reverse_draws": 16, "near_draws": 8}
WORK = {"training": {"eval_episodes": 5, "keep_checkpoints": 1}, "replay": {"warmup": 2_000}}

# Where a run in the paper's rhythm settles: each variant changes one thing of that default.
LEVERS = {
    "default": {},
    "4 x 3": FRONTIER["4 x 3"],
    "three layers": DEEP,
    "three layers T=5": DEEP | {"T": 5},
    "reward x 0.2": {"reward_scale": 0.2},
    "noise to 0.05": {"noise": {"init": 0.5, "target": 0.05}},
    "copies=8": {"noisy_copies": 8},
    "slow targets": {"polyak_rate": 0.005},
    "4 x 3 one judge": FRONTIER["4 x 3"] | {"ranking_critics": 1},
    "T=3 one judge": {"T": 3, "ranking_critics": 1},
}
LONGER = {"tasks": {"HalfCheetah-v4": 300_000}, "training": PAPER, "replay": RHYTHM}
LONGER |= {"evaluations": 6}  # every 50k steps, as in the paper
LEVERS_SDAC = {"T=3 K=4 one judge": OF_SDAC["T=3 K=4 one judge"]}

SUITES = {
    "mujoco": Suite(
        "the ten tasks of the paper's Table 1, v4 (Pusher v5), 1M steps, Humanoid 5M",
        paper_tasks("v4"),
        training=PAPER,
        replay=RHYTHM,
    ),
    "mujoco-v5": Suite(
        "the same ten tasks as v5, which observe and reward differently",
        paper_tasks("v5"),
        training=PAPER,
        replay=RHYTHM,
    ),
    "small": Suite(
        "two tasks that take minutes on two cores: a look at the whole path, not a result",
        {"InvertedPendulum-v4": 6_000, "Reacher-v4": 6_000},
        algorithms=("dpmd", "sac"),
        training={"keep_checkpoints": 1},
        replay={"warmup": 1_000},
    ),
    "steps": Suite(
        "sensitivity of DPMD to the number of diffusion steps on Ant: T = 10, 20, 30",
        variants={f"T={T}": {"T": T} for T in (10, 20, 30)},
        **ANT,
    ),
    "schedules": Suite(
        "sensitivity of DPMD to the noise schedule on Ant: linear, cosine, vp",
        variants={name: {"schedule": name} for name in ("linear", "cosine", "vp")},
        **ANT,
    ),
    "frontier": Suite(
        "work against return of DPMD: candidates, steps, shared samples, particles, delay",
        FRONTIER_TASKS,
        algorithms=("dpmd",),
        variants={name: BEGINNING | own for name, own in (FRONTIER | OF_DPMD).items()},
        evaluations=10,
        **WORK,
    ),
    "frontier-sdac": Suite(
        "the same of SDAC, with its reverse draws",
        FRONTIER_TASKS,
        algorithms=("sdac",),
        variants={name: FRONTIER_SDAC | own for name, own in (FRONTIER | OF_SDAC).items()},
        evaluations=10,
        **WORK,
    ),
    "levers": Suite(
        "what moves the return of longer runs: depth, scale of rewards, noise, slow copies",
        algorithms=("dpmd",),
        variants={name: BEGINNING | own for name, own in LEVERS.items()},
        **LONGER,
    ),
    "levers-sdac": Suite(
        "the same of what only SDAC has",
        algorithms=("sdac",),
        variants={name: BEGINNING | own for name, own in LEVERS_SDAC.items()},
        **LONGER,
    ),
}


@dataclass(frozen=True)
class Plan:
    """What one matrix measures; a folder of results holds one plan, whose lists may grow."""

    suite: str
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: int  # seeds 0 to seeds - 1
    preset: str = "default"
    steps: int | None = None  # for every task; None means the suite's budgets
    group: int = 1  # seeds trained side by side in one cell
    settings: tuple[tuple[str, Any], ...] = ()  # over preset and suite

    def __post_init__(self):
        for name in ("seeds", "group", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name} must be at least 1, not {value}")
        if self.seeds % self.group:  # else a seed would be in two cells once there are more seeds
            raise UsageError(f"--seeds {self.seeds} cannot be shared by groups of {self.group}")
        names = [unversioned(task) for task in dict.fromkeys(self.tasks)]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two versions of {name} are different tasks: use two folders")

    @property
    def fixed(self) -> dict[str, Any]:
        """What may not change from one command to the next in the same folder."""
        return {
            "suite": self.suite,
            "preset": self.preset,
            "steps": self.steps,
            "group": self.group,
            "settings": sorted(list(pair) for pair in self.settings),
        }


def plan(
    suite: str,
    algorithms: Sequence[str] = (),
    tasks: Sequence[str] = (),
    **choices: Any,
) -> Plan:
    """A checked plan; nothing asked for means all of the suite."""
    chosen = SUITES[known(suite, SUITES, "suite")]
    algorithms = tuple(algorithms) or chosen.algorithms
    for name in algorithms:
        known(name, REGISTRY, "algorithm")
    every = not tasks or tuple(tasks) == ("all",)
    named = tuple(chosen.tasks) if every else [task_id(task, chosen) for task in tasks]
    named = tuple(dict.fromkeys(named))
    return Plan(suite, algorithms, named, **choices)


def task_id(name: str, suite: Suite) -> str:
    """A task of the suite by its id or by its name without version; or any other Gymnasium id."""
    for task in suite.tasks:
        if name in (task, unversioned(task)):
            return task
    import gymnasium

    from rescore.envs import probes

    probes.register()
    if name in gymnasium.registry:
        return name
    return known(name, suite.tasks, "task")


def cells(plan: Plan) -> list[Cell]:
    """All cells, one seed of every variant, task and algorithm before the second seed of any."""
    suite = SUITES[plan.suite]
    groups = [
        tuple(range(first, min(first + plan.group, plan.seeds)))
        for first in range(0, plan.seeds, plan.group)
    ]
    return [
        cell(plan, suite, algorithm, task, variant, group)
        for group in groups
        for variant in suite.variants
        for task in plan.tasks
        for algorithm in plan.algorithms
    ]


def cell(
    plan: Plan, suite: Suite, algorithm: str, env: str, variant: str, seeds: tuple[int, ...]
) -> Cell:
    """One cell: the suite's settings, those of its variant, and those that were asked for."""
    steps = plan.steps or suite.tasks.get(env)
    if steps is None:
        raise UsageError(f"{env} is no task of the suite {plan.suite}: say --steps for it")
    learns_from_replay = find(algorithm).source == "replay"
    every = math.ceil(steps / suite.evaluations)
    settings = {
        **suite.training,
        **(suite.replay if learns_from_replay else {}),
        "eval_every": every,
        "checkpoint_every": every,
        **suite.variants[variant],
        **dict(plan.settings),
    }
    return Cell(env, algorithm, seeds, steps, plan.preset, tuple(settings.items()), variant)
