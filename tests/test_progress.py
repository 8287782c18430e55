"""The screen of a run: readable from 60 to 200 columns, and never a reason to stop."""

import io
import math
import sys
import time
import types

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from rescore import Agent
from rescore.show import progress
from rescore.show.progress import (
    LiveProgress,
    NotebookProgress,
    PlainProgress,
    Progress,
    Status,
    make_progress,
)
from rescore.show.text import duration, number, pack, steps, table
from tests.small import small

HEADER = ["rescore 0.1.0  sdac  HalfCheetah-v4 (mujoco 3.4.0)  seeds 0-4  jax 0.10.2 cpu:0"]
INFO = {
    "return": 8440.2,
    "steps_per_s": 112.2,
    "update_ms": 43.04,
    "env_ms": 0.4,
    "eta_s": 4320,
    "eval": {
        "env_steps": 400_000,
        "mean": 8912.3,
        "std": 211.4,
        "episodes": 20,
        "best": 9004.4,
        "best_at": 375_000,
    },
    "metrics": {
        "ess": 0.371,
        "q": 212.1,
        "critic_loss": 4.31,
        "policy_loss": 0.83,
        "lam": 0.41,
        "noise": 0.1,
    },
}
EVAL_LINE = "eval step 400k: return 8,912 ± 211 (20 ep)  best 9,004 @ 375k"
LEARNING = "train return 8,440 | Q 212 | critic 4.31 | policy 0.83 | lam 0.41 | noise 0.1"


def screen(width, info=INFO):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, highlight=False)
    live = LiveProgress(console)
    live.start(HEADER, 1_000_000, 0)
    live.update(412_000, info)
    live.stop()
    with console.capture() as last:
        console.print(live._draw())
    return Text.from_ansi(last.get()).plain.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_screen_fits(width):
    lines = screen(width)
    assert all(len(line) <= width for line in lines)
    whole = " ".join(" ".join(lines).split())
    for part in ("41 % 412,000 / 1,000,000 steps", "112 steps/s", "update 43 ms", "eta 1 h 12 m"):
        assert part in whole
    assert " ".join(EVAL_LINE.split()) in whole and "ESS of weights 0.371" in whole
    assert len(lines) == {60: 8, 80: 6, 120: 5, 200: 5}[width]


def test_stop_restores_the_cursor_and_may_be_repeated():
    stream = io.StringIO()
    live = LiveProgress(Console(file=stream, force_terminal=True, width=80, highlight=False))
    live.stop()
    live.start(HEADER, 100, 0)
    assert stream.getvalue().count("\x1b[?25l") == 1
    try:
        live.update(10, INFO)
        live.message("saved [checkpoint] 10")
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        live.stop()
        live.stop()
    assert stream.getvalue().count("\x1b[?25h") == 1
    assert "saved [checkpoint] 10" in stream.getvalue()
    live.update(20, INFO)


def test_plain_lines_are_few_but_tell_evaluations(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    plain = make_progress(stream)
    assert isinstance(plain, PlainProgress)
    plain.start(HEADER, 1_000_000, 0)
    for step in range(1, 101):
        now[0] += 0.1
        plain.update(4120 * step, {**INFO, "eval": None} if step < 50 else INFO)
    plain.message("checkpoint saved")
    plain.stop()
    plain.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == HEADER[0] and lines.count(EVAL_LINE) == 1
    status = [line for line in lines if "steps/s" in line]
    assert 2 <= len(status) <= 3 and LEARNING in status[-1]
    assert lines[-2] == "checkpoint saved" or lines[-1] == "checkpoint saved"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"return": math.nan, "steps_per_s": math.inf, "eta_s": -math.inf, "update_ms": math.nan},
        {"metrics": {"q": math.inf}, "steps_per_s": 0.0, "return": np.float32(2.0)},
    ],
)
def test_numbers_that_are_not_finite_are_shown(info):
    screen(80, info)
    plain = PlainProgress(io.StringIO())
    plain.update(5, info)
    plain.stop()
    for total in (0, 10):
        plain.start([], total, 0)
        plain.update(20, info)
        plain.stop()


