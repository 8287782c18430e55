"""The matrix on this machine: worker processes, each one `rescore train` or `resume`.

Workers are new programs, never forks of this one, and do not hear Ctrl-C themselves: it is passed
on as SIGTERM, upon which they save. Each inherits the lock of its cell, so that a cell whose runner
was killed counts as running until its worker has ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rescore.bench.locks import Lock
from rescore.bench.matrix import CellFolder, Outcome, thread_settings
from rescore.bench.watch import Board
from rescore.training.session import interruptible

PROGRAM = [sys.executable, "-m", "rescore"]
POLL_S = 0.2
RESTARTS = 2  # of a worker that was killed, before its cell counts as failed


@dataclass
class Job:
    """A worker at its cell."""

    folder: CellFolder
    lock: Lock
    process: subprocess.Popen
    slot: int


def run_local(
    folders: Iterable[CellFolder],
    workers: int,
    threads: int,
    board: Board,
    keep_checkpoints: bool = False,
) -> bool:
    """Work on all cells; False if it was interrupted."""
    waiting, running = deque(folders), list[Job]()
    restarts: Counter[str] = Counter()
    alone = workers * threads == len(os.sched_getaffinity(0))  # else others may share the cores
    with interruptible() as interrupted:
        try:
            while (waiting or running) and not interrupted():
                while waiting and len(running) < workers:
                    slot = min(set(range(workers)) - {job.slot for job in running})
                    cores = pinned(slot, threads) if alone else []
                    if job := start(waiting.popleft(), cores, threads, board, keep_checkpoints):
                        running.append(Job(*job, slot))
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    outcome = end(job, keep_checkpoints)
                    killed = outcome.state == "stopped"
                    if killed and restarts[job.folder.cell.name] < RESTARTS:
                        restarts[job.folder.cell.name] += 1
                        board.message(f"restarting  {job.folder.cell.name} ({outcome.detail})")
                        waiting.appendleft(job.folder)
                        continue
                    if killed:
                        outcome = job.folder.fail(f"stopped {outcome.detail}, {RESTARTS + 1} times")
                    board.settled(job.folder, outcome)
                board.refresh((job.folder for job in running), len(waiting))
                time.sleep(POLL_S)
            if not interrupted():
                return True
        finally:  # also when the disk is full or the terminal gone: no worker is left behind
            for job in running:
                job.process.terminate()
            if running:
                board.message(f"stopping: {len(running)} running cells save first")
            for job in running:
                job.process.wait()
                board.settled(job.folder, end(job, keep_checkpoints))
    return False


def start(
    folder: CellFolder, cores: list[str], threads: int, board: Board, keep_checkpoints: bool
) -> tuple[CellFolder, Lock, subprocess.Popen] | None:
    """A worker for the cell, unless another runner has it or only its row was missing."""
    lock = Lock.take(folder.lock)
    if lock is None:
        board.settled(folder, Outcome("running", "elsewhere"))
        return None
    # Somebody else may have finished it since it was looked at.
    if folder.reached_its_end:
        board.settled(folder, folder.settle(0, keep_checkpoints))
        lock.release()
        return None
    words = [*PROGRAM, *folder.next_command()]
    with folder.log.open("ab") as log:
        process = subprocess.Popen(
            [*cores, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **thread_settings(threads), **compile_cache(folder.out)},
            pass_fds=(lock.fd,),
            start_new_session=True,
        )
    lock.sign(process.pid)
    return folder, lock, process


def end(job: Job, keep_checkpoints: bool) -> Outcome:
    """What came of a worker that has ended."""
    outcome = job.folder.settle(job.process.returncode, keep_checkpoints)
    job.lock.release()
    return outcome


def pinned(slot: int, threads: int) -> list[str]:
    """A prefix that gives the worker of this slot cores of its own."""
    if not shutil.which("taskset"):
        return []
    cores = sorted(os.sched_getaffinity(0))[slot * threads : (slot + 1) * threads]
    return ["taskset", "-c", ",".join(map(str, cores))]


def compile_cache(out: Path) -> dict[str, str]:
    """Compiled programs are kept per machine: all seeds of an algorithm on a task share them."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str((out / "cells" / ".jax" / socket.gethostname()).resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }


def default_workers(threads: int) -> int:
    """As many workers as there are cores for their threads."""
    return max(1, len(os.sched_getaffinity(0)) // threads)


def stop_on_hangup() -> None:
    """A closed terminal means the same as Ctrl-C."""
    signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
