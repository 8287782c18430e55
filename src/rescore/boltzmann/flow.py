"""Samples of a trained network, and their law as a density: the probability flow.

In z = y_t / sqrt(alpha_bar_t) = y_0 + sigma noise and lam = log sigma the flow is
dz / dlam = sigma eps(y_t, t); log q changes along it by minus its divergence (Song et al., 2021).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm
from scipy.special import logsumexp

from rescore.diffusion.matching import effective_sample_size
from rescore.diffusion.process import noise_of_velocity, signal_and_noise, unperturb
from rescore.diffusion.samplers import Model, annealed_langevin, ddpm, time_grid
from rescore.diffusion.schedules import NoiseSchedule
from rescore.models.networks import NoiseNet

How = Literal["flow", "ddpm", "annealed-langevin"]
STEPS = 16  # of the Runge-Kutta method, evenly over the levels, each with a middle
EXACT_DIM = 64  # up to which the divergence is exact
PROBES = 32  # random directions of Hutchinson's estimate above it


class Weighted(NamedTuple):
    """Points of the model and log(p / q) at each, -inf outside the support."""

    x: Array  # [n, d]
    log_weight: Array  # [n]

    @property
    def share(self) -> Array:
        """Weights that sum to 1. [n]"""
        return jax.nn.softmax(self.log_weight)

    @property
    def effective(self) -> float:
        """Effective share of the points, in (0, 1]; 0 if all are outside the support."""
        return float(effective_share(self.log_weight))

    def log_z(self) -> tuple[float, float]:
        """log of the mean weight, and its standard error."""
        n = len(self.log_weight)
        error = np.sqrt(max(1.0 / max(self.effective, 1.0 / n) - 1.0, 0.0) / n)
        return float(logsumexp(np.asarray(self.log_weight))) - np.log(n), float(error)


@jax.jit
def effective_share(log_weight: Array) -> Array:
    """[n] -> []"""
    weight = jnp.exp(log_weight - jnp.max(log_weight))
    return jnp.nan_to_num(effective_sample_size(weight))


def denoiser(
    net: NoiseNet,
    schedule: NoiseSchedule,
    reach: float | Array | None = None,
    condition: Array | None = None,
) -> Model:
    """The model eps(y_t, t) of a network that predicts velocity; it sees at most a condition.

    With a `reach` the y_0 that its noise means is clipped to [-reach, reach]: far from all that
    it was trained on, the score then still points back.
    """
    velocity = net.at(jnp.zeros((1, 0)) if condition is None else condition)

    def eps(y_t: Array, t: Array) -> Array:
        noise = noise_of_velocity(schedule, velocity(y_t, t), y_t, t)
        if reach is None:
            return noise
        signal, std = signal_and_noise(schedule, t)
        y_0 = jnp.clip(unperturb(schedule, y_t, t, noise), -reach, reach)
        return (y_t - signal * y_0) / std

    return eps


@partial(jax.jit, static_argnames=("schedule", "n", "dim", "how", "steps"))
def draw(
    net: NoiseNet,
    key: Array,
    *,
    schedule: NoiseSchedule,
    n: int,
    dim: int,
    reach: Any,  # float, perhaps traced
    how: How = "flow",
    steps: int | None = None,
) -> Array:
    """Samples y_0 of the network's reverse process. [n, dim]"""
    eps, shape = denoiser(net, schedule, reach), (n, dim)
    if how == "flow":
        return flow_samples(net, key, n, schedule, reach, False, steps or STEPS)[0]
    if how == "annealed-langevin":
        return annealed_langevin(schedule, eps, key, shape, levels=steps)
    return ddpm(schedule, eps, key, shape, steps=steps, start_std=1.0, clip=reach)


@partial(jax.jit, static_argnames=("schedule", "up", "divergence", "steps"))
def transport(
    net: NoiseNet,
    z: Array,
    key: Array,
    *,
    schedule: NoiseSchedule,
    reach: Any,  # float, perhaps traced
    up: bool,  # from the least noise to the most, or down
    divergence: bool = True,
    steps: int = STEPS,
) -> tuple[Array, Array]:
    """The points at the flow's other end, and the integral of its divergence. [n, d], [n]"""
    eps, (n, dim) = denoiser(net, schedule, reach), z.shape
    t = time_grid(schedule.T, min(2 * steps, schedule.T - 1) // 2 * 2 + 1)
    t = t[::-1] if up else t
    if dim <= EXACT_DIM:
        probes = jnp.broadcast_to(jnp.eye(dim)[:, None], (dim, n, dim))
    else:
        probes = jax.random.rademacher(key, (PROBES, n, dim), jnp.float32) / np.sqrt(PROBES)

    def drift(z: Array, t: Array) -> Array:
        level = jnp.broadcast_to(t, (n,))
        signal, std = signal_and_noise(schedule, level)
        return std / signal * eps(signal * z, level)

    def field(z: Array, t: Array) -> tuple[Array, Array]:
        if not divergence:
            return drift(z, t), jnp.zeros(n)
        value, slope = jax.linearize(lambda z: drift(z, t), z)
        return value, jnp.einsum("pnd,pnd->n", probes, jax.vmap(slope)(probes))

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]):
        """The classical Runge-Kutta step; of the divergence, Simpson's rule."""
        z, total = carry
        t, h = inputs
        first, div = field(z, t[0])
        second = drift(z + 0.5 * h * first, t[1])
        third, div_middle = field(z + 0.5 * h * second, t[1])
        fourth, div_end = field(z + h * third, t[2])
        z = z + h / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
        return (z, total + h / 6.0 * (div + 4.0 * div_middle + div_end)), None

    stages = np.stack([t[:-2:2], t[1:-1:2], t[2::2]], axis=1)  # begin, middle and end of a step
    lam = np.log(1.0 / schedule.alpha_bar[stages] - 1.0) / 2.0
    inputs = (jnp.asarray(stages), jnp.asarray(lam[:, 2] - lam[:, 0], jnp.float32))
    return jax.lax.scan(step, (z, jnp.zeros(n)), inputs)[0]


@partial(jax.jit, static_argnames=("n", "schedule", "density", "steps"))
def flow_samples(
    net: NoiseNet,
    key: Array,
    n: int,
    schedule: NoiseSchedule,
    reach: float,
    density: bool,
    steps: int = STEPS,
) -> tuple[Array, Array]:
    """Points of the flow from N(0, I), and log q there (0 unless asked for). [n, d], [n]"""
    k_start, k_probe = jax.random.split(key)
    y = jax.random.normal(k_start, (n, net.act_dim))
    signal = float(np.sqrt(schedule.alpha_bar[-1]))
    settings: dict[str, Any] = {"schedule": schedule, "reach": reach, "divergence": density}
    z, total = transport(net, y / signal, k_probe, up=False, steps=steps, **settings)
    return z, log_start(y, signal) - total if density else total


@partial(jax.jit, static_argnames="schedule")
def log_flow(net: NoiseNet, y: Array, key: Array, schedule: NoiseSchedule, reach: float) -> Array:
    """log q at points. [n, d] -> [n]"""
    signal = float(np.sqrt(schedule.alpha_bar[-1]))
    z, total = transport(net, y, key, schedule=schedule, reach=reach, up=True)
    return log_start(signal * z, signal) + total


def log_start(y: Array, signal: float) -> Array:
    """log of the law of y / signal for y ~ N(0, I), where the flow starts."""
    return jnp.sum(norm.logpdf(y), axis=-1) + y.shape[-1] * np.log(signal)
