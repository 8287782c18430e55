"""DPMD's own promises: weights, temperature, where a_0 comes from, and what the presets say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rescore.algorithms.dpmd import DPMD
from rescore.core import UsageError
from rescore.diffusion.matching import score_matching
from rescore.models.controllers import Moments, Relaxation
from rescore.models.tilt import Tilt
from rescore.training.config import configure
from tests.small import SPEC, random_batch, same, small


def tilt(algo: DPMD, mean: float = 0.0, std: float = 1.0) -> Tilt:
    return Tilt(algo.lam.create(), Moments(jnp.float32(mean), jnp.float32(std)), {})


def weigh(algo: DPMD, tilt: Tilt, q: jax.Array) -> jax.Array:
    return tilt.weigh(q, algo.per_state, algo.normalise_q, algo.max_q)


def make(**hyperparameters) -> DPMD:
    return small("dpmd", **{"target_kl": None, **hyperparameters})


def test_weights_are_exp_of_normalised_q():
    algo = make(a_0="best", lam=Relaxation(2.0, 2.0))
    q = jnp.asarray([[200.0, 240.0, 160.0, 1000.0]])
    weight = weigh(algo, tilt(algo, 200.0, 40.0), q)
    np.testing.assert_allclose(weight[0], np.exp([0.0, 0.5, -0.5, 1.5]), rtol=1e-6)


def test_weights_vary_on_large_q_unless_q_is_not_normalised():
    """Q ~ N(200, 40): the released code's clip saturates there, the paper's formula does not."""
    q = 200.0 + 40.0 * jax.random.normal(jax.random.key(0), (1, 256))
    for preset, varies in (("paper", True), ("released", False)):
        algo, _ = configure("dpmd", preset, {}, {})
        weight = weigh(algo, tilt(algo, 200.0, 40.0), q)
        assert (float(jnp.std(weight)) > 0.01) is varies


def test_weights_per_state_sum_to_the_number_of_particles():
    algo = make(a_0="particles")
    q = 300.0 * jax.random.normal(jax.random.key(0), (5, 7))
    weight = weigh(algo, tilt(algo), q)
    np.testing.assert_allclose(jnp.sum(weight, axis=0), 5.0, rtol=1e-5)


def test_resampling_has_the_gradient_of_the_weighted_particles():
    """One a_0 drawn by weight is an unbiased estimate of the K-particle loss (many draws)."""
    algo = make()
    actor = algo.init_nets(jax.random.key(1), SPEC).actor.params
    k, draws = 4, 20_000
    obs = jnp.ones((1, 1, SPEC.obs_dim))
    a_t = jax.random.normal(jax.random.key(2), (k, 1, SPEC.act_dim))
    noise = jax.random.normal(jax.random.key(3), a_t.shape)
    t = jnp.full((k, 1), 2)
    weight = weigh(algo, tilt(algo), jnp.asarray([[0.0], [1.0], [2.0], [-1.0]]))

    def loss(actor, w):
        return score_matching(actor.at(obs), a_t, t, noise, w)[0]

    weighted = jax.grad(loss)(actor, weight)
    pick = jax.random.categorical(jax.random.key(4), jnp.log(weight[:, 0]), shape=(draws,))
    frequency = k * jnp.bincount(pick, length=k)[:, None] / draws
    drawn = jax.grad(loss)(actor, frequency.astype(jnp.float32))
    a, b = (jnp.concatenate([x.ravel() for x in jax.tree.leaves(g)]) for g in (weighted, drawn))
    assert float(jnp.linalg.norm(a - b) / jnp.linalg.norm(a)) < 0.03


QUICK = {("policy", "obs"), ("resampled", "target")}  # each compiles for ten seconds


@pytest.mark.parametrize(
    ("a_0", "loss_at"),
    [
        pytest.param(a_0, loss_at, marks=[] if (a_0, loss_at) in QUICK else [pytest.mark.slow])
        for a_0 in ("policy", "best", "particles", "resampled")
        for loss_at in ("obs", "target")
    ],
)
def test_policy_step_uses_frozen_samples(a_0, loss_at, key):
    """The step is one Adam step on the loss with a_0, t, noise and weight as plain numbers.

    So no gradient reaches the policy through the sampler, the choice or the weights.
    """
    lam = Relaxation(0.7, 0.7)
    algo = make(a_0=a_0, loss_at=loss_at, num_particles=2, lam=lam, policy_delay=1)
    state, batch = algo.init(key, SPEC), random_batch()
    new = jax.jit(algo.update)(state, batch, key, jnp.int32(0)).state.nets.actor

    k_target, k_loss, k_t, k_noise = jax.random.split(key, 4)
    obs = jnp.where(batch.terminated[:, None] > 0, batch.obs, batch.next_obs)
    drawn = algo.draw(state, obs, k_target, algo.target_candidates)
    critic, _ = algo.evaluate(state.nets, batch, drawn.choice)
    if loss_at == "obs":
        obs = batch.obs
        drawn = algo.draw(state, obs, k_loss, algo.num_particles)
    a_0_drawn = np.asarray(drawn.a_0)
    if a_0 == "resampled":
        weight = np.ones(a_0_drawn.shape[:-1], np.float32)
    elif a_0 == "particles":
        weight = np.asarray(drawn.weight)
    else:
        weight = np.asarray(
            weigh(algo, state.tilt, critic.params.min(obs[None], drawn.a_0, algo.judges))
        )
    t = np.asarray(algo.random_times(k_t, a_0_drawn.shape[:-1]))
    noise = np.asarray(jax.random.normal(k_noise, a_0_drawn.shape))
    alpha_bar = algo.noise_schedule.alpha_bar[t][..., None]
    a_t = (np.sqrt(alpha_bar) * a_0_drawn + np.sqrt(1 - alpha_bar) * noise).astype(np.float32)

    def loss(actor):
        error = actor.at(obs[None])(jnp.asarray(a_t), jnp.asarray(t)) - noise
        return jnp.mean(weight * jnp.sum(error**2, axis=-1)), {}

    expected, _ = state.nets.actor.descend(algo.actor_optimizer, loss)
    for a, b in zip(jax.tree.leaves(expected.params), jax.tree.leaves(new.params)):
        np.testing.assert_allclose(a, b, atol=5e-6)


def test_a_terminal_next_state_gives_its_place_to_the_state(key):
    """Changing s' of terminal rows changes nothing: neither target nor policy loss uses it."""
    algo = make(policy_delay=1)
    state, batch = algo.init(key, SPEC), random_batch()
    ended = batch.terminated[:, None] > 0
    assert bool(ended.any())
    other = batch._replace(next_obs=jnp.where(ended, 7.0, batch.next_obs))
    update = jax.jit(algo.update)
    a, b = (update(state, x, key, jnp.int32(0)) for x in (batch, other))
    assert same(a.state, b.state)


