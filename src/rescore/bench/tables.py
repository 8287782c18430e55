"""The tables of the report, from results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rescore.bench.document import MISSING, Cell, Table
from rescore.bench.results import PHYSICS, Results, data, published
from rescore.bench.rows import Row
from rescore.bench.statistics import MEASURES, Interval
from rescore.bench.suites import SUITES, unversioned
from rescore.show.text import duration, number, steps

PAPER_STEPS = 1_000_000  # of Table 2


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation; of one value, the value."""
    mean = number(np.mean(values))
    return f"{mean} ± {number(np.std(values, ddof=1))}" if len(values) > 1 else mean


def count(n: int) -> str:
    return f"{n} seed{'s' * (n != 1)}"


def rows_section(results: Results, task: str) -> str:
    """Title of the section with the raw rows of a task."""
    return f"Rows of {task}" + (f" in {results.plan.suite}" if results.is_study else "")


def returns(results: Results, measure: Callable, paper: bool) -> Table:
    """Algorithms by tasks; the best of each task is marked, the paper's number stands below."""
    rows = []
    for label in results.labels:
        cells = [Cell(label)]
        for task in results.tasks:
            found = [measure(row.curve) for row in results.of(label, task)]
            below = [count(len(found))] if found else []
            if paper and label in published(task):
                mean, std = published(task)[label]
                below.append(f"{paper_name(results, task)} {number(mean)} ± {number(std)}")
            best = found and np.mean(found) >= best_mean(results, task, measure)
            section = rows_section(results, task) if found else ""
            text = spread(found) if found else MISSING.text
            cells.append(Cell(text, tuple(below), section, strong=bool(best)))
        rows.append(cells)
    return Table(["", *results.tasks], rows)


def paper_name(results: Results, task: str) -> str:
    """The paper, and in what its number differs from ours: version of the task, steps."""
    here = f"{unversioned(task)}-v4"
    own, budget = results.plan.steps, SUITES["mujoco"].tasks.get(here, PAPER_STEPS)
    notes = ["v4"] if task != here else []
    notes += [steps(budget)] if own not in (None, budget) else []
    return " ".join(["paper,", *notes]) + ":" if notes else "paper"


def best_mean(results: Results, task: str, measure: Callable) -> float:
    """The highest mean of a task; infinite if there is too little to compare with."""
    rows = [found for label in results.labels if (found := results.of(label, task))]
    if len(rows) < 2 or min(map(len, rows)) < 2:
        return np.inf
    return max(np.mean([measure(row.curve) for row in found]) for found in rows)


def aggregates(results: Results, found: Mapping[str, Mapping[str, Interval]]) -> Table:
    """IQM with interval, algorithms by measures."""
    rows = [
        [Cell(label), *(estimated(results, v) for v in per.values())]
        for label, per in found.items()
    ]
    return Table(["", *MEASURES], rows)


def estimated(results: Results, found: Interval) -> Cell:
    """An estimate over the tasks and seeds of a matrix, with its interval."""
    # One seed per task leaves nothing to resample: an interval of no width would look certain.
    interval = (f"{found.low:.2f} to {found.high:.2f}",) if found.low < found.high else ()
    return Cell(f"{found.value:.2f}", interval, run_section(results))


def run_section(results: Results) -> str:
    """Title of the section that says what was run."""
    return f"What was run of {results.plan.suite}"


def improvements(
    results: Results, found: Mapping[tuple[str, str], Interval], labels: Sequence[str]
) -> Table:
    """Chance that the row's algorithm beats the column's."""
    rows = []
    for ours in labels:
        cells = [Cell(ours)]
        for theirs in labels:
            cells.append(Cell("–") if ours == theirs else estimated(results, found[ours, theirs]))
        rows.append(cells)
    return Table(["over", *labels], rows)


def cost(results: Results) -> Table:
    """Table 2: time and memory as the rows have them, the paper's beside."""
    minutes, megabytes = (data("published")["cost"][name] for name in ("minutes", "megabytes"))
    rows = []
    for label in results.labels:
        found = [row for row in results.rows if row.label == label]
        alone = [row for row in found if row.updates and len(row.group) == 1]
        time, memory, pace = MISSING, MISSING, MISSING
        if alone:
            each = [row.wall_clock_s / row.env_steps * PAPER_STEPS / 60 for row in alone]
            several = (f"{number(min(each))} to {number(max(each))}", f"{len(alone)} runs")
            below = several if len(alone) > 1 else ("1 run",)
            time = Cell(number(np.median(each)), below, run_section(results))
            paces = [row.update_ms for row in alone if row.update_ms]
            pace = Cell(number(np.median(paces))) if paces else MISSING
            peaks = [row.peak_memory_mb for row in alone if row.data.get("peak_memory_mb")]
            memory = Cell(number(np.median(peaks))) if peaks else MISSING
        paper = [Cell(number(t[label]) if label in t else "–") for t in (minutes, megabytes)]
        rows.append([Cell(label), time, paper[0], pace, memory, paper[1]])
    head = ["", "minutes per 1M steps", "paper, GPU", "ms per update", "peak MB", "paper, GPU"]
    return Table(head, rows)


def coverage(results: Results) -> Table:
    """Seeds with a row, of those asked for."""
    rows = []
    for label in results.labels:
        done = [len(results.of(label, task)) for task in results.tasks]
        cells = [Cell(f"{n} of {results.plan.seeds}") if n else MISSING for n in done]
        rows.append([Cell(label), *cells])
    return Table(["", *results.tasks], rows)


def raw(results: Results, task: str, out: Path) -> Table:
    """One line per row: its numbers, and the file and line it stands in."""
    rows = [
        raw_row(results, row, out) for label in results.labels for row in results.of(label, task)
    ]
    head = ["", "seed", *MEASURES, "steps", "updates", "wall-clock", "versions", "commit", "row"]
    return Table(head, rows)


def raw_row(results: Results, row: Row, out: Path) -> list[Cell]:
    physics = ", ".join(f"{name} {row.versions.get(name)}" for name in PHYSICS)
    commits = ", ".join(str(commit)[:7] for commit in row.data.get("commits", ()))
    place = f"{row.file.relative_to(results.folder).as_posix()}:{row.line}"
    return [
        Cell(row.label),
        Cell(str(row.seed)),
        *(Cell(number(measure(row.curve))) for measure in MEASURES.values()),
        Cell(steps(row.env_steps)),
        Cell(steps(row.updates)),
        Cell(duration(row.wall_clock_s)),
        Cell(physics),
        Cell(commits + (" (changed)" if row.data.get("dirty") else "")),
        Cell(place, file=Path(os.path.relpath(row.file, out)).as_posix()),
    ]
