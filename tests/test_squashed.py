"""SAC's policy: its log-probability is that of a density on the box."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore import streams
from rescore.diffusion.posterior import log_slope
from rescore.models.networks import LOG_STD, squashed_parameters
from rescore.models.policies import sample_squashed

# Nodes dense towards the border, where a wide Gaussian puts its mass.
NODES = np.tanh(np.linspace(-8.0, 8.0, 401))


def network_output(mean: list[float], log_std: list[float]) -> np.ndarray:
    """What a network must say for this Gaussian before the squashing. [2 d]"""
    low, high = LOG_STD
    raw = np.arctanh(2.0 * (np.asarray(log_std) - low) / (high - low) - 1.0)
    return np.concatenate([mean, raw])


def log_density(out: np.ndarray, action: np.ndarray, monkeypatch) -> np.ndarray:
    """The log-probability that `sample` reports when it draws these actions. [n, d] -> [n]"""
    mean, log_std = (np.asarray(x, np.float64) for x in squashed_parameters(jnp.asarray(out)))
    noise = (np.arctanh(action) - mean) / np.exp(log_std)
    monkeypatch.setattr(streams, "normal", lambda key, shape: jnp.asarray(noise, jnp.float32))
    out = jnp.broadcast_to(jnp.asarray(out, jnp.float32), (len(action), len(out)))
    drawn, log_pi = sample_squashed(out, None)
    np.testing.assert_allclose(drawn, action, atol=1e-5)
    return np.asarray(log_pi, np.float64)


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 0.7])
@pytest.mark.parametrize("mean", [0.0, 1.2])
def test_integrates_to_one_over_an_interval(mean, log_std, monkeypatch):
    log_pi = log_density(network_output([mean], [log_std]), NODES[:, None], monkeypatch)
    assert np.trapezoid(np.exp(log_pi), NODES) == pytest.approx(1.0, abs=2e-3)


def test_integrates_to_one_over_a_square(monkeypatch):
    nodes = np.tanh(np.linspace(-6.0, 6.0, 121))
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
    out = network_output([0.5, -1.0], [-0.5, 0.3])
    log_pi = log_density(out, grid.reshape(-1, 2), monkeypatch).reshape(121, 121)
    over_one = np.trapezoid(np.exp(log_pi), nodes, axis=1)
    assert np.trapezoid(over_one, nodes) == pytest.approx(1.0, abs=5e-3)


def test_agrees_with_the_change_of_variables(key):
    out = jax.random.normal(key, (64, 6))
    action, log_pi = sample_squashed(out, key)
    mean, log_std = (np.asarray(x, np.float64) for x in squashed_parameters(out))
    noise = np.asarray(jax.random.normal(key, mean.shape), np.float64)
    u = mean + np.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    expected = np.sum(gaussian - np.log(1.0 / np.cosh(u) ** 2), axis=1)
    np.testing.assert_allclose(action, np.tanh(u), atol=1e-6)
    np.testing.assert_allclose(log_pi, expected, rtol=1e-4, atol=1e-4)


def test_saturated_actions_have_finite_values_and_gradients(key):
    """1 - tanh^2 has no digits left beyond 9; its logarithm still has them."""
    mean = jnp.repeat(jnp.asarray([-60.0, 0.0, 60.0]), 8)[:, None]
    out = jnp.concatenate([mean, jnp.full_like(mean, 5.0)], axis=-1)

    @jax.jit
    def run(out):
        loss = lambda out: jnp.sum(sample_squashed(out, key)[1])  # noqa: E731
        return *sample_squashed(out, key), jax.grad(loss)(out)

    action, log_pi, gradient = run(out)
    assert np.all(np.abs(action) <= 1.0)
    assert np.all(np.isfinite(log_pi)) and np.all(np.isfinite(gradient))
    u = np.asarray([-200.0, -20.0, -0.5, 0.0, 3.0, 20.0, 200.0])
    exact = 2.0 * (np.log(2.0) - np.abs(u) - np.log1p(np.exp(-2.0 * np.abs(u))))
    np.testing.assert_allclose(log_slope(jnp.asarray(u, jnp.float32)), exact, rtol=1e-5)


def test_standard_deviations_stay_in_their_range():
    out = jnp.stack([jnp.asarray([0.0, raw]) for raw in (-1e6, 0.0, 1e6)])
    np.testing.assert_allclose(squashed_parameters(out)[1][:, 0], [-5.0, -1.5, 2.0])
