"""SDAC's own promises: proposals, the mean target, entropy in the backup, temperature, presets."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.diffusion.matching import score_matching
from rescore.diffusion.process import signal_and_noise
from rescore.diffusion.reverse import mean_noise
from rescore.models.learned import Anneal
from rescore.training.config import configure
from tests.small import DRAWS, SPEC, initial, policy_step, proposed, random_batch, small

LAM = Anneal(0.5, 0.05, lr=0.3, period=2)
ALGO = small("sdac", **DRAWS, lam=LAM, policy_delay=1)
PROPOSALS = ("perturbed_target", "perturbed_policy", "uniform")


@pytest.fixture(scope="module")
def state(key):
    return initial(ALGO, key)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_proposals_have_the_law_they_promise(proposal, state, key):
    algo, batch = replace(ALGO, proposal=proposal), random_batch(rows=4096)
    at, a_t, t = map(np.asarray, proposed(algo, state, batch, key))
    signal, std = map(np.asarray, signal_and_noise(algo.noise_schedule, t))
    assert a_t.shape == batch.action.shape and np.all(np.isfinite(a_t))
    base, obs = batch.action, batch.obs
    choice = jax.jit(lambda obs, key: algo.choose_action(state, obs, key))
    k_next, _, _, k_propose, _ = jax.random.split(key, 5)
    if proposal == "perturbed_policy":
        base = choice(obs, jax.random.split(k_propose)[0])
    if proposal == "perturbed_target":  # a terminal s' has no next action
        ended = batch.terminated[:, None] > 0
        base = jnp.where(ended, base, choice(batch.next_obs, k_next))
        obs = jnp.where(ended, obs, batch.next_obs)
    np.testing.assert_array_equal(at, obs)
    noise = (a_t - signal * base) / std
    if proposal == "uniform":
        share = a_t / (signal + 2 * std)
        assert np.abs(share).max() <= 1 and np.abs(share).max() > 0.99
        noise = np.sqrt(3.0) * share
    np.testing.assert_allclose(np.mean(noise, axis=0), 0.0, atol=0.06)
    np.testing.assert_allclose(np.std(noise, axis=0), 1.0, atol=0.04)


def test_the_mean_target_has_the_gradient_of_all_draws(state, key):
    """One row per a_t with target sum_i w_i noise_i, or K rows of weight w_i: the same step."""
    k_draws, rows = 5, 7
    keys = jax.random.split(key, 4)
    actor = state.nets.actor.params
    obs = jax.random.normal(keys[0], (rows, SPEC.obs_dim))
    a_t = jax.random.normal(keys[1], (rows, SPEC.act_dim))
    noise = jax.random.normal(keys[2], (k_draws, rows, SPEC.act_dim))
    t = jnp.arange(rows) % ALGO.T + 1
    target, weight = mean_noise(3.0 * jax.random.normal(keys[3], (k_draws, rows)), noise)
    on_mean = lambda net: score_matching(net.at(obs), a_t, t, target, 1.0)[0]  # noqa: E731

    def over_draws(net):
        eps = lambda a_t, t: net.at(obs)(a_t, t)[None]  # noqa: E731
        return k_draws * score_matching(eps, a_t, t, noise, weight)[0]

    both = jax.jit(lambda net: (jax.grad(on_mean)(net), jax.grad(over_draws)(net)))(actor)
    for a, b in zip(*map(jax.tree.leaves, both)):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_critic_moves_the_target_and_nothing_else(state, key):
    algo, batch = replace(ALGO, proposal="uniform"), random_batch()  # no choice by Q
    plain, _ = policy_step(algo, state, batch, key)
    louder = jax.tree.map(lambda x: 3.0 * x, state.nets.critic.params)
    nets = state.nets._replace(critic=state.nets.critic._replace(params=louder))
    other, _ = policy_step(algo, state._replace(nets=nets), batch, key)
    np.testing.assert_array_equal(plain.a_t, other.a_t)
    np.testing.assert_array_equal(plain.t, other.t)
    assert float(jnp.max(jnp.abs(plain.target - other.target))) > 1e-3
    assert plain.weight == other.weight == 1.0


@pytest.mark.parametrize("entropy", ["none", "noise"])
def test_entropy_enters_the_target_with_the_temperature(entropy, state, key):
    """y = r + gamma (1 - terminated) (min Qbar + lam H)."""
    algo, batch = replace(ALGO, entropy=entropy), random_batch()

    @jax.jit
    def run(state):
        a_next = algo.choose_action(state, batch.next_obs, jax.random.split(key, 5)[0])
        value = state.nets.target_critic.value(batch.next_obs, a_next)
        q = state.nets.critic.params(batch.obs, batch.action)
        loss = algo.update(state, batch, key, jnp.int32(0)).metrics["critic_loss"]
        return value, q, loss

    value, q, loss = map(np.asarray, run(state))
    std = float(jnp.exp(state.log_noise.params))
    of_noise = 0.5 * SPEC.act_dim * np.log(2 * np.pi * np.e * std**2)
    bonus = 0.5 * of_noise if entropy == "noise" else 0.0
    y = batch.reward + 0.99 * (1 - batch.terminated) * (value + bonus)
    expected = np.sum(np.mean((q - y[None]) ** 2, axis=1))
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)


def test_the_temperature_follows_its_path(state, key):
    """Adam's first step in log space has the length of its rate, every `period` updates."""

    @jax.jit
    def lam(step):
        new = ALGO.update(state, random_batch(), key, step)
        return new.metrics["lam"], jnp.exp(new.state.log_lam.params)

    used, after = lam(jnp.int32(0))
    assert float(used) == pytest.approx(0.5)
    assert float(after) == pytest.approx(0.5 * np.exp(-0.3), rel=1e-4)
    assert float(lam(jnp.int32(1))[1]) == pytest.approx(0.5)


def test_the_released_temperature_is_in_units_of_the_scaled_return():
    """Its softmax takes 5 Q / alpha, and alpha goes from 5 to the noise's fixed point."""
    released, _ = configure("sdac", "released", {}, {})
    for lam, alpha in ((released.lam.init, 5.0), (released.lam.target, 0.9838)):
        assert lam == pytest.approx(alpha / 5.0)
