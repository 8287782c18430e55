"""What a run shows while it works: a live display on a terminal, plain lines elsewhere, or nothing.

What `update` is not told is left out, and what is not finite is shown as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from rescore.show.text import duration, number, pack, steps

PLAIN_EVERY_S = 5.0
LIVE_EVERY_S = 0.2
SHOWN_METRICS = 8

# Shown first, in this order, with names of their own.
LABELS = {
    "q": "Q",
    "critic_loss": "critic",
    "policy_loss": "policy",
    "lam": "lam",
    "noise": "noise",
    "ess": "ESS of weights",
}


class Progress:
    """Follows a run and shows nothing; `info` may hold return, steps_per_s, update_ms, env_ms,
    eta_s, eval and metrics.

    `eval` is a dict of env_steps, mean, std, episodes, best, best_at; `metrics` maps names to
    floats. What an update leaves out stays as it was.
    """

    def start(self, header: list[str], total: int, done: int = 0, warmup: int = 0) -> None:
        """`warmup`: first steps whose pace says nothing about that of the others."""

    def update(self, env_steps: int, info: Mapping[str, Any]) -> None: ...

    def moved(self, env_steps: int) -> None:
        """Report the current step between two updates."""

    def message(self, line: str) -> None: ...

    def stop(self) -> None: ...


def make_progress(stream: TextIO | None = None, quiet: bool = False) -> Progress:
    """A live display on a capable terminal, one line in a notebook, else lines; or silence."""
    stream = sys.stdout if stream is None else stream
    if quiet:
        return Progress()
    if stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown"):
        from rich.console import Console

        return LiveProgress(Console(file=stream, highlight=False))
    if type(stream).__module__.startswith("ipykernel"):
        return NotebookProgress(stream)
    return PlainProgress(stream)


@contextlib.contextmanager
def although_nobody_reads() -> Iterator[None]:
    """A terminal that was closed, or a pipe to `head`, costs the display and not the run."""
    # rich ends a program whose pipe is broken by SystemExit.
    with contextlib.suppress(OSError, SystemExit):
        yield


class PlainProgress(Progress):
    """One line per update, at most one in five seconds; evaluations and messages always."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._status = Status(0, 0)
        self._printed_at = time.monotonic()
        self._printed_steps = 0

    def start(self, header: list[str], total: int, done: int = 0, warmup: int = 0) -> None:
        self._status = Status(total, done, warmup)
        self._printed_at, self._printed_steps = time.monotonic(), done
        for line in header:
            self.message(line)

    def update(self, env_steps: int, info: Mapping[str, Any]) -> None:
        before = self._status.evaluation()
        self._status.merge(env_steps, info)
        if self._status.evaluation() != before:
            self.message(self._status.evaluation())
        if time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._print_status()

    def stop(self) -> None:
        if self._status.env_steps != self._printed_steps:
            self._print_status()

    def _print_status(self) -> None:
        status = self._status
        self.message(" | ".join([status.position(), *status.speed(), *status.learning()]))
        self._printed_at, self._printed_steps = time.monotonic(), status.env_steps

    def message(self, line: str) -> None:
        with although_nobody_reads():
            try:
                print(line, file=self._stream, flush=True)
            except UnicodeEncodeError:
                line = line.replace("±", "+-").encode("ascii", "replace").decode()
                print(line, file=self._stream, flush=True)


class NotebookProgress(PlainProgress):
    """A bar as one output of a cell, replaced by the next: a saved notebook holds the last."""

    _shown: Any = None

    def moved(self, env_steps: int) -> None:
        self.update(env_steps, {})

    def update(self, env_steps: int, info: Mapping[str, Any]) -> None:
        self._status.merge(env_steps, info)
        if time.monotonic() - self._printed_at >= LIVE_EVERY_S:
            self._print_status()

    def stop(self) -> None:
        self._print_status()

    def _print_status(self) -> None:
        status = self._status
        full = min(20, 20 * status.env_steps // max(status.total, 1))
        eta = [part for part in status.speed() if part.startswith("eta")]
        parts = [f"[{'=' * full}{' ' * (20 - full)}] {status.position()}", *eta]
        self._show({"text/plain": " | ".join(filter(None, [*parts, status.evaluation()]))})
        self._printed_at, self._printed_steps = time.monotonic(), status.env_steps

    def _show(self, content: dict[str, str]) -> None:
        if self._shown is None:
            from IPython.display import display

            self._shown = display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)


