"""Reverse sampling phi_{0|t}: regression targets from a log-density alone, without its samples.

At any a_t, of whatever proposal h_t, K draws of phi_{0|t}(. | a_t) weighted by the density p_0 give
the mean of the posterior p(a_0 | a_t), and with it the score of p_t: section 4.2 of the paper.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtr, ndtri

from rescore import streams
from rescore.diffusion.process import signal_and_noise, unperturb
from rescore.diffusion.schedules import NoiseSchedule

LogDensity = Callable[[Array], Array]  # a_0 [..., d] -> log p_0 up to a constant [...]


def reverse_samples(
    schedule: NoiseSchedule, a_t: Array, t: Array, key: Array, k: int, box: float | None = 1.0
) -> tuple[Array, Array]:
    """K draws a_0 of phi_{0|t}(. | a_t), eq. (a0_sample_thm), and their noise; both [K, ..., d].

    With a `box` they come from phi truncated to it, which is exact for p_0 supported there.
    Clipping instead would query p_0 at corners and regress on noise that did not lead there.
    """
    shape = (k, *a_t.shape)
    if box is None:
        noise = streams.normal(key, shape)
        return unperturb(schedule, a_t[None], t[None], noise), noise
    low, high = noise_into(schedule, a_t, t, box)
    noise = truncated_normal(streams.uniform(key, shape), low[None], high[None])
    return jnp.clip(unperturb(schedule, a_t[None], t[None], noise), -box, box), noise


def noise_into(schedule: NoiseSchedule, a_t: Array, t: Array, box: float) -> tuple[Array, Array]:
    """The interval of noises that lead from the box to a_t, per coordinate."""
    signal, std = signal_and_noise(schedule, t)
    return (a_t - box * signal) / std, (a_t + box * signal) / std


def truncated_normal(u: Array, low: Array, high: Array) -> Array:
    """The standard normal truncated to [low, high], from u uniform on [0, 1); never a NaN."""
    # Mirrored to the left, where the distribution function keeps its digits.
    sign = jnp.where(low + high > 0.0, -1.0, 1.0)
    near, far = sign * jnp.where(sign > 0, high, low), sign * jnp.where(sign > 0, low, high)
    p_near, p_far = ndtr(near), ndtr(far)
    inner = ndtri(jnp.clip(p_far + u * (p_near - p_far), 1e-30, 1.0 - 1e-7))
    # Beyond 10 standard deviations x phi(x) stands for phi(x); its distribution function inverts.
    gap = jnp.minimum(0.5 * (jnp.square(far) - jnp.square(near)), 80.0)
    outer = -jnp.sqrt(jnp.square(near) - 2.0 * jnp.log1p(u * jnp.expm1(-gap)))
    return sign * jnp.clip(jnp.where(near < -10.0, outer, inner), far, near)


def mean_noise(log_weight: Array, noise: Array) -> tuple[Array, Array]:
    """Regression target sum_i w_i noise_i of RSM, and the self-normalised w: [K, ...], [K, ..., d].

    sum_i w_i |eps - noise_i|^2 = |eps - sum_i w_i noise_i|^2 + a constant, so one row of the
    network per a_t has the gradient of K rows.
    """
    weight = jax.nn.softmax(log_weight, axis=0)
    return jnp.einsum("k...,k...d->...d", weight, noise), weight


def rsm_target(
    schedule: NoiseSchedule,
    log_density: LogDensity,
    a_t: Array,
    t: Array,
    key: Array,
    k: int,
    box: float | None = 1.0,
) -> tuple[Array, Array]:
    """Target of reweighted score matching at a_t, eq. (loss_maxent), from values of p_0 only."""
    a_0, noise = reverse_samples(schedule, a_t, t, key, k, box)
    return mean_noise(log_density(a_0), noise)


def dem_target(
    schedule: NoiseSchedule,
    log_density: LogDensity,
    a_t: Array,
    t: Array,
    key: Array,
    k: int,
    box: float | None = 1.0,
) -> tuple[Array, Array]:
    """Target of denoising energy matching (iDEM): the same posterior's mean of grad log p_0.

    In noise form it is -(std / signal) sum_i w_i grad log p_0(a_0^i): low variance where the
    noise is small, while `rsm_target` has it where the noise is large. It is exact where p_0
    vanishes at the border; with a `box` the target is kept among the noises that lead into it.
    """
    a_0, _ = reverse_samples(schedule, a_t, t, key, k, box)
    value, pullback = jax.vjp(log_density, a_0)
    (grad,) = pullback(jnp.ones_like(value))
    signal, std = signal_and_noise(schedule, t)
    mean, weight = mean_noise(value, grad)
    target = -std / signal * mean
    if box is not None:
        target = jnp.clip(target, *noise_into(schedule, a_t, t, box))
    return target, weight


def reference_samples(
    schedule: NoiseSchedule, a_t: Array, t: Array, key: Array, k: int, reference: float
) -> tuple[Array, Array]:
    """K draws a_0 of the density N(0, reference^2 I) given a_t, and their noise; both [K, ..., d].

    To be weighted by p_0 / N(0, reference^2 I). As the reference grows wide this is phi_{0|t};
    near the width of p_0 it keeps draws on its mass at every t, where phi_{0|t} spreads far
    beyond it. The draws come in pairs of opposite noise (K even), which cancels what is linear.
    """
    signal, std = signal_and_noise(schedule, t)
    precision = reference**-2 + jnp.square(signal / std)
    z = streams.normal(key, (k // 2, *a_t.shape))
    z = jnp.concatenate([z, -z])
    a_0 = (signal / (precision * jnp.square(std)) * a_t)[None] + z / jnp.sqrt(precision)[None]
    # (a_t - signal a_0) / std, without the cancellation.
    pull = a_t / (reference**2 * precision * std)
    return a_0, pull[None] - (signal / (std * jnp.sqrt(precision)))[None] * z
