"""The tables of a run: metrics.jsonl and eval.csv.

Rows are appended, each write in one system call, so that `kill -9` costs at most the last line.
A resumed run first calls `truncate` with its checkpoint's env_steps; from then on the files equal
those of a run that was never interrupted. Rows of a step must therefore be written before its
checkpoint.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rescore.core import UsageError
from rescore.files.atomic import replacing, write_all
from rescore.files.json import json_line, read_jsonl, read_lines

METRICS = "metrics.jsonl"
EVAL = "eval.csv"
HEADER = "env_steps,seed,episode,env_seed,return,length,success"
OLDER = HEADER.removesuffix(",success")

Scalar = float | int | str


class EvalRow(NamedTuple):
    """One evaluation episode, a line of eval.csv."""

    env_steps: int  # training steps when it was evaluated
    seed: int  # of the run
    episode: int
    env_seed: int  # of the episode's reset
    return_: float  # undiscounted
    length: int
    success: float | None = None  # where the task tells it


class _Lines:
    """An append-only text file whose lines can be dropped from a step on."""

    name: str
    header = ""

    def __init__(self, folder: str | os.PathLike[str]):
        self.path = Path(folder) / self.name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        # Unbuffered: one `write` is one system call, and what it wrote survives the process.
        # Not through a link: a folder from elsewhere must not have us cut other files.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._file = open(os.open(self.path, flags, 0o666), "a+b", buffering=0)  # noqa: SIM115
        self._cut_torn_line()
        if self.header and self._file.seek(0, os.SEEK_END) == 0:
            self.append([self.header])

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            self._file.truncate(end)

    def append(self, lines: Iterable[str]) -> None:
        write_all(self._file, "".join(f"{line}\n" for line in lines).encode())

    def step_of(self, line: bytes) -> int:
        raise NotImplementedError

    def truncate(self, env_steps: int) -> int:
        """Drops the lines beyond the checkpoint from which the run goes on, and those that are
        damaged; returns how many of these."""
        header, kept, damaged = self.header.encode(), [], 0
        for line in read_lines(self.path):
            try:
                if line not in (header, OLDER.encode()) and self.step_of(line) <= env_steps:
                    kept.append(line)
            except (ValueError, TypeError, KeyError, RecursionError):
                damaged += 1
        self._file.close()
        with replacing(self.path) as part:
            lines = [header, *kept] if header else kept
            part.write_bytes(b"".join(line + b"\n" for line in lines))
        self._open()
        return damaged

    def close(self) -> None:
        self._file.close()


class MetricsLog(_Lines):
    """metrics.jsonl: one JSON object per row; what is not finite becomes null."""

    name = METRICS

    def write(self, row: Mapping[str, Scalar]) -> None:
        self.append([json_line(row)])

    def step_of(self, line: bytes) -> int:
        return int(json.loads(line)["env_steps"])


class EvalLog(_Lines):
    """eval.csv: raw episodes, so that every statistic can still be computed."""

    name, header = EVAL, HEADER

    def write(self, rows: Iterable[EvalRow]) -> None:
        """Appends the episodes of one evaluation in one go."""
        self.append(_csv_line(row) for row in rows)

    def step_of(self, line: bytes) -> int:
        return _parse(line).env_steps


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; null comes back as NaN."""
    return [
        {name: math.nan if value is None else value for name, value in row.items()}
        for row in read_jsonl(Path(folder) / METRICS)
    ]


def read_eval(folder: str | os.PathLike[str]) -> list[EvalRow]:
    """The episodes of eval.csv."""
    path = Path(folder) / EVAL
    lines = read_lines(path)
    if lines and lines[0].strip().decode(errors="replace") not in (HEADER, OLDER):
        raise UsageError(f"{path}, line 1 is not the header {HEADER}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(_parse(line))
        except ValueError:
            raise UsageError(f"{path}, line {number} is damaged: expected {HEADER}") from None
    return rows


def _csv_line(row: EvalRow) -> str:
    # repr of a float is its shortest exact text: what is read equals what was measured.
    counts = [int(row.env_steps), int(row.seed), int(row.episode), int(row.env_seed)]
    success = "" if row.success is None else repr(float(row.success))
    return ",".join([*map(repr, [*counts, float(row.return_), int(row.length)]), success])


def _parse(line: bytes) -> EvalRow:
    env_steps, seed, episode, env_seed, return_, length, *more = line.split(b",")
    (success,) = more or [b""]  # older rows end before it
    counts = int(env_steps), int(seed), int(episode), int(env_seed)
    told = float(success) if success not in (b"", b"nan") else None
    return EvalRow(*counts, float(return_), int(length), told)
