"""A family of densities, one for each condition: what a sampler of all of them knows of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.boltzmann.energy import Cost, Density
from rescore.boltzmann.pilot import explorer
from rescore.boltzmann.report import Report
from rescore.core import UsageError
from rescore.models.networks import NoiseNet

PARTICLES = 4096  # of the pilot at each condition
SEVERITY = ("trusted", "use weights", "do not use")


@dataclass(frozen=True)
class Family:
    """The conditions that a sampler was trained at; row i of its particles has the i % m-th."""

    conditions: Array  # [m, k]
    reports: tuple[Report, ...] = ()  # one for each, or none

    @property
    def size(self) -> int:
        """k, the numbers that make a condition."""
        return self.conditions.shape[1]

    def demand(self, condition: Any) -> Array:
        """One condition as [k], or an error."""
        if condition is None:
            raise UsageError(
                f"this sampler is of a family: pass condition=, {numbers(self.size)}, such as "
                f"{named(self.conditions[0])}"
            )
        one = as_floats(condition)
        one = one[None] if one.ndim == 0 else one
        if one.shape != (self.size,):
            raise UsageError(
                f"condition must be {numbers(self.size)}, not of shape {one.shape}: "
                "ask for one condition at a time"
            )
        return one

    def standard(self, condition: Array) -> Array:
        """Conditions as the network sees them, of mean 0 and variance 1. [..., k]"""
        centre, spread = jnp.mean(self.conditions, axis=0), jnp.std(self.conditions, axis=0)
        scale = jnp.where(spread > 0.0, spread, 1.0)
        shape = condition.shape
        return (condition - jnp.broadcast_to(centre, shape)) / jnp.broadcast_to(scale, shape)

    def nearest(self, condition: Array) -> Array:
        """Number of the trained condition that is nearest to one. [k] -> []"""
        away = self.standard(self.conditions) - self.standard(condition)[None]
        return jnp.argmin(jnp.sum(jnp.square(away), axis=1))

    def report(self, condition: Array) -> Report | None:
        """That on a trained condition; no other was judged."""
        if isinstance(condition, jax.core.Tracer) or not self.reports:
            return None
        same = np.flatnonzero(np.all(np.asarray(self.conditions == condition[None]), axis=1))
        return self.reports[same[0]] if len(same) else None

    def beside(self, points: Array) -> Array:
        """Points with the condition of each beside it. [n, d] -> [n, d + k]"""
        rows = jnp.arange(len(points)) % len(self.conditions)
        return jnp.concatenate([points, self.conditions[rows]], axis=1)

    def worst(self) -> Report:
        """The report on the family: that on its worst condition, which the reason names."""
        order = [(-SEVERITY.index(r.verdict), r.effective) for r in self.reports]
        at = min(range(len(order)), key=order.__getitem__)
        report, where = self.reports[at], named(self.conditions[at])
        count = len(self.reports)
        reason = f"at condition {where}, the worst of {count}: {report.reason}"
        return replace(report, reason=reason)


def family_of(condition: Any, start: Family | None, continued: bool) -> Family | None:
    """The family of these conditions [m, k] or [m], or that of the fit that is continued."""
    if condition is None:
        return Family(start.conditions) if start else None
    values = as_floats(condition)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or 0 in values.shape:
        raise UsageError(
            f"condition must be values [m, k] or [m], one row for each density, "
            f"not of shape {values.shape}"
        )
    if not bool(jnp.all(jnp.isfinite(values))):
        raise UsageError("condition must be finite")
    if continued and (start is None or not jnp.array_equal(values, start.conditions)):
        raise UsageError(
            "start was trained at other conditions: leave condition= out, or fit without start="
        )
    return Family(values)


def as_floats(condition: Any) -> Array:
    try:
        return jnp.asarray(condition, jnp.float32)
    except (TypeError, ValueError):
        raise UsageError(f"condition must be numbers, not {condition!r}") from None


def named(condition: Array) -> str:
    """A condition in a message."""
    return str([float(f"{value:.4g}") for value in np.asarray(condition)])


def numbers(k: int) -> str:
    return "one number" if k == 1 else f"{k} numbers"


def seek(log_density: Density, dim: int, key: Array, family: Family) -> tuple[Array, Cost]:
    """The pilot's particles of every condition in turn, and what they cost. [n m, dim]"""
    explore, found, cost = explorer(log_density, dim, PARTICLES), [], Cost()
    for i, condition in enumerate(family.conditions):
        try:
            pilot = explore(jax.random.fold_in(key, i), condition)
        except UsageError as error:
            raise UsageError(f"at condition {named(condition)}: {error}") from None
        found.append(pilot.particles)
        cost = cost.plus(pilot.cost)
    return jnp.stack(found, axis=1).reshape(-1, dim), cost


def bind(net: NoiseNet, seen: Array) -> NoiseNet:
    """The network at one condition, as it sees it: its share of the first layer is a bias. [k]"""
    layer, *others = net.trunk.first
    fixed = eqx.tree_at(
        lambda layer: (layer.weight, layer.bias), layer, (layer.weight[:0], layer(seen))
    )
    return eqx.tree_at(lambda net: net.trunk.first, net, (fixed, *others))
