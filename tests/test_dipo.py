"""DIPO's own promises: particles climb, return to their rows, and start each climb afresh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rescore import Agent
from rescore.models.learned import climb
from rescore.training.config import configure
from rescore.training.loop import advance
from rescore.training.replay import unpack
from tests.small import SIZES, SPEC, random_batch, regression, small


@pytest.mark.parametrize("top", [0.4, 3.0])
def test_particles_climb_to_the_maximum_inside_the_box(top):
    start = jnp.linspace(-1.0, 1.0, 9)[:, None]
    ascent = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.03))
    end = jax.jit(lambda x: climb(lambda x: -jnp.sum((x - top) ** 2), x, ascent, 300))(start)
    np.testing.assert_allclose(end, min(top, 1.0), atol=0.02)


def test_every_update_climbs_with_a_fresh_optimiser(key):
    """A first step of Adam is its rate long, whatever the particles did in updates before."""
    algo = small("dipo", edit_steps=1, edit_lr=0.05, policy_delay=1)
    state = jax.jit(lambda k: algo.init(k, SPEC))(key)
    update = jax.jit(algo.update)
    batch = random_batch()._replace(particle=0.5 * random_batch(1).action)
    for step in range(3):
        edits = np.asarray(update(state, batch, key, jnp.int32(step)).edits)
        np.testing.assert_allclose(np.abs(edits - batch.particle), 0.05, rtol=1e-2)
        batch = batch._replace(particle=jnp.asarray(edits), obs=-batch.obs)  # Q slopes elsewhere


def test_the_policy_imitates_the_edited_particles(key):
    algo = small("dipo", policy_delay=1)
    state, batch = jax.jit(lambda k: algo.init(k, SPEC))(key), random_batch()
    chosen = regression(algo, state, batch, key)
    edits = jax.jit(lambda *x: algo.update(*x).edits)(state, batch, key, jnp.int32(0))
    abar = algo.noise_schedule.alpha_bar[np.asarray(chosen.t)][:, None]
    expected = np.sqrt(abar) * edits + np.sqrt(1 - abar) * chosen.target
    np.testing.assert_allclose(chosen.a_t, expected, atol=1e-5)
    assert chosen.weight == 1.0 and float(jnp.max(jnp.abs(edits))) <= 1.0


def test_edits_go_back_to_their_rows():
    sizes = {k: SIZES[k] for k in ("hidden", "T", "edit_steps")}
    training = {"warmup": 40, "chunk": 1, "batch_size": 8, "replay_capacity": 100}
    agent = Agent("dipo", "rescore/Probe4-v0", seeds=(0, 7), training=training, **sizes)
    agent.evaluate = None
    with agent.learn(40):
        run = agent.run
        drawn = [run.replay.sample(0, 1, 8)[1][0, s] for s in range(2)]
        if run.updates == 0:
            advance(run)
        memory = unpack(run.replay.rows, run.envs.spec, particles=True)
        for s in range(2):
            moved = np.flatnonzero((memory.particle[s] != memory.action[s]).any(axis=-1))
            assert set(moved) <= set(drawn[s]) and len(moved) >= len(set(drawn[s])) - 1
            assert np.abs(memory.particle[s]).max() <= 1.0


def test_presets_say_what_the_sources_say():
    original, setting = configure("dipo", "original", {}, {})
    assert (original.schedule, original.T, original.edit_steps) == ("cosine", 100, 20)
    assert (original.edit_lr, original.edit_grad_norm, original.adam_eps) == (0.03, 0.1, 1e-5)
    assert (original.max_grad_norm, original.eval_eta, original.pi_old) == (2.0, 0.0, "slow")
    assert original.act_candidates == original.target_candidates == original.eval_candidates == 1
    assert (setting.warmup, setting.utd) == (10_000, 1.0)
    paper, setting = configure("dipo", "paper", {}, {})
    assert (paper.schedule, paper.schedule_scale, paper.start_std) == ("linear", 0.3, 0.5)
    assert (paper.T, paper.edit_steps, paper.reward_scale) == (100, 30, 1.0)
    assert (setting.num_envs, setting.utd) == (5, 0.2)
