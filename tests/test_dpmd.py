"""DPMD's own promises: weights, temperature, terminal states, rates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rescore.algorithms.actor_critic import ACTOR_LR_DECAY
from rescore.algorithms.dpmd import DPMD
from rescore.core import UsageError
from rescore.diffusion.process import unperturb
from rescore.models.critics import CriticSettings
from rescore.models.learned import Anneal
from rescore.models.normalise import Moments
from rescore.training.config import configure
from tests.small import DRAWS, initial, policy_step, random_batch, same, small, update_of


def weights(algo: DPMD, mean: float, std: float, key: jax.Array) -> tuple:
    """Those of the policy step where Q has these statistics, and the Q that they are made of."""
    state = initial(algo, key)._replace(q=Moments(jnp.float32(mean), jnp.float32(std)))
    chosen, update = policy_step(algo, state, random_batch(), key)
    a_0 = unperturb(algo.noise_schedule, chosen.a_t, chosen.t, chosen.target)
    q = algo.q_values(update.state.nets.critic.params, chosen.obs, a_0)
    return np.asarray(chosen.weight), np.asarray(q)


@pytest.mark.parametrize("loss_at", ["obs", "target"])
def test_weights_are_exp_of_normalised_q(loss_at, key):
    lam = Anneal(2.0, 2.0)
    algo = small("dpmd", **DRAWS, lam=lam, loss_at=loss_at, policy_delay=1)
    weight, q = weights(algo, 0.2, 0.05, key)
    expected = np.exp(np.clip((q - 0.2) / 0.05, -3.0, 3.0) / 2.0)
    np.testing.assert_allclose(weight, expected, rtol=2e-3)
    assert np.ptp(weight) > 0.5


def test_without_statistics_the_weights_see_q_itself(key):
    """The released code's clip then saturates once Q is large: all weights are equal."""
    algo = small("dpmd", **DRAWS, lam=Anneal(2.0, 2.0), q_ema=0.0, policy_delay=1)
    weight, q = weights(algo, 0.0, 1.0, key)
    np.testing.assert_allclose(weight, np.exp(q / 2.0), rtol=1e-4)


def test_equal_weights_are_the_default_and_high_temperature_their_limit(key):
    equal, hot = small("dpmd", **DRAWS), small("dpmd", **DRAWS, lam=Anneal(1e6, 1e6))
    steps = [
        update_of(algo)(initial(algo, key), random_batch(), key, jnp.int32(0)).state
        for algo in (equal, hot)
    ]
    assert DPMD().lam is None
    for a, b in zip(*(jax.tree.leaves(s.nets.actor.params) for s in steps)):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_terminal_next_state_gives_its_place_to_the_state(key):
    """Changing s' of terminal rows changes nothing: neither target nor policy loss uses it."""
    algo = small("dpmd", **DRAWS, policy_delay=1)
    state, batch = initial(algo, key), random_batch()
    ended = batch.terminated[:, None] > 0
    assert bool(ended.any())
    other = batch._replace(next_obs=jnp.where(ended, 7.0, batch.next_obs))
    update = update_of(algo)
    a, b = (update(state, x, key, jnp.int32(0)) for x in (batch, other))
    assert same(a.state, b.state)


def test_two_critic_steps_are_a_choice(key):
    algo = small("dpmd", **DRAWS | {"critic": CriticSettings(steps=2)})
    state = update_of(algo)(initial(algo, key), random_batch(), key, jnp.int32(0)).state
    assert int(optax.tree.get(state.nets.critic.opt, "count")) == 2


def test_learning_rate_counts_policy_steps():
    """3e-4 until policy step 25k, 3e-5 from 75k on: iterations 50k and 150k with delay 2."""
    algo, _ = configure("dpmd", "released", {}, {})
    begin, end = ACTOR_LR_DECAY
    rate = optax.linear_schedule(algo.actor_lr, algo.actor_lr_end, end - begin, begin)
    params = {"x": jnp.zeros(())}
    opt = algo.actor_optimizer.init(params)
    for count, expected in ((0, 3e-4), (25_000, 3e-4), (50_000, 1.65e-4), (75_000, 3e-5)):
        assert float(rate(count)) == pytest.approx(expected, rel=1e-5)
        # Adam's step from zero moments with gradient 1 and this count, by hand.
        moved = optax.tree.set(opt, count=jnp.int32(count))
        step, _ = algo.actor_optimizer.update({"x": jnp.float32(1.0)}, moved, params)
        mean = 0.1 / (1 - 0.9 ** (count + 1))
        root = np.sqrt(0.001 / (1 - 0.999 ** (count + 1)))
        assert float(step["x"]) == pytest.approx(-expected * mean / root, rel=1e-3)
    assert algo.policy_delay * begin == 50_000 and algo.policy_delay * end == 150_000


def test_impossible_choices_are_refused():
    with pytest.raises(UsageError, match="loss_at must be one of"):
        DPMD(loss_at="nothing")
    with pytest.raises(UsageError, match="q_ema"):
        DPMD(q_ema=-1.0)
