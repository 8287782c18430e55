"""What an algorithm costs: each case in a process of its own, so that compilation and memory of one
do not touch another's.

An iteration is five environment steps and what is learned from them: one update in the paper's
comparison, or their share of a rollout's update.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rescore.algorithms import REGISTRY, presets_of
from rescore.algorithms.presets import COMPARISON
from rescore.bench.published import published_cost
from rescore.core import UsageError
from rescore.show.text import number, table

WORKER = "rescore.bench.speed_worker"
AGAINST_RELEASED = ("dpmd", "sdac")  # held against the work of the authors' code
COLUMNS = {
    "iteration_ms": "iteration, ms",
    "steps_per_s": "env steps/s",
    "update_ms": "update, ms",
    "act_ms": "act, ms",
    "predict_ms": "predict, ms",
    "env_step_ms": "env step, ms",
    "peak_mb": "peak MB",
    "compile_s": "compile, s",
}
ENVS = COMPARISON["num_envs"]
ITERATIONS = 200_000  # of the paper's Table 2, whose minutes are of an RTX 4090
TRIES = 5
SLOW_TRIES = 3  # of what takes longer than its share of seconds

Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    algo: str
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    chunk: int = 1  # vector steps with one policy, then as many updates in one call
    env: str = "HalfCheetah-v4"
    seconds: float = 2.0  # for each figure, about

    @property
    def label(self) -> str:
        parts = [self.algo, self.preset, *(f"{k}={v}" for k, v in self.settings.items())]
        parts += [f"chunk={self.chunk}"] if self.chunk > 1 else []
        return " ".join(parts)


def measure(case: Case) -> Figures:
    """The figures of a case, from a fresh process that prints them as one JSON object."""
    # Compiling counts, so nothing may be remembered from an earlier run.
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-m", WORKER, json.dumps(case.__dict__)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{case.label} could not be measured: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def best_ms(work: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of a call, the best of some tries that share the seconds."""
    work()
    began = time.perf_counter()
    work()
    once = time.perf_counter() - began
    calls = max(1, math.floor(seconds / TRIES / max(once, 1e-6)))
    times = []
    for _ in range(TRIES if once * TRIES < seconds else SLOW_TRIES):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - began) / calls)
    return 1e3 * min(times)


def comparison(
    algos: Sequence[str], presets: Sequence[str], env: str, seconds: float
) -> list[Case]:
    """The cases that were asked for, and those that their ratios need."""
    names = algos or tuple(REGISTRY)
    asked = [(name, preset) for name in names for preset in presets if preset in presets_of(name)]
    if not asked:
        raise UsageError(f"none of these algorithms has a preset {' or '.join(presets)}")
    ours = [name for name in AGAINST_RELEASED if name in names]
    asked += [(name, "released") for name in ours]
    cases = [Case(name, preset, env=env, seconds=seconds) for name, preset in asked]
    # Not the comparison's rhythm: the policy acts four vector steps before it learns.
    cases += [Case(name, chunk=4, env=env, seconds=seconds) for name in ours]
    return list({case.label: case for case in cases}.values())


def best(before: Figures | None, now: Figures) -> Figures:
    """Of two measurements of a case the better figures: other work only ever adds."""
    if before is None:
        return now
    return {n: (max if n == "steps_per_s" else min)(before[n], now[n]) for n in now}


def compare(found: dict[str, Figures]) -> Figures:
    """The ratios that were asked for, as far as their parts were measured."""
    ratios = {}
    for name in AGAINST_RELEASED:
        if (figures := found.get(f"{name} default")) is None:
            continue
        fast, minutes = figures["iteration_ms"], published_cost(name)[0]
        if (label := f"{name} released") in found:
            ratios[f"{label} / {name} default"] = found[label]["iteration_ms"] / fast
        if minutes is not None:
            paper = 60e3 * minutes / ITERATIONS
            ratios[f"{name} default / the paper's iteration on its GPU"] = fast / paper
    for label, figures in found.items():
        if "env_step_ms" in figures and "update_ms" not in figures:  # learners from rollouts
            alone = ENVS * figures["env_step_ms"]
            ratios[f"{label} / environments alone"] = alone / figures["iteration_ms"]
    if (sac := found.get("sac default")) is not None:
        for label, figures in found.items():
            if not label.startswith("sac"):
                ratios[f"{label} / sac default"] = figures["iteration_ms"] / sac["iteration_ms"]
    return ratios


def tables(cases: dict[str, Figures], ratios: Figures) -> str:
    """All of it for people, in Markdown."""
    rows = [
        [label, *(number(f[column]) if column in f else "" for column in COLUMNS)]
        for label, f in cases.items()
    ]
    parts = [table(["", *COLUMNS.values()], rows, aligned=True)] if rows else []
    lines = [[name, f"{value:.2f}"] for name, value in ratios.items()]
    parts += [table(["ratio", ""], lines, aligned=True)] if lines else []
    return "\n\n".join(parts)
