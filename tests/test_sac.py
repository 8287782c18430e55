"""SAC's own promises: the soft target, the policy's loss and the temperature, by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.models.policies import sample_squashed
from tests.small import SPEC, initial, random_batch, same, small, update_of

ALGO = small("sac", alpha=0.7, reward_scale=0.5, gamma=0.9)


@pytest.fixture(scope="module")
def updated(key):
    state, batch = initial(ALGO, key), random_batch()
    return state, batch, update_of(ALGO)(state, batch, key, jnp.int32(0))


def test_the_target_is_soft(updated, key):
    """y = reward_scale r + gamma (1 - terminated) (min Qbar(s', a') - alpha log pi(a' | s'))."""
    state, batch, update = updated
    k_next, _ = jax.random.split(key)
    a_next, log_pi = sample_squashed(state.nets.actor.params(batch.next_obs), k_next)
    next_value = np.min(state.nets.target_critic(batch.next_obs, a_next), axis=0) - 0.7 * log_pi
    y = 0.5 * batch.reward + 0.9 * (1 - batch.terminated) * next_value
    q = state.nets.critic.params(batch.obs, batch.action)
    expected = np.sum(np.mean((q - y[None]) ** 2, axis=1))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(expected), rel=1e-5)


def test_the_policy_loss_is_alpha_log_pi_minus_q(updated, key):
    state, batch, update = updated
    _, k_policy = jax.random.split(key)
    action, log_pi = sample_squashed(state.nets.actor.params(batch.obs), k_policy)
    q = np.min(update.state.nets.critic.params(batch.obs, action), axis=0)
    expected = np.mean(0.7 * log_pi - q)
    assert float(update.metrics["policy_loss"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(update.metrics["entropy"]) == pytest.approx(-float(jnp.mean(log_pi)), rel=1e-5)


def test_the_temperature_grows_while_entropy_is_short(updated, key):
    """Adam's first step has the length of its rate: log alpha moves by +-alpha_lr."""
    state, batch, update = updated
    goal = ALGO.entropy_per_dim * SPEC.act_dim
    assert float(update.metrics["entropy"]) > goal + 0.1
    fell = float(update.state.log_alpha.params - state.log_alpha.params)
    assert fell == pytest.approx(-ALGO.alpha_lr, rel=1e-3)
    greedy = replace(ALGO, entropy_per_dim=50.0)
    new = jax.jit(lambda *x: greedy.update(*x).state.log_alpha)(state, batch, key, jnp.int32(0))
    assert float(new.params - state.log_alpha.params) == pytest.approx(ALGO.alpha_lr, rel=1e-3)


def test_evaluation_takes_the_squashed_mean(updated):
    state, batch, _ = updated
    act = jax.jit(lambda key: ALGO.act(state, batch.obs, key, False).action)
    ours, other = (act(jax.random.key(i)) for i in (1, 2))
    assert same(ours, other)
    mean = state.nets.actor.params(batch.obs)[:, : SPEC.act_dim]
    np.testing.assert_allclose(ours, np.tanh(mean), atol=1e-6)


def test_the_averaged_actor_is_evaluated(key):
    """A mean over the last tenth of all updates, then over `averaging` of them, by hand."""
    algo = small("sac", averaging=4)
    state, batch = initial(algo, key), random_batch()
    weights, by_hand, update = [], 0.0, update_of(algo)
    for step, rate in ((0, 1.0), (1, 10 / 11), (20, 1 / 3), (100, 1 / 4)):
        state = update(state, batch, key, jnp.int32(step)).state
        weights.append(np.asarray(state.nets.actor.params.rest[-1].weight))
        by_hand = by_hand + rate * (weights[-1] - by_hand)
        averaged = state.nets.averaged_actor.rest[-1].weight
        np.testing.assert_allclose(averaged, by_hand, rtol=1e-5, atol=1e-7)
    assert np.abs(weights[-1] - by_hand).max() > 1e-5
    act = jax.jit(
        lambda state, explore: algo.act(state, batch.obs, key, explore).action, static_argnums=1
    )
    nets = state.nets
    swapped = state._replace(
        nets=nets._replace(actor=nets.actor._replace(params=nets.averaged_actor))
    )
    assert same(act(state, False), act(swapped, False))
    assert not same(act(state, True), act(swapped, True))
    assert small("sac").averaging is None and initial(small("sac"), key).nets.averaged_actor is None
