"""Samplers from a log-density alone: what is recovered, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rescore
from rescore.boltzmann import Sampler, UntrustedFit, fit
from rescore.boltzmann.energy import Coordinates, checked
from rescore.boltzmann.fab import Settings, fit_flow
from rescore.boltzmann.flow import Weighted
from rescore.boltzmann.metrics import mode_moments, mode_weights
from rescore.boltzmann.moves import move, resample, walk
from rescore.boltzmann.pilot import enough, explore, largest_step, still
from rescore.boltzmann.recipe import Problem, Recipe
from rescore.boltzmann.report import decide, gap, judge, pareto_shape
from rescore.boltzmann.targets import find, mixture
from rescore.core import UsageError

TINY = {"hidden": (16, 16), "updates": 20, "chunk": 10, "batch_size": 32, "num_reverse": 16}


def gaussian(mean: float, std: float):
    return lambda x: -0.5 * jnp.sum(jnp.square((x - mean) / std), axis=-1)


@pytest.fixture(scope="module")
def moons() -> Sampler:
    """A fit too short to be exact, long enough to be seen to work."""
    return rescore.boltzmann.fit(find("two-moons").log_density, 2, updates=600, seed=1)


def test_two_modes_from_the_energy_alone(moons):
    target = find("two-moons")
    x = np.asarray(moons.sample(4000, 0))
    assert x.shape == (4000, 2)
    share, _, _ = mode_weights(target, x)
    np.testing.assert_allclose(share, 0.5, atol=0.06)
    assert np.mean(np.abs(x[:, 0]) < 1.0) < 0.03
    radius = np.linalg.norm(x, axis=1)
    assert radius.mean() == pytest.approx(2.062, abs=0.05)
    assert moons.log_z == pytest.approx(target.log_z, abs=0.1)
    assert moons.cost.energy > 600 * 512 * 32 and moons.seconds > 0


def test_samples_follow_the_key_and_the_dynamics(moons):
    one, again, other = (
        moons.sample(50, 3),
        moons.sample(50, jax.random.key(3)),
        moons.sample(50, 4),
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    x = np.asarray(moons.sample(1000, 0, how="annealed-langevin", steps=32))
    assert np.linalg.norm(x, axis=1).mean() == pytest.approx(2.06, abs=0.15)


def test_scores_are_in_the_callers_coordinates(moons):
    """At little noise the score is the gradient of the log-density; wide of it, it points back."""
    target = find("two-moons")
    x = np.float32([[2.1, 0.2], [-1.9, 0.3], [1.8, -0.5]])
    exact = jax.grad(lambda x: target.log_density(x).sum())(x)
    level = 70
    score = np.asarray(moons.score(x, level))
    cosine = np.sum(score * exact, axis=1) / np.linalg.norm(score, axis=1)
    assert np.all(cosine / np.linalg.norm(exact, axis=1) > 0.8)
    with pytest.raises(UsageError, match=r"1\.\.257"):
        moons.score(x, 0)
    with pytest.raises(UsageError, match=r"\[n, 2\]"):
        moons.score(x[0], 1)


@pytest.mark.slow
def test_unseen_mixture_in_five_dimensions():
    """Unequal weights, general position, all defaults: within 0.05 of every weight."""
    rng = np.random.default_rng(7)
    weights, centres = np.array([0.5, 0.3, 0.2]), 3.0 * rng.normal(size=(3, 5)) + 2.0
    target = mixture("unseen", weights, centres, 0.8, 15.0)
    sampler = fit(target.log_density, 5)
    x = np.asarray(sampler.sample(4000, 0))
    share, _, _ = mode_weights(target, x)
    np.testing.assert_allclose(share, weights, atol=0.05)
    mean_error, cov_error = mode_moments(
        target, x, np.asarray(target.sample(jax.random.key(0), 50_000))
    )
    assert mean_error < 0.25 and cov_error < 0.35


def test_pilot_finds_mass_far_from_the_origin():
    """A Gaussian at (40, 40, 40) of width 0.2: centre, width and normaliser."""
    log_density = checked(gaussian(40.0, 0.2), 3)
    pilot = explore(log_density, 3, jax.random.key(0), particles=1024)
    x = np.asarray(pilot.particles)
    np.testing.assert_allclose(x.mean(0), 40.0, atol=0.05)
    np.testing.assert_allclose(x.std(0), 0.2, atol=0.04)
    assert pilot.log_z == pytest.approx(1.5 * np.log(2 * np.pi * 0.04), abs=0.4)
    assert pilot.cost.energy > 0 < pilot.cost.gradient


def test_step_of_the_temperature():
    """The step leaves half of the particles effective, or is all that is left."""
    gain = 100.0 * jax.random.normal(jax.random.key(0), (1000,))
    step = largest_step(gain, jnp.float32(1.0))
    assert enough(gain, 0.99 * step) and not enough(gain, 1.05 * step)
    assert largest_step(1e-3 * gain, jnp.float32(0.7)) == np.float32(0.7)


def test_coordinates():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) + [1.0, -2.0, 30.0]
    where = Coordinates.whitening(x)
    y = np.asarray(where.to_y(jnp.asarray(x, jnp.float32)))
    np.testing.assert_allclose(y.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(np.cov(y.T), np.eye(3), atol=1e-3)
    np.testing.assert_allclose(where.to_x(y), x, rtol=1e-3, atol=1e-3)
    # A density keeps its integral, and its score transforms with the inverse transpose.
    log_density = checked(gaussian(0.5, 2.0), 3)
    pulled = where.pull_back(log_density)
    determinant = np.linalg.det(np.float64(where.root))
    np.testing.assert_allclose(
        pulled(y) - np.log(determinant), log_density(where.to_x(y)), rtol=1e-4, atol=1e-3
    )
    in_y = jax.grad(lambda y: pulled(y).sum())(jnp.asarray(y))
    in_x = jax.grad(lambda x: log_density(x).sum())(where.to_x(y))
    np.testing.assert_allclose(where.score_in_x(in_y), in_x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("method", "proposal"),
    [("rsm", "gaussian"), ("rsm", "uniform"), ("dem", "gaussian"), ("dsm", "gaussian")],
)
def test_every_recipe_runs(method, proposal):
    target = find("gmm")
    data = target.sample(jax.random.key(0), 100) if method == "dsm" else None
    where = None if method == "dsm" else (0.0, 4.0)
    sampler = fit(
        target.log_density, 2, method, proposal=proposal, samples=data, coordinates=where, **TINY
    )
    assert np.all(np.isfinite(sampler.sample(64)))
    points = 20 * 32 * 16
    counted = {"rsm": (points, 0), "dem": (points, points), "dsm": (0, 0)}[method]
    extra = 0 if method == "dsm" else 2 * 4096  # weighed samples
    assert sampler.cost == (counted[0] + extra, counted[1])


def test_bounded_support(tmp_path):
    """e^{3 x} on a square: all samples there, with the moments and log Z of the closed form."""
    settings = {"updates": 400, "chunk": 200, "hidden": (32, 32), "num_reverse": 32}
    sampler = fit(lambda x: 3.0 * x[:, 0], 2, box=2.0, **settings)
    x = np.asarray(sampler.sample(4_000))
    assert np.all(np.abs(x) <= 2.0)
    # E x = 2 coth(6) - 1/3, Z = 4 (2/3) sinh(6)
    np.testing.assert_allclose(x.mean(axis=0), [2.0 / np.tanh(6.0) - 1 / 3, 0.0], atol=0.15)
    np.testing.assert_allclose(x.std(axis=0), [0.3332, 4.0 / np.sqrt(12.0)], atol=0.2)
    assert abs(sampler.log_z - np.log(8.0 / 3.0 * np.sinh(6.0))) < 0.1
    # A saved one remembers the box: moves by the density alone would leave it.
    again = rescore.boltzmann.load(sampler.save(tmp_path / "box"), lambda x: 3.0 * x[:, 0])
    assert np.all(np.abs(np.asarray(again.sample(4_000, correct="mh"))) <= 2.0)


def test_own_proposal_and_literal_weights():
    def proposal(key, n):
        return 2.0 * jax.random.normal(key, (n, 2))

    sampler = fit(
        find("gmm").log_density,
        2,
        proposal=proposal,
        weights="literal",
        reference=None,
        coordinates=(0.0, 1.0),
        **TINY,
    )
    assert np.all(np.isfinite(sampler.sample(10)))


def test_mass_outside_the_proposal_is_told():
    """A Gaussian at 60, sought near the origin: hardly a sample has weight."""
    with pytest.warns(UntrustedFit, match="do not use: only"):
        fit(gaussian(60.0, 0.5), 2, coordinates=(0.0, 1.0), **TINY)


def test_own_density_integrates_to_one(moons):
    """The flow's density on a grid: its mass is 1, and weights are its ratio to the target."""
    axis = np.linspace(-3.3, 3.3, 64)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    mass = np.exp(np.asarray(moons.log_prob(grid), np.float64)).sum() * (axis[1] - axis[0]) ** 2
    assert mass == pytest.approx(1.0, abs=0.03)
    weighted = moons.weighted(200, np.int64(3))
    expected = find("two-moons").log_density(weighted.x) - moons.log_prob(weighted.x)
    np.testing.assert_allclose(weighted.log_weight, expected, atol=0.1)


