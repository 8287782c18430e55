"""Gaussian policies: of one standard deviation in all states (PPO), or squashed by tanh (SAC)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams
from rescore.diffusion.chain import HALF_LOG_2PI, Gaussian
from rescore.diffusion.posterior import log_slope
from rescore.models.networks import MLP, squashed_parameters


class GaussianPolicy(eqx.Module):
    """Mean by a network, standard deviation by one parameter per action dimension."""

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


def sample_squashed(out: Array, key: Array) -> tuple[Array, Array]:
    """An action in the box and its log-probability, with the log-determinant of tanh."""
    mean, log_std = squashed_parameters(out)
    noise = streams.normal(key, mean.shape)
    u = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * jnp.square(noise) - log_std - np.float32(HALF_LOG_2PI)
    return jnp.tanh(u), jnp.sum(gaussian - log_slope(u), axis=-1)
