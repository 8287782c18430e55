"""How many threads share the work: those of the kernels, and those that XLA is given."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

import jax

from rescore.core import UsageError


def usable_cores() -> int:
    """Cores that this process may keep busy: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def threads() -> int:
    """How many share a kernel's work: RESCORE_THREADS; else as many as XLA was given by PJRT_NPROC;
    else one for each core, at most four."""
    asked = os.environ.get("RESCORE_THREADS") or os.environ.get("PJRT_NPROC", "")
    if not asked:
        return min(usable_cores(), 4)
    if not asked.isdecimal() or int(asked) < 1:
        raise UsageError(f"RESCORE_THREADS must be a number from 1 on, not {asked!r}")
    return min(int(asked), 64)


def start_jax() -> str:
    """JAX's backend. If it starts here, on a processor alone, then with a single thread of XLA's.

    XLA's threads sleep between operations, and waking one takes longer than most of them. Who sets
    PJRT_NPROC, and not RESCORE_THREADS, has decided otherwise.
    """
    before = os.environ.get("PJRT_NPROC")
    accelerated = jax.config.jax_platforms != "cpu" and entry_points(group="jax_plugins")
    if accelerated or (before and not os.environ.get("RESCORE_THREADS")):
        return jax.default_backend()
    os.environ["PJRT_NPROC"] = "1"
    try:
        return jax.default_backend()
    finally:
        del os.environ["PJRT_NPROC"]
        if before is not None:
            os.environ["PJRT_NPROC"] = before
