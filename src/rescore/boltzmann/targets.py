"""Densities whose samples, modes and normaliser are known: what a sampler is measured against."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from rescore.core import known


@dataclass(frozen=True)
class Target:
    """A density on R^dim, known up to exp(log_z), with exact samples."""

    name: str
    log_density: Callable[[Array], Array]  # [n, dim] -> [n]
    sample: Callable[[Array, int], Array]  # (key, n) -> [n, dim]
    log_z: float
    centres: np.ndarray  # [modes, dim]; a point belongs to the mode of the nearest one
    reach: float  # the mass lies within [-reach, reach]^dim
    narrowest: float  # standard deviation of the finest feature
    unit: float = 1.0  # of length, a third of the root mean square of a coordinate or so
    bridge: float | None = None  # |z_1| below this is the gap between the modes

    @property
    def dim(self) -> int:
        return self.centres.shape[1]


def mixture(
    name: str,
    weights: np.ndarray,
    centres: np.ndarray,
    std: float,
    reach: float,
    unit: float = 1.0,
) -> Target:
    """Gaussians of one width. weights [modes], centres [modes, dim]"""
    log_weights = jnp.asarray(np.log(weights), jnp.float32)
    means = jnp.asarray(centres, jnp.float32)
    dim = centres.shape[1]
    constant = -dim * float(np.log(std * np.sqrt(2.0 * np.pi)))

    def log_density(x: Array) -> Array:
        square = jnp.sum(jnp.square((x[:, None] - means[None]) / std), axis=-1)
        return logsumexp(log_weights[None] - 0.5 * square, axis=-1) + constant

    def sample(key: Array, n: int) -> Array:
        k_mode, k_noise = jax.random.split(key)
        mode = jax.random.categorical(k_mode, log_weights, shape=(n,))
        return means[mode] + std * jax.random.normal(k_noise, (n, dim))

    return Target(name, log_density, sample, 0.0, centres, reach, std, unit)


def gmm() -> Target:
    """0.8 N((3, 3), I) + 0.2 N((-3, -3), I): the paper's toy example."""
    return mixture("gmm", np.array([0.8, 0.2]), np.array([[3.0, 3.0], [-3.0, -3.0]]), 1.0, 7.0)


def ring() -> Target:
    """Eight narrow Gaussians on a circle of radius 4, with weights from 1 to 8 over 36."""
    angle = 2.0 * np.pi * np.arange(8) / 8
    centres = 4.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return mixture("ring", np.arange(1, 9) / 36.0, centres, 0.3, 5.5)


def gmm40() -> Target:
    """Forty equal Gaussians with the centres of FAB and iDEM, drawn once from [-40, 40]^2."""
    data = json.loads(files("rescore.boltzmann").joinpath("gmm40.json").read_text())
    centres = np.array(data["centres"])
    return mixture("gmm40", np.full(40, 1 / 40), centres, data["std"], 46.0, unit=10.0)


def two_moons() -> Target:
    """Two crescents about (-2, 0) and (2, 0), eq. (energy_funtion_two_moon) of the paper."""

    def log_density(z: Array) -> Array:
        radius = jnp.sqrt(jnp.sum(jnp.square(z), axis=-1) + 1e-12)
        sides = [-0.5 * jnp.square((z[:, 0] + side) / 0.3) for side in (-2.0, 2.0)]
        return -0.5 * jnp.square((radius - 2.0) / 0.2) + jnp.logaddexp(*sides)

    def sample(key: Array, n: int) -> Array:
        """By rejection: the density is at most 1, and 5.5 % of the square is accepted."""
        k_place, k_accept = jax.random.split(key)
        tries = 30 * n + 400  # half as many again as are needed on average
        place = jax.random.uniform(k_place, (tries, 2), minval=-3.2, maxval=3.2)
        accept = jnp.log(jax.random.uniform(k_accept, (tries,))) < log_density(place)
        return place[jnp.nonzero(accept, size=n)[0]]

    centres = np.array([[2.0, 0.0], [-2.0, 0.0]])
    return Target(
        "two-moons",
        log_density,
        sample,
        TWO_MOONS_LOG_Z,
        centres,
        reach=3.2,
        narrowest=0.2,
        unit=2 / 3,
        bridge=1.0,
    )


TWO_MOONS_LOG_Z = 0.804214  # by quadrature; tests/test_targets.py does it again
TARGETS: dict[str, Callable[[], Target]] = {
    "gmm": gmm,
    "two-moons": two_moons,
    "ring": ring,
    "gmm40": gmm40,
}


def find(name: str) -> Target:
    return TARGETS[known(name, TARGETS, "target")]()
