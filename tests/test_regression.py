"""Every diffusion actor but DACER takes its step on one weighted regression of plain numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms import find
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from tests.small import NAMES, initial, policy_step, random_batch, small

pytestmark = pytest.mark.usefixtures("quick")

PATHWISE = {"dacer"}  # its gradient goes through the sampler on purpose
REGRESSING = [n for n in NAMES if issubclass(find(n), DiffusionActorCritic) and n not in PATHWISE]
# Proposals and samples of the policy itself are where a gradient could slip through.
CHOICES = {"sdac": {"proposal": "perturbed_policy"}}


@pytest.mark.parametrize("name", REGRESSING)
def test_no_gradient_comes_through_samples_targets_or_weights(name, key):
    """The step is Adam's on mean w |eps(s, a_t, t) - target|^2, with all but eps frozen."""
    algo = small(name, policy_delay=1, **CHOICES.get(name, {}))
    state, batch = initial(algo, key), random_batch()
    chosen, update = policy_step(algo, state, batch, key)
    obs, a_t, t, target, weight = map(np.asarray, chosen)

    def loss(actor):
        error = jnp.sum(jnp.square(actor(obs, a_t, t) - target), axis=-1)
        return jnp.mean(weight * error), {}

    expected = jax.jit(lambda actor: actor.descend(algo.actor_optimizer, loss)[0])(state.nets.actor)
    new = update.state.nets.actor
    for a, b in zip(jax.tree.leaves(expected.params), jax.tree.leaves(new.params)):
        np.testing.assert_allclose(a, b, atol=5e-6)
    assert np.all(weight >= 0) and np.all(np.isfinite(target))
    assert np.all((t >= 1) & (t <= algo.T))