def test_corrected_samples(moons):
    """Weights and moves leave the truth: E|z| = 2.062, std of z_2 0.833, no bridge."""
    for correct in ("weights", "mh"):
        x = np.asarray(moons.sample(2000, 5, correct=correct))
        assert np.linalg.norm(x, axis=1).mean() == pytest.approx(2.062, abs=0.02)
        assert x[:, 1].std() == pytest.approx(0.833, abs=0.04)
        assert np.mean(np.abs(x[:, 0]) < 1.0) < 0.004
    doubted = replace(moons, report=replace(moons.report, verdict="use weights"))
    trusted = replace(moons, report=replace(moons.report, verdict="trusted"))
    np.testing.assert_array_equal(doubted.sample(2000, 5), x)
    np.testing.assert_array_equal(trusted.sample(9, 5), moons.sample(9, 5, correct=None))
    assert "effective" in repr(moons) and moons.report.verdict in repr(moons)


def test_without_effective_samples_the_particles_are_moved(moons):
    """A network of equal weights is no model of anything; the pilot's particles still are."""
    lost = jax.tree.map(lambda x: jnp.full_like(x, 0.1), moons.net)
    spoiled = replace(moons, net=lost, report=replace(moons.report, effective=0.01))
    x = np.asarray(spoiled.sample(2000, 5, correct="mh"))
    assert np.linalg.norm(x, axis=1).mean() == pytest.approx(2.062, abs=0.02)
    assert np.mean(x[:, 0] > 0) == pytest.approx(0.5, abs=0.04)
    assert np.mean(np.abs(x[:, 0]) < 1.0) < 0.004


