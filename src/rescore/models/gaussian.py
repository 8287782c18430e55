"""Diagonal Gaussians, and the policy that is one, of the same width in all states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rescore.models.networks import MLP

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """N(mean, std^2) for each element."""

    mean: Array  # [..., d]
    log_std: Array  # [..., d]

    def sample(self, noise: Array) -> Array:
        """A draw, from standard noise."""
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, x: Array) -> Array:
        """log density of each element. [..., d]"""
        z = (x - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * jnp.square(z) - self.log_std - HALF_LOG_2PI

    def log_ratio(self, old: Gaussian, x: Array) -> Array:
        """log_prob(x) - old.log_prob(x) of each element. [..., d]

        Not by subtraction: this form loses no digits while the two are close, and is exactly 0
        when they are the same, however the compiler rounds.
        """
        narrowing = old.log_std - self.log_std
        z = (x - old.mean) * jnp.exp(-old.log_std)
        shift = z * jnp.expm1(narrowing) - (self.mean - old.mean) * jnp.exp(-self.log_std)
        return narrowing - 0.5 * shift * (2.0 * z + shift)


class GaussianPolicy(eqx.Module):
    """Mean by a network, width by one parameter per action dimension."""

    net: MLP
    log_std: Array  # [act_dim]

    def __init__(
        self,
        key: Array,
        obs_dim: int,
        act_dim: int,
        hidden: Sequence[int],
        activation: str,
        std: float,
    ):
        # A small head: the first actions hardly depend on the observation, whatever its scale.
        self.net = MLP(key, [obs_dim], hidden, act_dim, activation, head=0.01)
        self.log_std = jnp.full(act_dim, math.log(std), jnp.float32)

    def __call__(self, obs: Array) -> Gaussian:
        mean = self.net(obs)
        return Gaussian(mean, jnp.broadcast_to(self.log_std, mean.shape))

    @property
    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 + HALF_LOG_2PI)
