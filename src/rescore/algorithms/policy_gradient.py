"""Advantages of a rollout, and the clipped losses that learn from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from rescore.core import Rollout


def generalised_advantage(
    rollout: Rollout, reward: Array, value: Array, next_value: Array, gamma: float, lam: float
) -> Array:
    """GAE(lam) of Schulman et al. (2016), all arrays [L, N].

    `next_value` is that of the true successor, so a truncated episode is bootstrapped from where it
    stopped. Termination masks the bootstrap; both termination and truncation stop the sum.
    """
    alive = 1.0 - rollout.transition.terminated
    going_on = alive * (1.0 - rollout.truncated)
    delta = reward + gamma * alive * next_value - value

    def step(advantage: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, going_on = now
        advantage = delta + gamma * lam * going_on * advantage
        return advantage, advantage

    start = jnp.zeros_like(value[0])
    return jax.lax.scan(step, start, (delta, going_on), reverse=True)[1]


def discounted_sums(reward: Array, ended: Array, gamma: float) -> Array:
    """Discounted reward since the episode, or the rollout, began. [L, N] -> [L, N]"""

    def step(total: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = now
        total = gamma * total + reward
        return total * (1.0 - ended), total

    return jax.lax.scan(step, jnp.zeros_like(reward[0]), (reward, ended))[1]


def standardise(x: Array) -> Array:
    """Zero mean, unit standard deviation."""
    return (x - jnp.mean(x)) / (jnp.std(x) + 1e-8)


def surrogate(
    log_ratio: Array, advantage: Array, clip: Array | float
) -> tuple[Array, dict[str, Array]]:
    """PPO's pessimistic objective, eq. (7) of Schulman et al. (2017), as a loss of arrays [B]."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
    gap = jnp.abs(ratio - 1.0)
    return loss, {
        "policy_loss": loss,
        "kl": jnp.mean(ratio - 1.0 - log_ratio),  # >= 0, and unbiased for KL(old | new)
        "clipped": jnp.mean((gap > clip).astype(jnp.float32)),
        "ratio_gap": jnp.max(gap),  # exactly 0 before the first gradient step
    }


def value_loss(value: Array, old_value: Array, target: Array, clip: float | None) -> Array:
    """Half the squared error; with `clip` the worse of it and that of a bounded change."""
    error = jnp.square(value - target)
    if clip is not None:
        bounded = old_value + jnp.clip(value - old_value, -clip, clip)
        error = jnp.maximum(error, jnp.square(bounded - target))
    return 0.5 * jnp.mean(error)
