"""Locks of runs and of cells, held by the operating system for as long as a worker lives.

The file says who took the lock (host, process), the system whether it is held. So a lock whose
holder was killed is free at once, and no age or process number has to be interpreted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Self

from rescore.core import UsageError
from rescore.files.machine import utc_now

PROBE_S = 0.05  # a look at the lock by another process lasts less than this


class Lock:
    """An exclusive claim; a child process that inherits `fd` keeps it when this process dies."""

    def __init__(self, fd: int):
        self.fd = fd

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """The lock, or None if another process holds it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        for attempt in range(3):
            if attempt:
                time.sleep(PROBE_S)
            if _flock(fd, fcntl.LOCK_EX, path):
                lock = cls(fd)
                lock.sign(os.getpid())
                return lock
        os.close(fd)
        return None

    def sign(self, pid: int) -> None:
        """Write down who works under it."""
        text = json.dumps({"host": socket.gethostname(), "pid": pid, "since": utc_now()}) + "\n"
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def release(self) -> None:
        """Give up our share; a child that inherited it goes on holding it."""
        os.close(self.fd)


def holder(path: Path) -> str | None:
    """The holder of the lock, in words; None if it is free."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        if _flock(file.fileno(), fcntl.LOCK_SH, path):
            return None
        with contextlib.suppress(ValueError, KeyError):  # just being signed
            signed = json.loads(file.read())
            return f"process {signed['pid']} on {signed['host']} since {signed['since']}"
    return "another process"


def _flock(fd: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UsageError(
            f"{path} cannot be locked ({error.strerror}): choose an --out where files can be"
        ) from None
    return True
