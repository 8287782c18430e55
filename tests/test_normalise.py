"""Running statistics against those of all rows at once."""

import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms.policy_gradient import discounted_sums
from rescore.models.normalise import Running


@pytest.mark.parametrize("sizes", [[1], [40], [7, 1, 30, 7]])
def test_parts_equal_the_whole(sizes):
    rng = np.random.default_rng(sum(sizes))
    parts = [rng.normal(3.0, [0.5, 20.0], (n, 2)) for n in sizes]
    stats = Running.create(2)
    for part in parts:
        stats = stats.follow(jnp.asarray(part, jnp.float32))
    rows = np.concatenate(parts)
    assert float(stats.rows) == len(rows)
    np.testing.assert_allclose(stats.mean, rows.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stats.var, rows.var(axis=0), rtol=1e-3, atol=1e-4)


def test_nothing_seen_changes_nothing():
    x = jnp.asarray([[1.5, -20.0]])
    np.testing.assert_allclose(Running.create(2).normalise(x), [[1.5, -10.0]], rtol=1e-6)


def test_normalise_and_scale():
    stats = Running(jnp.float32(9), jnp.asarray([1.0]), jnp.asarray([4.0]))
    np.testing.assert_allclose(stats.normalise(jnp.asarray([[5.0], [99.0]])), [[2.0], [10.0]])
    flat = Running(jnp.float32(9), jnp.float32(1.0), jnp.float32(4.0))
    np.testing.assert_allclose(flat.scale(jnp.asarray([-4.0, 99.0])), [-2.0, 10.0])


def test_a_constant_keeps_finite():
    stats = Running.create(1).follow(jnp.full((8, 1), 2.0))
    assert float(stats.normalise(jnp.asarray([[2.0]]))[0, 0]) == pytest.approx(0.0)


def test_discounted_sums_start_over_after_an_end():
    reward = jnp.asarray([[1.0], [2.0], [3.0], [4.0]])
    ended = jnp.asarray([[0.0], [1.0], [0.0], [0.0]])
    found = discounted_sums(reward, ended, 0.5)
    np.testing.assert_allclose(found[:, 0], [1.0, 2.5, 3.0, 5.5])
