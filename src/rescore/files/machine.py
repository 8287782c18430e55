"""Code, libraries and machine: what may differ between a run and its repetition."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "mujoco", "equinox", "optax")


def same_code(row: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether a row was made by the code that runs now, as far as commits can tell."""
    clean = not (row.get("dirty") or here["dirty"])
    return clean and here["commit"] is not None and row["commit"] == here["commit"]


def surroundings() -> dict[str, Any]:
    """All of it as JSON."""
    return {
        "rescore": version_of("rescore"),
        **source_commit(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": {"count": os.cpu_count(), "model": cpu_model()},
        "devices": _devices(),
    }


def bits_depend_on() -> dict[str, str | None]:
    """What a repetition must share to give the same bits, besides the settings."""
    return {**{name: version_of(name) for name in PACKAGES}, "processor": cpu_model()}


def version_of(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def peak_memory_mb() -> float | None:
    """The most memory that this process has held so far, as far as the system tells."""
    # Not getrusage, whose maximum survives exec and so may be that of the parent.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    except OSError:
        pass  # not Linux
    return None


def source_commit() -> dict[str, Any]:
    """Commit and dirty flag of the checkout this package runs from; None when it is none."""
    here = Path(__file__).resolve()
    package = here.parents[1]
    # An installed copy inside another checkout (.venv) is not tracked there: not our commit.
    if _git(package, "ls-files", "--error-unmatch", str(here)) is None:
        return {"commit": None, "dirty": None}
    changes = _git(package, "status", "--porcelain", "--", ".")
    return {
        "commit": _git(package, "rev-parse", "HEAD"),
        "dirty": None if changes is None else changes != "",
    }


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _devices() -> list[str] | None:
    # Only if the run imported JAX anyway: describing must not claim an accelerator.
    if "jax" not in sys.modules:
        return None
    import jax

    return [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
