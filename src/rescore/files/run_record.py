"""The record of a run: run.json, which says how to repeat it, and rows of results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rescore.core import UsageError
from rescore.files.atomic import write_all
from rescore.files.json import append_jsonl, plain, read_json, write_json
from rescore.files.locks import Lock, holder
from rescore.files.machine import peak_memory_mb, source_commit, surroundings, utc_now

RUN = "run.json"
LOCK = "lock"


def new_folder(folder: Path) -> Path:
    """Makes the folder of a run, never over another one."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if (folder / RUN).exists():
            saved = (folder / "checkpoints").exists()
            again = f", or go on with it: `rescore resume {folder}`" if saved else ""
            raise UsageError(f"{folder} holds another run: choose another folder (--out){again}")
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UsageError(f"{folder} {what}: choose another folder (--out)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot make {folder}: {error.strerror}"
        raise UsageError(f"{reason}; choose another folder (--out)") from None
    return folder


def claim(folder: Path, done: str = "trained") -> Lock:
    """The right to train or search in a folder, which one process has at a time."""
    lock = Lock.take(folder / LOCK)
    if lock is None:
        who = holder(folder / LOCK) or "another process"
        raise UsageError(f"{folder} is being {done} by {who}: wait for it, or stop it first")
    return lock


def readable(path: Path) -> bool:
    """Whether a run.json can be continued."""
    try:
        data = read_json(path)
        return isinstance(data["resumes"], list) and float(data["wall_clock_s"]) >= 0
    except (UsageError, KeyError, TypeError, ValueError):
        return False


def run_config(folder: Path) -> dict[str, Any]:
    """The settings in run.json; nothing where it cannot be read, for checkpoints hold them too."""
    try:
        return dict(read_json(folder / RUN)["config"])
    except (UsageError, KeyError, TypeError, ValueError):
        return {}


def append_result(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Appends a result, kept for good; `commit`, `dirty` and `written` are filled in if absent."""
    append_jsonl(path, {**source_commit(), "written": utc_now(), **row})


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


def mark(path: str | os.PathLike[str], status: str, seconds: float = 0.0) -> dict[str, Any]:
    """Sets the status in run.json and adds the seconds worked since the last mark.

    Call it at every checkpoint, so that a killed run still knows the time it took to get there.
    """
    data = read_json(path)
    data["status"] = status
    data["wall_clock_s"] = round(data.get("wall_clock_s", 0.0) + seconds, 3)
    data["ended"] = None if status == "running" else utc_now()
    data["peak_memory_mb"] = max(data.get("peak_memory_mb") or 0, peak_memory_mb() or 0) or None
    try:
        write_json(path, data)
    except OSError:
        # A full disk: there is still room for what is there already, letter for letter.
        was, now = b'"status": "running"', f'"status": "{status}"'.encode().ljust(19)
        content = Path(path).read_bytes()
        if status != "failed" or was not in content:
            raise
        with open(path, "r+b", buffering=0) as file:
            write_all(file, content.replace(was, now, 1))
    return data


def mark_resumed(path: str | os.PathLike[str], argv: Sequence[str], env_steps: int) -> None:
    """Notes in run.json that the run goes on, where from, and with which code and machine."""
    data = read_json(path)
    data["status"], data["ended"] = "running", None
    note = {"started": utc_now(), "env_steps": int(env_steps), "argv": list(argv)}
    data.setdefault("resumes", []).append({**note, **surroundings()})
    write_json(path, data)
