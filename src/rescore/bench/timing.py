"""Timing: the best of several tries, since other work on a machine only ever adds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

CALL = 4  # iterations and updates that are timed together: whole cycles of the policy's delay
FIRST = 4  # number of the first one: rare parts, such as DACER's entropy, have their turn at 0
TRIES = 5
SLOW_TRIES = 3  # of what takes longer than its share of seconds


def best_ms(work: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of a call, the best of some tries that share the seconds."""
    work()
    began = time.perf_counter()
    work()
    once = time.perf_counter() - began
    calls = max(1, math.floor(seconds / TRIES / max(once, 1e-6)))
    times = []
    for _ in range(TRIES if once * TRIES < seconds else SLOW_TRIES):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - began) / calls)
    return 1e3 * min(times)
