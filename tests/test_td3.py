"""TD3's own promises: the smoothed target, the first critic's gradient, the delays."""

from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms.td3 import TD3
from tests.small import initial, random_batch, same, small, update_of

ALGO = small("td3", polyak_rate=0.25)
UPDATE = update_of(ALGO)


@pytest.fixture(scope="module")
def start(key):
    return initial(ALGO, key), random_batch(rows=256)


def next_actions(algo: TD3, state, batch, key) -> jax.Array:
    """What the Bellman target of an update is taken at."""
    seen = []

    def watch(self, nets, batch, a_next):
        seen.append(a_next)
        return nets.critic, {}

    def run(key):
        algo.update(state, batch, key, jnp.int32(0))
        return seen.pop()

    with mock.patch.object(TD3, "fit_critic", watch):
        return np.asarray(jax.jit(run)(key))


def test_smoothing_noise_is_clipped_and_stays_in_the_box(start, key):
    state, batch = start
    clean = np.tanh(state.nets.target_actor(batch.next_obs))
    wide = next_actions(replace(ALGO, target_noise=1e3), state, batch, key)
    assert np.all(np.abs(wide) <= 1.0)
    # Noise of a thousand is +-0.5 after its clip, then the box cuts.
    allowed = np.stack([np.clip(clean + s, -1, 1) for s in (-0.5, 0.5)])
    assert np.min(np.abs(wide - allowed), axis=0).max() < 1e-2
    usual = next_actions(ALGO, state, batch, key) - clean
    free = np.abs(clean) < 0.5
    assert np.abs(usual).max() <= 0.5 + 1e-6 and np.abs(usual[free]).max() > 0.45
    assert np.std(usual[free]) == pytest.approx(0.2, rel=0.1)


def test_the_policy_climbs_the_first_critic_only(start, key):
    state, batch = start
    plain = UPDATE(state, batch, key, jnp.int32(0))
    for i, alone in ((0, False), (1, True)):
        critic = state.nets.critic
        params = jax.tree.map(lambda x, i=i: x.at[i].multiply(1.5), critic.params)
        nets = state.nets._replace(critic=critic._replace(params=params))
        new = UPDATE(state._replace(nets=nets), batch, key, jnp.int32(0))
        assert same(new.state.nets.actor, plain.state.nets.actor) == alone
    action = jnp.tanh(state.nets.actor.params(batch.obs))
    first = plain.state.nets.critic.params(batch.obs, action)[0]
    assert float(plain.metrics["policy_loss"]) == pytest.approx(-float(jnp.mean(first)), rel=1e-4)


def test_policy_and_slow_copies_wait_for_every_second_update(start, key):
    state, batch = start
    waited = UPDATE(state, batch, key, jnp.int32(1)).state.nets
    assert same(waited.actor, state.nets.actor) and same(
        waited.target_actor, state.nets.target_actor
    )
    assert same(waited.target_critic, state.nets.target_critic)
    moved = UPDATE(state, batch, key, jnp.int32(2)).state.nets
    for slow, old, new in (
        (moved.target_actor, state.nets.target_actor, moved.actor.params),
        (moved.target_critic, state.nets.target_critic, moved.critic.params),
    ):
        for a, b, c in zip(*map(jax.tree.leaves, (slow, old, new))):
            np.testing.assert_allclose(a, 0.75 * b + 0.25 * c, atol=1e-6)


def test_exploration_adds_noise_of_its_own_size(start, key):
    state, batch = start
    act = jax.jit(lambda explore: ALGO.act(state, batch.obs, key, explore).action, static_argnums=0)
    clean = act(False)
    np.testing.assert_allclose(clean, np.tanh(state.nets.actor.params(batch.obs)), atol=1e-6)
    noise = np.asarray(act(True) - clean)
    assert np.std(noise[np.abs(clean) < 0.6]) == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("reduction", [None, "mean", "min"])
def test_the_policy_follows_the_critics_that_improve_reduce_names(reduction, start, key):
    state, batch = start
    critic = replace(ALGO.critic, improve_reduce=reduction)
    algo = replace(ALGO, critic=critic, policy_delay=1)
    update = update_of(algo)(state, batch, key, jnp.int32(0))
    action = jnp.tanh(state.nets.actor.params(batch.obs))
    both = np.asarray(update.state.nets.critic.params(batch.obs, action))
    value = {None: both[0], "mean": both.mean(0), "min": both.min(0)}[reduction]
    assert float(update.metrics["policy_loss"]) == pytest.approx(-value.mean(), rel=1e-4)
