"""Moves of points that leave a density as it is: by differences of others, and by its gradient.

Differences need values alone and know the density's shape; Hamiltonian moves need its gradient and
keep their pace in many dimensions (Neal, 2011).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.diffusion.reverse import LogDensity

LEAPS = 8  # leapfrog steps of a Hamiltonian move
RATE = 0.7  # share of the Hamiltonian moves to be accepted; their step follows it
FIRST = 0.5  # step to begin with, in coordinates where the density has unit width
SPREAD = 10.0  # ratio of the longest to the shortest step among the points


class Walkers(NamedTuple):
    """Points on their way, with the logarithm of the density there."""

    x: Array  # [n, d]
    value: Array  # [n]


def has_gradient(log_density: LogDensity, dim: int) -> bool:
    """Whether JAX can differentiate it; it cannot through `jax.pure_callback`."""
    try:
        jax.eval_shape(jax.grad(lambda x: jnp.sum(log_density(x))), jnp.zeros((2, dim)))
    except ValueError:
        return False
    return True


def jump(log_density: LogDensity, walkers: Walkers, others: Array, key: Array) -> Walkers:
    """One Metropolis move by a scaled difference of two others; a full one may change the mode."""
    (n, dim), m = walkers.x.shape, len(others)
    # One call of the generator, which takes long to compile.
    to_a, to_b, u, chance = jax.random.uniform(key, (4, n))
    a, b = others[(to_a * m).astype(int)], others[(to_b * m).astype(int)]
    u = u[:, None]
    scale = jnp.where(u < 0.1, 1.0, 2.38 / np.sqrt(2.0 * dim) * 30.0 ** (u - 1.0))
    x = walkers.x + scale * (a - b)
    value = log_density(x)
    return choose(jnp.log(chance) < value - walkers.value, Walkers(x, value), walkers)


def choose(accept: Array, new: Walkers, old: Walkers) -> Walkers:
    return Walkers(
        jnp.where(accept[:, None], new.x, old.x), jnp.where(accept, new.value, old.value)
    )


def glide(
    log_density: LogDensity, walkers: Walkers, root: Array, size: Array, key: Array
) -> tuple[Walkers, Array]:
    """One Hamiltonian move in the coordinates z of x = root z, and the share that was accepted.

    Steps of many lengths up to `size`: one length would fit one width of the density only.
    """
    n, dim = walkers.x.shape
    random = jax.random.normal(key, (n, dim + 2))
    u, chance = jax.scipy.stats.norm.cdf(random[:, dim:]).T
    step = (size * SPREAD ** (u - 1.0))[:, None]

    def slope(x: Array) -> tuple[Array, Array]:
        value, pull = jax.vjp(log_density, x)
        return value, jnp.nan_to_num(pull(jnp.ones(n))[0] @ root)

    def leap(_: int, carry: tuple[Array, Array, Array, Array]):
        x, momentum, value, force = carry
        momentum = momentum + 0.5 * step * force
        x = x + step * momentum @ root.T
        value, force = slope(x)
        return x, momentum + 0.5 * step * force, value, force

    start = random[:, :dim]
    _, force = slope(walkers.x)
    x, end, value, _ = jax.lax.fori_loop(0, LEAPS, leap, (walkers.x, start, walkers.value, force))
    kinetic = 0.5 * jnp.sum(jnp.square(start) - jnp.square(end), axis=-1)
    accept = jnp.log(chance) < value - walkers.value + kinetic  # never if that is not a number
    return choose(accept, Walkers(x, value), walkers), jnp.mean(accept)


def adapt(size: Array, rate: Array) -> Array:
    """The step of Hamiltonian moves after some were accepted at this rate."""
    return jnp.clip(size * jnp.exp(rate - RATE), 1e-4, 2.0)


def glides(
    log_density: LogDensity, walkers: Walkers, root: Array, size: Array, key: Array, n: int
) -> tuple[Walkers, Array]:
    """n Hamiltonian moves of each, and the step for the next ones."""

    def step(carry: tuple[Walkers, Array], key: Array) -> tuple[tuple[Walkers, Array], None]:
        walkers, size = carry
        walkers, rate = glide(log_density, walkers, root, size, key)
        return (walkers, adapt(size, rate)), None

    return jax.lax.scan(step, (walkers, size), jax.random.split(key, n))[0]


def move(
    log_density: LogDensity, x: Array, root: Array, size: Array, key: Array, jumps: int, slides: int
) -> tuple[Array, Array]:
    """Moves of each point, `jumps` by differences and `slides` by the gradient; the next step.

    Each half jumps by differences within the other, so that the density stays invariant.
    """
    half = len(x) // 2

    def step(walkers: Walkers, key: Array) -> tuple[Walkers, None]:
        mine, rest = (Walkers(*(a[part] for a in walkers)) for part in (first, second))
        mine = jump(log_density, mine, rest.x, key)
        # The halves change places.
        return Walkers(*(jnp.concatenate(both) for both in zip(rest, mine))), None

    first, second = slice(None, half), slice(half, None)
    k_jump, k_slide = jax.random.split(key)
    keys = jax.random.split(k_jump, 2 * jumps)
    walkers, _ = jax.lax.scan(step, Walkers(x, log_density(x)), keys)
    if slides:
        walkers, size = glides(log_density, walkers, root, size, k_slide, slides)
    return walkers.x, size


def walk(
    log_density: LogDensity, x: Array, others: Array, key: Array, jumps: int, slides: int = 0
) -> Array:
    """Moves of each point by differences of others, which stay where they are, and by the gradient.

    The density should have about unit width.
    """

    def step(walkers: Walkers, key: Array) -> tuple[Walkers, None]:
        return jump(log_density, walkers, others, key), None

    k_jump, k_slide = jax.random.split(key)
    keys = jax.random.split(k_jump, jumps)
    walkers, _ = jax.lax.scan(step, Walkers(x, log_density(x)), keys)
    if slides:
        unit, size = jnp.eye(x.shape[1]), jnp.float32(FIRST)
        walkers, _ = glides(log_density, walkers, unit, size, k_slide, slides)
    return walkers.x


@partial(jax.jit, static_argnames="n")
def resample(log_weight: Array, key: Array, n: int) -> Array:
    """Indices of n points by weight, at even steps from one random start: least chance. [n]"""
    edges = jnp.cumsum(jax.nn.softmax(log_weight))
    ticks = (jnp.arange(n) + jax.random.uniform(key)) / n
    return jnp.minimum(jnp.searchsorted(edges, ticks * edges[-1]), len(edges) - 1)
