"""The caller's log-density: checked once, then seen through affine coordinates and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.core import NonFiniteError, UsageError
from rescore.show.progress import Progress

Density = Callable[..., Array]  # points [..., d], with conditions [..., k] of a family -> [...]
FLOOR = -1e30  # stands for log 0: finite, so that a weight of zero is not a NaN


class Cost(NamedTuple):
    """How often the energy and its gradient were evaluated at a point."""

    energy: int = 0
    gradient: int = 0

    def plus(self, other: Cost) -> Cost:
        return Cost(self.energy + other.energy, self.gradient + other.gradient)


class Coordinates(NamedTuple):
    """x = centre + root y: y are the coordinates in which the diffusion runs."""

    centre: Array  # [d]
    root: Array  # [d, d]

    @classmethod
    def whitening(cls, x: Array) -> Coordinates:
        """Those in which these points have mean 0 and covariance I. x [n, d]"""
        points = np.asarray(x, np.float64)
        spread = np.cov(points.T).reshape(x.shape[1], -1)
        floor = 1e-10 * np.trace(spread) / len(spread) + 1e-30
        root = np.linalg.cholesky(spread + floor * np.eye(len(spread)))
        return cls(jnp.asarray(points.mean(axis=0), jnp.float32), jnp.asarray(root, jnp.float32))

    @classmethod
    def scaled(cls, centre: float | Array, scale: float | Array, dim: int) -> Coordinates:
        """A centre and a scale for each axis, or one for all."""
        centre = jnp.broadcast_to(jnp.asarray(centre, jnp.float32), (dim,))
        scale = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), (dim,))
        return cls(centre, jnp.diag(scale))

    def to_x(self, y: Array) -> Array:
        return y @ self.root.T + jnp.broadcast_to(self.centre, y.shape)

    def to_y(self, x: Array) -> Array:
        return self.solve((x - jnp.broadcast_to(self.centre, x.shape)).T).T

    def score_in_x(self, score_in_y: Array) -> Array:
        """Gradients transform with the inverse transpose."""
        return self.solve(score_in_y.T, transposed=True).T

    def solve(self, columns: Array, transposed: bool = False) -> Array:
        trans = 1 if transposed else 0
        return jax.scipy.linalg.solve_triangular(self.root, columns, lower=True, trans=trans)

    def pull_back(self, log_density: Density) -> Density:
        """The log-density of y, with the same normaliser."""
        log_det = jnp.sum(jnp.log(jnp.diag(self.root)))
        return lambda y, *condition: log_density(self.to_x(y), *condition) + log_det


def whole(value: Any, name: str) -> int:
    """A whole number of at least 1, Python's or NumPy's."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")
    return int(value)


def demand_points(x: Any, dim: int, name: str) -> Array:
    """An array [n, dim], or an error."""
    points = jnp.asarray(x, jnp.float32)
    if points.ndim != 2 or points.shape[1] != dim:
        raise UsageError(f"{name} must be points [n, {dim}], not of shape {points.shape}")
    return points


def from_numpy(function: Callable[..., np.ndarray]) -> Density:
    """A log-density of NumPy code [n, dim] -> [n], called back from JAX; it has no gradient.

    That of a family takes the points' conditions [n, k] too.
    """

    def call(x: Array, *condition: Array) -> np.ndarray:
        value = np.asarray(function(np.asarray(x), *map(np.asarray, condition)), np.float32)
        if value.shape != x.shape[:1]:
            raise UsageError(
                f"log_density gives {value.shape} for points {x.shape}, not one number per point; "
                "if it takes a single point, pass lambda x: np.array([log_density(p) for p in x])"
            )
        return value

    def log_density(x: Array, *condition: Array) -> Array:
        shape = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
        return jax.pure_callback(call, shape, x, *condition)

    return log_density


