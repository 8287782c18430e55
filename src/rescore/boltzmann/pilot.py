"""Where the mass of an unknown density lies: climb to its peaks, then anneal particles onto it.

It only has to find centre, scale and a first set of points; what is learned from them is
corrected by score matching.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.special import logsumexp

from rescore.boltzmann.energy import FLOOR, Cost
from rescore.core import UsageError
from rescore.diffusion.matching import effective_sample_size
from rescore.diffusion.reverse import LogDensity

STARTS, CLIMBS = 1024, 400  # climbers, and steps of each
FARTHEST = 100.0  # widest start, and with the steps below the farthest peak that is found
STEP = (3.0, 0.003)  # first and last step of a climber along each axis
PEAKS = 64  # ends of climbs that particles start from
SCALES = np.geomspace(0.03, 30.0, 10)  # widths of the Gaussians about each of them
MOVES = 12  # Metropolis moves of each particle at each temperature
KEEP = 0.5  # effective share of the particles that a step of the temperature leaves
MAX_ROUNDS = 300


class Pilot(NamedTuple):
    """Particles of about the target's law, and what they cost."""

    particles: Array  # [n, d]
    log_z: float
    cost: Cost


def explore(log_density: LogDensity, dim: int, key: Array, particles: int = 4096) -> Pilot:
    """Particles annealed from Gaussians of many widths about the peaks to the density itself."""
    k_climb, k_peak, k_width, k_start, k_anneal = jax.random.split(key, 5)
    peaks = highest(log_density, climb(log_density, dim, k_climb), k_peak)

    def log_base(x: Array) -> Array:
        square = jnp.sum(jnp.square(x[:, None] - peaks[None]), axis=-1)[..., None]
        scales = jnp.asarray(SCALES, jnp.float32)[None, None]
        exponent = -0.5 * square / jnp.square(scales) - dim * jnp.log(scales)
        constant = np.log(PEAKS * len(SCALES)) + 0.5 * dim * np.log(2.0 * np.pi)
        return logsumexp(exponent, axis=(1, 2)) - constant

    @jax.jit
    def anneal(x: Array, beta: Array, key: Array) -> tuple[Array, Array, Array]:
        """The next temperature, the particles there, and the growth of log Z."""
        k_choose, k_move = jax.random.split(key)
        gain = log_density(x) - log_base(x)
        step = largest_step(gain, 1.0 - beta)
        log_weight = step * gain
        chosen = jax.random.choice(k_choose, particles, (particles,), p=jax.nn.softmax(log_weight))
        beta = jnp.where(enough(gain, 1.0 - beta), 1.0, beta + step)

        def log_tempered(x: Array) -> Array:
            return beta * log_density(x) + (1.0 - beta) * log_base(x)

        x = move(log_tempered, x[chosen], k_move)
        return x, beta, logsumexp(log_weight) - np.log(particles)

    width = jax.random.choice(k_width, jnp.asarray(SCALES, jnp.float32), (particles, 1))
    start = jnp.tile(peaks, (particles // PEAKS, 1))
    x = start + width * jax.random.normal(k_start, start.shape)
    beta, log_z, rounds = jnp.float32(0.0), 0.0, 0
    while beta < 1.0 and rounds < MAX_ROUNDS:
        x, beta, growth = anneal(x, beta, jax.random.fold_in(k_anneal, rounds))
        log_z, rounds = log_z + float(growth), rounds + 1
    if beta < 1.0 or not np.isfinite(log_z):
        raise UsageError(
            "no region of finite mass was found: is exp(log_density) integrable over the space?"
        )
    climbing = Cost(energy=STARTS, gradient=STARTS * CLIMBS)
    return Pilot(x, log_z, climbing.plus(Cost(energy=particles * rounds * (MOVES + 2))))


def climb(log_density: LogDensity, dim: int, key: Array) -> Array:
    """Ends of gradient ascents from starts of every width about the origin. [STARTS, dim]"""
    optimizer = optax.adam(optax.exponential_decay(STEP[0], CLIMBS, STEP[1] / STEP[0]), b2=0.9)

    def step(carry: tuple[Array, optax.OptState], _: None):
        x, state = carry
        slope = jax.grad(lambda x: jnp.sum(log_density(x)))(x)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a rate to an integer count
            update, state = optimizer.update(-jnp.nan_to_num(slope), state)
        return (x + update, state), None

    k_width, k_start = jax.random.split(key)
    width = FARTHEST ** jax.random.uniform(k_width, (STARTS, 1), minval=-0.5)
    start = width * jax.random.normal(k_start, (STARTS, dim))
    ascend = jax.jit(lambda x: jax.lax.scan(step, (x, optimizer.init(x)), None, CLIMBS)[0][0])
    return jnp.concatenate([start, ascend(start)])


def highest(log_density: LogDensity, points: Array, key: Array) -> Array:
    """PEAKS of the points, at random among those whose density matters. [PEAKS, dim]"""
    value = log_density(points)
    best = jnp.max(value)
    if best <= FLOOR:
        raise UsageError(
            "the density is zero wherever it was tried: shift and scale it towards the origin"
        )
    matters = value > best - (10.0 + 2.0 * points.shape[1])
    return jax.random.choice(key, points, (PEAKS,), p=matters / jnp.sum(matters))


def enough(gain: Array, step: Array) -> Array:
    """Whether a step of the temperature leaves enough effective particles."""
    return effective_sample_size(jnp.exp(step * (gain - jnp.max(gain)))) >= KEEP


def largest_step(gain: Array, rest: Array) -> Array:
    """The largest step of the temperature that leaves enough of the particles, by bisection."""

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        # A geometric mean: the first steps of a hard density are many orders smaller than 1.
        middle = jnp.sqrt(low * high)
        keep = enough(gain, middle)
        return jnp.where(keep, middle, low), jnp.where(keep, high, middle)

    low, _ = jax.lax.fori_loop(0, 50, halve, (1e-12 * rest, rest))
    return jnp.where(enough(gain, rest), rest, low)


def move(log_density: LogDensity, x: Array, key: Array) -> Array:
    """Metropolis moves by differences of other particles, which know the shape of the density.

    Each half moves by differences within the other, so that the moves leave the density
    invariant; a full difference now and then jumps between modes.
    """
    n, dim = x.shape
    half = n // 2

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        x, value = carry
        mine, other = x[:half], x[half:]
        k_a, k_b, k_scale, k_accept = jax.random.split(key, 4)
        a = other[jax.random.randint(k_a, (half,), 0, half)]
        b = other[jax.random.randint(k_b, (half,), 0, half)]
        u = jax.random.uniform(k_scale, (half, 1))
        scale = jnp.where(u < 0.1, 1.0, 2.38 / np.sqrt(2.0 * dim) * 30.0 ** (u - 1.0))
        proposed = mine + scale * (a - b)
        reached = log_density(proposed)
        accept = jnp.log(jax.random.uniform(k_accept, (half,))) < reached - value[:half]
        mine = jnp.where(accept[:, None], proposed, mine)
        value_of_mine = jnp.where(accept, reached, value[:half])
        # The halves change places.
        return (jnp.concatenate([other, mine]), jnp.append(value[half:], value_of_mine)), None

    (x, _), _ = jax.lax.scan(step, (x, log_density(x)), jax.random.split(key, 2 * MOVES))
    return x
