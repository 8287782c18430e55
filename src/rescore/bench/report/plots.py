"""Figures of the report as SVG and PNG; the SVG takes the colours of the page it stands in."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from rescore.bench.published import published, reference
from rescore.bench.report.document import Figure
from rescore.bench.report.results import Results
from rescore.bench.report.statistics import Interval, best, estimate, profile
from rescore.bench.rows import Row
from rescore.show import curves as learning_curves
from rescore.show.text import number, steps

COLOURS = learning_curves.COLOURS[:-1]  # without black, which a dark page would swallow
DASHES = ("solid", (0, (5, 2)), (0, (1, 1)))
INK, GRID = "#1d1d20", "#e6e6ea"  # replaced by the page's own in its drawings
SMALL, WIDE = (4.2, 3.0), (7.2, 4.0)
SIZE = 10
HOVER = "hover-"  # gid of the points that tell their values in a page


def style(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th algorithm, the same in every figure."""
    turn, colour = divmod(index, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": DASHES[turn % len(DASHES)]}


def draw(
    folder: Path | None, name: str, alt: str, paint: Callable[[Any], list[str] | None], size=WIDE
) -> Figure:
    """A figure painted on fresh axes, written as SVG and PNG; without a folder only its name.

    What `paint` returns are words for the points it marked with `hover_points`, in their order.
    """
    if folder is None:
        return Figure(name, alt, "")
    import matplotlib

    # Text stays text; ids are the same in every run and differ between figures of a page.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name, "text.color": INK}
    settings |= {"axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with matplotlib.rc_context({**settings, "font.size": SIZE, "legend.fontsize": SIZE - 1}):
        figure, axes = learning_curves.canvas(size, INK, GRID)
        axes.patch.set_alpha(0)
        hover = paint(axes) or []
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{name}.png", format="png", facecolor="white")
    svg = with_titles(text.getvalue(), hover)
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    return Figure(name, alt, svg)


def hover_points(axes: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Points that cannot be seen, for a pointer to rest on."""
    axes.plot(x, y, "o", markersize=9, alpha=0.0, gid=f"{HOVER}{len(axes.lines)}")


def with_titles(svg: str, words: Sequence[str]) -> str:
    """Each hover point with its words, which a browser shows below a resting pointer."""
    waiting = iter(words)

    def named(group: re.Match[str]) -> str:
        point = r"<use ([^>]*)/>"
        use = lambda m: f"<use {m[1]}><title>{escape(next(waiting))}</title></use>"  # noqa: E731
        return re.sub(point, use, group[0])

    return re.sub(rf'<g id="{HOVER}\d+">.*?</g>\s*</g>', named, svg, flags=re.DOTALL)


def themed(svg: str) -> str:
    """The drawing inside a page: without prologue, ink and grid in the page's colours."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(GRID, "var(--grid)")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # the same in every drawing, and never referred to
    head, rest = svg.split(">", 1)  # its size is the page's affair, too
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest


def band(axes: Any, rows: Sequence[Row], label: str, look: dict[str, Any]) -> list[str]:
    """Mean over seeds against steps, and their deviation; words for each point."""
    curves: dict[float, list[float]] = {}
    for row in rows:
        for at, mean in row.curve:
            curves.setdefault(at, []).append(mean)
    at = np.array(sorted(curves))
    mean = np.array([np.mean(curves[x]) for x in at])
    axes.plot(at, mean, linewidth=1.8, **look)
    if len(rows) > 1:
        std = np.array([np.std(curves[x], ddof=len(curves[x]) > 1) for x in at])
        axes.fill_between(at, mean - std, mean + std, color=look["color"], alpha=0.15, linewidth=0)
    hover_points(axes, at, mean)
    return [f"{label}: {number(m)} at {steps(x)} steps" for x, m in zip(at, mean)]


def curves(
    folder: Path | None, results: Results, task: str, size: tuple[float, float] = SMALL
) -> Figure | None:
    """Learning curves of all algorithms on one task, dotted lines at the paper's means for them;
    None without rows."""
    shown = [(i, label) for i, label in enumerate(results.labels) if results.of(label, task)]

    def paint(axes: Any) -> list[str]:
        words = []
        for index, label in shown:
            words += band(axes, results.of(label, task), label, style(index))
            if label in published(task):
                colour = style(index)["color"]
                axes.axhline(published(task)[label][0], color=colour, linewidth=1, linestyle=":")
        label_steps(axes)
        axes.set_title(task, loc="left", fontweight="bold", fontsize=SIZE + 1)
        return words

    name = f"{results.plan.suite.name}-curve-{task.replace('/', '_')}"
    alt = f"Mean return against environment steps on {task}: {', '.join(s for _, s in shown)}"
    return draw(folder, name, alt, paint, size) if shown else None


def legend(folder: Path | None, results: Results) -> Figure:
    """The names of all algorithms, once for all curves."""
    shown = results.present()

    def paint(axes: Any) -> None:
        for label in shown:
            axes.plot([], [], label=label, linewidth=2.4, **style(results.labels.index(label)))
        axes.axis("off")
        axes.legend(frameon=False, ncols=6, loc="center", handlelength=3, mode="expand")

    size = (WIDE[0], 0.25 + 0.22 * -(-len(shown) // 6))
    alt = f"Colours of {', '.join(shown)}"
    return draw(folder, f"{results.plan.suite.name}-legend", alt, paint, size)


def label_steps(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: steps(x)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(left=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return")


def heat_map(folder: Path | None, results: Results) -> Figure | None:
    """Normalised scores of best evaluations, algorithms by tasks, the paper's below ours; None
    without a task that has a reference."""
    found = {task: known for task in results.tasks if (known := reference(task))}
    if not found:
        return None
    names, grid = [], []
    for label in results.present():
        ours = {task: [best(row.curve) for row in results.of(label, task)] for task in found}
        paper = {task: published(task).get(label, [])[:1] for task in found}
        for name, returns in ((label, ours), ("paper", paper)):
            if any(returns.values()):
                names.append(name)
                grid.append([score(returns[task], *found[task]) for task in found])
    scores = np.array(grid)

    def paint(axes: Any) -> None:
        edges = [np.arange(n + 1) - 0.5 for n in scores.shape]
        axes.pcolormesh(edges[1], edges[0], scores, cmap="cividis", vmin=0.0, vmax=1.0)
        axes.invert_yaxis()
        for (y, x), value in np.ndenumerate(scores):
            text, dark = ("" if np.isnan(value) else f"{value:.2f}"), value < 0.5
            colour = "#ffffff" if dark else "#000000"
            axes.text(x, y, text, ha="center", va="center", color=colour, fontsize=SIZE - 2)
        axes.set_xticks(range(len(found)), list(found), rotation=35, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.grid(visible=False)

    alt = f"Normalised score of {', '.join(results.present())} on each task, the paper's below"
    size = (WIDE[0], 1.6 + 0.32 * len(names))
    return draw(folder, f"{results.plan.suite.name}-scores", alt, paint, size)


def score(returns: Sequence[float], low: float, high: float) -> float:
    """The mean of returns on a scale from random actions, 0, to the paper's best, 1."""
    return (float(np.mean(returns)) - low) / (high - low) if len(returns) else float("nan")


def intervals(
    folder: Path | None,
    results: Results,
    name: str,
    title: str,
    found: Mapping[str, Interval],
    middle: float | None = None,
) -> Figure:
    """A point with its interval per algorithm, the highest on top."""
    order = sorted(found, key=lambda label: found[label].value)

    def paint(axes: Any) -> None:
        for y, label in enumerate(order):
            value, low, high = found[label]
            colour = style(results.labels.index(label))["color"]
            axes.plot([low, high], [y, y], color=colour, linewidth=5, alpha=0.35)
            axes.plot(value, y, "o", color=colour, markersize=7)
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlabel(title)
        axes.grid(axis="y", visible=False)
        if middle is not None:  # a chance
            axes.set_xlim(-0.02, 1.02)
            axes.axvline(middle, color=INK, linewidth=1, linestyle=(0, (2, 2)))

    size = (WIDE[0], 1.0 + 0.38 * len(order))
    alt = f"{title}: {', '.join(reversed(order))}"
    return draw(folder, f"{results.plan.suite.name}-{name}", alt, paint, size)


def profiles(
    folder: Path | None, results: Results, scores: Mapping[str, list[np.ndarray]]
) -> Figure:
    """Share of runs above each normalised score."""
    flat = np.concatenate([s for tasks in scores.values() for s in tasks])
    thresholds = np.linspace(min(0.0, flat.min()), max(1.0, flat.max()) + 0.02, 121)
    share_above = partial(profile, thresholds=thresholds)

    def paint(axes: Any) -> None:
        for label, tasks in scores.items():
            value, low, high = estimate(share_above, tasks, draws=500)
            look = style(results.labels.index(label))
            axes.plot(thresholds, value, label=label, linewidth=1.8, **look)
            axes.fill_between(thresholds, low, high, color=look["color"], alpha=0.12, linewidth=0)
        axes.set_xlabel("normalised score (0 random actions, 1 the paper's best)")
        axes.set_ylabel("share of runs above")
        axes.set_ylim(-0.02, 1.02)
        axes.legend(frameon=False)

    alt = "Performance profile: share of runs above each score"
    return draw(folder, f"{results.plan.suite.name}-profile", alt, paint)
