"""Work against return: what an update's work costs, and what it brings at equal environment steps.

Returns are the rows of the suites `frontier` and `frontier-sdac` in results/frontier/; `--cost`
measures the iteration of every variant that has rows, each in a process of its own, and appends
the figures to results/frontier/cost.jsonl. Without it the figure is drawn from what is recorded.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rescore.bench.results import Results, load
from rescore.bench.speed import Case, measure
from rescore.bench.suites import SUITES
from rescore.files.run_record import append_result
from rescore.show.curves import COLOURS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "frontier"
COST = RESULTS / "cost.jsonl"
FIGURE = ROOT / "docs" / "figures" / "frontier.png"
SUITE_OF = {"dpmd": "frontier", "sdac": "frontier-sdac"}
DEFAULT = {"dpmd": "4 x 3 one judge", "sdac": "T=3 K=8 one judge"}  # what the presets have now
MARKERS = "o^s"  # of seeds 0, 1 and 2
LAST = 3  # evaluations whose mean is the return of a run


class Point(NamedTuple):
    """A variant on a task."""

    mean: float
    spread: float  # between the lowest and the highest seed
    each: tuple[float, ...]  # by seed

    @property
    def seeds(self) -> int:
        return len(self.each)


def results(algo: str) -> Results | None:
    folder = RESULTS / algo
    return load(folder) if any((folder / "rows").rglob("*.jsonl")) else None


def points(found: Results, algo: str) -> dict[str, dict[str, Point]]:
    """Returns by variant and task, for those that have rows."""
    made: dict[str, dict[str, Point]] = {}
    for variant in SUITES[SUITE_OF[algo]].variants:
        for task in found.tasks:
            rows = found.of(f"{algo} {variant}", task)
            if rows:
                last = tuple(float(row.curve[-LAST:, 1].mean()) for row in rows)
                point = Point(float(np.mean(last)), float(np.ptp(last)), last)
                made.setdefault(variant, {})[task] = point
    return made


def costs(algo: str) -> dict[str, float]:
    """Milliseconds of an iteration by variant, the newest measurement of each."""
    lines = COST.read_text().splitlines() if COST.exists() else []
    rows = [row for row in map(json.loads, lines) if row["algorithm"] == algo]
    return {row["variant"]: row["figures"]["iteration_ms"] for row in rows}


def table(algo: str) -> str:
    """A line per variant: milliseconds, and returns on the tasks."""
    found = results(algo)
    if found is None:
        return "missing"
    cost = costs(algo)
    lines = [f"| `{algo}` | iteration, ms | {' | '.join(f'`{task}`' for task in found.tasks)} |"]
    lines.append("|---" * (len(found.tasks) + 2) + "|")
    for variant, by_task in points(found, algo).items():
        ms = f"{cost[variant]:.1f}" if variant in cost else "missing"
        cells = [cell(by_task.get(task)) for task in found.tasks]
        lines.append(f"| {variant} | {ms} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(point: Point | None) -> str:
    if point is None:
        return "missing"
    digits = 1 if abs(point.mean) < 100 else 0
    mean = f"{point.mean:,.{digits}f}"
    return mean if point.seeds == 1 else f"{mean} ({point.seeds} seeds, {point.spread:,.{digits}f})"


def record_costs(seconds: float) -> None:
    for algo in SUITE_OF:
        found = results(algo)
        for variant in points(found, algo) if found else ():
            settings = dict(SUITES[SUITE_OF[algo]].variants[variant])
            figures = measure(Case(algo, settings=settings, seconds=seconds))
            print(f"{algo} {variant}: {figures['iteration_ms']:.2f} ms", flush=True)
            row = {"benchmark": "frontier", "algorithm": algo, "variant": variant}
            append_result(COST, {**row, "settings": settings, "figures": figures})


def draw(path: Path) -> None:
    """A panel per algorithm and task: return against milliseconds of an iteration, by seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = {algo: found for algo in SUITE_OF if (found := results(algo)) and costs(algo)}
    if not known:
        return
    tasks = list(dict.fromkeys(task for found in known.values() for task in found.tasks))
    figure = Figure(
        figsize=(3.4 * len(tasks), 3.0 * len(known)), dpi=150, facecolor="white", layout="tight"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(known), len(tasks), squeeze=False)
    for row, (algo, found) in zip(panels, known.items()):
        made, cost = points(found, algo), costs(algo)
        for axes, task in zip(row, tasks):
            for variant, by_task in made.items():
                if task not in by_task or variant not in cost:
                    continue
                each = by_task[task].each
                colour = COLOURS[1 if variant == DEFAULT[algo] else 0]
                for value, marker in zip(each, MARKERS):
                    axes.plot(cost[variant], value, marker, color=colour, markersize=5)
                at = (cost[variant], each[0])
                axes.annotate(variant, at, (3, 3), textcoords="offset points", fontsize=7)
            axes.set_title(f"{algo}, {task}", fontsize=9)
            axes.set(xscale="log", xlabel="ms per iteration", ylabel="return")
            axes.set_xlim(4, 1.6 * max(cost.values()))
            axes.set_xticks([5, 10, 20], ["5", "10", "20"])
            axes.set_xticks([], minor=True)
            axes.margins(y=0.15)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cost", action="store_true", help="measure every variant that has rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per figure, about")
    args = parser.parse_args()
    if args.cost:
        record_costs(args.seconds)
    for algo in SUITE_OF:
        print(table(algo), end="\n\n")
    draw(FIGURE)


if __name__ == "__main__":
    main()
