"""Parameters under training, networks or scalars: the only place where gradients are applied."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.core import UsageError

Aux = TypeVar("Aux")


class Learned(NamedTuple):
    """Parameters and the state of their optimiser."""

    params: Any
    opt: optax.OptState

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation) -> Learned:
        return cls(params, optimizer.init(params))

    def descend(
        self,
        optimizer: optax.GradientTransformation,
        loss: Callable[[Any], tuple[Array, Aux]],
    ) -> tuple[Learned, Aux]:
        """One optimiser step on `loss(params) -> (value, aux)`; aux is metrics, as a rule."""
        grads, aux = jax.grad(loss, has_aux=True)(self.params)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a rate to an integer count
            updates, opt = optimizer.update(grads, self.opt, self.params)
        return Learned(optax.apply_updates(self.params, updates), opt), aux


def polyak(target: Any, online: Any, rate: Array | float) -> Any:
    """target + rate (online - target), leaf by leaf."""
    return optax.incremental_update(online, target, rate)


def regulate(
    log_value: Learned, surplus: Array, optimizer: optax.GradientTransformation
) -> Learned:
    """log of a temperature or noise: it falls while the entropy has a surplus, else it rises."""
    return log_value.descend(optimizer, lambda x: (x * surplus, {}))[0]


def every(period: int, step: Array, move: Callable[[], Any], hold: Callable[[], Any]) -> Any:
    """move() when `step` is a multiple of `period`, else hold(): a branch, not a select."""
    if period == 1:
        return move()
    return jax.lax.cond(step % period == 0, move, hold)


def measured_every(
    period: int, step: Array, move: Callable[[], tuple[Any, dict]], hold: Any
) -> tuple[Any, dict[str, Array]]:
    """`every` for move() -> (new, metrics); while it holds, metrics are NaN: not measured."""
    if period == 1:
        return move()
    shapes = jax.eval_shape(move)[1]
    nothing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)
    return every(period, step, move, lambda: (hold, nothing))


@dataclass(frozen=True)
class Anneal:
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

    def step(self, log_value: Learned, step: Array) -> Learned:
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