def test_saved_sampler_is_the_same(moons, tmp_path):
    path = moons.save(tmp_path / "moons.safetensors")
    loaded = rescore.boltzmann.load(path)
    np.testing.assert_array_equal(
        loaded.sample(20, 1, correct=None), moons.sample(20, 1, correct=None)
    )
    assert loaded.report == moons.report and loaded.cost == moons.cost
    with pytest.raises(UsageError, match="log-density"):
        loaded.sample(20, correct="mh")
    whole = rescore.boltzmann.load(path, find("two-moons").log_density)
    np.testing.assert_array_equal(
        whole.sample(20, 1, correct="weights"), moons.sample(20, 1, correct="weights")
    )
    content = path.read_bytes()
    path.write_bytes(content.replace(b'\\"reach\\"', b'\\"teach\\"'))
    with pytest.raises(UsageError, match="is damaged"):
        rescore.boltzmann.load(path)
    for wrong in ("absent", "other"):
        (tmp_path / "other").write_text("no arrays")
        with pytest.raises(UsageError, match=wrong):
            rescore.boltzmann.load(tmp_path / wrong)


def test_continued_fit(moons):
    """A few more updates from where it was, with its particles: nothing is searched again."""
    settings = {"updates": 10, "chunk": 10, "batch_size": 32, "learning_rate": 1e-6}
    longer = fit(find("two-moons").log_density, 2, start=moons, **settings)
    plain = moons.sample(50, 1, correct=None)
    np.testing.assert_allclose(longer.sample(50, 1, correct=None), plain, atol=0.02)
    assert longer.cost.gradient == moons.cost.gradient


