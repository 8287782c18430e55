"""The matrix on a Ray cluster: one task per cell; Ray places, retries and cancels.

A task trains in its worker process, which ends with it. When that process or its node dies, Ray
runs the task again elsewhere, and the cell goes on from its newest checkpoint if OUT is a shared
folder. If it is not, the rows are fetched back, and a lost cell begins anew.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rescore.bench.local import RESTARTS, compile_cache
from rescore.bench.matrix import CellFolder, Outcome, thread_settings
from rescore.bench.plan import Cell
from rescore.bench.rows import read_rows
from rescore.bench.watch import Board
from rescore.core import UsageError
from rescore.files.json import write_jsonl
from rescore.files.locks import Lock
from rescore.training.signals import interruptible

POLL_S = 0.5
LOCK_PATIENCE_S = 180.0  # a lost node's lock may live so long, on NFS for a lease of 90 s
SAVE_S = 600.0  # for cells to save when the matrix is interrupted


def connect(address: str, cpus: int) -> Any:
    """Ray's module, connected: a runtime of this machine's (`local`) or a running cluster."""
    if address == "local":
        # Read when Ray is imported, and named after systems where it is off: without clusters Ray
        # listens on loopback. A runtime for this machine is not for its neighbours.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs Ray: pip install -e '.[ray]'") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        answering(address)
        ray.init(address=address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"no Ray cluster at {address!r} ({reason}): start one with `ray start --head`, "
            f"or use --ray local"
        ) from None
    return ray


def answering(address: str) -> None:
    """Raise an OSError if nothing listens at HOST:PORT, for which Ray itself would wait minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=5).close()


def run_ray(
    ray: Any,
    folders: Sequence[CellFolder],
    threads: int,
    board: Board,
    keep_checkpoints: bool = False,
) -> bool:
    """Work on all cells; False if it was interrupted."""
    # A fresh process per cell: JAX keeps memory, and peak memory is measured per process.
    task = ray.remote(num_cpus=threads, max_retries=RESTARTS, max_calls=1)(work)
    jobs = {
        task.remote(str(folder.out.resolve()), folder.cell, threads, keep_checkpoints): folder
        for folder in folders
    }
    with interruptible() as interrupted:
        while jobs and not interrupted():
            ready, _ = ray.wait(list(jobs), timeout=POLL_S)
            for ref in ready:
                finish(ray, ref, jobs.pop(ref), board)
            begun = [folder for folder in jobs.values() if (folder.run / "run.json").exists()]
            board.refresh(begun, len(jobs) - len(begun))
        if not interrupted():
            return True
        board.message("stopping: running cells save first")
        for ref in jobs:
            ray.cancel(ref, recursive=False)
        ray.wait(list(jobs), num_returns=len(jobs), timeout=SAVE_S)
    return False


def finish(ray: Any, ref: Any, folder: CellFolder, board: Board) -> None:
    """Take over what a task returned; one that Ray gave up on has failed."""
    try:
        outcome, rows, log = ray.get(ref)
    except ray.exceptions.RayError as error:
        reason = str(getattr(error, "cause", None) or error)  # of our own code, or Ray's
        outcome, rows, log = folder.fail(reason.strip().partition("\n")[0]), [], []
    # On a shared folder all of it is there; else it is fetched back.
    if rows and not folder.rows.exists():
        write_jsonl(folder.rows, rows)
    if outcome.state == "failed" and not folder.failure.exists():
        folder.fail(outcome.detail, log)
    board.settled(folder, outcome)


def work(
    out: str, cell: Cell, threads: int, keep_checkpoints: bool
) -> tuple[Outcome, list[dict], list[str]]:
    """The task: bring a cell to its end in this process.

    Returns its state, its rows if it finished, and the end of its log if it failed.
    """
    folder = CellFolder(Path(out), cell)
    lock = patient_lock(folder)
    if lock is None:
        return Outcome("running", "elsewhere"), [], []
    try:
        code = 0 if folder.reached_its_end else train(folder, threads)
        outcome = folder.settle(code, keep_checkpoints)
    finally:
        lock.release()
    rows = read_rows(folder.rows) if outcome.state == "finished" else []
    log = folder.log_tail() if outcome.state == "failed" else []
    return outcome, [row.data for row in rows], log


def patient_lock(folder: CellFolder) -> Lock | None:
    """The lock of a cell whose last worker may be about to end."""
    for _ in range(round(LOCK_PATIENCE_S / POLL_S)):
        if lock := Lock.take(folder.lock):
            return lock
        time.sleep(POLL_S)
    return None


def train(folder: CellFolder, threads: int) -> int:
    """`rescore train` or `resume` in this process, printing into the cell's log; its exit code."""
    os.environ.update(thread_settings(threads) | compile_cache(folder.out))
    sys.argv = ["rescore", *folder.next_command()]
    with (
        folder.log.open("a", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            runpy.run_module("rescore", run_name="__main__")
        except SystemExit as stop:
            return int(stop.code or 0)
        except Exception:
            traceback.print_exc()
            return 1
    return 0
