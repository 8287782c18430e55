"""Critics of Gaussian returns, DACER's: their Bellman targets and likelihood."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.core import Spec, Transition
from rescore.models.networks import MLP


class GaussianCritic(eqx.Module):
    """Z_zeta: an ensemble of n Gaussians of the return, their parameters stacked."""

    nets: MLP  # leaves [n, ...]

    def __init__(self, key: Array, spec: Spec, hidden: tuple[int, ...], activation: str, n: int):
        def one(k: Array) -> MLP:
            return MLP(k, list(spec), hidden, 2, activation)

        self.nets = jax.vmap(one)(jax.random.split(key, n))

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the return by each network, [n, ...]."""
        out = jax.vmap(lambda net: net(obs, action))(self.nets)
        return out[..., 0], jax.nn.softplus(out[..., 1])

    def value(self, obs: Array, action: Array) -> Array:
        """The pessimistic mean. [...]"""
        return jnp.min(self(obs, action)[0], axis=0)


class Targets(NamedTuple):
    """Bellman targets of the mean, and of one return drawn for the spread. [B]"""

    mean: Array
    draw: Array


def bellman_targets(
    critic: GaussianCritic,
    batch: Transition,
    a_next: Array,
    key: Array,
    gamma: float,
    reward_scale: float,
) -> Targets:
    """The smaller mean, and a return drawn from the critic whose mean that is."""
    mean, std = critic(batch.next_obs, a_next)  # [n, B]
    pick = jnp.argmin(mean, axis=0)[None]
    mean, std = (jnp.take_along_axis(x, pick, axis=0)[0] for x in (mean, std))
    drawn = mean + std * jnp.clip(streams.normal(key, mean.shape), -3.0, 3.0)
    reward, discount = reward_scale * batch.reward, gamma * (1.0 - batch.terminated)
    return Targets(reward + discount * mean, reward + discount * drawn)


def likelihood_loss(
    critic: GaussianCritic, batch: Transition, targets: Targets, scale: Array
) -> tuple[Array, dict[str, Array]]:
    """DSAC-T's surrogate of the negative log-likelihood, summed over the ensemble.

    Its gradient is that of a Gaussian's log-likelihood, with variances kept from zero, returns
    clipped to three of the ensemble's usual standard deviations `scale` [n], and the whole times
    scale^2, so that the step does not depend on the size of rewards.
    """
    mean, std = critic(batch.obs, batch.action)  # [n, B]
    still = jax.lax.stop_gradient
    b = scale[:, None]
    spread = jnp.clip(targets.draw[None] - still(mean), -3.0 * b, 3.0 * b)
    to_mean = still((targets.mean[None] - mean) / (jnp.square(std) + 0.1))
    to_std = still((jnp.square(spread) - jnp.square(std)) / (std**3 + 0.1))
    per_net = -(jnp.square(scale) + 0.1) * jnp.mean(mean * to_mean + std * to_std, axis=1)
    loss = jnp.sum(per_net)
    return loss, {"critic_loss": loss, "q": jnp.mean(mean), "q_std": jnp.mean(std)}
