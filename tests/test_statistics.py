"""Statistics against definitions written out, SciPy, and tiny cases by hand."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, nct, t, trim_mean, ttest_ind

from rescore.bench.report.statistics import (
    best,
    estimate,
    final,
    improvement,
    iqm,
    last_tenth,
    profile,
    resample,
    welch_power,
    welch_seeds,
)


def random_scores(seed: int, runs: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(scale=2, size=n).round(1) for n in runs]  # rounded: ties occur


def test_iqm_by_hand():
    assert iqm([np.array([1.0, 100.0, 3.0, 2.0])]) == 2.5
    assert iqm([np.array([0.0, 10.0]), np.array([2.0, 4.0])]) == 3.0
    assert iqm([np.array([5.0])]) == 5.0
    assert iqm([np.array([1.0, 2.0, 6.0])]) == 3.0  # a quarter of three is no whole run


@pytest.mark.parametrize("seed", range(5))
def test_iqm_is_the_trimmed_mean_of_all_runs(seed):
    """The published definition: `scipy.stats.trim_mean` of 25 % over runs and tasks together."""
    square = random_scores(seed, (5,) * 7)
    assert iqm(square) == pytest.approx(trim_mean(np.stack(square), 0.25, axis=None), abs=1e-12)
    ragged = random_scores(seed, (1, 4, 2))
    assert iqm(ragged) == pytest.approx(trim_mean(np.concatenate(ragged), 0.25), abs=1e-12)


def test_improvement_by_hand():
    ours, theirs = [np.array([1.0, 3.0]), np.array([0.0])], [np.array([2.0, 3.0]), np.array([5.0])]
    assert improvement(ours, theirs) == pytest.approx((1.5 / 4 + 0) / 2)
    assert improvement(ours, ours) == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_improvement_is_mann_whitney_over_pairs(seed):
    ours, theirs = random_scores(seed, (5, 3, 4)), random_scores(seed + 50, (4, 4, 2))
    u = [mannwhitneyu(x, y).statistic / (x.size * y.size) for x, y in zip(ours, theirs)]
    assert improvement(ours, theirs) == pytest.approx(np.mean(u), abs=1e-12)
    assert improvement(ours, theirs) + improvement(theirs, ours) == pytest.approx(1)


def test_improvement_needs_the_same_tasks():
    with pytest.raises(ValueError):
        improvement(random_scores(0, (2, 2)), random_scores(1, (2,)))


def test_profile_counts_runs_above():
    scores = [np.array([0.0, 0.5]), np.array([1.0, 2.0])]
    np.testing.assert_array_equal(
        profile(scores, np.array([-1.0, 0.0, 0.5, 3.0])), [1, 0.75, 0.5, 0]
    )
    levels = partial(profile, thresholds=np.linspace(-1, 3, 9))
    value, low, high = estimate(levels, scores, draws=200)
    assert np.all(low <= value) and np.all(value <= high) and np.all(np.diff(value) <= 0)


def test_resampling_stays_within_its_task():
    scores = [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0])]
    first, second = resample(scores, 500, np.random.default_rng(0))
    assert first.shape == (500, 3) and second.shape == (500, 2)
    assert set(first.ravel()) == {1.0, 2.0, 3.0} and set(second.ravel()) == {10.0, 20.0}
    assert len({tuple(row) for row in second}) == 4  # with replacement, in any order


def test_interval_against_every_possible_resample():
    """Two tasks of three runs have 27 x 27 resamples, all alike likely: the exact quantiles."""
    scores = [np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 9.0])]
    draws = list(itertools.product(*(itertools.product(s, repeat=3) for s in scores)))
    values = [trim_mean(np.concatenate(draw), 0.25) for draw in draws]
    exact = np.quantile(values, [0.025, 0.975])
    found = estimate(iqm, scores, draws=20_000)
    assert found.value == pytest.approx(trim_mean(np.concatenate(scores), 0.25))
    assert (found.low, found.high) == pytest.approx(tuple(exact), abs=0.3)
    assert estimate(iqm, scores) == estimate(iqm, scores)  # the same on every call


def test_intervals_cover():
    """Of 200 studies with a known mean, about 95 of a hundred intervals hold it."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(200):
        found = estimate(iqm, [rng.normal(size=10) for _ in range(5)], draws=300)
        held += found.low <= 0 <= found.high
    assert 0.88 < held / 200 < 0.99


def test_nothing_to_resample_is_no_interval():
    found = estimate(iqm, [np.array([3.0]), np.array([4.0])])
    assert found == (3.5, 3.5, 3.5)
    ahead = estimate(improvement, [np.array([2.0])], [np.array([1.0])])
    assert ahead == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("gap", "seeds"), [(0.2, 394), (0.5, 64), (0.8, 26), (1.0, 17)])
