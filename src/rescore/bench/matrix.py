"""The matrix on disk: what each cell's folder says about its state, and what to do next.

    OUT/matrix.json            the plan; its lists of algorithms, tasks and seeds may grow
    OUT/rows/CELL.jsonl        results of a finished cell, one line per seed, small text
    OUT/cells/CELL/lock        held while a worker works on the cell
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rescore.bench.plan import Cell, Plan, cells
from rescore.bench.rows import make_rows, read_rows
from rescore.core import UsageError
from rescore.files.json import plain, read_json, write_json, write_jsonl
from rescore.files.locks import Lock, holder
from rescore.files.machine import utc_now
from rescore.training.checkpoint import env_steps_of, owes_evaluation, stored

State = Literal["missing", "running", "stopped", "finished", "failed"]
INTERRUPTED = 130  # exit code of a command that Ctrl-C ended before it could save
LOG_TAIL = 12  # lines of the log that a failure shows


class Outcome(NamedTuple):
    """A cell's state and a word on it."""

    state: State
    detail: str = ""


@dataclass(frozen=True)
class CellFolder:
    """A cell and its files in the folder of the matrix."""

    out: Path
    cell: Cell

    @property
    def path(self) -> Path:
        return self.out / "cells" / self.cell.name

    run = property(lambda self: self.path / "run")
    lock = property(lambda self: self.path / "lock")
    log = property(lambda self: self.path / "log.txt")
    failure = property(lambda self: self.path / "failed.json")
    rows = property(lambda self: self.out / "rows" / f"{self.cell.name}.jsonl")

    @property
    def reached_its_end(self) -> bool:
        """Whether the run needs no more training, though its row may not be written yet."""
        if self.rows.exists():
            return True
        # A run killed between its last checkpoint and its last mark is done, too; one that was
        # stopped amid its last evaluation is not.
        newest = stored(self.run)[:1]
        if newest and env_steps_of(newest[0]) >= self.cell.steps:
            return not owes_evaluation(newest[0])
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
        if kept := stored(self.run):
            return Outcome("stopped", f"at {env_steps_of(kept[0]):,} steps")
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
                if not self.rows.exists():
                    write_jsonl(self.rows, make_rows(self.cell, self.run))
            except (UsageError, KeyError, TypeError, ValueError) as error:  # of a damaged log
                return self.fail(f"the logs of the run are damaged: {error}")
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
        self.path.mkdir(parents=True, exist_ok=True)
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
    # A runner that was killed may leave hidden files; and matrices may be nested.
    ours = lambda path: path.name.startswith(".") or (path / about.name).exists()  # noqa: E731
    demand_own(out, about.name, ours)
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
            write_json(about, whole.plain())
        return whole
    finally:
        lock.release()


def demand_own(out: Path, mark: str, leftover: Callable[[Path], bool]) -> None:
    """Refuse a folder with files of others: one without our mark that holds more than leftovers."""
    if not out.exists() or (out / mark).exists():
        return
    if not out.is_dir() or not all(map(leftover, out.iterdir())):
        raise UsageError(f"{out} holds something else: choose another --out")


def grown(out: Path, plan: Plan) -> Plan:
    """The plan that a folder holds together with this one, which may not change a cell of it."""
    held = read_plan(out)
    suite = dataclasses.replace(
        plan.suite,
        tasks={**held.suite.tasks, **plan.suite.tasks},
        algorithms={**held.suite.algorithms, **plan.suite.algorithms},
        variants={**held.suite.variants, **plan.suite.variants},
    )
    whole = dataclasses.replace(
        plan,
        suite=suite,
        algorithms=tuple(dict.fromkeys((*held.algorithms, *plan.algorithms))),
        tasks=tuple(dict.fromkeys((*held.tasks, *plan.tasks))),
        seeds={
            name: max(own.seeds.get(name, 0) for own in (held, plan))
            for name in (*held.algorithms, *plan.algorithms)
        },
    )
    if (held.suite.name, held.group) != (plan.suite.name, plan.group):
        begun = f"suite {held.suite.name} and --group {held.group}"
        raise UsageError(f"{out} was begun with {begun}: give the same, or choose another --out")
    now = {cell.name: plain(cell) for cell in cells(whole)}
    for cell in cells(held):
        for name, value in plain(cell).items():
            if now[cell.name][name] != value:
                raise UsageError(
                    f"{out} was begun with {name} {value} for {cell.name}, not "
                    f"{now[cell.name][name]}: give the same, or choose another --out"
                )
    return whole


def read_plan(out: Path) -> Plan:
    """The plan that a folder holds."""
    about = out / "matrix.json"
    if not about.exists():
        raise UsageError(f"{out} holds no benchmark: make one with `rescore bench run --out {out}`")
    try:
        return Plan.of_plain(read_json(about))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{about} is damaged: {error}") from None


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that keep a worker's computation to its share of the machine."""
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1:
        flags += " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    count = str(threads)
    pools = {f"{name}_NUM_THREADS": count for name in ("OMP", "OPENBLAS", "MKL")}
    return {"XLA_FLAGS": flags.strip(), "PJRT_NPROC": count, **pools}
