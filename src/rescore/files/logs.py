"""The tables of a run: metrics.jsonl, eval.csv and, if wanted, TensorBoard events.

Rows are appended, each write in one system call, so that `kill -9` costs at most the last line.
A resumed run first calls `truncate` with its checkpoint's env_steps; from then on the files equal
those of a run that was never interrupted. Rows of a step must therefore be written before its
checkpoint.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rescore.core import UsageError
from rescore.files.atomic import replacing, write_all
from rescore.files.json import json_line, plain, read_jsonl, read_lines

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


class Log(Protocol):
    """Where rows of metrics go; each holds `env_steps` and, for several seeds, `seed`."""

    def write(self, row: Mapping[str, Scalar]) -> None: ...

    def truncate(self, env_steps: int) -> int: ...

    def close(self) -> None: ...


class _Lines:
    """An append-only text file whose lines can be dropped from a step on."""

    def __init__(self, path: Path, header: str = ""):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._header = path, header
        self._open()

    def _open(self) -> None:
        # Unbuffered: one `write` is one system call, and what it wrote survives the process.
        # Not through a link: a folder from elsewhere must not have us cut other files.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._file = open(os.open(self.path, flags, 0o666), "a+b", buffering=0)  # noqa: SIM115
        self._cut_torn_line()
        if self._header and self._file.seek(0, os.SEEK_END) == 0:
            write_all(self._file, f"{self._header}\n".encode())

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            self._file.truncate(end)

    def append(self, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        write_all(self._file, text.encode())

    def keep(self, step_of: Callable[[bytes], int], env_steps: int) -> int:
        """Drops the lines beyond a step, and those that are damaged; returns how many of these."""
        header, kept, damaged = self._header.encode(), [], 0
        for line in read_lines(self.path):
            try:
                if line not in (header, OLDER.encode()) and step_of(line) <= env_steps:
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


class MetricsLog:
    """metrics.jsonl: one JSON object per row; what is not finite becomes null."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._lines = _Lines(Path(folder) / METRICS)

    def write(self, row: Mapping[str, Scalar]) -> None:
        if "env_steps" not in row:
            raise KeyError("a row of metrics needs env_steps")
        self._lines.append([json_line(row)])

    def truncate(self, env_steps: int) -> int:
        """Drops the rows beyond the checkpoint from which the run goes on."""
        return self._lines.keep(lambda line: int(json.loads(line)["env_steps"]), env_steps)

    def close(self) -> None:
        self._lines.close()


class EvalLog:
    """eval.csv: raw episodes, so that every statistic can still be computed."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._lines = _Lines(Path(folder) / EVAL, HEADER)

    def write(self, rows: Iterable[EvalRow]) -> None:
        """Appends the episodes of one evaluation in one go."""
        self._lines.append(_csv_line(row) for row in rows)

    def truncate(self, env_steps: int) -> int:
        """Drops the episodes beyond the checkpoint from which the run goes on."""
        return self._lines.keep(lambda line: _parse(line).env_steps, env_steps)

    def close(self) -> None:
        self._lines.close()


def scalars(row: Mapping[str, Scalar]) -> dict[str, float]:
    """Numbers by name; rows that name their seed go under `seed<n>/`."""
    prefix = f"seed{row['seed']}/" if "seed" in row else ""
    kept = {n: v for n, v in plain(row).items() if n not in ("env_steps", "seed")}
    return {prefix + n: v for n, v in kept.items() if isinstance(v, int | float)}


class TensorBoardLog:
    """Scalars against env_steps."""

    def __init__(self, folder: str | os.PathLike[str]):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise UsageError("TensorBoard needs tensorboardX: pip install tensorboardX") from None
        self._make, self._folder = SummaryWriter, Path(folder)
        self._writer: Any = None
        self._purge_step: int | None = None

    def _open(self) -> Any:
        # Files are named by the second: a number keeps a quick resumption from overwriting one.
        number = len(list(self._folder.glob("events.*")))
        return self._make(
            os.fspath(self._folder),
            purge_step=self._purge_step,
            filename_suffix=f".{number}",
            flush_secs=10,
        )

    def write(self, row: Mapping[str, Scalar]) -> None:
        if self._writer is None:
            self._writer = self._open()
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, int(row["env_steps"]))

    def truncate(self, env_steps: int) -> int:
        """Goes on in a new event file that tells TensorBoard to hide what was beyond."""
        self.close()
        self._purge_step = env_steps + 1
        return 0

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; null comes back as NaN."""
    return [
        {name: math.nan if value is None else value for name, value in row.items()}
        for row in read_jsonl(Path(folder) / METRICS)
    ]


def read_eval(folder: str | os.PathLike[str]) -> list[EvalRow]:
    """The episodes of eval.csv."""
    return _read_csv(Path(folder) / EVAL)


def _csv_line(row: EvalRow) -> str:
    # repr of a float is its shortest exact text: what is read equals what was measured.
    counts = [int(row.env_steps), int(row.seed), int(row.episode), int(row.env_seed)]
    success = "" if row.success is None else repr(float(row.success))
    return ",".join([*map(repr, [*counts, float(row.return_), int(row.length)]), success])


def _read_csv(path: Path) -> list[EvalRow]:
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


def _parse(line: bytes) -> EvalRow:
    env_steps, seed, episode, env_seed, return_, length, *more = line.split(b",")
    (success,) = more or [b""]  # older rows end before it
    counts = int(env_steps), int(seed), int(episode), int(env_seed)
    return EvalRow(*counts, float(return_), int(length), float(success) if success else None)
