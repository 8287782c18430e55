"""Work against return: what an update's work costs, and what it brings at equal environment steps.

Returns are the rows of the suites work.json and work-sdac.json in results/work/; `--cost` measures
the iteration of every variant that has rows and appends the figures to results/work/cost.jsonl.
Without it the figure is drawn from what is recorded.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import numpy as np

from rescore.algorithms import find
from rescore.bench.report.results import Results, load
from rescore.bench.speed import Case, measure
from rescore.files.json import read_jsonl
from rescore.files.run_record import append_result
from rescore.show import text
from rescore.show.curves import COLOURS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "work"
COST = RESULTS / "cost.jsonl"
FIGURE = ROOT / "docs" / "figures" / "work.png"
DEFAULT = {"dpmd": "4 x 3 one judge", "sdac": "T=3 K=8 one judge"}  # what the presets have now
MARKERS = "o^s"  # of seeds 0, 1 and 2
LAST = 3  # evaluations whose mean is the return of a run


def results(algo: str) -> Results:
    return load(RESULTS / algo)


def settings(algo: str, variant: str) -> dict:
    """What a variant changes of the algorithm, with what all of them share."""
    suite = results(algo).plan.suite
    every = {**suite.settings, **suite.variants[variant]}
    return {k: v for k, v in every.items() if k in {f.name for f in fields(find(algo))}}


def returns(algo: str) -> dict[str, dict[str, list[float]]]:
    """Returns of the seeds by variant and task, for those that have rows."""
    found = results(algo)
    made: dict[str, dict[str, list[float]]] = {}
    for variant in found.plan.suite.variants:
        for task in found.tasks:
            if rows := found.of(f"{algo} {variant}", task):
                last = [float(row.curve[-LAST:, 1].mean()) for row in rows]
                made.setdefault(variant, {})[task] = last
    return made


def costs(algo: str) -> dict[str, float]:
    """Milliseconds of an iteration by variant, the newest measurement of each."""
    rows = [row for row in read_jsonl(COST) if row["algorithm"] == algo]
    return {row["variant"]: row["figures"]["iteration_ms"] for row in rows}


def table(algo: str) -> str:
    """A line per variant: milliseconds, and returns on the tasks."""
    cost, tasks = costs(algo), results(algo).tasks
    head = [f"`{algo}`", "iteration, ms", *(f"`{task}`" for task in tasks)]
    rows = []
    for variant, by_task in returns(algo).items():
        ms = f"{cost[variant]:.1f}" if variant in cost else "missing"
        rows.append([variant, ms, *(entry(by_task.get(task)) for task in tasks)])
    return text.table(head, rows)


def entry(each: list[float] | None) -> str:
    if each is None:
        return "missing"
    digits = 1 if abs(np.mean(each)) < 100 else 0
    mean = f"{np.mean(each):,.{digits}f}"
    return mean if len(each) == 1 else f"{mean} ({len(each)} seeds, {np.ptp(each):,.{digits}f})"


def record_costs(seconds: float) -> None:
    for algo in DEFAULT:
        for variant in returns(algo):
            used = settings(algo, variant)
            figures = measure(Case(algo, settings=used, seconds=seconds))
            print(f"{algo} {variant}: {figures['iteration_ms']:.2f} ms", flush=True)
            row = {"benchmark": "work", "algorithm": algo, "variant": variant}
            append_result(COST, {**row, "settings": used, "figures": figures})


def draw(path: Path) -> None:
    """A panel per algorithm and task: return against milliseconds of an iteration, by seed."""
    from matplotlib.figure import Figure

    tasks = results("dpmd").tasks
    size = (3.4 * len(tasks), 3.0 * len(DEFAULT))
    figure = Figure(figsize=size, dpi=150, facecolor="white", layout="tight")
    for row, algo in zip(figure.subplots(len(DEFAULT), len(tasks), squeeze=False), DEFAULT):
        for axes, task in zip(row, tasks):
            panel(axes, algo, task)
    figure.savefig(path)


def panel(axes, algo: str, task: str) -> None:
    cost = costs(algo)
    for variant, by_task in returns(algo).items():
        if task not in by_task or variant not in cost:
            continue
        colour = COLOURS[1 if variant == DEFAULT[algo] else 0]
        for value, marker in zip(by_task[task], MARKERS):
            axes.plot(cost[variant], value, marker, color=colour, markersize=5)
        at = (cost[variant], by_task[task][0])
        axes.annotate(variant, at, (3, 3), textcoords="offset points", fontsize=7)
    axes.set_title(f"{algo}, {task}", fontsize=9)
    axes.set(xscale="log", xlabel="ms per iteration", ylabel="return")
    axes.set_xlim(4, 1.6 * max(cost.values()))
    axes.set_xticks([5, 10, 20], ["5", "10", "20"])
    axes.set_xticks([], minor=True)
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cost", action="store_true", help="measure every variant that has rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per figure, about")
    args = parser.parse_args()
    if args.cost:
        record_costs(args.seconds)
    for algo in DEFAULT:
        print(table(algo), end="\n\n")
    draw(FIGURE)


if __name__ == "__main__":
    main()
