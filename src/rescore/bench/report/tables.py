"""The tables of the report, from results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rescore.bench.published import published, published_cost
from rescore.bench.report.document import MISSING, Entry, Table
from rescore.bench.report.results import PHYSICS, Results
from rescore.bench.report.statistics import (
    MEASURES,
    MOST_SEEDS,
    SEEDS_TO_RANK,
    Interval,
    last_tenth,
    welch_seeds,
)
from rescore.bench.rows import Row
from rescore.bench.suites import SUITES, unversioned
from rescore.show.text import duration, number, steps

PAPER_STEPS = 1_000_000  # of Table 2


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation; of one value, the value."""
    mean = number(float(np.mean(values)))
    return f"{mean} ± {number(float(np.std(values, ddof=1)))}" if len(values) > 1 else mean


def count(n: int) -> str:
    return f"{n} seed{'s' * (n != 1)}"


def rows_section(results: Results, task: str) -> str:
    """Title of the section with the raw rows of a task."""
    return f"Rows of {task}" + (f" in {results.plan.suite.name}" if results.is_study else "")


def returns(results: Results, measure: Callable, paper: bool = False) -> Table:
    """Algorithms by tasks; the best of each task is marked, the paper's number stands below."""
    rows = []
    for label in results.labels:
        entries = [Entry(label)]
        for task in results.tasks:
            found = [measure(row.curve) for row in results.of(label, task)]
            below = [count(len(found))] if found else []
            if paper and label in published(task):
                mean, std = published(task)[label]
                below.append(f"{paper_name(results, label, task)} {number(mean)} ± {number(std)}")
            best = found and np.mean(found) >= best_mean(results, task, measure)
            section = rows_section(results, task) if found else ""
            text = spread(found) if found else MISSING.text
            entries.append(Entry(text, tuple(below), section, strong=bool(best)))
        rows.append(entries)
    return Table(["", *results.tasks], rows)


def successes(results: Results) -> Table:
    """Algorithms by the tasks that tell success: that of the last evaluation of each seed."""
    tasks = [task for task in results.tasks if tells_success(results, task)]
    rows = []
    for label in results.labels:
        entries = [Entry(label)]
        for task in tasks:
            found = [row.success for row in results.of(label, task) if row.success is not None]
            text, below = percent(found), (count(len(found)),)
            section = rows_section(results, task)
            entries.append(Entry(text, below, section) if found else MISSING)
        rows.append(entries)
    return Table(["", *tasks], rows)


def tells_success(results: Results, task: str) -> bool:
    own = [row for label in results.labels for row in results.of(label, task)]
    return any(row.success is not None for row in own)


def percent(shares: Sequence[float]) -> str:
    """Mean of the shares and, of several, their range."""
    whole = f"{np.mean(shares):.0%}" if shares else ""
    return f"{whole} ({min(shares):.0%} to {max(shares):.0%})" if len(shares) > 1 else whole


def paper_name(results: Results, label: str, task: str) -> str:
    """The paper, and in what its number differs from ours: version of the task, steps."""
    own, budget = results.plan.budget(label.split()[0], task), paper_budget(task)
    notes = ["v4"] if task != f"{unversioned(task)}-v4" else []
    notes += [steps(budget)] if own not in (None, budget) else []
    return " ".join(["paper,", *notes]) + ":" if notes else "paper"


def paper_budget(task: str) -> int:
    return SUITES["mujoco"].tasks.get(f"{unversioned(task)}-v4", PAPER_STEPS)


def best_mean(results: Results, task: str, measure: Callable) -> float:
    """The highest mean of a task; infinite if there is too little to compare with."""
    rows = [found for label in results.labels if (found := results.of(label, task))]
    if len(rows) < 2 or min(map(len, rows)) < SEEDS_TO_RANK:
        return np.inf
    return max(np.mean([measure(row.curve) for row in found]) for found in rows)


def seeds_needed(results: Results) -> Table:
    """Algorithms by tasks: seeds that would tell a mean from the highest of the task."""
    columns = []
    for task in results.tasks:
        found = {
            label: [last_tenth(row.curve) for row in results.of(label, task)]
            for label in results.labels
        }
        means = {label: np.mean(own) for label, own in found.items() if own}
        top = max(means, key=lambda label: means[label], default="")
        columns.append([against(found[label], label == top, found.get(top, [])) for label in found])
    rows = [[Entry(label), *own] for label, own in zip(results.labels, zip(*columns))]
    return Table(["", *results.tasks], rows)