def test_score_is_traceable(moons):
    x = moons.sample(4)
    traced = jax.jit(lambda x, t: moons.score(x, t))(x, 100)
    np.testing.assert_allclose(traced, moons.score(x, 100), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": 2.0}, "whole number"),
        ({"n": 0}, "whole number"),
        ({"n": 5, "key": 0.5}, "JAX key"),
        ({"n": 5, "how": "ode"}, "unknown how 'ode'.*flow"),
        ({"n": 5, "correct": "nuts"}, "unknown correct 'nuts'.*mh"),
        ({"n": 5, "correct": "mh", "how": "ddpm"}, "correct=None"),
    ],
)
def test_bad_sample_is_one_line(moons, arguments, says):
    with pytest.raises(UsageError, match=says):
        moons.sample(**arguments)


def test_an_own_draw_makes_the_target_unbiased():
    """Two reverse samples that mostly miss are biased; with a_0 ~ p_0 beside them they are not.

    p_0 is N(2, 0.3^2) in one dimension, so E[noise | a_t] is known.
    """
    recipe = Recipe(num_reverse=2, reference=3.0)
    where = Coordinates.scaled(0.0, 1.0, 1)
    schedule = recipe.noise_schedule(True)
    problem = Problem(recipe, schedule, checked(gaussian(2.0, 0.3), 1), where, None, True)
    n, level = 200_000, 200
    signal, std = schedule.alpha_bar[level] ** 0.5, (1 - schedule.alpha_bar[level]) ** 0.5
    at = signal * 2.0 + std  # the posterior of a_0 there, and exact draws of it
    precision = 0.3**-2 + (signal / std) ** 2
    mean = (2.0 / 0.09 + signal * at / std**2) / precision
    k_own, k_reverse = jax.random.split(jax.random.key(0))
    a_0 = mean + jax.random.normal(k_own, (n, 1)) / np.float32(np.sqrt(precision))
    a_t, t = jnp.full((n, 1), at, jnp.float32), jnp.full(n, level)
    own = (a_0, (a_t - signal * a_0) / std)
    truth = (at - signal * mean) / std
    without, _, _ = problem.regress(a_t, t, k_reverse)
    target, _, _ = problem.regress(a_t, t, k_reverse, own)
    assert float(jnp.mean(target)) == pytest.approx(truth, abs=0.003)
    assert abs(float(jnp.mean(without)) - truth) > 0.05
    assert float(jnp.std(target)) < float(jnp.std(own[1]))


def test_no_gradient_is_needed():
    """A density in NumPy: the pilot climbs by random steps, the fit weighs and moves by values."""
    density = rescore.boltzmann.from_numpy(lambda x: -0.5 * np.sum((x - 3.0) ** 2, axis=1))
    sampler = fit(density, 2, **TINY)
    x = np.asarray(sampler.sample(400, correct="mh"))
    np.testing.assert_allclose(x.mean(axis=0), 3.0, atol=0.2)


def test_moves_and_resampling():
    """Walkers of the wrong law, moved by differences of the right one, take on the right one."""
    k_start, k_others, k_walk = jax.random.split(jax.random.key(0), 3)
    others = 2.0 + 0.5 * jax.random.normal(k_others, (1000, 2))
    start = 2.0 + jax.random.normal(k_start, (2000, 2))
    x = np.asarray(walk(checked(gaussian(2.0, 0.5), 2), start, others, k_walk, 40))
    np.testing.assert_allclose(x.std(axis=0), 0.5, atol=0.04)
    x = np.asarray(walk(checked(gaussian(2.0, 0.5), 2), start, others, k_walk, 1, 20))
    np.testing.assert_allclose(x.std(axis=0), 0.5, atol=0.04)
    chosen = np.asarray(resample(jnp.log(jnp.array([0.5, 0.0, 0.25, 0.25])), k_walk, 400))
    np.testing.assert_array_equal(np.bincount(chosen, minlength=4), [200, 0, 100, 100])


