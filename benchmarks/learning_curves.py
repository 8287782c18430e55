"""The picture of the README: curves of results/flagship/, published returns beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.tables import FLAGSHIP, PUBLISHED, ROOT, Runs, flagship
from matplotlib.figure import Figure

OUT = ROOT / "docs" / "images" / "learning.png"
COLOURS = {"dpmd": "#0072B2", "sdac": "#D55E00", "sac": "#777777"}  # told apart by everyone
NAMES = {"dpmd": "DPMD", "sdac": "SDAC", "sac": "SAC, same critic"}
MARKS = {"CrossQ": ("x", "CrossQ, published"), "best": ("+", "best published")}


def mean_curve(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Steps that every run has evaluated, and the mean return of all runs there."""
    found = [dict(row["evaluations"]) for row in runs.rows]
    steps = sorted(set.intersection(*(set(curve) for curve in found)))
    return np.array(steps), np.array([np.mean([curve[step] for curve in found]) for step in steps])


def draw(folder: Path = FLAGSHIP, out: Path = OUT) -> Path:
    shown = [r for r in flagship(folder) if max(row["env_steps"] for row in r.rows) >= 100_000]
    tasks = sorted({runs.env for runs in shown})
    figure = Figure(figsize=(2.6 * max(len(tasks), 2), 2.7), dpi=200, layout="constrained")
    panels = figure.subplots(1, max(len(tasks), 1), squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        for runs in (r for r in shown if r.env == task):
            colour, label = COLOURS[runs.algorithm], NAMES[runs.algorithm]
            for row in runs.rows if len(runs.rows) > 1 else ():  # each run, then their mean
                steps, values = np.array(row["evaluations"]).T
                axes.plot(steps / 1000, values, color=colour, linewidth=0.7, alpha=0.5)
            steps, values = mean_curve(runs)
            axes.plot(steps / 1000, values, color=colour, label=label, linewidth=1.8)
        end = max(row["env_steps"] for runs in shown if runs.env == task for row in runs.rows)
        for name, (mark, label) in MARKS.items():
            points = zip(PUBLISHED["steps"], PUBLISHED[name].get(task, []))
            points = [(step / 1000, value) for step, value in points if step <= end]
            if points:
                axes.plot(*zip(*points), mark, color="black", label=label, clip_on=False)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("thousand environment steps", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("return of 10 episodes", fontsize=8)
    named = {
        label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels())
    }
    figure.legend(
        named.values(),
        named,
        loc="outside lower center",
        ncols=len(named),
        frameon=False,
        fontsize=8,
    )
    figure.savefig(out, facecolor="white")
    return out


if __name__ == "__main__":
    print(draw())
