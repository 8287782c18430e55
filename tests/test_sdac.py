"""SDAC's own promises: proposals, the mean target, entropy in the backup, temperature, presets."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.diffusion.kernels import signal_and_noise
from rescore.diffusion.matching import score_matching
from rescore.diffusion.reverse import mean_noise
from rescore.models.controllers import Relaxation
from rescore.training.config import configure
from tests.small import BATCH, SPEC, initial, policy_step, proposed, random_batch, small

pytestmark = pytest.mark.usefixtures("quick")

LAM = Relaxation(0.5, 0.05, lr=0.3, period=2)
ALGO = small("sdac", lam=LAM, policy_delay=1, proposal="perturbed_replay")
PROPOSALS = ("perturbed_target", "perturbed_replay", "perturbed_policy", "policy", "uniform")


@pytest.fixture(scope="module")
def state(key):
    return initial(ALGO, key)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_proposals_have_the_law_they_promise(proposal, state, key):
    algo, batch = replace(ALGO, proposal=proposal, near_draws=0), random_batch(rows=4096)
    at, a_t, t = map(np.asarray, proposed(algo, state, batch, key))
    signal, std = map(np.asarray, signal_and_noise(algo.noise_schedule, t))
    assert a_t.shape == batch.action.shape and np.all(np.isfinite(a_t))
    base, obs = batch.action, batch.obs
    choice = jax.jit(lambda obs, key: algo.choice(state, obs, key, algo.target_candidates))
    k_next, _, _, k_propose, _ = jax.random.split(key, 5)
    if proposal in ("policy", "perturbed_policy"):
        base = choice(obs, jax.random.split(k_propose)[0])
    if proposal == "perturbed_target":  # the action of a terminal s' is nobody's
        ended = batch.terminated[:, None] > 0
        base = jnp.where(ended, base, choice(batch.next_obs, k_next))
        obs = jnp.where(ended, obs, batch.next_obs)
    np.testing.assert_array_equal(at, obs)
    if proposal == "policy":
        np.testing.assert_allclose(a_t, base, atol=1e-6)
        return
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
    batch = random_batch()
    plain, _ = policy_step(ALGO, state, batch, key)
    louder = jax.tree.map(lambda x: 3.0 * x, state.nets.critic.params)
    nets = state.nets._replace(critic=state.nets.critic._replace(params=louder))
    other, _ = policy_step(ALGO, state._replace(nets=nets), batch, key)
    np.testing.assert_array_equal(plain.a_t, other.a_t)
    np.testing.assert_array_equal(plain.t, other.t)
    assert float(jnp.max(jnp.abs(plain.target - other.target))) > 1e-3
    assert plain.weight == other.weight == 1.0


def test_entropy_of_the_noise_is_that_of_a_gaussian(state, key):
    action = jnp.zeros((BATCH, SPEC.act_dim))
    std = float(jnp.exp(state.log_noise.params))
    found = replace(ALGO, entropy="noise").entropy_at(state, action, action, key)
    expected = 0.5 * SPEC.act_dim * np.log(2 * np.pi * np.e * std**2)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert ALGO.entropy_at(state, action, action, key) == 0.0


@pytest.mark.parametrize("entropy", ["none", "noise", "likelihood"])
def test_entropy_enters_the_target_with_the_temperature(entropy, state, key):
    """y = r + gamma (1 - terminated) (min Qbar + lam H)."""
    algo, batch = replace(ALGO, entropy=entropy), random_batch()

    @jax.jit
    def run(state):
        k_next, k_entropy, *_ = jax.random.split(key, 5)
        a_next = algo.choice(state, batch.next_obs, k_next, algo.target_candidates)
        bonus = algo.entropy_at(state, batch.next_obs, a_next, k_entropy)
        value = state.nets.target_critic.min(batch.next_obs, a_next)
        q = state.nets.critic.params(batch.obs, batch.action)
        loss = algo.update(state, batch, key, jnp.int32(0)).metrics["critic_loss"]
        return value, jnp.broadcast_to(bonus, value.shape), q, loss

    value, bonus, q, loss = map(np.asarray, run(state))
    y = batch.reward + 0.99 * (1 - batch.terminated) * (value + 0.5 * bonus)
    expected = np.sum(np.mean((q - y[None]) ** 2, axis=1))
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)
    assert (entropy == "none") == bool(np.all(bonus == 0)) and np.all(np.isfinite(bonus))
    assert (np.ptp(bonus) > 0) == (entropy == "likelihood")


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


def test_presets_say_what_the_sources_say():
    paper, setting = configure("sdac", "paper", {}, {})
    assert (paper.schedule, paper.T, paper.target_candidates) == ("cosine", 20, 1)
    assert (paper.proposal, paper.entropy) == ("perturbed_policy", "noise")
    assert (setting.num_envs, setting.utd, setting.chunk) == (5, 0.2, 1)
    released, _ = configure("sdac", "released", {}, {})
    assert (released.schedule, released.schedule_scale, released.start_std) == ("linear", 0.8, 0.5)
    assert (released.reverse_draws, released.near_draws) == (64, 0)
    assert released.target_candidates == 32
    assert (released.proposal, released.entropy) == ("perturbed_policy", "none")
    assert (released.reward_scale, released.critic_steps) == (0.2, 1)
    # Its softmax takes 5 Q / alpha, and alpha goes from 5 to the noise's fixed point.
    for lam, alpha in ((released.lam.init, 5.0), (released.lam.target, 0.9838)):
        assert lam == pytest.approx(alpha / 5.0)
