"""QSM's own promises: the target is -M_q grad Q, and its reverse processes climb Q."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.diffusion.process import signal_and_noise
from tests.small import SPEC, initial, policy_step, proposed, random_batch, small

ALGO = small("qsm", policy_delay=1, q_scale=7.0)


@pytest.fixture(scope="module")
def state(key):
    return initial(ALGO, key)


def slope_by_differences(critic, obs, a_t) -> np.ndarray:
    """Gradient of the critics' mean, by central differences. [B, act_dim]"""
    h = 2e-2
    shifts = h * jnp.eye(SPEC.act_dim)
    q = jax.jit(lambda a: jnp.mean(critic(obs, a), axis=0))
    columns = [(q(a_t + shift[None]) - q(a_t - shift[None])) / (2 * h) for shift in shifts]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("gradient", ["raw", "normalised"])
def test_the_target_is_minus_the_scaled_gradient_at_the_noisy_action(gradient, state, key):
    algo, batch = replace(ALGO, gradient=gradient), random_batch()
    chosen, update = policy_step(algo, state, batch, key)
    slope = slope_by_differences(update.state.nets.critic.params, batch.obs, chosen.a_t)
    expected = -7.0 * slope
    if gradient == "normalised":
        _, std = signal_and_noise(algo.noise_schedule, chosen.t)
        expected *= std / np.mean(np.linalg.norm(slope, axis=-1))
    np.testing.assert_allclose(chosen.target, expected, atol=0.02 * np.abs(expected).max())
    # a_t is the noised action of replay.
    signal, std = signal_and_noise(algo.noise_schedule, chosen.t)
    noise = np.asarray((chosen.a_t - signal * batch.action) / std)
    assert np.std(noise) == pytest.approx(1.0, abs=0.35) and np.abs(noise).max() < 5
    assert chosen.weight == 1.0


def test_langevin_learns_one_score_of_clean_actions(state, key):
    batch = random_batch()
    _, a_t, t = proposed(replace(ALGO, chain="langevin"), state, batch, key)
    np.testing.assert_array_equal(a_t, batch.action)
    np.testing.assert_array_equal(t, 1)


def test_langevin_moves_by_the_score_whatever_the_schedule(state, key):
    """The target is minus the gradient over its mean length: no noise level scales it."""
    batch, algo = random_batch(), replace(ALGO, chain="langevin", gradient="normalised")
    chosen, update = policy_step(algo, state, batch, key)
    slope = slope_by_differences(update.state.nets.critic.params, batch.obs, batch.action)
    expected = -7.0 * slope / np.mean(np.linalg.norm(slope, axis=-1))
    np.testing.assert_allclose(chosen.target, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("chain", ["clip", "langevin"])
def test_the_reverse_process_climbs_a_quadratic(chain):
    """With eps = -M_q grad Q for Q = -(a - 0.4)^2 samples gather at 0.4, with the sign reversed
    at the far border."""

    class Quadratic:
        act_dim = 1

        def __init__(self, sign):
            self.sign = sign

        def at(self, obs):
            return lambda a, t: self.sign * 8.0 * (a - 0.4)

    algo, obs = small("qsm", chain=chain, schedule="vp", T=40), jnp.zeros((512, 1))
    draw = jax.jit(lambda sign: algo.sample(Quadratic(sign), obs, jax.random.key(0), 1))
    up, down = np.asarray(draw(1.0)), np.asarray(draw(-1.0))
    assert np.mean(up) == pytest.approx(0.4, abs=0.05) and np.std(up) < 0.5
    assert np.mean(np.abs(down)) > 0.9