def test_choice_of_display(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_progress(Terminal()), LiveProgress)
    assert type(make_progress(Terminal(), quiet=True)) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(Terminal()), PlainProgress)
    latin = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    plain = PlainProgress(latin)
    plain.update(5, INFO)
    assert b"8,912 +- 211" in latin.buffer.getvalue()


def test_words():
    assert [number(x) for x in (8912.3, 999.7, 212.13, 0.0012345, 0, -1234.5, math.nan)] == [
        "8,912",
        "1,000",
        "212",
        "0.00123",
        "0",
        "-1,234",
        "nan",
    ]
    assert [steps(x) for x in (900, 400_000, 1_250_000, math.nan)] == [
        "900",
        "400k",
        "1.25M",
        "nan",
    ]
    seconds = (43, 750, 3900, 100 * 3600, math.inf)
    assert [duration(x) for x in seconds] == ["43 s", "12 m 30 s", "1 h 05 m", "100 h 00 m", "-"]
    assert pack(["aa", "bb", "cc"], " | ", 7) == ["aa | bb", "cc"]
    assert table(["", "x"], [["a", "1"], ["b", "2"]]) == "|  | x |\n|---|---|\n| a | 1 |\n| b | 2 |"


def test_the_pace_of_a_warm_up_promises_nothing():
    """Random steps are quick; until the run has told how long the others take there is no ETA."""
    status = Status(100_000, 0, warmup=5_000)
    status.merge(4_000, {"steps_per_s": 5_000.0})
    assert not any(part.startswith("eta") for part in status.speed())
    status.merge(7_000, {"steps_per_s": 80.0, "eta_s": 1_162.0})
    assert status.speed()[-1] == "eta 19 m 22 s"
    without = Status(100_000, 0)
    without.merge(50_000, {"steps_per_s": 100.0})
    assert without.speed()[-1] == "eta 8 m 20 s"


def test_a_runs_eta_begins_after_its_warm_up(monkeypatch):
    """Reports at 20, 40 and 60 steps, of which the first 30 are random."""
    told = []
    monkeypatch.setattr(Progress, "update", lambda self, at, info: told.append((at, info)))
    training = {"warmup": 30, "batch_size": 8, "log_every": 20, "eval_every": 0}
    with Agent(small("td3"), "rescore/Probe1-v0", training=training) as agent:
        agent.learn(60, evaluate=False, progress=Progress())
    assert [(at, "eta_s" in info) for at, info in told] == [(20, False), (40, False), (60, True)]


def test_a_notebook_has_one_bar(monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown[-1] = content["text/plain"]

    def display(content, raw, display_id):
        shown.append(content["text/plain"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    bar = make_progress(stream)
    assert isinstance(bar, NotebookProgress)
    bar.start(HEADER, 1_000_000, 0)
    for at in (0, 200_000, 412_000):
        bar.update(at, INFO)
        bar.moved(at)
        bar.stop()
    (line,) = shown
    assert line.startswith("[========            ] 41 %") and line.endswith(EVAL_LINE)
    assert "eta 1 h 12 m" in line and stream.getvalue().splitlines() == HEADER


class Closed(io.StringIO):
    """A terminal that was closed, or a pipe whose reader is gone."""

    def __init__(self, error: type[OSError]):
        super().__init__()
        self.error, self.gone = error, False

    def write(self, text: str) -> int:
        if self.gone:
            raise self.error(5, "gone")
        return super().write(text)

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("error", [OSError, BrokenPipeError])
@pytest.mark.parametrize("live", [True, False])
def test_training_outlives_its_terminal(error, live, monkeypatch):
    stream = Closed(error)
    console = Console(file=stream, force_terminal=True, width=80)
    shown = LiveProgress(console) if live else PlainProgress(stream)
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "LIVE_EVERY_S", 0.0)
    shown.start(["a header"], 100)
    stream.gone = True
    shown.update(50, {"metrics": {"q": 1.0}})
    shown.message("a note")
    shown.stop()