def test_two_critic_steps_are_a_choice(key):
    algo = make(critic_steps=2)
    state = jax.jit(algo.update)(algo.init(key, SPEC), random_batch(), key, jnp.int32(0)).state
    assert int(optax.tree.get(state.nets.critic.opt, "count")) == 2


def test_learning_rate_counts_policy_steps():
    """3e-4 until policy step 25k, 3e-5 from 75k on: iterations 50k and 150k with delay 2."""
    algo, _ = configure("dpmd", "released", {}, {})
    begin, end = algo.actor_lr_decay
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


def test_presets_say_what_the_sources_say():
    paper, setting = configure("dpmd", "paper", {}, {})
    assert (paper.schedule, paper.T, paper.a_0, paper.loss_at) == ("cosine", 20, "policy", "obs")
    assert (paper.target_candidates, paper.update_noise, paper.critic_steps) == (1, "none", 1)
    assert (setting.num_envs, setting.utd, setting.chunk) == (5, 0.2, 1)
    released, _ = configure("dpmd", "released", {}, {})
    assert (released.schedule, released.schedule_scale, released.start_std) == ("linear", 0.8, 0.5)
    assert (released.target_candidates, released.a_0) == (32, "best")
    assert (released.reward_scale, released.polyak_rate, released.target_delay) == (0.2, 0.005, 2)


def test_impossible_choices_are_refused():
    with pytest.raises(UsageError, match="a_0 must be one of"):
        make(a_0="nothing")
    with pytest.raises(UsageError, match="target_kl"):
        make(a_0="best", target_kl=0.5)
    with pytest.raises(UsageError, match="positive"):
        make(num_particles=0)
    for alone in ({"noisy_copies": 1}, {"update_noise": "none"}, {"update_noise": "choice"}):
        with pytest.raises(UsageError, match="several candidates"):
            make(a_0="particles", **{"target_candidates": 1, **alone})
