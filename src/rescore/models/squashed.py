"""The Gaussian squashed by tanh into the box: SAC's policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams

LOG_STD = (-5.0, 2.0)  # the network's second half is mapped into this range by tanh


def split(out: Array) -> tuple[Array, Array]:
    """Mean and log standard deviation before the squashing, from a network's output [..., 2 d]."""
    mean, raw = jnp.split(out, 2, axis=-1)
    low, high = LOG_STD
    return mean, low + 0.5 * (high - low) * (jnp.tanh(raw) + 1.0)


def sample(out: Array, key: Array) -> tuple[Array, Array]:
    """An action in the box and its log-probability, the change of volume by tanh included."""
    mean, log_std = split(out)
    noise = streams.normal(key, mean.shape)
    u = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * jnp.square(noise) - log_std - 0.5 * np.float32(np.log(2.0 * np.pi))
    return jnp.tanh(u), jnp.sum(gaussian - log_slope(u), axis=-1)


def log_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2), exact where the slope itself has no digits left."""
    return 2.0 * (np.float32(np.log(2.0)) - u - jax.nn.softplus(-2.0 * u))
