"""Statistics over few runs of many tasks, after Agarwal et al. (NeurIPS 2021).

Scores are a list of tasks, each an array of its runs [..., n]; leading axes are bootstrap draws.
The numbers of runs may differ between tasks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Scores = Sequence[np.ndarray]
LEVEL = 0.95
DRAWS = 2_000
LAST_SHARE = 0.1
SEEDS_TO_RANK = 3  # with fewer, nothing is called better than anything else
MOST_SEEDS = 1_000  # that a claim is said to need
POWER = 0.8
QUANTILES = 2_000


class Interval(NamedTuple):
    """An estimate, a number or several, and the ends of its interval; both are the estimate if
    nothing can vary."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(scores: Scores) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of all runs of all tasks."""
    flat = np.sort(np.concatenate([np.asarray(s, float) for s in scores], axis=-1), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(axis=-1)


def improvement(ours: Scores, theirs: Scores) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 for a run of each on the same task, averaged over tasks."""
    chances = []
    for x, y in zip(ours, theirs, strict=True):
        gap = np.asarray(x, float)[..., :, None] - np.asarray(y, float)[..., None, :]
        chances.append(np.mean((gap > 0) + 0.5 * (gap == 0), axis=(-2, -1)))
    return np.mean(chances, axis=0)


def profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """Share of runs above each threshold [..., K], of the runs of all tasks together."""
    flat = np.concatenate([np.asarray(s, float) for s in scores], axis=-1)
    return np.mean(flat[..., None] > thresholds, axis=-2)


def resample(scores: Scores, draws: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Runs drawn with replacement within each task, [draws, n] per task."""
    return [np.asarray(s, float)[rng.integers(len(s), size=(draws, len(s)))] for s in scores]


def estimate(
    statistic: Callable[..., np.ndarray], *scores: Scores, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """A statistic of one or two sets of scores with its stratified percentile bootstrap."""
    rng = np.random.default_rng(seed)
    drawn = statistic(*(resample(s, draws, rng) for s in scores))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(statistic(*scores), low, high)


def welch_power(gap: float, ours: float, theirs: float, n: int) -> float:
    """Power of the two-sided Welch t test with n runs of each.

    `gap` is the true difference of the means, the others are the true standard deviations. The
    noncentral t is a normal over the root of a chi-square, whose quantiles are averaged over:
    scipy's own gives nan far from the centre.
    """
    from scipy.stats import chi2, norm, t

    variance = ours**2 + theirs**2
    freedom = (n - 1) * variance**2 / (ours**4 + theirs**4)  # Welch and Satterthwaite
    shift = abs(gap) / np.sqrt(variance / n)
    quantiles = chi2.ppf((np.arange(QUANTILES) + 0.5) / QUANTILES, freedom)
    bound = t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(quantiles / freedom)
    return float(np.mean(norm.cdf(shift - bound) + norm.cdf(-shift - bound)))


def welch_seeds(gap: float, ours: float, theirs: float) -> int | None:
    """Runs of each that give the test its power; None if more than anybody would run."""
    if gap == 0:
        return None
    if ours == theirs == 0:
        return 2
    numbers = range(2, MOST_SEEDS + 1)
    at = bisect_left(numbers, POWER, key=lambda n: welch_power(gap, ours, theirs, n))
    return numbers[at] if at < len(numbers) else None


def best(evaluations: np.ndarray) -> float:
    """The highest mean of an evaluation [E, 2] (env_steps, mean): the paper's measure."""
    return float(evaluations[:, 1].max())


def final(evaluations: np.ndarray) -> float:
    """The mean of the last evaluation."""
    return float(evaluations[np.argmax(evaluations[:, 0]), 1])


def last_tenth(evaluations: np.ndarray) -> float:
    """The mean of all evaluations in the last 10 % of the steps."""
    late = evaluations[:, 0] > (1 - LAST_SHARE) * evaluations[:, 0].max()
    return float(evaluations[late, 1].mean())


MEASURES = {"best": best, "final": final, "last 10 %": last_tenth}
