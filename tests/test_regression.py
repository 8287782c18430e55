"""Every diffusion actor but DACER takes its step on one weighted regression of plain numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms import find
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from tests.small import DRAWS, NAMES, initial, policy_step, random_batch, small

PATHWISE = {"dacer"}  # its gradient goes through the sampler on purpose
REGRESSING = [n for n in NAMES if issubclass(find(n), DiffusionActorCritic) and n not in PATHWISE]
# Proposals and samples of the policy itself are where a gradient could slip through.
CHOICES = {"dpmd": DRAWS, "sdac": DRAWS | {"proposal": "perturbed_policy"}}


@pytest.mark.parametrize("name", REGRESSING)
def test_no_gradient_comes_through_samples_targets_or_weights(name, key):
    """The step is Adam's on mean w |eps(s, a_t, t) - target|^2, with all but eps frozen."""
    algo = small(name, policy_delay=1, **CHOICES.get(name, {}))
    state, batch = initial(algo, key), random_batch()
    chosen, update = policy_step(algo, state, batch, key)
    obs, a_t, t, target, weight = map(np.asarray, chosen)

    def loss(actor):
        error = jnp.sum(jnp.square(actor.at(obs)(a_t, t) - target), axis=-1)
        return jnp.mean(weight * error), {}

    expected = jax.jit(lambda actor: actor.descend(algo.actor_optimizer, loss)[0])(state.nets.actor)
    new = update.state.nets.actor
    for a, b in zip(jax.tree.leaves(expected.params), jax.tree.leaves(new.params)):
        np.testing.assert_allclose(a, b, atol=5e-6)
    assert np.all(weight >= 0) and np.all(np.isfinite(target))
    assert np.all((t >= 1) & (t <= algo.T))


@pytest.mark.parametrize("T", [1, 3, 20])
def test_times_are_uniform_from_1_to_T(T, key):
    n = 20_000
    t = np.asarray(DiffusionActorCritic(T=T).random_times(key, (2, n // 2)))
    assert t.shape == (2, n // 2) and t.min() == 1 and t.max() == T
    counts = np.bincount(t.ravel(), minlength=T + 1)[1:]
    assert np.all(np.abs(counts - n / T) <= 5.0 * np.sqrt(n / T))


def test_noised_actions_are_those_of_the_forward_process(key):
    algo, a_0 = DiffusionActorCritic(T=4), jnp.linspace(-1.0, 1.0, 12).reshape(2, 3, 2)
    t, noise, a_t = map(np.asarray, algo.noised(a_0, *jax.random.split(key)))
    alpha_bar = algo.noise_schedule.alpha_bar[t][..., None]
    expected = np.sqrt(alpha_bar) * a_0 + np.sqrt(1.0 - alpha_bar) * noise
    np.testing.assert_allclose(a_t, expected, rtol=1e-5, atol=1e-6)