def test_seeds_needed_are_those_of_the_textbook(gap, seeds):
    """Cohen (1988), table 2.4.1: two-sided, 5 % level, power 0.8, equal deviations."""
    assert welch_seeds(gap, 1.0, 1.0) == welch_seeds(-1e3 * gap, 1e3, 1e3) == seeds


@pytest.mark.parametrize(
    ("gap", "ours", "theirs", "n"), [(2, 1, 1, 5), (3, 0.5, 2, 6), (1, 2, 0, 9)]
)
def test_power_against_the_noncentral_t_and_simulation(gap, ours, theirs, n):
    freedom = (n - 1) * (ours**2 + theirs**2) ** 2 / (ours**4 + theirs**4)
    shift = gap / np.sqrt((ours**2 + theirs**2) / n)
    critical = t.ppf(0.975, freedom)
    exact = nct.sf(critical, freedom, shift) + nct.cdf(-critical, freedom, shift)
    power = welch_power(gap, ours, theirs, n)
    assert power == pytest.approx(exact, abs=2e-3)
    rng = np.random.default_rng(0)
    x, y = rng.normal(gap, ours, (20_000, n)), rng.normal(0, theirs, (20_000, n))
    found = np.mean(ttest_ind(x, y, axis=1, equal_var=False).pvalue < 0.05)
    assert power == pytest.approx(found, abs=0.03)  # the test estimates its degrees of freedom


def test_seeds_needed_at_the_ends():
    assert welch_seeds(0.0, 1.0, 1.0) is None and welch_seeds(0.01, 1.0, 1.0) is None
    assert welch_seeds(5.0, 0.0, 0.0) == welch_seeds(1e9, 1.0, 1.0) == 2


def test_measures_of_a_curve_by_hand():
    steps = np.arange(1, 21) * 50_000
    means = np.where(steps == 300_000, 9.0, steps / 1e6)
    curve = np.stack([steps, means], axis=1)
    assert best(curve) == 9.0 and final(curve) == 1.0
    assert last_tenth(curve) == pytest.approx((0.95 + 1.0) / 2)
    assert last_tenth(curve[:1]) == best(curve[:1]) == final(curve[:1])


def test_rliable_says_the_same():
    """What rliable 1.2.0 gave for these scores: point values to rounding, intervals to chance."""
    rng = np.random.default_rng(19)
    x, y = rng.normal(size=(5, 10)).round(1), rng.normal(0.3, size=(4, 10)).round(1)
    ours, theirs = list(x.T), list(y.T)
    found = estimate(iqm, ours, draws=20_000)
    assert found == pytest.approx((-0.0846153846, -0.35769231, 0.18076923), abs=0.01)
    assert found.value == pytest.approx(-0.0846153846153846, abs=1e-12)
    ahead = estimate(improvement, ours, theirs, draws=20_000)
    assert ahead == pytest.approx((0.335, 0.2125, 0.4600625), abs=0.01)
    assert ahead.value == pytest.approx(0.335, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_rliable_itself_on_random_data(seed):
    """Where rliable is installed, which needs nothing of ours: `pip install rliable`."""
    metrics = pytest.importorskip("rliable.metrics")
    library = pytest.importorskip("rliable.library")
    rng = np.random.default_rng(seed)
    runs, other, tasks = rng.integers(2, 7), rng.integers(2, 7), rng.integers(1, 12)
    x, y = rng.normal(size=(runs, tasks)).round(1), rng.normal(size=(other, tasks)).round(1)
    ours, theirs = list(x.T), list(y.T)
    assert iqm(ours) == pytest.approx(metrics.aggregate_iqm(x), abs=1e-12)
    chance = metrics.probability_of_improvement(x, y)
    assert improvement(ours, theirs) == pytest.approx(chance, abs=1e-12)
    thresholds = np.linspace(-2, 2, 9)
    shares, _ = library.create_performance_profile({"x": x}, thresholds, reps=10)
    assert profile(ours, thresholds) == pytest.approx(shares["x"], abs=1e-12)
    if runs * tasks < 20:  # few values are possible, and chance decides between two of them
        return
    interval = lambda s: np.array([metrics.aggregate_iqm(s)])  # noqa: E731
    _, bands = library.get_interval_estimates({"x": x}, interval, reps=4_000)
    found = estimate(iqm, ours, draws=4_000)
    assert found[1:] == pytest.approx(bands["x"][:, 0], abs=0.08)
