"""A diffusion policy by its posteriors q(u_0 | s, u_t): Gaussians that a network predicts.

Noise levels are standard deviations, u_t = u_0 + sigma_t z: the process of the paper divided by
sqrt(alpha_bar_t). The last level is infinite, so that q(u_0 | s, u_T) = q(u_0 | s) and the reverse
process starts from nothing. An action is tanh(u_0). Sampling from q instead of its mean keeps the
spread of the policy however few the steps are: exactly, where the posteriors are Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams
from rescore.diffusion.chain import HALF_LOG_2PI

Levels = np.ndarray  # sigma_1..sigma_T, the last infinite
# (u_t, t) -> mean and log standard deviation of u_0, at fixed observations; t counts from 1.
Posterior = Callable[[Array, Array], tuple[Array, Array]]


class Sample(NamedTuple):
    """An action before the squashing, and the log-density of its first, unrefined draw."""

    u_0: Array  # [..., d]
    log_density: Array  # [...], of tanh(u_0) for the first u_0 ~ q(u_0 | s)


def levels(T: int, low: float, high: float) -> Levels:
    """sigma_1..sigma_T: geometric from low to high, then infinity. [T]"""
    return np.append(np.geomspace(low, high, T - 1) if T > 1 else [], np.inf)


def log_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2), exact where the slope itself has no digits left."""
    return 2.0 * (np.float32(np.log(2.0)) - u - jax.nn.softplus(-2.0 * u))


def log_squashed(u: Array, mean: Array, log_std: Array) -> Array:
    """Log-density of tanh(u) for Gaussian u, summed over action dimensions. [...]"""
    z = (u - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * jnp.square(z) - log_std - HALF_LOG_2PI - log_slope(u), axis=-1)


def noised(u_0: Array, t: Array, noise: Array, sigma: Levels) -> Array:
    """u_t = u_0 + sigma_t noise; zeros at the last level, where nothing of u_0 is left. [B, d]"""
    std = jnp.asarray(np.append(sigma[:-1], 0.0), jnp.float32)[t - 1][:, None]
    return jnp.where(t[:, None] < len(sigma), u_0 + std * noise, 0.0)


def ancestral(q: Posterior, sigma: Levels, key: Array, shape: tuple[int, ...]) -> Sample:
    """A sample of the policy by the reverse process. [..., d]"""
    return reverse(q, sigma, streams.normal(key, (2 * len(sigma) - 1, *shape)))


def noiseless(q: Posterior, sigma: Levels, shape: tuple[int, ...]) -> Array:
    """Where the reverse process ends if every draw is its mean: one likely u_0. [..., d]"""
    return reverse(q, sigma, jnp.zeros((2 * len(sigma) - 1, *shape))).u_0


def reverse(q: Posterior, sigma: Levels, z: Array) -> Sample:
    """u_0 ~ q(. | u_t), then u_{t-1} ~ N(. | u_0, u_t), down to u_0; z [2 T - 1, ..., d]"""
    T, shape = len(sigma), z.shape[1:]
    u_t = jnp.zeros(shape)
    mean, log_std = q(u_t, jnp.full(shape[:-1], T, jnp.int32))
    u_0 = mean + jnp.exp(log_std) * z[0]
    log_density = log_squashed(u_0, mean, log_std)
    for t in range(T - 1, 0, -1):  # the Gaussian bridge between u_0 and u_{t+1}, then q again
        share = np.float32((sigma[t - 1] / sigma[t]) ** 2)
        std = np.float32(sigma[t - 1] * np.sqrt(1.0 - share))
        u_t = u_0 + share * (u_t - u_0) + std * z[2 * t - 1]
        mean, log_std = q(u_t, jnp.full(shape[:-1], t, jnp.int32))
        u_0 = mean + jnp.exp(log_std) * z[2 * t]
    return Sample(u_0, log_density)


def soft_loss(
    q: Posterior,
    value: Callable[[Array], Array],
    u_t: Array,
    t: Array,
    noise: Array,
    sigma: Levels,
    old: tuple[Array, Array] | None = None,
    anchor: float = 0.0,
) -> tuple[Array, dict[str, Array]]:
    """KL(q(. | u_t) || p(. | u_t)) for p(u_0 | u_t) ~ exp(value(tanh u_0)) N(u_t | u_0, sigma_t^2).

    Up to a constant, by the reparameterised draw u_0 = mean + std noise. For the mean its gradient
    is that of the regression |mean - (u_t + sigma_t^2 grad)|^2 / (2 sigma_t^2), with grad that of
    value and log-determinant at u_0: the score identity of the noised target.

    With an anchor, p ~ exp(value) old^anchor N(u_t | u_0, sigma_t^2)^(1 - anchor): mirror descent
    from the posterior `old`, mean and log standard deviation at u_t.
    """
    mean, log_std = q(u_t, t)
    u_0 = mean + jnp.exp(log_std) * noise
    log_q = log_squashed(u_0, mean, log_std)
    precision = jnp.asarray(1.0 / np.square(sigma), jnp.float32)[t - 1]  # 0 at the last level
    distance = 0.5 * precision * jnp.sum(jnp.square(u_0 - u_t), axis=-1)
    # That of the policy's first draw q(u_0 | s): rows at the last level only, not a number without.
    last = (t == len(sigma)).astype(jnp.float32)
    entropy = -jnp.sum(last * log_q) / jnp.sum(last)
    divergence = log_q + distance
    if old is not None:
        divergence = (1.0 - anchor) * divergence + anchor * (log_q - log_squashed(u_0, *old))
    loss = jnp.mean(divergence - value(jnp.tanh(u_0)))
    return loss, {"policy_loss": loss, "entropy": entropy}
