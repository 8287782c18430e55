"""What an algorithm costs: each case in a process of its own, so that compilation and memory of one
do not touch another's.

An iteration is five environment steps and what is learned from them: one update in the paper's
comparison, or their share of a rollout's update.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rescore.algorithms import REGISTRY, find, presets_of
from rescore.bench.speed_tables import best
from rescore.core import UsageError

WORKER = "rescore.bench.speed_worker"
AGAINST_RELEASED = ("dpmd", "sdac")  # held against the work of the authors' code
SCALING: dict[str, tuple[str, Sequence[int]]] = {
    "candidates in the target": ("target_candidates", (1, 2, 4, 8, 32)),
    "denoising steps T": ("T", (3, 5, 10, 20)),
    "width of two layers": ("hidden", (64, 128, 256, 512)),
    "batch size": ("batch_size", (64, 256, 1024)),
    "size of the observation": ("obs_dim", (17, 111, 376)),
    "seeds in one program": ("seeds", (1, 2, 5)),
}


@dataclass(frozen=True)
class Case:
    """One thing to measure: an algorithm, or `bare` (SAC without this library) or `peak`."""

    algo: str
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    chunk: int = 1  # vector steps with one policy, then as many updates in one call
    seeds: int = 1
    batch_size: int = 256
    obs_dim: int | None = None  # a number measures the update alone, on made-up transitions
    env: str = "HalfCheetah-v4"
    seconds: float = 2.0  # for each figure, about

    @property
    def label(self) -> str:
        parts = [self.algo, self.preset, *(f"{k}={v}" for k, v in self.settings.items())]
        parts += [f"chunk={self.chunk}"] if self.chunk > 1 else []
        return " ".join(parts)

    @property
    def command(self) -> list[str]:
        """The program that measures it and prints its figures as one JSON object."""
        return [sys.executable, "-m", WORKER, json.dumps(self.__dict__)]


def measure(case: Case) -> dict[str, Any]:
    """The figures of a case, from a fresh process."""
    # Compiling counts, so nothing may be remembered from an earlier run.
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(case.command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{case.label} could not be measured: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def comparison(
    algos: Sequence[str], presets: Sequence[str], env: str, seconds: float
) -> list[Case]:
    """The cases that were asked for, and those that their ratios need."""
    shared = {"env": env, "seconds": seconds}
    names = algos or tuple(REGISTRY)
    asked = [(name, preset) for name in names for preset in presets if preset in presets_of(name)]
    if not asked:
        raise UsageError(f"none of these algorithms has a preset {' or '.join(presets)}")
    cases = [Case(name, preset, **shared) for name, preset in asked]
    ours = [name for name in AGAINST_RELEASED if name in names]
    cases += [Case(name, "released", **shared) for name in ours]
    cases += [Case("bare", **shared)] if "sac" in names else []
    # Not the comparison's rhythm: the policy acts four vector steps before it learns.
    cases += [Case(name, chunk=4, **shared) for name in ours]
    return list({case.label: case for case in cases}.values())


def survey(
    cases: Sequence[Case], rounds: int, figures: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Measure all cases in turn, the best of the rounds, into `figures["cases"]`."""
    found = figures["cases"]
    for case in rounds * list(cases):
        say(f"measuring {case.label}")
        found[case.label] = best(found.get(case.label), measure(case))


def survey_scaling(
    algo: str, seconds: float, figures: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Measure how an update's cost grows, into `figures["scaling"]`."""
    scales = figures["scaling"].setdefault(algo, {})
    for what, value, case in scaling(algo, seconds):
        say(f"measuring {algo}, {what}: {value}")
        scales.setdefault(what, {})[value] = measure(case)


def scaling(algo: str, seconds: float) -> list[tuple[str, int, Case]]:
    """Cases that change one thing of the default each, as far as the algorithm has it."""
    of_case = {"batch_size", "obs_dim", "seeds"}
    own = {f.name for f in fields(find(algo))} | of_case
    found = []
    for what, (name, values) in SCALING.items():
        for value in values if name in own and find(algo).source == "replay" else ():
            change: dict[str, Any] = {"obs_dim": 17, "seconds": seconds}
            if name in of_case:
                change[name] = value
            else:
                change["settings"] = {name: (value, value) if name == "hidden" else value}
            found.append((what, value, Case(algo, **change)))
    return found
