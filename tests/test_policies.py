"""Gaussian densities by quadrature and in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.diffusion.chain import Gaussian
from rescore.models.policies import GaussianPolicy


def test_density_integrates_to_one_with_the_right_moments():
    x = jnp.linspace(-8.0, 9.0, 4001)
    policy = Gaussian(jnp.full_like(x, 0.5), jnp.full_like(x, np.log(0.7)))
    p = np.exp(np.asarray(policy.log_prob(x), np.float64))
    assert np.trapezoid(p, x) == pytest.approx(1.0, abs=1e-5)
    assert np.trapezoid(p * x, x) == pytest.approx(0.5, abs=1e-5)
    assert np.trapezoid(p * (x - 0.5) ** 2, x) == pytest.approx(0.49, abs=1e-5)


def test_sample_has_the_density():
    policy = Gaussian(jnp.asarray([0.5]), jnp.asarray([np.log(0.7)], jnp.float32))
    noise = jax.random.normal(jax.random.key(0), (20_000, 1))
    x = jax.vmap(policy.sample)(noise)
    assert float(x.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(x.std()) == pytest.approx(0.7, abs=0.02)


def test_log_ratio_is_the_difference_of_log_densities():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        draw = lambda: jnp.asarray(rng.normal(size=(50, 3)))  # noqa: E731
        new, old, x = Gaussian(draw(), draw()), Gaussian(draw(), draw()), draw()
        assert x.dtype == jnp.float64
        expected = new.log_prob(x) - old.log_prob(x)
        np.testing.assert_allclose(new.log_ratio(old, x), expected, rtol=1e-9, atol=1e-9)


def test_log_ratio_of_equals_is_exactly_zero_and_keeps_small_changes():
    rng = np.random.default_rng(1)
    mean, log_std, x = (jnp.asarray(rng.normal(size=(500, 3)), jnp.float32) for _ in range(3))
    old = Gaussian(mean, log_std)
    assert not np.any(jax.jit(lambda old, x: old.log_ratio(old, x))(old, x))
    # A change of 1e-6 in the mean: subtracting two log densities would lose all of its digits.
    x = mean + 1.0
    new = Gaussian(mean + 0.0, log_std)._replace(mean=mean + 1e-6)
    step = np.asarray(new.mean, np.float64) - np.asarray(mean, np.float64)
    gap = np.asarray(x, np.float64) - np.asarray(mean, np.float64)
    expected = step * (gap - step / 2) * np.exp(-2 * np.asarray(log_std, np.float64))
    np.testing.assert_allclose(new.log_ratio(old, x), expected, rtol=1e-4, atol=1e-12)


def test_policy_begins_near_the_middle_with_its_width():
    policy = GaussianPolicy(jax.random.key(0), 5, 2, (16, 16), "tanh", 0.4)
    found = policy(jax.random.normal(jax.random.key(1), (64, 5)))
    assert float(jnp.abs(found.mean).max()) < 0.05
    np.testing.assert_allclose(jnp.exp(found.log_std), 0.4, rtol=1e-5)
    entropy = 2 * 0.5 * np.log(2 * np.pi * np.e * 0.4**2)
    assert float(policy.entropy) == pytest.approx(entropy, rel=1e-5)
