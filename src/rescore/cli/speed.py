"""`rescore bench speed`."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescore.algorithms import REGISTRY, find, presets_of
from rescore.bench.speed import Case, measure, scaling
from rescore.bench.speed_tables import best, compare, tables
from rescore.core import UsageError
from rescore.files.machine import surroundings
from rescore.files.run_record import append_result


@dataclass(frozen=True)
class Speed:
    """Measure what replay learners cost on this machine, and print ratios.

    An iteration is that of the paper's comparison: five steps of the environment, acting, one
    update of 256 transitions, through the real training loop. Every case runs in a process of its
    own, one after the other: leave the machine alone meanwhile. DPMD and SDAC are compared with
    the work of the released code by JAX alone, SAC with an update written without this library.
    """

    algos: tuple[str, ...] = ()  # replay learners, see `rescore list`; default all
    presets: tuple[str, ...] = ("default",)  # of each algorithm, where it has them
    env: str = "HalfCheetah-v4"
    seconds: float = 2.0  # for each figure, about
    rounds: int = 1  # through all cases, minutes apart; the best of each figure counts
    scaling: bool = False  # also against candidates, steps, width, batch, observation, seeds
    json: bool = False  # print one JSON object instead of tables
    record: Path | None = None  # append the figures as one JSON line to this file

    def execute(self) -> int:
        if not self.seconds > 0:
            raise UsageError(f"--seconds must be positive, not {self.seconds}")
        if self.rounds < 1:
            raise UsageError(f"--rounds must be at least 1, not {self.rounds}")
        names = self.algos or tuple(name for name in REGISTRY if find(name).source == "replay")
        for name in names:
            if find(name).source != "replay":
                raise UsageError(f"{name} learns from rollouts: its iteration is another thing")
        shared: dict[str, Any] = {"env": self.env, "seconds": self.seconds}
        cases = [
            Case(name, preset, **shared)
            for name in names
            for preset in self.presets
            if preset in presets_of(name)
        ]
        if not cases:
            raise UsageError(f"none of these algorithms has a preset {' or '.join(self.presets)}")
        reference = [Case(name, "released", **shared) for name in ("dpmd", "sdac") if name in names]
        reference += [Case("bare", **shared)] if "sac" in names else []
        # Not the comparison's rhythm: the policy acts four vector steps before it learns.
        reference += [Case(name, chunk=4, **shared) for name in ("dpmd", "sdac") if name in names]
        figures: dict[str, Any] = {"cases": {}, "ratios": {}, "scaling": {}}
        status = "cut short"
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            every = [*cases, *(case for case in reference if case not in cases)]
            for case in self.rounds * every:
                self.say(f"measuring {case.label}")
                figures["cases"][case.label] = best(figures["cases"].get(case.label), measure(case))
            for name in names if self.scaling else ():
                scales = figures["scaling"].setdefault(name, {})
                for what, value, case in scaling(name, self.seconds):
                    self.say(f"measuring {name}, {what}: {value}")
                    scales.setdefault(what, {})[value] = measure(case)
            status = "finished"
        finally:  # nothing that was measured is lost by an error, Ctrl-C or SIGTERM
            signal.signal(signal.SIGTERM, before)
            figures["ratios"] = compare(figures["cases"])
            if self.record and figures["cases"]:
                here = {"benchmark": "speed", "env": self.env, "status": status}
                here |= surroundings()
                append_result(self.record, {**here, "figures": figures})
            print(json.dumps(figures) if self.json else tables(figures))
        return 0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
