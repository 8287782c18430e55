"""The denoising chain as a policy: each step is a Gaussian, so its probability is known."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams
from rescore.diffusion.process import unperturb
from rescore.diffusion.samplers import Model, reverse_coefficients
from rescore.diffusion.schedules import NoiseSchedule

HALF_LOG_2PI = np.float32(0.5 * np.log(2.0 * np.pi))


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


def reverse_step(
    schedule: NoiseSchedule, eps: Model, a_t: Array, t: Array, min_std: float
) -> Gaussian:
    """p(a_{t-1} | a_t), the step of the reverse process, never narrower than `min_std`."""
    steps = reverse_coefficients(schedule, np.arange(schedule.T, 0, -1))[::-1]  # t = 1..T
    steps[:, 2] = np.log(np.maximum(steps[:, 2], min_std))
    to_a_0, to_a_t, log_std = (jnp.asarray(c, jnp.float32)[t - 1][..., None] for c in steps.T)
    a_0 = jnp.clip(unperturb(schedule, a_t, t, eps(a_t, t)), -1.0, 1.0)
    return Gaussian(to_a_0 * a_0 + to_a_t * a_t, jnp.broadcast_to(log_std, a_t.shape))


def sample_chain(
    schedule: NoiseSchedule, eps: Model, key: Array, shape: tuple[int, ...], min_std: float
) -> Array:
    """a_T, ..., a_0 from a standard Gaussian on: [T + 1, *shape]. The last may leave the box."""

    def step(a_t: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        t, z = inputs
        t = jnp.broadcast_to(t, shape[:-1])
        a_s = reverse_step(schedule, eps, a_t, t, min_std).sample(z)
        return a_s, a_s

    z = streams.normal(key, (schedule.T + 1, *shape))
    _, rest = jax.lax.scan(step, z[0], (jnp.arange(schedule.T, 0, -1), z[1:]))
    return jnp.concatenate([z[:1], rest])
