"""Advantages against a sum written out, and the clipped losses by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms.policy_gradient import (
    generalised_advantage,
    standardise,
    surrogate,
    value_loss,
)
from rescore.core import Rollout, Transition

GAMMA, LAM = 0.9, 0.8
L, N = 12, 3


def episodes(seed: int = 0) -> tuple[Rollout, np.ndarray, np.ndarray]:
    """A rollout with ends and cuts inside it, and values that know the true successor."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((L, N)), np.zeros((L, N))
    terminated[3, 0] = terminated[7, 1] = truncated[5, 0] = truncated[2, 1] = truncated[-1, 2] = 1
    terminated[6, 2] = truncated[6, 2] = 1  # a time limit does not undo an end
    value = rng.normal(size=(L, N))
    next_value = rng.normal(size=(L, N))
    # Where nothing ended the successor is the next row; elsewhere rows do not know each other.
    goes_on = (terminated + truncated)[:-1] == 0
    next_value[:-1] = np.where(goes_on, value[1:], next_value[:-1])
    zeros = np.zeros((L, N, 1))
    seen = Transition(zeros, zeros, rng.normal(size=(L, N)), terminated, zeros)
    rollout = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), Rollout(seen, truncated, {}))
    return rollout, value, next_value


def brute_force(rollout: Rollout, value: np.ndarray, next_value: np.ndarray) -> np.ndarray:
    """The definition: a mixture of k-step returns by lam^(k - 1), each summed on its own."""
    reward, dead, cut = (
        np.asarray(x, np.float64)
        for x in (rollout.transition.reward, rollout.transition.terminated, rollout.truncated)
    )
    advantage = np.zeros((L, N))
    for t, n in np.ndindex(L, N):
        last = next((i for i in range(t, L) if dead[i, n] or cut[i, n]), L - 1)
        returns = []  # G^(k) for k = 1..last - t + 1
        for end in range(t, last + 1):
            total = sum(GAMMA ** (i - t) * reward[i, n] for i in range(t, end + 1))
            bootstrap = 0.0 if dead[end, n] else next_value[end, n]
            returns.append(total + GAMMA ** (end - t + 1) * bootstrap)
        weights = [(1 - LAM) * LAM**k for k in range(len(returns) - 1)]
        weights.append(LAM ** (len(returns) - 1))
        assert sum(weights) == pytest.approx(1.0)
        advantage[t, n] = np.dot(weights, returns) - value[t, n]
    return advantage


def test_gae_against_its_definition():
    rollout, value, next_value = episodes()
    values = (jnp.asarray(v, jnp.float32) for v in (value, next_value))
    found = generalised_advantage(rollout, rollout.transition.reward, *values, GAMMA, LAM)
    np.testing.assert_allclose(found, brute_force(rollout, value, next_value), atol=2e-6)


def test_gae_by_hand():
    """Two steps, cut after the first: V of where it was cut counts, V of the reset state never."""
    one = lambda *x: jnp.asarray(x, jnp.float32)[:, None]  # noqa: E731
    zeros = jnp.zeros((2, 1, 1))
    seen = Transition(zeros, zeros, one(1, 2), one(0, 1), zeros)
    rollout = Rollout(seen, one(1, 0), {})
    found = generalised_advantage(rollout, seen.reward, one(10, 20), one(7, 99), 0.5, 0.9)
    np.testing.assert_allclose(found[:, 0], [1 + 0.5 * 7 - 10, 2 - 20])


def test_extremes_of_lambda():
    rollout, value, next_value = episodes(1)
    reward = rollout.transition.reward
    v, w = (jnp.asarray(x, jnp.float32) for x in (value, next_value))
    delta = reward + GAMMA * (1 - rollout.transition.terminated) * w - v
    np.testing.assert_allclose(generalised_advantage(rollout, reward, v, w, GAMMA, 0.0), delta)


def test_standardise():
    x = standardise(jnp.asarray([1.0, 2.0, 3.0, 6.0]))
    assert float(x.mean()) == pytest.approx(0, abs=1e-6) and float(x.std()) == pytest.approx(1)
    assert np.array_equal(standardise(jnp.asarray([5.0])), [0.0])


def test_surrogate_by_hand():
    """Ratios 1.5 and 0.5 with clip 0.2, each with an advantage of either sign."""
    log_ratio = jnp.log(jnp.asarray([1.5, 1.5, 0.5, 0.5]))
    advantage = jnp.asarray([1.0, -1.0, 1.0, -1.0])
    loss, metrics = surrogate(log_ratio, advantage, 0.2)
    assert float(loss) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4)
    assert float(metrics["clipped"]) == 1 and float(metrics["ratio_gap"]) == pytest.approx(0.5)
    kl = np.mean([1.5 - 1 - np.log(1.5)] * 2 + [0.5 - 1 - np.log(0.5)] * 2)
    assert float(metrics["kl"]) == pytest.approx(kl, rel=1e-5)
    # Where clipping binds there is nothing to gain by going on.
    slope = jax.grad(lambda x: surrogate(x, advantage, 0.2)[0])(log_ratio)
    np.testing.assert_allclose(slope, [0, 1.5 / 4, -0.5 / 4, 0], atol=1e-6)


def test_value_loss_by_hand():
    value, old, target = jnp.asarray([3.0, 1.0]), jnp.asarray([1.0, 1.0]), jnp.asarray([4.0, 0.0])
    assert float(value_loss(value, old, target, None)) == pytest.approx(0.5 * (1 + 1) / 2)
    # The first moved by 2, counted as 0.5: the worse error is that of 1.5 against 4.
    assert float(value_loss(value, old, target, 0.5)) == pytest.approx(0.5 * (2.5**2 + 1) / 2)
