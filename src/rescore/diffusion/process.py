"""The forward kernel q_{t|0}, the reverse-sampling kernel phi_{0|t}, and noise <-> score."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from rescore.diffusion.schedules import NoiseSchedule


def signal_and_noise(schedule: NoiseSchedule, t: Array) -> tuple[Array, Array]:
    """sqrt(alpha_bar_t) and sqrt(1 - alpha_bar_t), with a last axis for the action."""
    alpha_bar = schedule.alpha_bar
    signal = jnp.asarray(alpha_bar**0.5, jnp.float32)[t][..., None]
    noise = jnp.asarray((1.0 - alpha_bar) ** 0.5, jnp.float32)[t][..., None]
    return signal, noise


def perturb(schedule: NoiseSchedule, a_0: Array, t: Array, noise: Array) -> Array:
    """a_t ~ q_{t|0} = N(sqrt(alpha_bar_t) a_0, (1 - alpha_bar_t) I), from standard noise."""
    signal, std = signal_and_noise(schedule, t)
    return signal * a_0 + std * noise


def unperturb(schedule: NoiseSchedule, a_t: Array, t: Array, noise: Array) -> Array:
    """a_0 with `perturb(a_0, t, noise) = a_t`.

    With standard noise it is a draw from phi_{0|t} (eq. a0_sample_thm); with the network's noise
    it is the denoised action.
    """
    signal, std = signal_and_noise(schedule, t)
    return (a_t - std * noise) / signal


def score_of_noise(schedule: NoiseSchedule, noise: Array, t: Array) -> Array:
    """grad log q_{t|0}(a_t | a_0) = -noise / sqrt(1 - alpha_bar_t)."""
    _, std = signal_and_noise(schedule, t)
    return -noise / std


def noise_of_score(schedule: NoiseSchedule, score: Array, t: Array) -> Array:
    """Inverse of `score_of_noise`: what an exact score asks of a noise network."""
    _, std = signal_and_noise(schedule, t)
    return -std * score


def noise_of_velocity(schedule: NoiseSchedule, velocity: Array, a_t: Array, t: Array) -> Array:
    """Noise of the velocity sqrt(alpha_bar_t) noise - sqrt(1 - alpha_bar_t) a_0, given a_t.

    A network that predicts the velocity is exact with 0 where p_0 is the standard normal, and its
    error is never amplified when a_0 is recovered at large t.
    """
    signal, std = signal_and_noise(schedule, t)
    return signal * velocity + std * a_t
