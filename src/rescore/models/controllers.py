"""Scalars that are steered during training: temperature and exploration noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.core import UsageError
from rescore.models.learned import Learned, every


@dataclass(frozen=True)
class Relaxation:
    """A positive number that moves from `init` to `target` in log space, by Adam.

    The printed rule lam + beta (lam - lam_target) diverges; this is its stable reading, and with
    lr 7e-3 every 250 updates it is the path of the authors' code to three digits.
    """

    init: float  # value at the first update
    target: float  # value it settles at; equal to init for a constant
    lr: float = 7e-3  # step in log space
    period: int = 250  # updates between two steps

    def __post_init__(self):
        positive = all(0 < x < math.inf for x in (self.init, self.target, self.lr))
        if not positive or self.period < 1:
            raise UsageError(f"{self} needs positive, finite init, target, lr and period")

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.lr)

    def create(self) -> Learned:
        return Learned.create(jnp.log(jnp.float32(self.init)), self.optimizer)

    def advance(self, log_value: Learned, step: Array) -> Learned:
        """One step towards the target, when the period says so."""
        if self.init == self.target:
            return log_value
        goal = jnp.log(jnp.float32(self.target))
        return every(
            self.period,
            step,
            lambda: log_value.descend(self.optimizer, lambda x: (0.5 * (x - goal) ** 2, {}))[0],
            lambda: log_value,
        )


def match_kl(log_lam: Learned, optimizer: optax.GradientTransformation, kl: Array, goal: float):
    """Dual step on the temperature: lam grows while the KL of the weights exceeds the goal."""
    gap = jax.lax.stop_gradient(goal - kl)
    return log_lam.descend(optimizer, lambda x: (jnp.exp(x) * gap, {}))[0]


class Moments(NamedTuple):
    """Exponential moving mean and standard deviation, mu_Q and sigma_Q."""

    mean: Array
    std: Array

    @classmethod
    def create(cls) -> Moments:
        return cls(jnp.float32(0.0), jnp.float32(1.0))

    def normalise(self, x: Array) -> Array:
        return (x - self.mean) / jnp.maximum(self.std, 1e-3)

    def follow(self, x: Array, rate: float) -> Moments:
        """A step of size `rate` towards the moments of `x`."""
        mean, std = jnp.mean(x), jnp.std(x)
        return Moments(self.mean + rate * (mean - self.mean), self.std + rate * (std - self.std))
