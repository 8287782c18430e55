"""Result rows: made from the folder of a finished run, one JSON line per seed, and read back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rescore.bench.plan import Cell
from rescore.core import UsageError
from rescore.files.json import read_json, read_jsonl
from rescore.files.logs import EvalRow, read_eval, read_metrics

NEEDED = (
    *("algorithm", "env", "seed", "steps", "evaluations", "versions", "wall_clock_s"),
    *("env_steps", "updates", "group"),
)


@dataclass(frozen=True)
class Row:
    """One seed of one cell, and where it is written."""

    file: Path
    line: int
    data: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def label(self) -> str:
        return f"{self.algorithm} {self.data.get('variant', '')}".strip()

    @property
    def curve(self) -> np.ndarray:
        """[E, 2]: environment steps and mean return of each evaluation."""
        return np.array([pair[:2] for pair in self.evaluations], dtype=float)

    @property
    def success(self) -> float | None:
        """Share of the last evaluation's episodes that succeeded, where the task tells it."""
        last = self.evaluations[-1]
        return float(last[3]) if len(last) > 3 else None


def make_rows(cell: Cell, run: Path) -> list[dict[str, Any]]:
    """What is kept of a finished run, for each of its seeds."""
    info, metrics = read_json(run / "run.json"), read_metrics(run)
    paces = [row["update_ms"] for row in metrics if "update_ms" in row]
    common = {
        "cell": cell.name,
        "algorithm": cell.algorithm,
        "variant": cell.variant,
        "preset": cell.preset,
        "env": cell.env,
        "steps": cell.steps,
        "env_steps": max(row["env_steps"] for row in metrics),
        "updates": max(row["updates"] for row in metrics),
        "group": list(cell.seeds),
        "wall_clock_s": info["wall_clock_s"],
        "update_ms": median(paces) if paces else None,
        "peak_memory_mb": info.get("peak_memory_mb"),
        "versions": info["env_versions"] | info["versions"],
        "commits": sorted({str(part["commit"]) for part in (info, *info["resumes"])}),
        "dirty": any(part["dirty"] for part in (info, *info["resumes"])),
        "started": info["started"],
        "resumes": len(info["resumes"]),
        "cpu": info["cpu"],
        "devices": info["devices"],
        "config": info["config"],
    }
    return [{**common, "seed": seed, **evaluations(run, seed)} for seed in cell.seeds]


def evaluations(run: Path, seed: int) -> dict[str, Any]:
    """A seed's evaluations as steps, mean, standard deviation and where it is told success; and
    the episodes of each."""
    found: dict[int, list[EvalRow]] = defaultdict(list)
    for row in read_eval(run):
        if row.seed == seed:
            found[row.env_steps].append(row)
    each = []
    for at, own in sorted(found.items()):
        returns = [row.return_ for row in own]
        told = [row.success for row in own if row.success is not None]
        each.append([at, float(np.mean(returns)), float(np.std(returns))])
        each[-1] += [float(np.mean(told))] if told else []
    return {"episodes": max(map(len, found.values())), "evaluations": each}


def read_rows(path: Path) -> list[Row]:
    """The rows of one file; one that is cut off or lacks something is named, not skipped."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        raise UsageError(f"{path} is cut off: restore it, or delete it and run its cell again")
    rows = []
    for line, data in enumerate(read_jsonl(path), start=1):
        for name in NEEDED:
            if data.get(name) in (None, [], {}):
                raise UsageError(f"{path}, line {line} has no {name!r}: is it a benchmark?")
        rows.append(Row(path, line, data))
        demand_types(rows[-1])
    return rows


def demand_types(row: Row) -> None:
    """Refuse a row whose values are not of the kind that the report computes with."""
    words = (row.algorithm, row.env, row.data.get("variant", ""))
    numbers = (row.seed, row.steps, row.wall_clock_s, row.env_steps, row.updates)
    maps = (row.versions, row.data.get("config", {}))
    try:
        good = row.curve.ndim == 2 and row.curve.shape[1] == 2 and np.isfinite(row.curve).all()
        good &= row.success is None or 0 <= row.success <= 1
    except (TypeError, ValueError):
        good = False
    good &= all(isinstance(word, str) for word in words) and isinstance(row.group, list)
    good &= all(isinstance(n, int | float) for n in numbers) and type(row.seed) is int
    if not good or not all(isinstance(each, dict) for each in maps):
        raise UsageError(
            f"{row.file}, line {row.line} is damaged: restore it, or run its cell again"
        )


def find_rows(out: Path) -> list[Row]:
    """All rows below a folder of results, in the order of their files."""
    return [row for path in sorted((out / "rows").rglob("*.jsonl")) for row in read_rows(path)]
