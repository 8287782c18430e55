"""A trained diffusion sampler in the caller's coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from rescore.boltzmann.energy import Coordinates, Cost
from rescore.core import UsageError
from rescore.diffusion.kernels import (
    noise_of_velocity,
    score_of_noise,
    signal_and_noise,
    unperturb,
)
from rescore.diffusion.samplers import Model, annealed_langevin, ddpm
from rescore.diffusion.schedules import NoiseSchedule
from rescore.models.networks import NoiseNet

How = Literal["ddpm", "annealed-langevin"]


def denoiser(net: NoiseNet, schedule: NoiseSchedule, reach: float | Array | None = None) -> Model:
    """The model eps(y_t, t) of a network that predicts velocity and sees no observation.

    With a `reach` the y_0 that its noise means is clipped to [-reach, reach]: far from all that
    it was trained on, the score then still points back.
    """
    velocity = net.at(jnp.zeros((1, 0)))

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
    how: How = "ddpm",
    steps: int | None = None,
) -> Array:
    """Samples y_0 of the network's reverse process. [n, dim]"""
    eps, shape = denoiser(net, schedule, reach), (n, dim)
    if how == "annealed-langevin":
        return annealed_langevin(schedule, eps, key, shape, levels=steps)
    return ddpm(schedule, eps, key, shape, steps=steps, start_std=1.0, clip=reach)


@dataclass(frozen=True)
class Sampler:
    """Samples of a density and the scores of its noisy versions; made by `fit`."""

    net: NoiseNet
    schedule: NoiseSchedule
    coordinates: Coordinates
    reach: float  # samples lie in [-reach, reach]^dim of the diffusion's coordinates
    log_z: float | None  # estimate of the log-density's normaliser
    draws: dict[int, float]  # level t -> effective number of reverse samples behind its scores
    cost: Cost
    seconds: float

    @property
    def dim(self) -> int:
        return self.coordinates.centre.shape[0]

    def sample(
        self, n: int, key: Array | int = 0, *, steps: int | None = None, how: How = "ddpm"
    ) -> Array:
        """n points of the density, by ancestral sampling or by annealed Langevin dynamics.

        `steps` < T visits a sub-grid of the noise levels: faster and less exact. [n, dim]
        """
        if n < 1:
            raise UsageError(f"n must be at least 1, not {n}")
        key = jax.random.key(key) if isinstance(key, int) else key
        settings = {"schedule": self.schedule, "n": n, "dim": self.dim, "reach": self.reach}
        return self.coordinates.to_x(draw(self.net, key, how=how, steps=steps, **settings))

    def score(self, x: Array, t: int | Array) -> Array:
        """grad log p_t(x) for t = 1..T, from little noise to much. [n, dim] -> [n, dim]

        p_t is the law of centre + root y_t, where y_t is the noised y_0 and x = centre + root y.
        """
        x = jnp.asarray(x, jnp.float32)
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise UsageError(f"x must be points [n, {self.dim}], not of shape {x.shape}")
        t = jnp.broadcast_to(jnp.asarray(t), x.shape[:1])
        if bool(jnp.any((t < 1) | (t > self.schedule.T))):
            raise UsageError(f"t must lie in 1..{self.schedule.T}")
        noise = denoiser(self.net, self.schedule, self.reach)(self.coordinates.to_y(x), t)
        return self.coordinates.score_in_x(score_of_noise(self.schedule, noise, t))
