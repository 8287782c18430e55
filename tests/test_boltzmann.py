"""Samplers from a log-density alone: what is recovered, and what is refused."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rescore
from rescore.boltzmann import Sampler, UntrustedFit, fit
from rescore.boltzmann.energy import Coordinates, checked
from rescore.boltzmann.fab import Settings, fit_flow
from rescore.boltzmann.metrics import mode_moments, mode_weights
from rescore.boltzmann.pilot import enough, explore, largest_step
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
    assert moons.cost.energy > 600 * 256 * 96 and moons.seconds > 0
    assert min(moons.draws.values()) > 3


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
    with pytest.raises(UsageError, match=r"1\.\.256"):
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
    extra = 0 if method == "dsm" else 65_536
    assert sampler.cost == (counted[0] + extra, counted[1])


def test_bounded_support():
    """e^{3 x} on a square: all samples there, with the moments and log Z of the closed form."""
    settings = {"updates": 400, "chunk": 200, "hidden": (32, 32), "num_reverse": 32}
    sampler = fit(lambda x: 3.0 * x[:, 0], 2, box=2.0, **settings)
    x = np.asarray(sampler.sample(4_000))
    assert np.all(np.abs(x) <= 2.0)
    # E x = 2 coth(6) - 1/3, Z = 4 (2/3) sinh(6)
    np.testing.assert_allclose(x.mean(axis=0), [2.0 / np.tanh(6.0) - 1 / 3, 0.0], atol=0.15)
    np.testing.assert_allclose(x.std(axis=0), [0.3332, 4.0 / np.sqrt(12.0)], atol=0.2)
    assert abs(sampler.log_z - np.log(8.0 / 3.0 * np.sinh(6.0))) < 0.1


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
    """A Gaussian at 60, sought near the origin: few reverse samples decide."""
    with pytest.warns(UntrustedFit, match="effective reverse samples"):
        fit(gaussian(60.0, 0.5), 2, coordinates=(0.0, 1.0), **TINY)


BAD = {
    "nan": (lambda x: jnp.log(-jnp.abs(x[:, 0]) - 1.0), 2, {}, "nan at"),
    "infinite": (lambda x: jnp.full(len(x), jnp.inf), 2, {}, "inf at"),
    "a scalar": (lambda x: -jnp.sum(x**2), 2, {}, "one number per point"),
    "a column": (lambda x: -(x**2), 2, {}, "one number per point"),
    "wrong dim": (lambda x: x @ jnp.ones(3), 2, {}, "fails on points"),
    "dim 0": (gaussian(0, 1), 0, {}, "dim must be"),
    "dim 2.0": (gaussian(0, 1), 2.0, {}, "dim must be"),
    "no function": (None, 2, {}, "must be a function"),
    "no samples": (gaussian(0, 1), 2, {"method": "dsm"}, "pass samples"),
    "bad samples": (gaussian(0, 1), 2, {"method": "dsm", "samples": np.ones((5, 3))}, r"\[n, 2\]"),
    "method": (gaussian(0, 1), 2, {"method": "gan"}, "method must be one of"),
    "proposal": (gaussian(0, 1), 2, {"proposal": "cauchy"}, "gaussian, uniform or a function"),
    "typo": (gaussian(0, 1), 2, {"update": 10}, "no setting 'update'"),
    "updates": (gaussian(0, 1), 2, {"updates": 0}, "at least 1"),
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
            with pytest.raises(UsageError, match=r"rescore\[toys\]"):
                fit_flow(gaussian(0.0, 1.0), 2, settings=SMALL_FLOW)