def test_gradient_moves_find_a_narrow_valley():
    """Widths 1 and 1/300: a cloud of width 0.1 in both spreads along the valley, and stays there.

    The root of its covariance is that of before the moves, so it needs several rounds.
    """
    scale = jnp.array([[1.0, 1 / 300.0]])

    def valley(x):
        return -0.5 * jnp.sum(jnp.square(x / scale), axis=-1)

    key = jax.random.key(0)
    x, size = 0.1 * scale * jax.random.normal(key, (2000, 2)), jnp.float32(0.5)
    for i in range(6):
        where = Coordinates.whitening(x)
        x, size = move(valley, x, where.root, size, jax.random.fold_in(key, i), 2, 4)
    np.testing.assert_allclose(np.std(x, axis=0), scale[0], rtol=0.08)
    assert still(where.to_y(x)) and not still(2.0 * where.to_y(x)) and not still(x - 1.0)
    # Where the density is not a number nothing goes.
    half = checked(lambda x: jnp.where(x[:, 0] > 0, jnp.log(x[:, 0]) - x[:, 0], -jnp.inf), 1)
    y = walk(half, jnp.ones((2000, 1)), jnp.ones((2, 1)), key, 1, 40)
    assert np.all(y > 0) and np.mean(y) == pytest.approx(2.0, abs=0.15)


def test_pareto_shape():
    """Of draws whose shape is known; bounded weights have a negative one."""
    rng = np.random.default_rng(0)
    for shape in (0.3, 0.8):
        found = [pareto_shape(np.log1p(rng.pareto(1 / shape, 4096))) for _ in range(20)]
        assert np.mean(found) == pytest.approx(shape, abs=0.1)
    assert pareto_shape(np.log(rng.uniform(size=4096))) < 0.0 == pareto_shape(np.zeros(4096))
    assert pareto_shape(np.full(100, -np.inf)) == np.inf


def test_verdicts():
    """From points whose law is known: N(0, 1) weighted to N(0, 1), N(0.3, 1), half a line."""
    rng = np.random.default_rng(0)
    y = jnp.asarray(rng.normal(size=(4000, 1)), jnp.float32)
    log_q = -0.5 * y[:, 0] ** 2
    particles = jnp.asarray(rng.normal(size=(4000, 1)), jnp.float32)

    def told(log_density, particles, ratio):
        value = log_density(y)
        weighted = Weighted(y, jnp.where(value <= -1e29, -jnp.inf, value - log_q))
        return judge(weighted, log_density, particles, jnp.full(10, ratio))

    normal, shifted = checked(gaussian(0.0, 1.0), 1), checked(gaussian(0.3, 1.0), 1)
    cut = checked(lambda x: jnp.where(x[:, 0] > 0, -0.5 * x[:, 0] ** 2, -jnp.inf), 1)
    good = told(normal, particles, 0.0)
    assert good.verdict == "trusted" and good.effective == pytest.approx(1.0)
    assert good.log_z == pytest.approx(0.0, abs=1e-4)
    moved = told(shifted, particles + 0.3, 0.0)
    # max |Phi(x) - Phi(x - 0.3)| = 2 Phi(0.15) - 1, effective share e^{-0.09}
    assert moved.verdict == "use weights" and moved.off == pytest.approx(0.119, abs=0.02)
    assert moved.effective == pytest.approx(np.exp(-0.09), abs=0.03)
    assert abs(moved.log_z) < 4 * moved.log_z_error < 0.1
    half = told(cut, jnp.abs(particles), 0.0)
    assert half.verdict == "use weights" and half.outside == pytest.approx(0.5, abs=0.03)
    assert half.log_z == pytest.approx(np.log(0.5), abs=0.06)
    assert told(normal, particles + 1.0, 0.0).verdict == "use weights"
    assert told(normal, particles, 9.0).verdict == "do not use"
    assert decide(0.01, 0.0, 0.0, 0.0, 0.0, 0.0)[0] == "do not use"
    # A heavy tail and the pilot overrule few effective samples, not many.
    assert decide(0.2, 0.8, 0.0, 0.0, 0.0, 0.0)[0] == "do not use"
    assert decide(0.9, 0.8, 0.0, 0.0, 0.0, 0.0)[0] == "trusted"
    assert decide(0.2, 0.0, 0.0, 0.0, 0.2, 0.0)[0] == "do not use"
    assert decide(0.9, 0.0, 0.0, 0.0, 0.2, 0.0)[0] == "use weights"


def test_gap_of_weighted_samples():
    """By hand: F of {0: 0.5, 1: 0.5} against {0: 0.2, 1: 0.3, 2: 0.5}."""
    x, y = np.array([0.0, 1.0]), np.array([2.0, 0.0, 1.0])
    assert gap(x, y, np.array([0.5, 0.5]), np.array([0.5, 0.2, 0.3])) == pytest.approx(0.5)


