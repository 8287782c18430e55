"""JSON files and files of JSON lines: one way to write them, one way to read them."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rescore.core import UsageError
from rescore.files.atomic import replacing, write_all


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
    """Replaces the file in one step.

    Non-finite floats are kept (`Infinity`, `NaN`): what a checkpoint reads must be what it wrote.
    """
    with replacing(path) as part:
        part.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The file's content, or a UsageError that names the file and what is wrong with it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # bad JSON or bad UTF-8
        raise UsageError(f"{path} is damaged: {error}") from None


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line without newline is torn and ignored."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
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


def json_line(row: Mapping[str, Any]) -> str:
    """One object as one line, without its newline; what is not finite becomes null."""
    return json.dumps(plain(row), ensure_ascii=False, allow_nan=False)


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file by these rows, all at once or not at all."""
    text = "".join(f"{json_line(row)}\n" for row in rows)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def append_jsonl(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Appends one row in one system call; a torn line of another process is closed, not deleted."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json_line(row).encode() + b"\n"
    with open(path, "a+b", buffering=0) as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        write_all(file, line)
