"""What a matrix shows while it works: a line per event, and the running cells now and then.

Everything is read from the cells' folders, so it is the same for any way to run them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from rescore.bench.matrix import CellFolder, Outcome
from rescore.core import UsageError
from rescore.files.logs import read_eval
from rescore.show.text import duration, number, steps

EVERY_S = 30.0  # seconds between looks at the running cells
TAIL_BYTES = 4_096


def glance(folder: CellFolder) -> tuple[int, float | None, float | None]:
    """Steps, return of the newest evaluation (else of training) and seconds left, from its logs;
    a file that is just being written counts as not there."""
    row = last_row(folder.run / "metrics.jsonl")
    if row is None:
        return 0, None, None
    try:
        evaluations = read_eval(folder.run)
    except UsageError:
        evaluations = []
    newest = [e.return_ for e in evaluations if e.env_steps == evaluations[-1].env_steps]
    shown = sum(newest) / len(newest) if newest else row.get("return")
    return row["env_steps"], shown, row.get("eta_s")


def last_row(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of JSON objects."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")
        return json.loads(lines[-2]) if len(lines) > 1 else None
    except (OSError, ValueError):
        return None


class Board:
    """Follows the cells of a matrix."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream, self.clock = stream or sys.stdout, clock
        self.began = self.shown_at = clock()
        self.cells = self.done_here = 0
        self.states: Counter[str] = Counter()
        self.running: list[CellFolder] = []
        self.waiting = 0

    def start(self, cells: int, finished: int) -> None:
        self.cells, self.began = cells, self.clock()
        self.states["finished"] = finished

    def refresh(self, running: Iterable[CellFolder], waiting: int) -> None:
        self.running, self.waiting = list(running), waiting
        if self.clock() - self.shown_at >= EVERY_S:
            self.shown_at = self.clock()
            self.show()

    def settled(self, folder: CellFolder, outcome: Outcome) -> None:
        self.states[outcome.state] += 1
        self.done_here += outcome.state == "finished"
        detail = f" ({outcome.detail})" if outcome.detail else ""
        self.message(f"{outcome.state}  {folder.cell.name}{detail}")

    def message(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone, the work goes on
            print(line, file=self.stream, flush=True)

    def show(self) -> None:
        self.message(self.summary())
        for folder in self.running:
            self.message("  " + "  ".join(describe(folder)))

    def stop(self) -> None:
        """Shows the last state."""
        self.running, self.waiting = [], 0
        self.show()

    def summary(self) -> str:
        """How many cells are in which state, and how long it may take."""
        elapsed, left = self.clock() - self.began, len(self.running) + self.waiting
        parts = [f"{self.states['finished']} of {self.cells} cells finished"]
        parts.append(f"{len(self.running)} running")
        parts += [f"{self.waiting} waiting"] if self.waiting else []
        parts += [f"{self.states['failed']} failed"] if self.states["failed"] else []
        parts.append(f"{duration(elapsed)} so far")
        if self.done_here and left:
            parts.append(f"about {duration(elapsed / self.done_here * left)} to go")
        return ", ".join(parts)


def describe(folder: CellFolder) -> list[str]:
    """Name, progress, return and time left of a cell."""
    at, shown, left = glance(folder)
    total = folder.cell.steps
    parts = [folder.cell.name, f"{100 * at // total:3d} % {steps(at)}/{steps(total)}"]
    if at:
        parts.append("-" if shown is None else number(shown))
        parts.append("-" if left is None else duration(left))
    return parts
