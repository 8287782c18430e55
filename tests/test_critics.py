"""Ensembles of action values, Bellman targets and their loss, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms.dpmd import DPMD
from rescore.core import Transition, UsageError
from rescore.models.critics import Critic, bellman_target, td_loss

pytestmark = pytest.mark.usefixtures("strict")

OBS, ACT, N = 4, 2, 3


@pytest.fixture(scope="module")
def critic(key) -> Critic:
    return jax.jit(lambda key: Critic(key, OBS, ACT, (8, 8), "relu", N))(key)


def inputs(*lead):
    rng = np.random.default_rng(0)
    return np.float32(rng.normal(size=(*lead, OBS))), np.float32(rng.normal(size=(*lead, ACT)))


def by_hand(critic: Critic, obs, action) -> np.ndarray:
    """Values [n] of one state and action, member by member."""
    values = []
    for i in range(N):
        net = jax.tree.map(lambda x, i=i: np.asarray(x[i]), critic.nets)
        x = np.concatenate([obs, action]) @ np.concatenate([layer.weight for layer in net.first])
        x = x + net.first[0].bias
        for layer in net.rest:
            x = np.maximum(x, 0) @ layer.weight + layer.bias
        values.append(x[0])
    return np.array(values)


def batch(reward, terminated, obs=None, action=None) -> Transition:
    reward, terminated = np.float32(reward), np.float32(terminated)
    return Transition(obs, action, reward, terminated, obs)


def test_values_are_those_of_the_members(critic):
    obs, action = inputs(5)
    q = jax.jit(lambda critic, *x: critic(*x))(critic, obs, action)
    low = jax.jit(Critic.min)(critic, obs, action)
    assert q.shape == (N, 5) and low.shape == (5,)
    expected = np.stack([by_hand(critic, *row) for row in zip(obs, action)], axis=1)
    np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(low, expected.min(0), rtol=1e-4, atol=1e-5)
    # The minimum is not always of the same member, or it would prove nothing.
    assert len(set(np.argmin(np.concatenate([expected, -expected], axis=1), axis=0))) > 1


def test_candidates_share_their_state(critic):
    obs, _ = inputs(5)
    _, actions = inputs(6, 5)
    q = jax.jit(Critic.min)(critic, obs[None], actions)
    assert q.shape == (6, 5)
    for k, b in np.ndindex(6, 5):
        expected = by_hand(critic, obs[b], actions[k, b]).min()
        assert float(q[k, b]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_members_start_apart(critic):
    for leaf in jax.tree.leaves(critic):
        assert isinstance(leaf, jax.Array) and leaf.shape[0] == N
    for layer in (*critic.nets.first, *critic.nets.rest):
        w = np.asarray(layer.weight)
        assert not any(np.any(w[i] == w[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_bellman_target_by_hand():
    """0.5 r + 0.9 V(s'), and 0.5 r alone where the episode ended for good."""
    target = bellman_target(
        batch([2.0, 2.0, -4.0], [0, 1, 0]), jnp.array([10.0, 10.0, 0.0]), 0.9, 0.5
    )
    np.testing.assert_allclose(target, [10.0, 1.0, -2.0], rtol=1e-6)


def test_no_gradient_through_the_target():
    def total(x):
        return jnp.sum(bellman_target(batch([1.0], [0]), x, 0.99, 1.0))

    assert float(total(jnp.array([3.0]))) == pytest.approx(1 + 0.99 * 3)
    np.testing.assert_array_equal(jax.grad(total)(jnp.array([3.0])), [0.0])


def test_td_loss_by_hand():
    """Squares 1, 4 and 0, 9: the mean over rows (2.5, 4.5), the sum over members."""
    q = jnp.array([[1.0, 0.0], [2.0, 5.0]])
    loss, metrics = td_loss(lambda obs, action: q, batch([0.0, 0.0], [0, 0]), jnp.array([2.0, 2.0]))
    assert float(loss) == pytest.approx(7.0)
    assert set(metrics) == {"critic_loss", "q"}
    assert float(metrics["critic_loss"]) == pytest.approx(7.0)
    assert float(metrics["q"]) == pytest.approx(2.0)


def test_td_loss_trains_each_member_on_its_own_residual(critic):
    """d loss / d bias of member i's head is 2 mean(q_i - y)."""
    obs, action = inputs(5)
    target = np.linspace(-1, 1, 5, dtype=np.float32)
    data = batch(np.zeros(5), np.zeros(5), obs, action)

    @jax.jit
    def gradient(critic):
        return jax.grad(td_loss, has_aux=True)(critic, data, target)[0]

    q = np.stack([by_hand(critic, *row) for row in zip(obs, action)], axis=1)
    got = gradient(critic).nets.rest[-1].bias[:, 0]
    np.testing.assert_allclose(got, 2 * (q - target).mean(1), rtol=1e-4, atol=1e-5)


def test_candidates_are_compared_by_the_first_judges():
    critic = Critic(jax.random.key(0), 3, 2, (8,), "mish", 3)
    obs, actions = jax.random.normal(jax.random.key(1), (4, 3)), jnp.ones((5, 4, 2)) * 0.3
    all_of_them = critic(obs[None], actions)
    for judges in (1, 2, 3, None):
        expected = np.min(all_of_them[:judges], axis=0)
        got = critic.min(obs[None], actions, judges)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_more_judges_than_critics_are_refused():
    critic = Critic(jax.random.key(0), 3, 2, (8,), "mish", 2)
    for n in (0, 3):
        with pytest.raises(UsageError, match="2 networks"):
            critic(jnp.zeros((4, 3)), jnp.zeros((4, 2)), n)
    with pytest.raises(UsageError, match="judges are some of the 2 critics"):
        DPMD(judges=3)
