"""One picture of a study: the true density, then every method's samples with marginals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from rescore.boltzmann.targets import Target
from rescore.files.atomic import replacing
from rescore.show.curves import COLOURS

SHOWN = 2000  # points of a scatter
BINS = 60
GRID = 300
COLUMNS = 4


def scatters(target: Target, samples: Mapping[str, np.ndarray], path: Path) -> Path:
    """Panels of equal axes: density, then title -> samples [n, 2]; marginals at their edges."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = len(samples) + 1
    columns = min(COLUMNS, panels)
    rows = -(-panels // columns)
    # Four panels are 7 inches, the width of a page; 230 dots per inch keep small dots round.
    figure = Figure(figsize=(1.75 * columns, 1.95 * rows), dpi=230, facecolor="white")
    outer = figure.add_gridspec(
        rows,
        columns,
        left=0.22 / columns,
        right=0.995,
        bottom=0.16 / rows,
        top=1 - 0.1 / rows,
        wspace=0.16,
        hspace=0.3,
    )
    density, marginals = truth(target)
    for i, (title, points) in enumerate([("true density", None), *samples.items()]):
        main, top, right = panel(figure, outer[i // columns, i % columns], target.reach)
        top.set_title(title, fontsize=8, pad=2)
        if points is None:
            extent = (-target.reach, target.reach) * 2
            main.imshow(density.T, origin="lower", extent=extent, cmap="Blues", aspect="equal")
        else:
            shown = points[:SHOWN]
            style = {"s": 1.2, "linewidths": 0, "alpha": 0.5, "color": COLOURS[0]}
            main.scatter(shown[:, 0], shown[:, 1], rasterized=True, **style)
        draw_marginals(top, right, points, marginals, target.reach)
        last_row = i + columns >= panels
        for axis in (main.xaxis, main.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
        main.set_xlabel("$z_1$" if last_row else "", fontsize=8, labelpad=1)
        main.set_ylabel("$z_2$" if i % columns == 0 else "", fontsize=8, labelpad=0)
        main.tick_params(labelleft=i % columns == 0, labelbottom=last_row)
    with replacing(path) as part:
        figure.savefig(part, format="png")
    return path


def truth(target: Target) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The density on a grid [GRID, GRID], and its marginals at the grid's points."""
    axis = np.linspace(-target.reach, target.reach, GRID)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    value = np.exp(np.asarray(target.log_density(jnp.asarray(grid, jnp.float32))) - target.log_z)
    value = value.reshape(GRID, GRID)
    step = axis[1] - axis[0]
    return value, (axis, value.sum(axis=1) * step, value.sum(axis=0) * step)


def panel(figure: Any, cell: Any, reach: float) -> tuple[Any, Any, Any]:
    """A square with a strip above and one to the right."""
    inner = cell.subgridspec(
        2, 2, width_ratios=(5, 1), height_ratios=(1, 5), wspace=0.04, hspace=0.04
    )
    main = figure.add_subplot(inner[1, 0])
    main.set(xlim=(-reach, reach), ylim=(-reach, reach))
    main.set_aspect("equal", adjustable="box", anchor="SW")
    main.tick_params(labelsize=6.5, length=2, pad=1.5, color="#888888")
    main.spines[:].set(color="#bbbbbb", linewidth=0.6)
    top = figure.add_subplot(inner[0, 0], sharex=main)
    right = figure.add_subplot(inner[1, 1], sharey=main)
    for strip in (top, right):
        strip.axis("off")
    return main, top, right


def draw_marginals(
    top: Any,
    right: Any,
    points: np.ndarray | None,
    marginals: tuple[np.ndarray, np.ndarray, np.ndarray],
    reach: float,
) -> None:
    """Histograms of the points, with the true marginal as a line."""
    axis, first, second = marginals
    line = {"color": COLOURS[1], "linewidth": 0.8}
    top.plot(axis, first, **line)
    right.plot(second, axis, **line)
    top.set_ylim(0, 1.25 * first.max())
    right.set_xlim(0, 1.25 * second.max())
    if points is None:
        return
    settings = {"bins": BINS, "range": (-reach, reach), "density": True, "alpha": 0.45}
    top.hist(points[:, 0], color=COLOURS[0], **settings)
    right.hist(points[:, 1], color=COLOURS[0], orientation="horizontal", **settings)
