"""Action-value ensembles, their Bellman targets and losses."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rescore.core import Transition
from rescore.models import fused
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
        return fused.ensemble(self.nets, obs, action, n)

    def min(self, obs: Array, action: Array, n: int | None = None) -> Array:
        """The pessimistic value, minimum over the first n networks or all. [...]"""
        return jnp.min(self(obs, action, n), axis=0)

    def of_candidates(self, obs: Array, actions: Array, n: int | None = None) -> Array:
        """Pessimistic value of N actions per state: [B, obs_dim], [N, B, act_dim] -> [N, B]"""
        return self.min(obs[None], actions, n)


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
