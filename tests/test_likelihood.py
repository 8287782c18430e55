"""The likelihood estimate against Gaussians, whose perfect denoiser and density are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.diffusion.kernels import signal_and_noise
from rescore.diffusion.likelihood import log_likelihood
from rescore.diffusion.schedules import SCHEDULES

pytestmark = pytest.mark.usefixtures("quick")


def denoiser(schedule, std: float):
    """E[noise | a_t] for a_0 ~ N(0, std^2): sqrt(1 - abar) a_t / (abar std^2 + 1 - abar)."""

    def eps(a_t, t):
        signal, noise = signal_and_noise(schedule, t)
        return noise * a_t / (signal**2 * std**2 + noise**2)

    return eps


def estimate(name: str, T: int, std: float, a_0: np.ndarray, draws: int, clip=None) -> np.ndarray:
    schedule = SCHEDULES[name](T, 1.0)
    run = jax.jit(
        lambda a_0, key: log_likelihood(schedule, denoiser(schedule, std), a_0, key, draws, clip)
    )
    return np.asarray(run(jnp.asarray(a_0, jnp.float32), jax.random.key(0)))


@pytest.mark.parametrize("d", [1, 3])
def test_exact_for_the_standard_normal_on_any_grid(d):
    """There E error_t = abar (1 - abar) |a_0|^2 + abar^2 d, and the sum telescopes."""
    a_0 = np.random.default_rng(d).uniform(-1, 1, (5, d))
    expected = -0.5 * d * np.log(2 * np.pi) - 0.5 * np.sum(a_0**2, axis=1)
    found = estimate("cosine", 6, 1.0, a_0, 20_000)
    assert found.shape == (5,)
    np.testing.assert_allclose(found, expected, atol=0.06 * d)


@pytest.mark.parametrize("std", [0.3, 0.6])
def test_approaches_a_narrow_normal_as_the_grid_refines(std):
    a_0 = std * np.asarray([[0.0, 0.0], [1.0, -0.5], [1.5, 1.0]])
    expected = -np.log(2 * np.pi * std**2) - 0.5 * np.sum((a_0 / std) ** 2, axis=1)
    found = estimate("vp", 300, std, a_0, 200)
    np.testing.assert_allclose(found, expected, atol=0.25)


def test_clipping_bounds_what_a_bad_model_says():
    """At t = T the cosine schedule multiplies a model's error by hundreds."""
    schedule = SCHEDULES["cosine"](10, 1.0)
    a_0, key = jnp.zeros((2, 3)), jax.random.key(0)
    wild = lambda a_t, t: jnp.full_like(a_t, 1e3)  # noqa: E731
    free, kept = (float(log_likelihood(schedule, wild, a_0, key, 2, c)[0]) for c in (None, 1.0))
    assert np.isfinite(kept) and free < kept - 1e3
