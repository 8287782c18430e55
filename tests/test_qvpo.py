"""QVPO's own promises: advantage weights, uniform actions and their weight over time."""

import jax
import numpy as np
import pytest

from rescore.algorithms.qvpo import ENTROPY_WEIGHT
from rescore.diffusion.process import unperturb
from tests.small import SPEC, initial, policy_step, random_batch, small

K, UNIFORM, DECAY = 5, 3, 1000
ALGO = small("qvpo", policy_delay=1, num_samples=K, uniform_actions=UNIFORM, entropy_decay=DECAY)
BATCH = random_batch(rows=256)


@pytest.fixture(scope="module")
def state(key):
    return initial(ALGO, key)


@pytest.fixture(scope="module")
def stepped(state, key):
    return policy_step(ALGO, state, BATCH, key)


def test_the_weight_is_the_advantage_of_the_best_sample(state, stepped, key):
    chosen, update = stepped

    @jax.jit
    def by_hand(actor, critic):
        samples = ALGO.sample(actor, BATCH.obs, jax.random.split(key, 5)[1], K)
        return samples, critic.value(BATCH.obs[None], samples)

    nets = update.state.nets
    samples, q = map(np.asarray, by_hand(state.nets.actor.params, nets.critic.params))
    np.testing.assert_allclose(chosen.weight[0], q.max(axis=0) - q.mean(axis=0), atol=1e-4)
    assert np.all(chosen.weight >= 0)
    a_0 = unperturb(ALGO.noise_schedule, chosen.a_t, chosen.t, chosen.target)
    best = np.take_along_axis(samples, q.argmax(axis=0)[None, :, None], axis=0)[0]
    early = np.asarray(chosen.t[0]) < ALGO.T  # at T the division leaves few digits
    np.testing.assert_allclose(np.asarray(a_0[0])[early], best[early], atol=1e-3)


def test_uniform_actions_fill_the_box(stepped):
    chosen, _ = stepped
    a_0 = unperturb(ALGO.noise_schedule, chosen.a_t, chosen.t, chosen.target)[1:]
    a_0 = np.asarray(a_0)[np.asarray(chosen.t[1:]) < ALGO.T]
    assert chosen.a_t.shape == (1 + UNIFORM, 256, SPEC.act_dim)
    assert np.abs(a_0).max() <= 1.001 and np.abs(a_0).max() > 0.98
    np.testing.assert_allclose(np.mean(a_0, axis=0), 0.0, atol=0.08)
    np.testing.assert_allclose(np.var(a_0, axis=0), 1 / 3, atol=0.05)


@pytest.mark.parametrize("step", [0, DECAY // 2, DECAY, 5 * DECAY])
def test_their_weight_falls_linearly(state, key, step):
    first, last = ENTROPY_WEIGHT
    weight = np.asarray(policy_step(ALGO, state, BATCH, key, step)[0].weight)
    omega = max(last, first + (last - first) * step / DECAY)
    np.testing.assert_allclose(weight[1:], np.tile(omega * weight[:1], (UNIFORM, 1)), rtol=1e-5)
