"""The log-density of a diffusion model's samples, from its denoising errors."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams
from rescore.diffusion.kernels import perturb, signal_and_noise, unperturb
from rescore.diffusion.schedules import NoiseSchedule


def log_likelihood(
    schedule: NoiseSchedule,
    eps: Callable[[Array, Array], Array],
    a_0: Array,
    key: Array,
    draws: int,
    clip: float | None = 1.0,
) -> Array:
    """Estimate of log p_0(a_0) [...], by `draws` noises at each of the T levels.

    The integral over signal-to-noise ratios of the denoising error, minus that of a standard
    Gaussian (Kong et al. 2023; used for policies by Dong et al. 2025):
    -d/2 log(2 pi e) + sum_t (abar_{t-1} - abar_t) / (2 abar_t (1 - abar_t)) (d abar_t - E error_t).
    Denoised actions are clipped to the box first, as the sampler does. `eps` gets [draws, ..., d].
    """
    d = a_0.shape[-1]
    abar = schedule.alpha_bar
    width = (abar[:-1] - abar[1:]) / (2.0 * abar[1:] * (1.0 - abar[1:]))
    rows = jnp.asarray(np.stack([width, d * abar[1:]], axis=1), jnp.float32)

    def level(total: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        t, (width, gaussian), noise = inputs
        t = jnp.broadcast_to(t, noise.shape[:-1])
        a_t = perturb(schedule, a_0[None], t, noise)
        denoised = unperturb(schedule, a_t, t, eps(a_t, t))
        if clip is not None:
            denoised = jnp.clip(denoised, -clip, clip)
        signal, std = signal_and_noise(schedule, t)
        error = jnp.sum(jnp.square((a_t - signal * denoised) / std - noise), axis=-1)
        return total + width * (gaussian - jnp.mean(error, axis=0)), None

    noise = streams.normal(key, (schedule.T, draws, *a_0.shape))
    start = jnp.full(a_0.shape[:-1], -0.5 * d * np.log(2 * np.pi * np.e), jnp.float32)
    return jax.lax.scan(level, start, (jnp.arange(1, schedule.T + 1), rows, noise))[0]
