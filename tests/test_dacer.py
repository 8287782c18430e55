"""DACER's own promises: the distributional critic, the entropy estimate, the pathwise gradient."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms.actor_critic import jitter
from rescore.algorithms.dacer import knn_entropy
from rescore.models.gaussian_critics import Targets, bellman_targets, likelihood_loss
from rescore.models.learned import Anneal
from tests.small import SPEC, initial, random_batch, small, update_of

NOISE = Anneal(0.3, 0.09838, lr=0.05, period=1)
ALGO = small("dacer", policy_delay=1, noise=NOISE)


def test_the_gradient_is_that_of_a_gaussian_likelihood():
    """Where nothing is clipped and variances are large, it is the NLL's, times scale^2."""
    rng, rows = np.random.default_rng(0), 6
    mean, std = rng.normal(0, 30, (2, rows)), rng.uniform(20, 60, (2, rows))
    y, drawn = rng.normal(0, 30, rows), rng.normal(0, 30, rows)
    scale = np.asarray([100.0, 200.0])  # three of them are beyond every return here
    as_32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731

    def loss(mean, std):
        critic = lambda obs, action: (mean, std)  # noqa: E731
        targets = Targets(as_32(y), as_32(drawn))
        return likelihood_loss(critic, random_batch(rows=rows), targets, as_32(scale))[0]

    to_mean, to_std = jax.jit(jax.grad(loss, (0, 1)))(as_32(mean), as_32(std))
    # d/dm and d/ds of  log s + (y - m)^2 / (2 s^2), averaged over rows.
    size = (scale**2 + 0.1)[:, None] / rows
    np.testing.assert_allclose(to_mean, -size * (y - mean) / std**2, rtol=2e-3)
    expected = size * (1 / std - (drawn - mean) ** 2 / std**3)
    np.testing.assert_allclose(to_std, expected, rtol=2e-3, atol=1e-2)


def test_far_returns_are_clipped_for_the_spread_alone():
    mean, std = jnp.zeros((1, 1)), jnp.ones((1, 1))

    @jax.jit
    def gradients(drawn):
        def loss(mean, std):
            critic = lambda obs, action: (mean, std)  # noqa: E731
            targets = Targets(jnp.full(1, 50.0), jnp.full(1, drawn))
            return likelihood_loss(critic, random_batch(rows=1), targets, jnp.ones(1))[0]

        return jax.grad(loss, (0, 1))(mean, std)

    near, far = gradients(3.0), gradients(1e6)
    np.testing.assert_allclose(near[1], far[1])  # three deviations, however far it was
    np.testing.assert_allclose(near[0], -1.1 * 50.0 / 1.1, rtol=1e-5)


def test_the_return_is_drawn_from_the_critic_of_the_smaller_mean(key):
    """The first critic is exact, the second vague: only where that one is lower is there spread."""
    batch = random_batch(rows=400)._replace(terminated=jnp.zeros(400))
    lower = jnp.arange(400) % 2 == 0
    mean = jnp.stack([jnp.zeros(400), jnp.where(lower, 1.0, -1.0)])
    std = jnp.stack([jnp.zeros(400), jnp.full(400, 2.0)])
    critic = lambda obs, action: (mean, std)  # noqa: E731
    targets = jax.jit(lambda b: bellman_targets(critic, b, b.action, key, 0.9, 0.5))(batch)
    value = np.asarray(targets.mean - 0.5 * batch.reward) / 0.9
    np.testing.assert_allclose(value, np.where(lower, 0.0, -1.0), atol=1e-5)
    spread = np.asarray(targets.draw - targets.mean) / 0.9
    np.testing.assert_array_equal(spread[lower], 0.0)
    assert np.std(spread[~lower]) == pytest.approx(2.0, rel=0.15)
    assert np.abs(spread).max() <= 6.0 + 1e-4  # draws end at three deviations


@pytest.mark.parametrize(("d", "tolerance"), [(1, 0.1), (3, 0.12), (6, 0.35)])
def test_neighbour_entropy_of_gaussians(d, tolerance):
    n, std = 600, 0.3
    x = std * np.random.default_rng(d).normal(size=(4, n, d)).astype(np.float32)
    found = np.asarray(jax.jit(knn_entropy)(jnp.asarray(x)))
    expected = 0.5 * d * np.log(2 * np.pi * np.e * std**2)
    assert found.shape == (4,)
    assert np.mean(found) == pytest.approx(expected, abs=tolerance)
    wider = np.asarray(jax.jit(knn_entropy)(jnp.asarray(2 * x)))
    np.testing.assert_allclose(wider - found, d * np.log(2.0), atol=1e-3)


def test_equal_actions_have_a_finite_entropy():
    assert np.isfinite(knn_entropy(jnp.zeros((8, 2))))


@pytest.fixture(scope="module")
def updated(key):
    state, batch = initial(ALGO, key), random_batch()
    return state, batch, update_of(ALGO)(state, batch, key, jnp.int32(0)).state


def test_noise_falls_while_the_entropy_is_above_its_goal(updated, key):
    """Adam's first step has the length of its rate, down or, with a wide goal, up."""
    state, batch, new = updated
    assert float(new.log_noise.params - state.log_noise.params) == pytest.approx(-0.05, rel=1e-3)
    wide = replace(ALGO, noise=replace(NOISE, target=50.0))
    new = jax.jit(lambda *x: wide.update(*x).state.log_noise)(state, batch, key, jnp.int32(0))
    assert float(new.params - state.log_noise.params) == pytest.approx(0.05, rel=1e-3)


def test_the_goal_is_the_entropy_of_a_gaussian():
    assert ALGO.goal(random_batch()) == pytest.approx(-0.9 * SPEC.act_dim, abs=1e-3)


def test_the_gradient_passes_through_the_whole_chain(updated, key):
    """The first Adam step follows the slope of Q at the sampled action, by finite differences."""
    state, batch, new = updated
    k_sample, k_noise = jax.random.split(jax.random.split(key, 4)[2])

    @jax.jit
    def value(shift):
        """Q where the chain ends, with the output bias of every step moved."""
        bias = lambda actor: actor.trunk.rest[-1].bias  # noqa: E731
        actor = eqx.tree_at(bias, state.nets.actor.params, replace_fn=lambda b: b + shift)
        action = ALGO.sample(actor, batch.obs, k_sample, 1)[0]
        return jnp.mean(new.nets.critic.params.value(batch.obs, jitter(k_noise, action, 0.3)))

    h = 3e-3
    slope = [float(value(h * e) - value(-h * e)) / (2 * h) for e in jnp.eye(SPEC.act_dim)]
    step = new.nets.actor.params.trunk.rest[-1].bias - state.nets.actor.params.trunk.rest[-1].bias
    assert np.abs(slope).min() > 1e-4
    np.testing.assert_allclose(step, ALGO.actor_lr * np.sign(slope), rtol=1e-2)


def test_the_scale_of_returns_begins_with_the_first_critic_step(key):
    """Also where step 0 cloned demonstrations, which leaves the critic alone."""
    state, batch = initial(ALGO, key), random_batch()
    cloned = jax.jit(ALGO.imitate)(state, batch, key, jnp.int32(0)).state
    scale = update_of(ALGO)(cloned, batch, key, jnp.int32(1)).state.scale
    spread = jnp.mean(cloned.nets.critic.params(batch.obs, batch.action)[1], axis=1)
    np.testing.assert_allclose(scale, spread, rtol=1e-5)
