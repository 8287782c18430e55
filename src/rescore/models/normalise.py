"""Running statistics; part of an algorithm's state, so that evaluation only reads them.

`Running`: over all rows ever (PPO). `Moments`: moving averages of one scalar (DPMD).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

BOUND = 10.0  # to which normalised numbers are clipped


class Running(NamedTuple):
    """Mean and variance over all rows ever followed."""

    rows: Array
    mean: Array  # [...]
    var: Array  # [...]

    @classmethod
    def create(cls, *shape: int) -> Running:
        return cls(jnp.float32(0.0), jnp.zeros(shape), jnp.ones(shape))

    def follow(self, rows: Array) -> Running:
        """The statistics with rows [n, ...] added: Chan's formula, exact for any split in parts."""
        n = jnp.float32(rows.shape[0])
        mean, var = jnp.mean(rows, axis=0), jnp.var(rows, axis=0)
        share = n / (self.rows + n)
        gap = mean - self.mean
        spread = self.var + share * (var - self.var) + share * (1.0 - share) * jnp.square(gap)
        return Running(self.rows + n, self.mean + share * gap, spread)

    @property
    def std(self) -> Array:
        return jnp.sqrt(self.var + 1e-8)

    def normalise(self, x: Array) -> Array:
        """(x - mean) / std, clipped; x [..., n] for statistics of shape [n]."""
        mean, std = (jnp.broadcast_to(m, x.shape) for m in (self.mean, self.std))
        return jnp.clip((x - mean) / std, -BOUND, BOUND)

    def scale(self, x: Array) -> Array:
        """x / std, clipped: the sign of a reward keeps its meaning."""
        return jnp.clip(x / self.std, -BOUND, BOUND)


class Moments(NamedTuple):
    """Exponential moving mean and standard deviation, mu_Q and sigma_Q."""

    mean: Array
    std: Array

    @classmethod
    def create(cls) -> Moments:
        return cls(jnp.float32(0.0), jnp.float32(1.0))

    def normalise(self, x: Array) -> Array:
        return (x - self.mean) / jnp.maximum(self.std, 1e-3)

    def follow(self, x: Array, rate: float) -> Moments:
        """A step of size `rate` towards the moments of `x`."""
        mean, std = jnp.mean(x), jnp.std(x)
        return Moments(self.mean + rate * (mean - self.mean), self.std + rate * (std - self.std))
