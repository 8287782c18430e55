"""Learning curves from run folders, as PNG files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rescore.core import UsageError
from rescore.files.atomic import replacing
from rescore.files.json import read_json
from rescore.files.logs import METRICS, EvalRow, read_eval, read_metrics

# Okabe and Ito's palette: told apart with any colour vision, and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
TRAIN_POINTS = 150

StrPath = str | os.PathLike[str]


class Curve(NamedTuple):
    """Mean return against environment steps, and its spread."""

    env_steps: np.ndarray  # [E]
    mean: np.ndarray  # [E]
    std: np.ndarray  # [E] over seeds if there are several, else over episodes
    seeds: int
    episodes: int  # per evaluation and seed


def learning_curve(groups: Mapping[str, Sequence[StrPath]], path: StrPath) -> Path:
    """Draws the evaluations of run folders, one curve for each label."""
    # 1,400 pixels wide: sharp when shown at 700.
    figure, axes = canvas((7, 4.2), ink="#888888", grid="#e6e6e6")
    axes.tick_params(labelsize=11, color="#888888")
    several, tasks = len(groups) > 1, {task_of(Path(f)) for group in groups.values() for f in group}
    for colour, (label, folders) in zip(cycle(COLOURS), groups.items()):
        runs = [read_eval(folder) for folder in folders]
        if not any(runs):
            raise UsageError(f"no evaluation to draw yet in {', '.join(map(str, folders))}")
        curve = summarise(runs)
        _draw(axes, curve, colour, f"{label}, {_seeds(curve)}" if several else "evaluation")
        if not several:
            _draw_training(axes, [_training_returns(Path(folder)) for folder in folders])
    task = tasks.pop() if len(tasks) == 1 else ""
    title = task if several else "  ".join(filter(None, [label, task]))
    _finish(axes, title, curve, several)
    with replacing(path) as part:
        figure.savefig(part, format="png", facecolor="white")
    return Path(path)


def canvas(size: tuple[float, float], ink: str, grid: str) -> tuple[Any, Any]:
    """A figure and its axes, open above and to the right, with a grid behind what is drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=200, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink)
    axes.grid(color=grid, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def summarise(runs: Iterable[Sequence[EvalRow]]) -> Curve:
    """Episodes to a curve, at the steps that all seeds have; a seed in two runs counts as two."""
    returns: dict[int, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for index, rows in enumerate(runs):
        for row in rows:
            returns[row.env_steps][index, row.seed].append(row.return_)
    seeds = {seed for evaluation in returns.values() for seed in evaluation}
    shared = [at for at, evaluation in sorted(returns.items()) if len(evaluation) == len(seeds)]
    shared = shared or sorted(returns)
    mean, std = [], []
    for evaluation in map(returns.__getitem__, shared):
        means = np.array([np.mean(episodes) for episodes in evaluation.values()])
        one_seed = next(iter(evaluation.values()))
        mean.append(means.mean())
        several = len(means) > 1
        std.append(np.std(means, ddof=1) if several else np.std(one_seed))
    episodes = max(len(e) for evaluation in returns.values() for e in evaluation.values())
    return Curve(np.array(shared), np.array(mean), np.array(std), len(seeds), episodes)


def task_of(folder: Path) -> str:
    """The task that a run.json names, if there is one."""
    about = folder / "run.json"
    return (read_json(about).get("config") or {}).get("env", "") if about.exists() else ""


def _training_returns(folder: Path) -> np.ndarray:
    """Pairs (env_steps, return) [M, 2] of the training episodes; empty if none were logged."""
    rows = read_metrics(folder) if (folder / METRICS).exists() else []
    found = [(row["env_steps"], row["return"]) for row in rows if "return" in row]
    pairs = np.array(found, dtype=float).reshape(-1, 2)
    return pairs[np.isfinite(pairs[:, 1])]


def _draw(axes: Any, curve: Curve, colour: str, label: str) -> None:
    low, high = curve.mean - curve.std, curve.mean + curve.std
    axes.fill_between(curve.env_steps, low, high, color=colour, alpha=0.18, linewidth=0)
    # A lone evaluation has no line; with few, the dots show where they are.
    marker = "o" if len(curve.env_steps) <= 25 else None
    line = {"linewidth": 2.2, "marker": marker, "markersize": 4}
    axes.plot(curve.env_steps, curve.mean, color=colour, label=label, zorder=3, **line)


def _draw_training(axes: Any, training: Sequence[np.ndarray]) -> None:
    pairs = np.concatenate([*training, np.empty((0, 2))])
    if not len(pairs):
        return
    edges = np.linspace(pairs[:, 0].min(), pairs[:, 0].max() + 1, TRAIN_POINTS + 1)
    places = np.digitize(pairs[:, 0], edges)
    bins = [pairs[places == place].mean(axis=0) for place in np.unique(places)]
    env_steps, returns = np.array(bins).T
    style = {"color": "#999999", "linewidth": 1.0, "alpha": 0.7}
    axes.plot(env_steps, returns, label="training episodes", zorder=2, **style)


def _finish(axes: Any, title: str, curve: Curve, several: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    separated = FuncFormatter(lambda value, _: f"{value:,.10g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(separated)
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel("environment steps", fontsize=12)
    axes.set_ylabel("return", fontsize=12)
    axes.set_xlim(left=0)
    axes.set_title(title, fontsize=13, fontweight="bold", loc="left", pad=0 if several else 20)
    if not several:
        spread = f"± std over {_seeds(curve)}" if curve.seeds > 1 else "± std over episodes"
        note = f"mean {spread}, {curve.episodes} episode{'s' * (curve.episodes > 1)} each"
        place = {"xytext": (0, 6), "textcoords": "offset points"}
        axes.annotate(
            note, (0, 1), xycoords="axes fraction", fontsize=9.5, color="#666666", **place
        )
    axes.legend(frameon=False, fontsize=10.5, loc="best")


def _seeds(curve: Curve) -> str:
    return f"{curve.seeds} seed{'s' * (curve.seeds > 1)}"
