"""The measure of whether two critics say the same of actions."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.critic_agreement import agreement


def linear(*slopes):
    """Critics whose values grow along fixed directions, and with the observation."""
    slopes = jnp.asarray(slopes)

    def critic(obs, action):
        return jnp.moveaxis(10.0 * obs[..., :1] + action @ slopes.T, -1, 0)

    return critic


@pytest.mark.parametrize(
    "first, second, cosine",
    [((1.0, 0.0), (3.0, 0.0), 1.0), ((1.0, 0.0), (-2.0, 0.0), -1.0), ((1.0, 0.0), (0.0, 1.0), 0.0)],
)
def test_agreement_is_that_of_directions_not_of_states(first, second, cosine):
    obs = jax.random.normal(jax.random.key(0), (200, 3))
    actions = jax.random.normal(jax.random.key(1), (200, 50, 2))
    found = agreement(linear(first, second), obs, actions)
    assert found["cosine"] == pytest.approx(cosine, abs=1e-6)
    # Values of states differ far more than those of actions, and are the same for both critics.
    assert found["correlation"] == pytest.approx(cosine, abs=0.03)
