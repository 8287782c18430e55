"""`rescore bench speed`."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from rescore.bench.speed import best, compare, comparison, measure, tables
from rescore.core import UsageError
from rescore.files.machine import surroundings
from rescore.files.run_record import append_result


@dataclass(frozen=True)
class Speed:
    """Measure what algorithms cost on this machine, and print ratios.

    An iteration is five steps of the environment, acting, and what is learned from them: in the
    paper's comparison one update of 256 transitions. It goes through the real training loop.
    Every case runs in a process of its own, one after the other: leave the machine alone
    meanwhile. DPMD and SDAC are compared with the work of the released code, learners from
    rollouts with their environments alone.
    """

    algos: tuple[str, ...] = ()  # see `rescore list`; default all
    presets: tuple[str, ...] = ("default",)  # of each algorithm, where it has them
    env: str = "HalfCheetah-v4"  # Gymnasium id
    seconds: float = 2.0  # for each figure, about
    rounds: int = 1  # through all cases, minutes apart; the best of each figure counts
    json: bool = False  # print one JSON object instead of tables
    record: Path | None = None  # append the figures as one JSON line to this file

    def execute(self) -> int:
        if not self.seconds > 0:
            raise UsageError(f"--seconds must be positive, not {self.seconds}")
        if self.rounds < 1:
            raise UsageError(f"--rounds must be at least 1, not {self.rounds}")
        cases = comparison(self.algos, self.presets, self.env, self.seconds)
        found: dict[str, dict[str, float]] = {}
        status = "cut short"
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for case in self.rounds * cases:
                print(f"measuring {case.label}", file=sys.stderr, flush=True)
                found[case.label] = best(found.get(case.label), measure(case))
            status = "finished"
        finally:  # nothing that was measured is lost by an error, Ctrl-C or SIGTERM
            signal.signal(signal.SIGTERM, before)
            self.conclude(found, status)
        return 0

    def conclude(self, found: dict[str, dict[str, float]], status: str) -> None:
        """Print and record what there is."""
        ratios = compare(found)
        figures = {"cases": found, "ratios": ratios}
        if self.record and found:
            here = {"benchmark": "speed", "env": self.env, "status": status}
            append_result(self.record, {**here, **surroundings(), "figures": figures})
        print(json.dumps(figures) if self.json else tables(found, ratios))
