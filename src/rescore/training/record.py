"""What a run leaves behind to be reproduced: run.json, result rows, and the JSON helpers they use.

Everything is written either aside and renamed, or as one line in one system call, so that a process
killed at any moment leaves the old file, the new file, or a last line without its newline.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rescore.core import UsageError

PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "mujoco", "equinox", "optax")
STATUSES = ("running", "finished", "stopped", "failed")


def plain(value: Any) -> Any:
    """The value in JSON's own types: scalars unwrapped, arrays as lists, non-finite as null."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return plain(np.asarray(value).tolist())


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Replaces the file in one step: a reader sees the old content or the new, never a part.

    Non-finite floats are kept (`Infinity`, `NaN`): what a checkpoint reads must be what it wrote.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    _sync_folder(path.parent)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The file's content, or a UsageError that names the file and what is wrong with it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # bad JSON or bad UTF-8
        raise UsageError(f"{path} is damaged: {error}") from None


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The objects of a file with one per line; a last line without newline is torn and ignored."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number} is damaged: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number} is not a JSON object")
        rows.append(row)
    return rows


def read_lines(path: str | os.PathLike[str]) -> list[bytes]:
    """The complete lines of a file, without their newlines."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: is its folder that of a run?") from None
    return content.split(b"\n")[:-1]


def append_result(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Appends one result as one JSON line; `commit`, `dirty` and `written` are filled in if absent.

    Results are kept for good, so a torn line of another process is closed rather than deleted.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {**source_commit(), "written": utc_now(), **row}
    line = json.dumps(plain(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with open(path, "a+b", buffering=0) as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)


def describe(
    argv: Sequence[str],
    config: Any,
    env_versions: Mapping[str, Any],
    notices: Sequence[str],
    seeds: Sequence[int],
) -> dict[str, Any]:
    """The content of a new run.json; the host's name is left out on purpose."""
    return {
        "status": "running",
        "started": utc_now(),
        "ended": None,
        "wall_clock_s": 0.0,
        "argv": list(argv),
        "seeds": plain(seeds),
        "config": plain(config),
        "env_versions": plain(env_versions),
        "notices": list(notices),
        **surroundings(),
        "resumes": [],
    }


def surroundings() -> dict[str, Any]:
    """Code, libraries and machine: what may differ between a run and its resumption."""
    return {
        "rescore": version_of("rescore"),
        **source_commit(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": {"count": os.cpu_count(), "model": cpu_model()},
        "devices": _devices(),
    }


def mark(path: str | os.PathLike[str], status: str, seconds: float = 0.0) -> dict[str, Any]:
    """Sets the status in run.json and adds the seconds worked since the last mark.

    Call it at every checkpoint, so that a killed run still knows the time it took to get there.
    """
    if status not in STATUSES:
        raise ValueError(f"unknown status {status!r}; one of {', '.join(STATUSES)}")
    data = read_json(path)
    data["status"] = status
    data["wall_clock_s"] = round(data.get("wall_clock_s", 0.0) + seconds, 3)
    data["ended"] = None if status == "running" else utc_now()
    data["peak_memory_mb"] = max(data.get("peak_memory_mb") or 0, peak_memory_mb() or 0) or None
    write_json(path, data)
    return data


def mark_resumed(path: str | os.PathLike[str], argv: Sequence[str], env_steps: int) -> None:
    """Notes in run.json that the run goes on, where from, and with which code and machine."""
    data = read_json(path)
    data["status"], data["ended"] = "running", None
    note = {"started": utc_now(), "env_steps": int(env_steps), "argv": list(argv)}
    data.setdefault("resumes", []).append({**note, **surroundings()})
    write_json(path, data)


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
    # An installed copy inside somebody's checkout (.venv) is not tracked there: not our commit.
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


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder is; not every system can open one.
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