def checked(log_density: Density | None, dim: int, conditions: Array | None = None) -> Density:
    """The log-density over any leading axes, once it has shown that it is one.

    -inf marks points outside the support; NaN and +inf are refused. With the conditions [m, k] of
    a family it takes points [..., dim] and what broadcasts to their conditions [..., k].
    """
    dim = whole(dim, "dim")
    if not callable(log_density):
        raise UsageError("log_density must be a function of points [n, dim]")
    n = dim + 3  # a function of a single point would give `dim` numbers for these, or one
    sizes, remedy = [dim], "if it takes a single point, pass jax.vmap(log_density)"
    if conditions is not None:
        sizes.append(conditions.shape[1])
        remedy = f"with condition= it takes points [n, {dim}] and a row of [n, {sizes[1]}] for each"
    try:
        shapes = [jax.ShapeDtypeStruct((n, size), jnp.float32) for size in sizes]
        shape = jax.eval_shape(log_density, *shapes)
    except jax.errors.TracerArrayConversionError:
        raise UsageError(
            "log_density uses NumPy, which JAX cannot trace: use jax.numpy, or pass "
            "boltzmann.from_numpy(log_density)"
        ) from None
    except jax.errors.TracerBoolConversionError:
        raise UsageError(
            "log_density branches on a value, which JAX cannot trace: use jnp.where, or pass "
            "boltzmann.from_numpy(log_density)"
        ) from None
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"log_density fails on points of shape [{n}, {dim}]: {reason}; {remedy}"
        ) from None
    if getattr(shape, "shape", None) != (n,):
        raise UsageError(
            f"log_density must give one number per point, [n, {dim}] -> [n], but gives "
            f"{getattr(shape, 'shape', type(shape).__name__)} for n = {n}; {remedy}"
        )
    x = jax.random.normal(jax.random.key(0), (256, dim))
    x = jnp.concatenate([x, 10.0 * x])
    at = [] if conditions is None else [conditions[jnp.arange(len(x)) % len(conditions)]]
    try:
        value = np.asarray(jax.jit(log_density)(x, *at))
    except jax.errors.JaxRuntimeError as error:  # of a function that is called back
        reason = str(error).strip().splitlines()[-1]
        raise UsageError(f"log_density fails on points of shape {x.shape}: {reason}") from None
    bad = np.flatnonzero(np.isnan(value) | (value == np.inf))
    if len(bad):
        point = np.asarray(x[bad[0]]).round(3).tolist()
        given = f" with condition {np.asarray(at[0][bad[0]]).tolist()}" if at else ""
        raise UsageError(
            f"log_density is {value[bad[0]]} at {point}{given}: "
            "it must be finite, or -inf outside the support"
        )
    if at:  # x - c[:, 0] is [n, n] where x is [n, 1]
        alone = np.concatenate([log_density(x[i : i + 1], at[0][i : i + 1]) for i in range(3)])
        if not np.allclose(alone, value[:3], rtol=1e-3, atol=1e-3):
            raise UsageError(f"log_density of a point depends on the other points; {remedy}")

    def everywhere(x: Array, *condition: Array) -> Array:
        beside = (jnp.broadcast_to(c, (*x.shape[:-1], c.shape[-1])) for c in condition)
        rows = (c.reshape(-1, c.shape[-1]) for c in beside)
        flat = log_density(x.reshape(-1, dim), *rows).astype(jnp.float32)
        return jnp.maximum(flat, FLOOR).reshape(x.shape[:-1])

    return jax.jit(everywhere)


def within(log_density: Density, box: float | None) -> Density:
    """The density cut off outside [-box, box]^d, if there is a box."""
    if box is None:
        return log_density

    def bounded(y: Array, *condition: Array) -> Array:
        return jnp.where(jnp.all(jnp.abs(y) <= box, axis=-1), log_density(y, *condition), FLOOR)

    return bounded


def follow(progress: Progress, done: int, metrics: dict[str, Array]) -> None:
    """Show a fit's metrics after so many updates; a loss that is not finite ends it."""
    found = {name: float(value) for name, value in metrics.items()}
    if not np.isfinite(found["loss"]):
        progress.stop()
        raise NonFiniteError(
            f"the loss is {found['loss']} after {done} updates: "
            "is log_density finite wherever its mass may lie?"
        )
    progress.update(done, {"metrics": found})
