"""DIPO's own promises: particles climb, return to their rows, and start each climb afresh."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rescore.algorithms.dipo import EDIT_LR, climb
from rescore.training.replay import Replay, unpack
from tests.small import BATCH, SPEC, initial, policy_step, random_batch, same, small, update_of

ALGO = small("dipo", edit_steps=1, policy_delay=1)


@pytest.mark.parametrize("top", [0.4, 3.0])
def test_particles_climb_to_the_maximum_inside_the_box(top):
    start = jnp.linspace(-1.0, 1.0, 9)[:, None]
    ascent = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.03))
    end = jax.jit(lambda x: climb(lambda x: -jnp.sum((x - top) ** 2), x, ascent, 300))(start)
    np.testing.assert_allclose(end, min(top, 1.0), atol=0.02)


@pytest.fixture(scope="module")
def state(key):
    return initial(ALGO, key)


def test_every_update_climbs_with_a_fresh_optimiser(state, key):
    """A first step of Adam is its rate long, whatever the particles did in updates before."""
    batch = random_batch()._replace(particle=0.5 * random_batch(1).action)
    for step in range(3):
        edits = np.asarray(policy_step(ALGO, state, batch, key, step)[1].edits)
        np.testing.assert_allclose(np.abs(edits - batch.particle), EDIT_LR, rtol=1e-2)
        batch = batch._replace(particle=jnp.asarray(edits), obs=-batch.obs)  # Q slopes elsewhere


def test_the_target_actor_keeps_its_own_time(state, key):
    """`paper`: the policy and the target critics move at every update, the target every second."""
    algo = replace(ALGO, target_delay=1)
    for step in range(3):
        nets = update_of(algo)(state, random_batch(), key, jnp.int32(step)).state.nets
        assert not same(nets.target_critic, state.nets.target_critic)
        assert same(nets.target_actor, state.nets.target_actor) == bool(step % 2)


def test_the_policy_imitates_the_edited_particles(state, key):
    chosen, update = policy_step(ALGO, state, random_batch(), key)
    abar = ALGO.noise_schedule.alpha_bar[np.asarray(chosen.t)][:, None]
    expected = np.sqrt(abar) * update.edits + np.sqrt(1 - abar) * chosen.target
    np.testing.assert_allclose(chosen.a_t, expected, atol=1e-5)
    assert chosen.weight == 1.0 and float(jnp.max(jnp.abs(update.edits))) <= 1.0


def test_edits_go_back_to_their_rows(state, key):
    replay, batch = Replay((0,), 50, SPEC, particles=True), random_batch(rows=40)
    replay.add(jax.tree.map(lambda x: np.asarray(x)[None], batch))
    rows, index = replay.sample(0, 1, BATCH)
    drawn = jax.tree.map(jnp.asarray, unpack(rows[0, 0], SPEC, particles=True))
    np.testing.assert_array_equal(drawn.particle, drawn.action)  # a particle starts as the action
    edits = np.asarray(policy_step(ALGO, state, drawn, key)[1].edits)
    replay.edit(index, edits[None, None])
    memory = unpack(replay.rows[0, :40], SPEC, particles=True)
    np.testing.assert_array_equal(memory.particle[index[0, 0]], edits)
    others = np.setdiff1d(np.arange(40), index)
    np.testing.assert_array_equal(memory.particle[others], batch.action[others])
    np.testing.assert_array_equal(memory.action, batch.action)  # what was executed stays
