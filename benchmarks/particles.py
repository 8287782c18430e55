"""Particles that attract and repel each other, in coordinates without their centre of mass.

Neither energy knows where its centre is, so it has no density in all coordinates. Of n particles
n - 1 vectors are left, by an orthonormal basis of the differences: lengths stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

CLOSEST = 0.1  # Lennard-Jones at 0.1 is 1e12: nearer than that, it stays there


@dataclass(frozen=True)
class Particles:
    """n particles in so many dimensions of space."""

    n: int
    space: int

    @property
    def dim(self) -> int:
        return (self.n - 1) * self.space

    @property
    def basis(self) -> np.ndarray:
        """Orthonormal rows, each the first particles against the next one. [n - 1, n]"""
        steps = np.tri(self.n - 1, self.n, k=0)
        steps[np.arange(self.n - 1), np.arange(1, self.n)] = -np.arange(1.0, self.n)
        return steps / np.linalg.norm(steps, axis=1, keepdims=True)

    def places(self, x: Array) -> Array:
        """Of all particles, about their centre. [b, dim] -> [b, n, space]"""
        basis = jnp.asarray(self.basis, jnp.float32)
        return jnp.einsum("kn,bks->bns", basis, x.reshape(-1, self.n - 1, self.space))

    def shuffled(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each turned or mirrored at random, its particles renamed: no energy here sees that."""
        at = np.asarray(self.places(jnp.asarray(x, jnp.float32)))
        turn, upper = np.linalg.qr(rng.normal(size=(len(x), self.space, self.space)))
        turn *= np.sign(np.einsum("bii->bi", upper))[:, None]  # Haar: of all rotations alike
        at = permuted(at @ turn, rng)
        return np.einsum("kn,bns->bks", self.basis, at).reshape(len(x), -1)

    def squares(self, x: Array) -> Array:
        """Squared distances, each pair once. [b, dim] -> [b, pairs]"""
        at, (i, j) = self.places(x), np.triu_indices(self.n, 1)
        return jnp.sum(jnp.square(at[:, i] - at[:, j]), axis=-1)

    def distances(self, x: Array) -> Array:
        return jnp.sqrt(self.squares(x) + 1e-12)


def permuted(at: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The particles of each in an order of its own. [b, n, space]"""
    order = np.argsort(rng.random(at.shape[:2]), axis=1)
    return np.take_along_axis(at, order[..., None], axis=1)


DW4, LJ13 = Particles(4, 2), Particles(13, 3)


def double_wells(x: Array) -> Array:
    """DW4 (Koehler et al., 2020): sum over pairs of 0.9 (d - 4)^4 - 4 (d - 4)^2, with minus."""
    off = jnp.square(DW4.distances(x) - 4.0)
    return -jnp.sum(0.9 * jnp.square(off) - 4.0 * off, axis=-1)


def lennard_jones(x: Array) -> Array:
    """LJ13 as in iDEM's study: epsilon = r_m = 1, each pair counted from both sides, and half of
    the squared distances to the centre.
    """
    sixth = jnp.maximum(LJ13.squares(x), CLOSEST**2) ** -3
    pairs = jnp.sum(jnp.square(sixth) - 2.0 * sixth, axis=-1)
    return -2.0 * pairs - 0.5 * jnp.sum(jnp.square(x), axis=-1)
