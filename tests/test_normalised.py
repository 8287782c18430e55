"""Observations in units of their spread, around any algorithm on replay."""

import jax
import jax.numpy as jnp
import numpy as np

from rescore.algorithms.normalised import Normalised, Recent, prepared
from tests.small import act_of, initial, random_batch, small, update_of


def test_recent_moments_by_hand():
    rows = jnp.array([[0.0, 2.0], [4.0, 6.0]])
    seen = Recent.create(2).follow(rows, rate=0.25)
    np.testing.assert_allclose(seen.mean, [0.5, 1.0])  # a quarter of the way from 0 to (2, 4)
    np.testing.assert_allclose(seen.var, [1.75, 1.75])  # and from 1 to 4
    x = jnp.array([[0.5 + np.sqrt(1.751), 1.0], [1e9, -1e9]])
    np.testing.assert_allclose(seen.normalise(x), [[1.0, 0.0], [10.0, -10.0]], rtol=1e-5)


def test_the_algorithm_sees_what_it_would_see_of_normalised_data(key):
    algo = small("sac", normalise_obs=True)
    around = prepared(algo)
    assert isinstance(around, Normalised) and prepared(small("ppo")).source == "rollout"
    assert prepared(small("sac")) == small("sac")
    state, batch = initial(around, key), random_batch()
    batch = batch._replace(obs=5.0 + 3.0 * batch.obs, next_obs=5.0 + 3.0 * batch.next_obs)
    new = update_of(around)(state, batch, key, jnp.int32(0))
    seen = state.obs.follow(batch.obs)
    inside = batch._replace(obs=seen.normalise(batch.obs), next_obs=seen.normalise(batch.next_obs))
    expected = update_of(algo)(state.inner, inside, key, jnp.int32(0))
    for a, b in zip(jax.tree.leaves(new.state.inner), jax.tree.leaves(expected.state)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    action = act_of(around)(new.state, batch.obs, key, False).action
    wanted = act_of(algo)(expected.state, seen.normalise(batch.obs), key, False).action
    np.testing.assert_allclose(action, wanted, atol=1e-5)
