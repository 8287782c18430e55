"""How far a fit can be trusted, from its own density and the pilot's particles alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jax import Array

from rescore.boltzmann.energy import FLOOR
from rescore.boltzmann.flow import Weighted
from rescore.boltzmann.metrics import mmd2
from rescore.diffusion.reverse import LogDensity

Verdict = Literal["trusted", "use weights", "do not use"]

POINTS = 4096  # samples that are weighed
PARTICLES = 1024  # of the pilot, where the model's density is asked for
DIRECTIONS = 16  # random projections that are compared, besides axes, radius and energy
FEW = 0.10  # effective share of the weighted samples, below which weights decide nothing
ENOUGH = 0.3  # effective share from which neither the pilot nor a heavy tail overrules the weights
TAIL = 0.7  # Pareto shape of the largest weights, above which their mean converges too slowly
OFF = 0.03  # largest distance of distribution functions between samples and weighted samples
OUTSIDE = 0.01  # share of the samples outside the support
APART = 0.10  # the same between weighted samples and the pilot's particles
LOST = 0.02  # share of the particles whose density is a hundredth of what it should be, or less


@dataclass(frozen=True)
class Report:
    """A verdict with its reason, and the numbers it rests on."""

    verdict: Verdict
    reason: str
    effective: float  # share of the samples that their importance weights leave
    tail: float  # Pareto shape of the largest weights; their variance is finite below 0.5
    log_z: float  # of the log-density, by those weights
    log_z_error: float  # its standard error
    outside: float  # share of the samples where the density is zero
    off: float  # largest distance of a marginal distribution function: samples to weighted ones
    apart: float | None  # the same between weighted samples and the pilot's particles
    lost: float | None  # share of the particles where the model's density is 100 times too small
    mmd2: float | None  # squared maximum mean discrepancy between samples and particles

    @property
    def few(self) -> bool:
        """Whether too few samples are effective for weights to decide anything."""
        return self.effective < FEW

    def __str__(self) -> str:
        pilot = "" if self.apart is None else f", pilot apart {self.apart:.3f} lost {self.lost:.3f}"
        return (
            f"{self.verdict}: {self.reason} (effective {self.effective:.2f}, tail {self.tail:.2f}, "
            f"log Z {self.log_z:.3f} +- {self.log_z_error:.3f}, outside {self.outside:.3f}, "
            f"off {self.off:.3f}{pilot})"
        )


def judge(
    weighted: Weighted,
    log_density: LogDensity,
    particles: Array | None = None,
    log_ratio: Array | None = None,
) -> Report:
    """The report on weighted samples; `log_ratio` is log(p / q) at some of the particles.

    All in the coordinates of the diffusion. The model can only be judged where it has samples,
    or where the pilot has particles: mass that both have missed is not seen.
    """
    log_density = jax.jit(log_density)
    value = np.asarray(log_density(weighted.x))
    outside = float(np.mean(value <= 0.5 * FLOOR))
    log_z, error = weighted.log_z()
    share = np.asarray(weighted.share, np.float64)
    mine = views(np.asarray(weighted.x), value)
    off = largest_gap(mine, None, mine, share)
    apart = lost = distance = None
    if particles is not None and log_ratio is not None:
        value = np.asarray(log_density(particles))
        apart = largest_gap(mine, share, views(np.asarray(particles), value), None)
        lost = float(np.mean(np.asarray(log_ratio) - log_z > np.log(100.0)))
        distance = mmd2(np.asarray(weighted.x), np.asarray(particles))
    effective, tail = weighted.effective, pareto_shape(np.asarray(weighted.log_weight))
    verdict, reason = decide(effective, tail, outside, off, apart or 0.0, lost or 0.0)
    return Report(
        verdict, reason, effective, tail, log_z, error, outside, off, apart, lost, distance
    )


def decide(
    effective: float, tail: float, outside: float, off: float, apart: float, lost: float
) -> tuple[Verdict, str]:
    """The first rule that applies. benchmarks/calibrate.py measures how often it is right."""
    if effective < FEW:
        return "do not use", f"only {effective:.1%} of the samples are effective"
    if lost > LOST:
        return "do not use", f"the model misses {lost:.1%} of the pilot's particles"
    if tail > TAIL and effective < ENOUGH:
        return "do not use", f"the largest weights have a Pareto shape of {tail:.2f}"
    if apart > APART:
        # Weights hold wherever the model has density, and it has some at the particles.
        verdict: Verdict = "use weights" if effective >= ENOUGH else "do not use"
        return verdict, f"weighted samples and the pilot's particles are {apart:.2f} apart"
    if outside > OUTSIDE:
        return "use weights", f"{outside:.1%} of the samples are outside the support"
    if off > OFF:
        return "use weights", f"samples are off by {off:.3f} in a marginal distribution"
    return "trusted", "samples, their weights and the pilot agree"


def pareto_shape(log_weight: np.ndarray) -> float:
    """Shape of the generalised Pareto law of the largest weights (Vehtari et al., 2024).

    The fit is Zhang and Stephens' (2009): a mean over shapes, weighted by their likelihood.
    """
    ordered = np.sort(log_weight[np.isfinite(log_weight)].astype(np.float64))
    m = int(min(0.2 * len(ordered), 3.0 * np.sqrt(len(ordered))))
    if m < 5:
        return np.inf
    weight = np.exp(ordered[-m - 1 :] - ordered[-1])
    excess = weight[1:] - weight[0]
    quarter = excess[int(m / 4 + 0.5) - 1]
    if quarter <= 1e-12:  # all alike; or a few far above the rest, which `effective` sees
        return 0.0
    grid = np.arange(30 + int(np.sqrt(m))) + 0.5
    theta = 1.0 / excess[-1] + (1.0 - np.sqrt(len(grid) / grid)) / (3.0 * quarter)
    shape = np.mean(np.log1p(-theta[:, None] * excess), axis=1)
    log_likelihood = m * (np.log(-theta / shape) - shape - 1.0)
    share = np.exp(log_likelihood - log_likelihood.max())
    best = np.sum(theta * share) / np.sum(share)
    # As if ten more weights had been seen, of shape 0.5.
    return float((m * np.mean(np.log1p(-best * excess)) + 10 * 0.5) / (m + 10))


def views(y: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What distributions are compared of: axes, random directions, radius, energy. [n, views]"""
    ways = np.random.default_rng(0).normal(size=(y.shape[1], DIRECTIONS))
    radius = np.linalg.norm(y, axis=1)
    return np.column_stack([y, y @ ways, radius, np.maximum(value, -1e6)])


def largest_gap(
    a: np.ndarray, a_share: np.ndarray | None, b: np.ndarray, b_share: np.ndarray | None
) -> float:
    """Largest distance of two distribution functions over all columns; shares sum to 1, or even."""
    return max(gap(x, y, a_share, b_share) for x, y in zip(a.T, b.T))


def gap(
    x: np.ndarray,
    y: np.ndarray,
    x_share: np.ndarray | None = None,
    y_share: np.ndarray | None = None,
) -> float:
    """Kolmogorov's distance of two weighted samples."""
    x_share = np.full(len(x), 1 / len(x)) if x_share is None else x_share
    y_share = np.full(len(y), 1 / len(y)) if y_share is None else y_share
    points = np.concatenate([x, y])
    order = np.argsort(points, kind="stable")
    step = np.cumsum(np.concatenate([x_share, -y_share])[order])
    last = np.append(np.diff(points[order]) > 0, True)  # of equal points, the last one counts
    return float(np.max(np.abs(step[last])))