def against(own: Sequence[float], highest: bool, top: Sequence[float]) -> Entry:
    """What a comparison of these runs with the best ones would take."""
    if not own:
        return MISSING
    if highest:
        return Entry("highest")
    if min(len(own), len(top)) < 2:
        return Entry("no deviation")
    deviations = np.std(own, ddof=1), np.std(top, ddof=1)
    needed = welch_seeds(float(np.mean(top) - np.mean(own)), *map(float, deviations))
    if needed is None:
        return Entry(f"over {MOST_SEEDS:,}")
    needed = max(needed, SEEDS_TO_RANK)
    return Entry(str(needed), ("are there",) if min(len(own), len(top)) >= needed else ())


def aggregates(results: Results, found: Mapping[str, Mapping[str, Interval]]) -> Table:
    """IQM with interval, algorithms by measures."""
    rows = [
        [Entry(label), *(estimated(results, per[label]) for per in found.values())]
        for label in next(iter(found.values()))
    ]
    return Table(["", *found], rows)


def estimated(results: Results, found: Interval) -> Entry:
    """An estimate over the tasks and seeds of a matrix, with its interval."""
    # One seed per task leaves nothing to resample: an interval of no width would look certain.
    interval = (f"{found.low:.2f} to {found.high:.2f}",) if found.low < found.high else ()
    return Entry(f"{found.value:.2f}", interval, run_section(results))


def run_section(results: Results) -> str:
    """Title of the section that says what was run."""
    return f"What was run of {results.plan.suite.name}"


def improvements(
    results: Results, found: Mapping[tuple[str, str], Interval], labels: Sequence[str]
) -> Table:
    """Chance that the row's algorithm beats the column's."""
    entry = lambda pair: estimated(results, found[pair]) if pair in found else Entry("–")  # noqa: E731
    rows = [[Entry(ours), *(entry((ours, theirs)) for theirs in labels)] for ours in labels]
    return Table(["over", *labels], rows)


def cost(results: Results) -> Table:
    """Table 2: time and memory as the rows have them, the paper's beside."""
    rows = []
    for label in results.labels:
        found = [row for row in results.rows if row.label == label]
        alone = [row for row in found if row.updates and len(row.group) == 1]
        time, memory, pace = MISSING, MISSING, MISSING
        if alone:
            each = [row.wall_clock_s / row.env_steps * PAPER_STEPS / 60 for row in alone]
            several = (f"{number(min(each))} to {number(max(each))}", f"{len(alone)} runs")
            below = several if len(alone) > 1 else ("1 run",)
            time = Entry(number(np.median(each)), below, run_section(results))
            paces = [row.update_ms for row in alone if row.update_ms]
            pace = Entry(number(np.median(paces))) if paces else MISSING
            peaks = [row.peak_memory_mb for row in alone if row.data.get("peak_memory_mb")]
            memory = Entry(number(np.median(peaks))) if peaks else MISSING
        paper = [Entry("–" if x is None else number(x)) for x in published_cost(label)]
        rows.append([Entry(label), time, paper[0], pace, memory, paper[1]])
    head = ["", "minutes per 1M steps", "paper, GPU", "ms per update", "peak MB", "paper, GPU"]
    return Table(head, rows)


def coverage(results: Results) -> Table:
    """Seeds with a row, of those asked for."""
    rows = []
    for label in results.labels:
        done = [len(results.of(label, task)) for task in results.tasks]
        asked = results.plan.seeds_of(label)
        entries = [Entry(f"{n} of {asked}") if n else MISSING for n in done]
        rows.append([Entry(label), *entries])
    return Table(["", *results.tasks], rows)


def raw(results: Results, task: str, out: Path) -> Table:
    """One line per row: its numbers, and the file and line it stands in."""
    rows = [
        raw_row(results, row, out) for label in results.labels for row in results.of(label, task)
    ]
    told = ["success"] if tells_success(results, task) else []
    head = ["", "seed", *MEASURES, *told, "steps", "updates", "wall-clock", "versions", "commit"]
    return Table([*head, "row"], rows)


def raw_row(results: Results, row: Row, out: Path) -> list[Entry]:
    physics = ", ".join(f"{name} {row.versions.get(name)}" for name in PHYSICS)
    commits = ", ".join(str(commit)[:7] for commit in row.data.get("commits", ()))
    place = f"{row.file.relative_to(results.folder).as_posix()}:{row.line}"
    told = [] if row.success is None else [row.success]
    return [
        Entry(row.label),
        Entry(str(row.seed)),
        *(Entry(number(measure(row.curve))) for measure in MEASURES.values()),
        *([Entry(percent(told))] if tells_success(results, row.env) else []),
        Entry(steps(row.env_steps)),
        Entry(steps(row.updates)),
        Entry(duration(row.wall_clock_s)),
        Entry(physics),
        Entry(commits + (" (changed)" if row.data.get("dirty") else "")),
        Entry(place, file=Path(os.path.relpath(row.file, out)).as_posix()),
    ]