class LiveProgress(Progress):
    """A bar, its speeds, the last evaluation and the last metrics, redrawn in place."""

    def __init__(self, console: Any):
        self._console = console
        self._header: list[str] = []
        self._status = Status(0, 0)
        self._live: Any = None
        self._drawn_at = 0.0

    def start(self, header: list[str], total: int, done: int = 0, warmup: int = 0) -> None:
        from rich.live import Live

        self.stop()
        self._header, self._status = list(header), Status(total, done, warmup)
        # We redraw when there is news, so there is no thread to outlive an interrupt.
        self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._draw)
        atexit.register(self.stop)
        with although_nobody_reads():
            self._live.start(refresh=True)

    def update(self, env_steps: int, info: Mapping[str, Any]) -> None:
        self._status.merge(env_steps, info)
        if self._live is not None and time.monotonic() - self._drawn_at >= LIVE_EVERY_S:
            with although_nobody_reads():
                self._live.refresh()
            self._drawn_at = time.monotonic()

    def moved(self, env_steps: int) -> None:
        self.update(env_steps, {})

    def message(self, line: str) -> None:
        with although_nobody_reads():
            self._console.print(line, markup=False)

    def stop(self) -> None:
        """Draws the last state and gives the terminal back; any number of calls is fine."""
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self.stop)
            with although_nobody_reads():
                live.stop()

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        status, width = self._status, max(self._console.width, 20)
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = ProgressBar(max(status.total, 1), status.env_steps, complete_style="green")
        row.add_row(bar, Text(status.position()))
        lines: list[Any] = [*(Text(line, style="dim") for line in self._header), row]
        lines += [Text(line, style="cyan") for line in pack(status.speed(), "   ", width)]
        if status.evaluation():
            lines.append(Text(status.evaluation(), style="bold"))
        return Group(*lines, *map(Text, pack(status.learning(), " | ", width)))


class Status:
    """What is known of the run, and its words for it."""

    def __init__(self, total: int, done: int, warmup: int = 0):
        self.total, self.env_steps, self.warmup = total, done, warmup
        self._done, self._began = done, time.monotonic()
        self._info: dict[str, Any] = {}
        self._metrics: dict[str, float] = {}

    def merge(self, env_steps: int, info: Mapping[str, Any]) -> None:
        self.env_steps = env_steps
        self._info |= info
        self._metrics |= info.get("metrics", {})

    def position(self) -> str:
        percent = 100 * self.env_steps // max(self.total, 1)
        return f"{percent} %  {self.env_steps:,} / {self.total:,} steps"

    def speed(self) -> list[str]:
        rate = self._info.get("steps_per_s", self._measured_rate())
        parts = [f"{number(rate)} steps/s"] if rate is not None else []
        for name, label in (("update_ms", "update"), ("env_ms", "env")):
            if name in self._info:
                parts.append(f"{label} {number(self._info[name])} ms")
        left = self._info.get("eta_s")
        if left is None and not self.warmup and rate:
            left = max(self.total - self.env_steps, 0) / rate
        return parts if left is None else [*parts, f"eta {duration(left)}"]

    def evaluation(self) -> str:
        seen = self._info.get("eval")
        if seen is None:
            return ""
        success = f", success {100 * seen['success']:.0f} %" if "success" in seen else ""
        return (
            f"eval step {steps(seen['env_steps'])}: "
            f"return {number(seen['mean'])} ± {number(seen['std'])}{success} "
            f"({steps(seen['episodes'])} ep)  "
            f"best {number(seen['best'])} @ {steps(seen['best_at'])}"
        )

    def learning(self) -> list[str]:
        metrics = self._metrics
        parts = [f"train return {number(self._info['return'])}"] if "return" in self._info else []
        names = [n for n in LABELS if n in metrics] + [n for n in metrics if n not in LABELS]
        parts += [f"{LABELS.get(name, name)} {number(metrics[name])}" for name in names]
        return parts[:SHOWN_METRICS]

    def _measured_rate(self) -> float | None:
        elapsed = time.monotonic() - self._began
        made = self.env_steps - self._done
        return made / elapsed if made > 0 and elapsed > 0 else None
