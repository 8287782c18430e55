"""Critic ensembles, of values or of Gaussian returns (DACER); their Bellman targets and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.core import Spec, Transition, UsageError
from rescore.models.networks import MLP


class Critic(eqx.Module):
    """Q_zeta: an ensemble of n networks, their parameters stacked on a first axis."""

    nets: MLP  # leaves [n, ...]

    def __init__(
        self, key: Array, obs_dim: int, act_dim: int, hidden: Sequence[int], activation: str, n: int
    ):
        def one(k: Array) -> MLP:
            return MLP(k, [obs_dim, act_dim], hidden, 1, activation)

        self.nets = jax.vmap(one)(jax.random.split(key, n))

    def __call__(self, obs: Array, action: Array, n: int | None = None) -> Array:
        """[..., obs_dim], [..., act_dim] -> [n, ...], by the first n networks or all.

        obs may broadcast over candidates.
        """
        nets = first_members(self.nets, n)
        return jax.vmap(lambda net: net(obs, action)[..., 0])(nets)

    def min(self, obs: Array, action: Array, n: int | None = None) -> Array:
        """The pessimistic value, minimum over the first n networks or all. [...]"""
        return jnp.min(self(obs, action, n), axis=0)


def first_members(nets: MLP, n: int | None) -> MLP:
    """The first n networks of a stack, or all of them."""
    size = nets.rest[-1].weight.shape[0]
    if n is not None and not 1 <= n <= size:
        raise UsageError(f"an ensemble of {size} critics has no {n} of them to take")
    return jax.tree.map(lambda x: x[:n], nets)


def bellman_target(
    batch: Transition, next_value: Array, gamma: float, reward_scale: float
) -> Array:
    """r + gamma V(s') where the episode went on, eq. (q_loss_standard). [B]"""
    alive = 1.0 - batch.terminated
    return jax.lax.stop_gradient(reward_scale * batch.reward + gamma * alive * next_value)


def td_loss(critic: Critic, batch: Transition, target: Array) -> tuple[Array, dict[str, Array]]:
    """Squared Bellman residual, summed over the ensemble."""
    q = critic(batch.obs, batch.action)  # [n, B]
    loss = jnp.sum(jnp.mean(jnp.square(q - target[None]), axis=1))
    return loss, {"critic_loss": loss, "q": jnp.mean(q)}


class GaussianCritic(eqx.Module):
    """Z_zeta: an ensemble of n Gaussians of the return, their parameters stacked."""

    nets: MLP  # leaves [n, ...]

    def __init__(self, key: Array, spec: Spec, hidden: tuple[int, ...], activation: str, n: int):
        def one(k: Array) -> MLP:
            return MLP(k, list(spec), hidden, 2, activation)

        self.nets = jax.vmap(one)(jax.random.split(key, n))

    def __call__(self, obs: Array, action: Array, n: int | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation of the return by the first n networks or all, [n, ...]."""
        nets = jax.tree.map(lambda x: x[:n], self.nets)
        out = jax.vmap(lambda net: net(obs, action))(nets)
        return out[..., 0], jax.nn.softplus(out[..., 1])

    def min(self, obs: Array, action: Array, n: int | None = None) -> Array:
        """The pessimistic mean, of the first n networks or all. [...]"""
        return jnp.min(self(obs, action, n)[0], axis=0)


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
