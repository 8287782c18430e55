"""What a matrix shows while it works: a live table on a terminal, plain lines elsewhere.

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
from typing import Any, NamedTuple, Protocol, TextIO

from rescore.bench.matrix import CellFolder, Outcome
from rescore.core import UsageError
from rescore.training.logs import read_eval
from rescore.training.progress import duration, number, steps

LIVE_EVERY_S = 1.0
PLAIN_EVERY_S = 60.0
SHOWN = 30  # rows of the table, so that it fits a screen
TAIL_BYTES = 4_096


class Glance(NamedTuple):
    """How far a cell's training is."""

    env_steps: int = 0
    return_: float | None = None  # of the newest evaluation, else of training
    eta_s: float | None = None


def glance(folder: CellFolder) -> Glance:
    """The newest rows of its logs; a file that is just being written counts as not there."""
    row = last_row(folder.run / "metrics.jsonl")
    if row is None:
        return Glance()
    try:
        evaluations = read_eval(folder.run)
    except UsageError:
        evaluations = []
    newest = [e.return_ for e in evaluations if e.env_steps == evaluations[-1].env_steps]
    shown = sum(newest) / len(newest) if newest else row.get("return")
    return Glance(row["env_steps"], shown, row.get("eta_s"))


def last_row(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of JSON objects."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")
        return json.loads(lines[-2]) if len(lines) > 1 else None
    except (OSError, ValueError):
        return None


class Board(Protocol):
    """Follows the cells of a matrix."""

    def start(self, cells: int, finished: int) -> None: ...

    def refresh(self, running: Iterable[CellFolder], waiting: int) -> None: ...

    def settled(self, folder: CellFolder, outcome: Outcome) -> None: ...

    def message(self, line: str) -> None: ...

    def stop(self) -> None: ...


def make_board(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Board:
    """A live table if the stream is a capable terminal, else plain lines."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown"):
        from rich.console import Console

        return LiveBoard(Console(file=stream, highlight=False), clock)
    return PlainBoard(stream, clock)


class Count:
    """How many cells are in which state, and how long it may take."""

    def __init__(self, clock: Callable[[], float]):
        self.clock, self.began = clock, clock()
        self.cells = 0
        self.states: Counter[str] = Counter()
        self.done_here = 0

    def start(self, cells: int, finished: int) -> None:
        self.cells, self.began = cells, self.clock()
        self.states["finished"] = finished

    def settled(self, outcome: Outcome) -> None:
        self.states[outcome.state] += 1
        self.done_here += outcome.state == "finished"

    def line(self, running: int, waiting: int) -> str:
        elapsed = self.clock() - self.began
        parts = [f"{self.states['finished']} of {self.cells} cells finished", f"{running} running"]
        parts += [f"{waiting} waiting"] if waiting else []
        parts += [f"{self.states['failed']} failed"] if self.states["failed"] else []
        parts.append(f"{duration(elapsed)} so far")
        if self.done_here and running + waiting:
            left = elapsed / self.done_here * (running + waiting)
            parts.append(f"about {duration(left)} to go")
        return ", ".join(parts)


class PlainBoard:
    """A line per event, and the state of the running cells once a minute."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._count, self._said_at = Count(clock), clock()

    def start(self, cells: int, finished: int) -> None:
        self._count.start(cells, finished)

    def refresh(self, running: Iterable[CellFolder], waiting: int) -> None:
        if self._clock() - self._said_at < PLAIN_EVERY_S:
            return
        self._said_at, running = self._clock(), list(running)
        self.message(self._count.line(len(running), waiting))
        for folder in running:
            self.message("  " + "  ".join(describe(folder)))

    def settled(self, folder: CellFolder, outcome: Outcome) -> None:
        self._count.settled(outcome)
        detail = f" ({outcome.detail})" if outcome.detail else ""
        self.message(f"{outcome.state}  {folder.cell.name}{detail}")

    def message(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone, the work goes on
            print(line, file=self._stream, flush=True)

    def stop(self) -> None:
        self.message(self._count.line(0, 0))


class LiveBoard:
    """The running cells as a table, redrawn in place; events scroll by above it."""

    def __init__(self, console: Any, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._count, self._drawn_at = Count(clock), 0.0
        self._running: list[CellFolder] = []
        self._waiting = 0
        self._live: Any = None

    def start(self, cells: int, finished: int) -> None:
        from rich.live import Live

        self._count.start(cells, finished)
        # We redraw when there is news, so there is no thread to outlive an interrupt.
        self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._draw)
        self._live.start(refresh=True)

    def refresh(self, running: Iterable[CellFolder], waiting: int) -> None:
        self._running, self._waiting = list(running), waiting
        if self._live is not None and self._clock() - self._drawn_at >= LIVE_EVERY_S:
            with contextlib.suppress(OSError):
                self._live.refresh()
            self._drawn_at = self._clock()

    def settled(self, folder: CellFolder, outcome: Outcome) -> None:
        self._count.settled(outcome)
        detail = f" ({outcome.detail})" if outcome.detail else ""
        self.message(f"{outcome.state}  {folder.cell.name}{detail}")

    def message(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(line, markup=False)

    def stop(self) -> None:
        """Draws the last state and gives the terminal back."""
        live, self._live = self._live, None
        if live is not None:
            self._running, self._waiting = [], 0
            with contextlib.suppress(OSError):
                live.stop()

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in ("cell", "", "progress"):
            table.add_column(head, no_wrap=True)
        for head in ("return", "left"):
            table.add_column(head, justify="right", no_wrap=True)
        for folder in self._running[:SHOWN]:
            seen = glance(folder)
            bar = ProgressBar(total=folder.cell.steps, completed=seen.env_steps, width=20)
            name, progress, *rest = describe(folder, seen)
            table.add_row(name, bar, progress, *rest)
        line = Text(self._count.line(len(self._running), self._waiting), style="bold")
        return Group(table, line) if self._running else line


def describe(folder: CellFolder, seen: Glance | None = None) -> list[str]:
    """Name, progress, return and time left of a cell."""
    seen = glance(folder) if seen is None else seen
    share = 100 * seen.env_steps // folder.cell.steps
    parts = [folder.cell.name, f"{share:3d} % {steps(seen.env_steps)}/{steps(folder.cell.steps)}"]
    if seen.env_steps:
        parts.append("-" if seen.return_ is None else number(seen.return_))
        parts.append("-" if seen.eta_s is None else duration(seen.eta_s))
    return parts
