"""Draws near a likely action: the weights undo the choice of where to draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.diffusion.process import signal_and_noise
from rescore.diffusion.reverse import log_truncated, mean_noise, mixed_samples, reverse_samples
from rescore.diffusion.schedules import cosine

SCHEDULE = cosine(10)


def log_density(a):
    """Two bumps on the box, in one dimension."""
    bump = lambda c, s: -0.5 * ((a[..., 0] - c) / s) ** 2  # noqa: E731
    return jnp.logaddexp(np.log(0.7) + bump(0.5, 0.2), np.log(0.3) + bump(-0.6, 0.15))


def posterior_noise(a_t: float, t: int) -> float:
    """E[noise | a_t] by quadrature over a_0 in the box."""
    signal, std = (float(x[0]) for x in signal_and_noise(SCHEDULE, jnp.array(t)))
    a_0 = np.linspace(-1, 1, 20_001)
    noise = (a_t - signal * a_0) / std
    log_p = np.asarray(log_density(jnp.asarray(a_0[:, None]))) - 0.5 * noise**2
    p = np.exp(log_p - log_p.max())
    return float(np.sum(p * noise) / np.sum(p))


@pytest.mark.parametrize("near", [1000, 50_000, 100_000])
@pytest.mark.parametrize("t", [1, 4, 8, 10])
def test_weighted_mean_is_the_posterior_mean(near, t, key):
    a_t, k = jnp.array([[0.4]]), 100_000
    times = jnp.full((1,), t)
    # A wide reach when all are near: only then does the proposal cover the posterior alone.
    reach = 0.5 if near == k else 0.1
    centre = jnp.array([[0.3]])
    a_0, noise, log_phi = mixed_samples(SCHEDULE, a_t, times, key, k, near, centre, reach)
    assert np.all(np.abs(a_0) <= 1.0)
    found, weight = mean_noise(log_density(a_0) + log_phi, noise)
    assert float(found[0, 0]) == pytest.approx(posterior_noise(0.4, t), abs=0.03)
    assert float(jnp.sum(weight)) == pytest.approx(1.0, abs=1e-4)


def test_near_draws_raise_the_effective_sample_size(key):
    """A sharp density in 8 dimensions at large t, where phi is as wide as the box."""
    d, k, t = 8, 64, jnp.full((32,), 9)
    mode = jnp.full((32, d), 0.4)
    log_p = lambda a: -0.5 * jnp.sum(((a - 0.4) / 0.2) ** 2, axis=-1)  # noqa: E731
    a_t = jax.random.normal(key, (32, d))
    ess = lambda w: float(jnp.mean(1.0 / jnp.sum(w**2, axis=0)))  # noqa: E731
    a_0, noise = reverse_samples(SCHEDULE, a_t, t, key, k)
    plain = ess(mean_noise(log_p(a_0), noise)[1])
    a_0, noise, log_phi = mixed_samples(SCHEDULE, a_t, t, key, k, k // 2, mode, 0.3)
    assert ess(mean_noise(log_p(a_0) + log_phi, noise)[1]) > 3.0 * plain


def test_truncated_density_integrates_to_one():
    """Up to the normal's constant, for intervals in the middle and in both tails."""
    for low, high, scale in [(-1.0, 2.0, 0.5), (3.0, 5.0, 2.0), (-6.0, -4.0, 1.0)]:
        x = jnp.linspace(low, high, 20_001)[:, None, None]
        density = jnp.exp(log_truncated(x, jnp.array([[low]]), jnp.array([[high]]), scale))
        total = jnp.trapezoid(
            density[:, 0] / np.sqrt(2 * np.pi), dx=scale * (high - low) / 20_000, axis=0
        )
        assert float(total) == pytest.approx(1.0, rel=1e-3)


def test_extremes_are_finite(key):
    a_t = 5.0 * jnp.sign(jax.random.normal(key, (64, 17)))
    for t in (1, 10):
        times = jnp.full((64,), t)
        for out in mixed_samples(SCHEDULE, a_t, times, key, 8, 4, jnp.sign(a_t), 1e-3):
            assert np.all(np.isfinite(out))
