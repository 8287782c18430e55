"""The matrix on disk: what each cell's folder says about its state, and what to do next.

    OUT/matrix.json            the plan; its lists of algorithms, tasks and seeds may grow
    OUT/rows/CELL.jsonl        results of a finished cell, one line per seed, small text
    OUT/cells/CELL/lock        held while somebody works on the cell
    OUT/cells/CELL/log.txt     what its training printed
    OUT/cells/CELL/failed.json why it failed, until it is retried
    OUT/cells/CELL/run/        the folder of `rescore train`

A row is written once, aside and renamed, from a run that has had its last evaluation: a finished
cell is neither lost nor repeated, wherever a runner or a worker is killed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rescore.bench.cells import Cell
from rescore.bench.locks import Lock, holder
from rescore.bench.rows import make_rows, read_rows
from rescore.bench.suites import Plan
from rescore.core import UsageError
from rescore.files.json import plain, read_json, write_json, write_jsonl
from rescore.files.machine import utc_now
from rescore.training.checkpoint import step_name, stored

State = Literal["missing", "running", "stopped", "finished", "failed"]
INTERRUPTED = 130  # exit code of a command that Ctrl-C ended before it could save
LOG_TAIL = 12  # lines of the log that a failure shows


class Outcome(NamedTuple):
    """A cell's state and a word on it."""

    state: State
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """A cell in its folder."""

    out: Path
    cell: Cell

    @property
    def folder(self) -> Path:
        return self.out / "cells" / self.cell.name

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def failure(self) -> Path:
        return self.folder / "failed.json"

    @property
    def rows(self) -> Path:
        return self.out / "rows" / f"{self.cell.name}.jsonl"

    @property
    def reached_its_end(self) -> bool:
        """Whether the run needs no more training, though its row may not be written yet."""
        # A run killed between its last checkpoint and its last mark is done, too.
        newest = stored(self.run)[:1]
        if newest and newest[0].name >= step_name(self.cell.steps):
            return True
        about = self.run / "run.json"
        return about.exists() and read_json(about)["status"] == "finished"

    def state(self) -> Outcome:
        """What the files say."""
        if self.rows.exists():
            if len(read_rows(self.rows)) != len(self.cell.seeds):
                raise UsageError(f"{self.rows} has rows of other seeds: delete it to run them anew")
            return Outcome("finished")
        if who := holder(self.lock):
            return Outcome("running", who)
        if self.failure.exists():
            return Outcome("failed", read_json(self.failure)["reason"])
        if stored(self.run):
            at = int(stored(self.run)[0].name.partition("_")[2])
            return Outcome("stopped", f"at {at:,} steps")
        return Outcome("missing")

    def next_command(self) -> list[str]:
        """The words after `rescore` that bring the cell on; call it with the lock in hand."""
        self.failure.unlink(missing_ok=True)
        if stored(self.run):
            return ["resume", str(self.run)]
        if self.run.exists():  # it ended before its first checkpoint: nothing to go on from
            shutil.rmtree(self.run)
        return self.cell.train(str(self.run))

    def settle(self, code: int, keep_checkpoints: bool = False) -> Outcome:
        """Write down what came of an attempt that ended with this exit code."""
        if self.reached_its_end:
            try:
                write_jsonl(self.rows, make_rows(self.cell, self.run))
            except UsageError as error:  # a log of the run is damaged
                return self.fail(str(error))
            self.tidy(keep_checkpoints)
            return Outcome("finished")
        if code <= 0 or code == INTERRUPTED:  # a signal, or a graceful stop
            return Outcome("stopped", f"by signal {-code}" if code < 0 else "on request")
        return self.fail(f"exit code {code}")

    def tidy(self, keep_checkpoints: bool) -> None:
        """Delete what a finished cell needs no more; its best policy stays."""
        if not keep_checkpoints:
            shutil.rmtree(self.run / "checkpoints", ignore_errors=True)

    def fail(self, reason: str, log: Sequence[str] = ()) -> Outcome:
        """Note a failure with the end of its log, given or here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        failure = {"reason": reason, "when": utc_now(), "log": list(log) or self.log_tail()}
        write_json(self.failure, failure)
        return Outcome("failed", reason)

    def log_tail(self) -> list[str]:
        if not self.log.exists():
            return []
        return self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:]


def open_matrix(out: Path, plan: Plan) -> Plan:
    """Claim the folder for the plan, or let the plan that it holds grow; returns the whole plan."""
    about = out / "matrix.json"
    if not about.exists():
        if holds_something_else(out):
            raise UsageError(f"{out} holds something else: choose another --out")
        out.mkdir(parents=True, exist_ok=True)
    # Runners that start together must not undo each other's growth.
    while (lock := Lock.take(out / ".opening")) is None:
        pass
    try:
        if about.exists():
            whole = grown(out, plan)
        else:
            (out / ".gitignore").write_text("cells/\n.opening\n")
            whole = plan
        if not about.exists() or whole != read_plan(out):
            write_json(about, plain(whole))
        return whole
    finally:
        lock.release()


def holds_something_else(out: Path) -> bool:
    """Whether a folder has files of others; hidden ones may be left of a runner that was killed."""
    if not out.is_dir():
        return out.exists()
    others = [path for path in out.iterdir() if not path.name.startswith(".")]
    return not all((path / "matrix.json").exists() for path in others)  # matrices may be nested


def grown(out: Path, plan: Plan) -> Plan:
    """The plan that a folder holds together with this one; refused if they do not fit."""
    held = read_plan(out)
    theirs, ours = plain(held.fixed), plain(plan.fixed)
    for name, value in ours.items():
        if value != theirs[name]:
            raise UsageError(
                f"{out} was begun with {name} {theirs[name]}, not {value}: "
                f"give the same, or choose another --out"
            )
    return dataclasses.replace(
        held,
        algorithms=united(held.algorithms, plan.algorithms),
        tasks=united(held.tasks, plan.tasks),
        seeds=max(held.seeds, plan.seeds),
    )


def read_plan(out: Path) -> Plan:
    """The plan that a folder holds."""
    about = out / "matrix.json"
    if not about.exists():
        raise UsageError(f"{out} holds no benchmark: make one with `rescore bench run --out {out}`")
    found: dict[str, Any] = read_json(about)
    try:
        found["settings"] = tuple((name, value) for name, value in found["settings"])
        for name in ("algorithms", "tasks"):
            found[name] = tuple(found[name])
        return Plan(**found)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{about} is damaged: {error}") from None


def united(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that keep a worker's computation to its share of the machine."""
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1:
        flags += " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    count = str(threads)
    pools = {f"{name}_NUM_THREADS": count for name in ("OMP", "OPENBLAS", "MKL")}
    return {"XLA_FLAGS": flags.strip(), "PJRT_NPROC": count, **pools}
