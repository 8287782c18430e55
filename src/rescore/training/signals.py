"""Signals as requests to stop, obeyed where nothing is lost.

Imports nothing heavy, because it runs before JAX starts.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal was obeyed at the end of a chunk; a run with a folder has been saved."""


_flags: list[threading.Event] = []  # one for all that are nested
_noted: set[int] = set()


def asked() -> bool:
    """Whether a signal has asked to stop, within `interruptible`."""
    return bool(_flags) and _flags[-1].is_set()


@contextlib.contextmanager
def ctrl_c_is_kept() -> Iterator[None]:
    """Within, a Ctrl-C that strikes where Python drops exceptions (a finalizer) is a request."""
    really = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt) and _flags:
            _flags[-1].set()
        else:
            really(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = really


@contextlib.contextmanager
def interruptible(numbers: tuple[int, ...] = ALL) -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C, SIGTERM and SIGHUP only raise a flag; a second one acts as usual."""
    flag = _flags[-1] if _flags else threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def note(number: int, _frame: object) -> None:
        flag.set()
        signal.signal(number, previous[number])

    # `nohup` has SIGHUP ignored, and means it.
    deaf = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    own = set(numbers) - _noted - deaf
    previous: dict[int, Any] = {n: signal.getsignal(n) for n in own}
    _flags.append(flag)
    _noted.update(own)
    try:
        for number in own:
            signal.signal(number, note)
        yield flag.is_set
    finally:
        _flags.pop()
        _noted.difference_update(own)
        for number, handler in previous.items():
            signal.signal(number, handler)
