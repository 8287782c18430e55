"""Langevin dynamics, annealed and not, against exact Gaussian arithmetic."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.core import UsageError
from rescore.diffusion.process import noise_of_score
from rescore.diffusion.samplers import annealed_langevin, ddpm, langevin, time_grid
from rescore.diffusion.schedules import cosine, geometric, linear, vp

pytestmark = pytest.mark.usefixtures("strict")

MEAN = np.array([0.6, -0.8])
COV = np.array([[0.6, 0.3], [0.3, 0.4]])  # the target, a Gaussian
ROWS = 1 << 14
SCHEDULES = {
    "linear": linear(60, 0.8),
    "cosine": cosine(60),
    "vp": vp(60),
    "geometric": geometric(60, 0.03, 20.0),
}


def exact_eps(schedule):
    """The model with the exact score of the perturbed Gaussian."""
    ab = schedule.alpha_bar[:, None, None]
    precision = jnp.asarray(np.linalg.inv(ab * COV + (1 - ab) * np.eye(2)), jnp.float32)
    mean = jnp.asarray(np.sqrt(ab[:, 0]) * MEAN, jnp.float32)

    def eps(a_t, t):
        score = -jnp.einsum("nij,nj->ni", precision[t], a_t - mean[t])
        return noise_of_score(schedule, score, t)

    return eps


def annealed_moments(schedule, levels, steps, step_size):
    """Mean and covariance of the dynamics: every step is affine in a_t, in float64."""
    mean, cov = np.zeros(2), (1 - schedule.alpha_bar[-1]) * np.eye(2)
    times = time_grid(schedule.T, levels)
    for t in times:
        ab = schedule.alpha_bar[t]
        precision = np.linalg.inv(ab * COV + (1 - ab) * np.eye(2))
        eta = step_size * (1 - ab)
        shrink = np.eye(2) - eta * precision
        for _ in range(steps):
            mean = np.sqrt(ab) * MEAN + shrink @ (mean - np.sqrt(ab) * MEAN)
            cov = shrink @ cov @ shrink.T + 2 * eta * np.eye(2)
    ab = schedule.alpha_bar[times[-1]]
    gain = np.sqrt(ab) * COV @ np.linalg.inv(ab * COV + (1 - ab) * np.eye(2))
    return MEAN + gain @ (mean - np.sqrt(ab) * MEAN), gain @ cov @ gain.T


@pytest.mark.parametrize("levels", [None, 20])
@pytest.mark.parametrize("name", SCHEDULES)
def test_annealed_langevin_reproduces_a_gaussian(name, levels, key):
    """Sample moments are those of the affine recursion, and near the target's."""
    schedule = SCHEDULES[name]
    draw = jax.jit(
        lambda key: annealed_langevin(
            schedule, exact_eps(schedule), key, (ROWS, 2), levels=levels, steps=8, step_size=0.2
        )
    )
    a_0 = np.float64(draw(key))
    mean, cov = annealed_moments(schedule, levels, 8, 0.2)
    assert np.all(np.abs(a_0.mean(0) - mean) < 4.5 * np.sqrt(np.diag(cov) / ROWS))
    np.testing.assert_allclose(np.cov(a_0.T), cov, atol=0.03)
    # Few steps at each of few levels lag behind the moving density.
    np.testing.assert_allclose(a_0.mean(0), MEAN, atol=0.07 if levels is None else 0.13)
    np.testing.assert_allclose(np.cov(a_0.T), COV, atol=0.08 if levels is None else 0.15)


@pytest.mark.parametrize("name", SCHEDULES)
def test_ddpm_reproduces_a_correlated_gaussian(name, key):
    schedule = SCHEDULES[name]
    draw = jax.jit(
        lambda key: ddpm(schedule, exact_eps(schedule), key, (ROWS, 2), start_std=1.0, clip=None)
    )
    a_0 = np.float64(draw(key))
    np.testing.assert_allclose(a_0.mean(0), MEAN, atol=0.06)
    # Sixty steps lose variance, most of it where they are unevenly spread.
    np.testing.assert_allclose(np.cov(a_0.T), COV, atol=0.2 if name == "linear" else 0.1)


def test_langevin_against_its_stationary_law(key):
    """x' = (1 - eta / v) x + sqrt(2 eta) z has the variance v / (1 - eta / (2 v))."""
    v, eta = 0.5, 0.1
    walk = jax.jit(lambda x, key: langevin(lambda x: -x / v, x, key, eta, 200))
    x = np.float64(walk(3.0 * jax.random.normal(key, (ROWS, 1)), jax.random.split(key)[0]))
    assert x.mean() == pytest.approx(0.0, abs=0.03)
    assert x.var() == pytest.approx(v / (1 - eta / (2 * v)), rel=0.05)


def test_geometric_schedule():
    """Equal ratios of noise to signal, from the first to the last that was asked for."""
    ratio = np.sqrt(1 / geometric(40, 0.05, 8.0).alpha_bar[1:] - 1)
    np.testing.assert_allclose(ratio, np.geomspace(0.05, 8.0, 40), rtol=1e-9)
    with pytest.raises(UsageError, match="first < last"):
        geometric(10, 2.0, 1.0)
