"""Every diffusion actor but DACER takes its step on one weighted regression of plain numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms import find
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from tests.small import NAMES, SPEC, random_batch, regression, small

PATHWISE = {"dacer"}  # its gradient goes through the sampler on purpose
REGRESSING = [n for n in NAMES if issubclass(find(n), DiffusionActorCritic) and n not in PATHWISE]
# Proposals and samples of the policy itself are where a gradient could slip through.
CHOICES = {"sdac": {"proposal": "perturbed_policy"}}


@pytest.mark.parametrize("name", REGRESSING)
def test_no_gradient_comes_through_samples_targets_or_weights(name, key):
    """The step is Adam's on mean w |eps(s, a_t, t) - target|^2, with all but eps frozen."""
    algo = small(name, policy_delay=1, **CHOICES.get(name, {}))
    state, batch = jax.jit(lambda k: algo.init(k, SPEC))(key), random_batch()
    chosen = regression(algo, state, batch, key)
    frozen = jax.tree.map(np.asarray, chosen)
    new = jax.jit(lambda *x: algo.update(*x).state.nets.actor)(state, batch, key, jnp.int32(0))

    def loss(actor):
        error = actor(frozen.obs, frozen.a_t, frozen.t) - frozen.target
        return jnp.mean(frozen.weight * jnp.sum(error**2, axis=-1)), {}

    step = jax.jit(lambda actor: actor.descend(algo.actor_optimizer, loss)[0].params)
    for a, b in zip(jax.tree.leaves(step(state.nets.actor)), jax.tree.leaves(new.params)):
        np.testing.assert_allclose(a, b, atol=5e-6)
    assert np.all(frozen.weight >= 0) and np.all(np.isfinite(frozen.target))
    assert np.all((frozen.t >= 1) & (frozen.t <= algo.T))
