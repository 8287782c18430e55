"""Differential entropy of a sample, where no density is at hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import digamma, gammaln


def knn_entropy(x: Array, k: int = 3) -> Array:
    """Kozachenko-Leonenko estimate from distances to k-th neighbours: [..., n, d] -> [...] nats."""
    n, d = x.shape[-2:]
    squared = jnp.sum(jnp.square(x[..., :, None, :] - x[..., None, :, :]), axis=-1)
    nearest = jnp.sort(squared, axis=-1)[..., k]  # index 0 is the point itself
    log_ball = 0.5 * d * np.log(np.pi) - gammaln(0.5 * d + 1.0)
    constant = np.float32(digamma(n) - digamma(k) + log_ball)
    return constant + 0.5 * d * jnp.mean(jnp.log(jnp.maximum(nearest, 1e-20)), axis=-1)
