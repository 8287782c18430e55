"""The picture of the README: curves of results/flagship/, published returns beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from benchmarks.tables import FLAGSHIP, ROOT, Runs, flagship
from matplotlib.figure import Figure

PUBLISHED = json.loads((ROOT / "benchmarks" / "published_100k.json").read_text())
OUT = ROOT / "docs" / "images" / "learning.png"
COLOURS = {"dpmd": "#0072B2", "sdac": "#D55E00", "sac": "#777777"}  # told apart by everyone
NAMES = {"dpmd": "DPMD", "sdac": "SDAC", "sac": "SAC, same critic"}
MARKS = {"CrossQ": ("x", "CrossQ, published"), "best": ("+", "best published")}


def curves(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the mean return of each run there [runs, steps], as far as all of them got."""
    found = [dict(row["evaluations"]) for row in runs.rows]
    steps = sorted(set.intersection(*(set(curve) for curve in found)))
    return np.array(steps), np.array([[curve[step] for step in steps] for curve in found])


def draw(folder: Path = FLAGSHIP, out: Path = OUT) -> Path:
    shown = [r for r in flagship(folder) if max(row["env_steps"] for row in r.rows) >= 100_000]
    tasks = sorted({runs.env for runs in shown})
    figure = Figure(figsize=(2.6 * max(len(tasks), 2), 2.7), dpi=200, layout="constrained")
    panels = figure.subplots(1, max(len(tasks), 1), squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        for runs in (r for r in shown if r.env == task):
            steps, values = curves(runs)
            colour = COLOURS[runs.algorithm]
            label = NAMES[runs.algorithm]
            axes.plot(steps / 1000, values.mean(axis=0), color=colour, label=label, linewidth=1.8)
            if len(values) > 1:
                axes.fill_between(
                    steps / 1000, values.min(0), values.max(0), color=colour, alpha=0.2, lw=0
                )
        end = max(curves(runs)[0].max() for runs in shown if runs.env == task)
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
