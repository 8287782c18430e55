"""Parameters under training: the only place where gradients are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array


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
        loss: Callable[[Any], tuple[Array, dict[str, Array]]],
    ) -> tuple[Learned, dict[str, Array]]:
        """One optimiser step on `loss(params) -> (value, metrics)`."""
        grads, metrics = jax.grad(loss, has_aux=True)(self.params)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a rate to an integer count
            updates, opt = optimizer.update(grads, self.opt, self.params)
        return Learned(optax.apply_updates(self.params, updates), opt), metrics


def polyak(target: Any, online: Any, rate: float) -> Any:
    """target + rate (online - target), leaf by leaf."""
    return optax.incremental_update(online, target, rate)


def every(period: int, step: Array, advance: Callable[[], Any], hold: Callable[[], Any]) -> Any:
    """advance() when `step` is a multiple of `period`, else hold(): a branch, not a select."""
    if period == 1:
        return advance()
    return jax.lax.cond(step % period == 0, advance, hold)


def climb(
    value: Callable[[Array], Array], x: Array, optimizer: optax.GradientTransformation, steps: int
) -> Array:
    """x after this many ascents of `value`, each clipped to the box; the optimiser starts fresh."""

    def one(point: Learned, _: None) -> tuple[Learned, None]:
        new, _ = point.descend(optimizer, lambda x: (-value(x), {}))
        return new._replace(params=jnp.clip(new.params, -1.0, 1.0)), None

    return jax.lax.scan(one, Learned.create(x, optimizer), length=steps)[0].params
