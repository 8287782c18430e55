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


def explore(log_density: LogDensity, dim: int, key: Array, particles: int = 8192) -> Pilot:
    """Particles annealed from Gaussians of many widths about the peaks to the density itself."""
    k_climb, k_peak, k_width, k_start, k_anneal = jax.random.split(key, 5)
    peaks = highest(log_density, climb(log_density, dim, k_climb), k_peak)

    def log_base(x: Array, peaks: Array) -> Array:
        square = jnp.sum(jnp.square(x[:, None] - peaks[None]), axis=-1)[..., None]
        scales = jnp.asarray(SCALES, jnp.float32)[None, None]
        exponent = -0.5 * square / jnp.square(scales) - dim * jnp.log(scales)
        constant = np.log(PEAKS * len(SCALES)) + 0.5 * dim * np.log(2.0 * np.pi)
        return logsumexp(exponent, axis=(1, 2)) - constant

    @jax.jit
    def anneal(x: Array, beta: Array, peaks: Array, key: Array) -> tuple[Array, Array, Array]:
        """The next temperature, the particles there, and the growth of log Z."""
        k_choose, k_move = jax.random.split(key)
        gain = log_density(x) - log_base(x, peaks)
        step = largest_step(gain, 1.0 - beta)
        log_weight = step * gain
        chosen = resample(log_weight, k_choose, particles)
        beta = jnp.where(enough(gain, 1.0 - beta), 1.0, beta + step)

        def log_tempered(x: Array) -> Array:
            return beta * log_density(x) + (1.0 - beta) * log_base(x, peaks)

        # Neighbours, which may be copies of one particle, go to different halves.
        x = move(log_tempered, x[chosen.reshape(-1, 2).T.reshape(-1)], k_move)
        return x, beta, logsumexp(log_weight) - np.log(particles)

    width = jax.random.choice(k_width, jnp.asarray(SCALES, jnp.float32), (particles, 1))
    start = jnp.tile(peaks, (particles // PEAKS, 1))
    x = start + width * jax.random.normal(k_start, start.shape)
    beta, log_z, rounds = jnp.float32(0.0), 0.0, 0
    while beta < 1.0 and rounds < MAX_ROUNDS:
        x, beta, growth = anneal(x, beta, peaks, jax.random.fold_in(k_anneal, rounds))
        log_z, rounds = log_z + float(growth), rounds + 1
    if beta < 1.0 or not np.isfinite(log_z):
        raise UsageError(
            "no region of finite mass was found: is exp(log_density) integrable over the space?"
        )
    climbing = Cost(energy=STARTS, gradient=STARTS * CLIMBS)
    return Pilot(x, log_z, climbing.plus(Cost(energy=particles * rounds * (MOVES + 2))))


def climb(log_density: LogDensity, dim: int, key: Array) -> Array:
    """Ends of gradient ascents from starts of every width about the origin. [STARTS, dim]"""
    size = optax.exponential_decay(STEP[0], CLIMBS, STEP[1] / STEP[0])
    optimizer = optax.adam(size, b2=0.9)

    def step(carry: tuple[Array, optax.OptState], _: None):
        x, state = carry
        slope = jax.grad(lambda x: jnp.sum(log_density(x)))(x)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a rate to an integer count
            update, state = optimizer.update(-jnp.nan_to_num(slope), state)
        return (x + update, state), None

    def try_step(x: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        """Without a gradient: a random step, if it leads upwards."""
        i, key = inputs
        to = x + size(i) * jax.random.normal(key, x.shape)
        return jnp.where((log_density(to) > log_density(x))[:, None], to, x), None

    k_width, k_start, k_steps = jax.random.split(key, 3)
    width = FARTHEST ** jax.random.uniform(k_width, (STARTS, 1), minval=-0.5)
    start = width * jax.random.normal(k_start, (STARTS, dim))

    @jax.jit
    def ascend(x: Array) -> Array:
        if has_gradient(log_density, dim):
            return jax.lax.scan(step, (x, optimizer.init(x)), None, CLIMBS)[0][0]
        inputs = (jnp.arange(CLIMBS), jax.random.split(k_steps, CLIMBS))
        return jax.lax.scan(try_step, x, inputs)[0]

    return jnp.concatenate([start, ascend(start)])


def has_gradient(log_density: LogDensity, dim: int) -> bool:
    """Whether JAX can differentiate it; it cannot through `jax.pure_callback`."""
    try:
        jax.eval_shape(jax.grad(lambda x: jnp.sum(log_density(x))), jnp.zeros((2, dim)))
    except ValueError:
        return False
    return True


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

    Each half moves by differences within the other, so that the moves leave the density invariant.
    """
    half = len(x) // 2

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        x, value = carry
        mine, value_of_mine = jump(log_density, x[:half], value[:half], x[half:], key)
        # The halves change places.
        return (jnp.concatenate([x[half:], mine]), jnp.append(value[half:], value_of_mine)), None

    (x, _), _ = jax.lax.scan(step, (x, log_density(x)), jax.random.split(key, 2 * MOVES))
    return x


def walk(log_density: LogDensity, x: Array, others: Array, key: Array, moves: int) -> Array:
    """`moves` of each point by differences of others, which stay where they are."""

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        return jump(log_density, *carry, others, key), None

    return jax.lax.scan(step, (x, log_density(x)), jax.random.split(key, moves))[0][0]


def jump(
    log_density: LogDensity, x: Array, value: Array, others: Array, key: Array
) -> tuple[Array, Array]:
    """One Metropolis move by a scaled difference of two others; a full one may change the mode."""
    (n, dim), m = x.shape, len(others)
    # One call of the generator, which takes long to compile.
    to_a, to_b, u, chance = jax.random.uniform(key, (4, n))
    a, b = others[(to_a * m).astype(int)], others[(to_b * m).astype(int)]
    u = u[:, None]
    scale = jnp.where(u < 0.1, 1.0, 2.38 / np.sqrt(2.0 * dim) * 30.0 ** (u - 1.0))
    proposed = x + scale * (a - b)
    reached = log_density(proposed)
    accept = jnp.log(chance) < reached - value
    return jnp.where(accept[:, None], proposed, x), jnp.where(accept, reached, value)


def resample(log_weight: Array, key: Array, n: int) -> Array:
    """Indices of n points by weight, at even steps from one random start: least chance. [n]"""
    edges = jnp.cumsum(jax.nn.softmax(log_weight))
    ticks = (jnp.arange(n) + jax.random.uniform(key)) / n
    return jnp.minimum(jnp.searchsorted(edges, ticks * edges[-1]), len(edges) - 1)