BAD = {
    "nan": (lambda x: jnp.log(-jnp.abs(x[:, 0]) - 1.0), 2, {}, "nan at"),
    "infinite": (lambda x: jnp.full(len(x), jnp.inf), 2, {}, "inf at"),
    "a scalar": (lambda x: -jnp.sum(x**2), 2, {}, "one number per point"),
    "a column": (lambda x: -(x**2), 2, {}, "one number per point"),
    "wrong dim": (lambda x: x @ jnp.ones(3), 2, {}, "fails on points"),
    "dim 0": (gaussian(0, 1), 0, {}, "dim must be"),
    "dim 2.0": (gaussian(0, 1), 2.0, {}, "dim must be"),
    "a single point": (lambda x: -(x[0] ** 2) - x[1] ** 2, 2, {}, "jax.vmap"),
    "NumPy": (lambda x: np.exp(x[:, 0]), 2, {}, "from_numpy"),
    "a branch": (lambda x: -x[:, 0] if x[0, 0] > 0 else x[:, 0], 2, {}, "jnp.where"),
    "NumPy, a single point": (
        rescore.boltzmann.from_numpy(lambda x: -np.sum(x**2)),
        2,
        {},
        "one number per point.*single point",
    ),
    "seed": (gaussian(0, 1), 2, {"seed": 0.5}, "seed must be a whole number"),
    "no function": (None, 2, {}, "must be a function"),
    "no samples": (gaussian(0, 1), 2, {"method": "dsm"}, "pass samples"),
    "bad samples": (gaussian(0, 1), 2, {"method": "dsm", "samples": np.ones((5, 3))}, r"\[n, 2\]"),
    "method": (gaussian(0, 1), 2, {"method": "gan"}, "method must be one of"),
    "proposal": (gaussian(0, 1), 2, {"proposal": "cauchy"}, "gaussian, uniform or a function"),
    "typo": (gaussian(0, 1), 2, {"update": 10}, "no setting 'update'"),
    "updates": (gaussian(0, 1), 2, {"updates": 0}, "updates must be at least 1"),
    "width": (gaussian(0, 1), 2, {"width": -1.0}, "positive"),
    "share": (gaussian(0, 1), 2, {"model_share": 2.0}, r"\[0, 1\]"),
    "box": (gaussian(0, 1), 2, {"box": 0.0}, "box must be positive"),
    "empty": (lambda x: jnp.full(len(x), -jnp.inf), 2, {}, "zero wherever it was tried"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    log_density, dim, settings, says = BAD[case]
    with pytest.raises(UsageError, match=says) as error:
        fit(log_density, dim, **settings)
    assert "\n" not in str(error.value)


SMALL_FLOW = Settings(layers=4, width=16, batch_size=64, batches=8, iterations=20, chunk=10)


def test_flow_learns():
    """A few iterations of FAB move the flow from N(0, 9 I) onto a Gaussian at (1, 1)."""
    settings = Settings(**{**vars(SMALL_FLOW), "iterations": 100, "chunk": 50})
    flow = fit_flow(gaussian(1.0, 0.7), 2, (0.0, 3.0), settings=settings)
    x = np.asarray(flow.sample(2000))
    np.testing.assert_allclose(x.mean(0), 1.0, atol=0.25)
    np.testing.assert_allclose(x.std(0), 0.7, atol=0.3)
    assert flow.log_z == pytest.approx(np.log(2 * np.pi * 0.49), abs=0.2)
    assert flow.cost.gradient == 100 * 64 * 3 * 6


def test_flow_without_its_libraries(monkeypatch):
    for missing in ("flowjax", "blackjax"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, missing, None)
            without.delitem(sys.modules, f"{missing}.distributions", raising=False)
            without.delitem(sys.modules, f"{missing}.mcmc", raising=False)
            with pytest.raises(UsageError, match=r"-e '\.\[toys\]'"):
                fit_flow(gaussian(0.0, 1.0), 2, settings=SMALL_FLOW)


def test_updates_come_in_whole_chunks():
    with pytest.raises(UsageError, match="updates 300 must be a multiple of chunk 200"):
        fit(gaussian(0, 1), 1, updates=300)
