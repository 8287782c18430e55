"""Action-value ensembles, their Bellman targets and losses."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rescore.core import Transition, UsageError
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
    total = nets.first[0].weight.shape[0]
    if n is not None and not 1 <= n <= total:
        raise UsageError(f"an ensemble of {total} networks has a first 1 to {total}, not {n}")
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
