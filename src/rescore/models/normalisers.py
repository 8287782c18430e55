"""Running statistics of all that was seen; part of the state, so that evaluation only reads."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Running(NamedTuple):
    """Mean and variance over all rows ever followed."""

    count: Array
    mean: Array  # [...]
    var: Array  # [...]

    @classmethod
    def create(cls, *shape: int) -> Running:
        return cls(jnp.float32(0.0), jnp.zeros(shape), jnp.ones(shape))

    def follow(self, rows: Array) -> Running:
        """The statistics with rows [n, ...] added: Chan's formula, exact for any split in parts."""
        n = jnp.float32(rows.shape[0])
        mean, var = jnp.mean(rows, axis=0), jnp.var(rows, axis=0)
        share = n / (self.count + n)
        gap = mean - self.mean
        spread = self.var + share * (var - self.var) + share * (1.0 - share) * jnp.square(gap)
        return Running(self.count + n, self.mean + share * gap, spread)

    @property
    def std(self) -> Array:
        return jnp.sqrt(self.var + 1e-8)

    def normalise(self, x: Array, bound: float = 10.0) -> Array:
        """(x - mean) / std, clipped; x [..., n] for statistics of shape [n]."""
        mean, std = (jnp.broadcast_to(m, x.shape) for m in (self.mean, self.std))
        return jnp.clip((x - mean) / std, -bound, bound)

    def scale(self, x: Array, bound: float = 10.0) -> Array:
        """x / std, clipped: the sign of a reward keeps its meaning."""
        return jnp.clip(x / self.std, -bound, bound)


def discounted_sums(reward: Array, ended: Array, gamma: float) -> Array:
    """Discounted reward since the episode, or the rollout, began. [L, N] -> [L, N]"""

    def step(total: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = now
        total = gamma * total + reward
        return total * (1.0 - ended), total

    return jax.lax.scan(step, jnp.zeros_like(reward[0]), (reward, ended))[1]
