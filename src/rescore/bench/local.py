"""The matrix on this machine: worker processes, each one `rescore train` or `resume`.

Workers are new programs, never forks of this one, and do not hear Ctrl-C themselves: it is passed
on as SIGTERM, upon which they save. Each inherits the lock of its cell, so that a cell whose runner
was killed counts as running until its worker has ended.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rescore.bench.matrix import CellFolder, Outcome, thread_settings
from rescore.bench.watch import Board
from rescore.files.locks import Lock
from rescore.training.signals import interruptible

PROGRAM = [sys.executable, "-m", "rescore"]
POLL_S = 0.2
RESTARTS = 2  # of a worker that was killed, before its cell counts as failed


@dataclass
class Job:
    """A worker at its cell."""

    folder: CellFolder
    lock: Lock
    process: subprocess.Popen
    slot: int  # which of the workers' cores it has


@dataclass
class Pool:
    """Some workers at a time, until no cell is left."""

    workers: int
    threads: int
    board: Board
    keep_checkpoints: bool = False
    waiting: deque[CellFolder] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)

    def run(self, folders: Iterable[CellFolder]) -> bool:
        """Work on all cells; False if it was interrupted."""
        self.waiting.extend(folders)
        with interruptible() as interrupted:
            try:
                while (self.waiting or self.running) and not interrupted():
                    while self.waiting and len(self.running) < self.workers:
                        self.start(self.waiting.popleft())
                    for job in [job for job in self.running if job.process.poll() is not None]:
                        self.running.remove(job)
                        self.end(job)
                    self.board.refresh((job.folder for job in self.running), len(self.waiting))
                    time.sleep(POLL_S)
                return not interrupted()
            finally:  # also when the disk is full or the terminal gone: no worker is left behind
                self.stop()

    def start(self, folder: CellFolder) -> None:
        """A worker for the cell, unless another runner has it or only its row was missing."""
        lock = Lock.take(folder.lock)
        if lock is None:
            self.board.settled(folder, Outcome("running", "elsewhere"))
            return
        if folder.reached_its_end:  # another runner may have finished it since
            self.board.settled(folder, folder.settle(0, self.keep_checkpoints))
            lock.release()
            return
        slot = min(set(range(self.workers)) - {job.slot for job in self.running})
        settings = thread_settings(self.threads) | compile_cache(folder.out)
        words = [*self.pinned(slot), *PROGRAM, *folder.next_command()]
        process = launch(words, folder.log, lock, settings)
        lock.sign(process.pid)
        self.running.append(Job(folder, lock, process, slot))

    def end(self, job: Job) -> None:
        """Note what came of a worker that has ended; one that was killed is started again."""
        folder, outcome = job.folder, self.settle(job)
        if outcome.state == "stopped":
            if self.restarts[folder.cell.name] < RESTARTS:
                self.restarts[folder.cell.name] += 1
                self.board.message(f"restarting  {folder.cell.name} ({outcome.detail})")
                self.waiting.appendleft(folder)
                return
            outcome = folder.fail(f"stopped {outcome.detail}, {RESTARTS + 1} times")
        self.board.settled(folder, outcome)

    def settle(self, job: Job) -> Outcome:
        outcome = job.folder.settle(job.process.returncode, self.keep_checkpoints)
        job.lock.release()
        return outcome

    def stop(self) -> None:
        """Let all workers save and end."""
        for job in self.running:
            job.process.terminate()
        if self.running:
            self.board.message(f"stopping: {len(self.running)} running cells save first")
        for job in self.running:
            job.process.wait()
            self.board.settled(job.folder, self.settle(job))

    def pinned(self, slot: int) -> list[str]:
        """A prefix that gives a worker cores of its own, if the workers fill the machine."""
        cores, threads = sorted(os.sched_getaffinity(0)), self.threads
        if self.workers * threads != len(cores) or not shutil.which("taskset"):
            return []
        return ["taskset", "-c", ",".join(map(str, cores[slot * threads : (slot + 1) * threads]))]


def launch(
    words: Sequence[str], log: Path, lock: Lock, settings: Mapping[str, str]
) -> subprocess.Popen:
    """A worker that prints into its log, inherits the lock and does not hear Ctrl-C."""
    with log.open("ab") as file:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            pass_fds=(lock.fd,),
            start_new_session=True,
        )


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
