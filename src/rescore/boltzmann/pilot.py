"""Where the mass of an unknown density lies: climb to its peaks, then anneal particles onto it.

It only has to find centre, scale and a first set of points; what is learned from them is
corrected by score matching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.special import logsumexp

from rescore.boltzmann.energy import FLOOR, Coordinates, Cost, Density
from rescore.boltzmann.moves import FIRST, LEAPS, has_gradient, move, resample
from rescore.core import UsageError
from rescore.diffusion.matching import effective_sample_size
from rescore.diffusion.reverse import LogDensity

STARTS, CLIMBS = 1024, 400  # climbers, and steps of each
FARTHEST = 100.0  # widest start, and with the steps below the farthest peak that is found
STEP = (3.0, 0.003)  # first and last step of a climber along each axis
PEAKS = 64  # ends of climbs that particles start from
SCALES = np.geomspace(0.03, 30.0, 10)  # widths of the Gaussians about each of them
JUMPS = 12  # moves of each particle at each temperature by differences of others
SLIDES = 4  # by the gradient at the end, and at most so many before
KEEP = 0.5  # effective share of the particles that a step of the temperature leaves
MAX_ROUNDS = 300
MAX_SETTLES = 10  # repetitions of the moves at the end, until the particles are still
STILL = 1.5  # ratio of their variances, before and after, along any direction


class Pilot(NamedTuple):
    """Particles of about the target's law, and what they cost."""

    particles: Array  # [n, d]
    log_z: float
    cost: Cost


def explore(log_density: LogDensity, dim: int, key: Array, particles: int = 8192) -> Pilot:
    """Particles annealed from Gaussians of many widths about the peaks to the density itself."""
    return explorer(log_density, dim, particles)(key)


def explorer(log_density: Density, dim: int, particles: int) -> Callable[..., Pilot]:
    """`explore` as a function of a key, and in a family of a condition [k] too: compiled once."""
    climb = climber(log_density, dim)

    def member(condition: tuple[Array, ...]) -> tuple[LogDensity, int, int]:
        """The density at a condition, if any, and gradient moves at a temperature and at the end.

        The base costs more than most densities, and few dimensions need no gradient.
        """

        def density(x: Array) -> Array:
            return log_density(x, *condition)

        smooth = has_gradient(density, dim)
        return density, min(SLIDES, dim // 8) if smooth else 0, SLIDES if smooth else 0

    def log_base(x: Array, peaks: Array) -> Array:
        square = jnp.sum(jnp.square(x[:, None] - peaks[None]), axis=-1)[..., None]
        scales = jnp.asarray(SCALES, jnp.float32)[None, None]
        exponent = -0.5 * square / jnp.square(scales) - dim * jnp.log(scales)
        constant = np.log(PEAKS * len(SCALES)) + 0.5 * dim * np.log(2.0 * np.pi)
        return logsumexp(exponent, axis=(1, 2)) - constant

    @jax.jit
    def begin(key: Array, *condition: Array) -> tuple[Array, Array, Array]:
        """The base's particles, the peaks that it stands on, and the highest log-density seen."""
        k_climb, k_peak, k_width, k_start = jax.random.split(key, 4)
        peaks, best = highest(member(condition)[0], climb(k_climb, *condition), k_peak)
        width = jax.random.choice(k_width, jnp.asarray(SCALES, jnp.float32), (particles, 1))
        start = jnp.tile(peaks, (particles // PEAKS, 1))
        return start + width * jax.random.normal(k_start, start.shape), peaks, best

    @jax.jit
    def cool(
        x: Array, beta: Array, peaks: Array, key: Array, *condition: Array
    ) -> tuple[Array, Array, Array]:
        """The next temperature, particles chosen for it, and the growth of log Z."""
        gain = log_density(x, *condition) - log_base(x, peaks)
        step = largest_step(gain, 1.0 - beta)
        chosen = resample(step * gain, key, particles)
        beta = jnp.where(enough(gain, 1.0 - beta), 1.0, beta + step)
        # Neighbours, which may be copies of one particle, go to different halves.
        x = x[chosen.reshape(-1, 2).T.reshape(-1)]
        return x, beta, logsumexp(step * gain) - np.log(particles)

    @jax.jit
    def stir(
        x: Array, beta: Array, peaks: Array, root: Array, size: Array, key: Array, *condition: Array
    ) -> tuple[Array, Array]:
        """Moves at one temperature."""
        density, slides, _ = member(condition)

        def log_tempered(x: Array) -> Array:
            return beta * density(x) + (1.0 - beta) * log_base(x, peaks)

        return move(log_tempered, x, root, size, key, JUMPS, slides)

    @jax.jit
    def settle(
        x: Array, root: Array, size: Array, key: Array, *condition: Array
    ) -> tuple[Array, Array]:
        """Moves at the end, where the base is gone."""
        density, _, slides = member(condition)
        return move(density, x, root, size, key, JUMPS, slides)

    def explore(key: Array, *condition: Array) -> Pilot:
        k_start, k_anneal, k_settle = jax.random.split(key, 3)
        _, slides, last = member(condition)
        x, peaks, best = begin(k_start, *condition)
        demand_mass(best)
        beta, size, log_z, rounds = jnp.float32(0.0), jnp.float32(FIRST), 0.0, 0
        while beta < 1.0 and rounds < MAX_ROUNDS:
            k_cool, k_stir = jax.random.split(jax.random.fold_in(k_anneal, rounds))
            x, beta, growth = cool(x, beta, peaks, k_cool, *condition)
            root = Coordinates.whitening(x).root
            x, size = stir(x, beta, peaks, root, size, k_stir, *condition)
            log_z, rounds = log_z + float(growth), rounds + 1
        if beta < 1.0 or not np.isfinite(log_z):
            raise UsageError(
                "no region of finite mass was found: is exp(log_density) integrable over the space?"
            )
        for settled in range(1, MAX_SETTLES + 1):
            where = Coordinates.whitening(x)
            k_move = jax.random.fold_in(k_settle, settled)
            x, size = settle(x, where.root, size, k_move, *condition)
            if still(where.to_y(x)):
                break
        values = particles * (rounds * (JUMPS + 2) + settled * (JUMPS + 1))
        slopes = particles * (rounds * slides + settled * last) * (LEAPS + 1)
        climbs = STARTS * CLIMBS
        cost = Cost(values, climbs + slopes) if last else Cost(values + climbs + STARTS)
        return Pilot(x, log_z, cost.plus(Cost(energy=2 * STARTS)))  # to choose the highest

    return explore


def still(y: Array) -> bool:
    """Whether points that had mean 0 and covariance I before some moves have about that again."""
    points = np.asarray(y, np.float64)
    spread = np.linalg.eigvalsh(np.cov(points.T).reshape(y.shape[1], -1))
    moved = np.abs(points.mean(axis=0)).max()
    return bool(moved < 0.2 and spread[0] > 1 / STILL and spread[-1] < STILL)


def climber(log_density: Density, dim: int) -> Callable[..., Array]:
    """From a key, and in a family a condition, to starts of every width about the origin and the
    ends of gradient ascents from them. [2 STARTS, dim]
    """
    size = optax.exponential_decay(STEP[0], CLIMBS, STEP[1] / STEP[0])
    optimizer = optax.adam(size, b2=0.9)

    def ascend(x: Array, key: Array, *condition: Array) -> Array:
        def density(x: Array) -> Array:
            return log_density(x, *condition)

        def step(carry: tuple[Array, optax.OptState], _: None):
            x, state = carry
            slope = jax.grad(lambda x: jnp.sum(density(x)))(x)
            with jax.numpy_dtype_promotion("standard"):  # optax raises a rate to an integer count
                update, state = optimizer.update(-jnp.nan_to_num(slope), state)
            return (x + update, state), None

        def try_step(carry: tuple[Array, Array], inputs: tuple[Array, Array]):
            """Without a gradient: a random step, if it leads upwards."""
            (x, height), (i, key) = carry, inputs
            to = x + size(i) * jax.random.normal(key, x.shape)
            reached = density(to)
            up = reached > height
            return (jnp.where(up[:, None], to, x), jnp.where(up, reached, height)), None

        if has_gradient(density, dim):
            return jax.lax.scan(step, (x, optimizer.init(x)), None, CLIMBS)[0][0]
        inputs = (jnp.arange(CLIMBS), jax.random.split(key, CLIMBS))
        return jax.lax.scan(try_step, (x, density(x)), inputs)[0][0]

    def climb(key: Array, *condition: Array) -> Array:
        k_width, k_start, k_steps = jax.random.split(key, 3)
        width = FARTHEST ** jax.random.uniform(k_width, (STARTS, 1), minval=-0.5)
        start = width * jax.random.normal(k_start, (STARTS, dim))
        return jnp.concatenate([start, ascend(start, k_steps, *condition)])

    return climb


def highest(
    log_density: LogDensity, points: Array, key: Array, n: int = PEAKS
) -> tuple[Array, Array]:
    """n of the points [n, dim], at random among those whose density matters; the highest value."""
    value = log_density(points)
    best = jnp.max(value)
    matters = value > best - (10.0 + 2.0 * points.shape[1])
    return jax.random.choice(key, points, (n,), p=matters / jnp.sum(matters)), best


def demand_mass(best: Array) -> None:
    """An error unless the highest log-density that was seen is that of a point of the support."""
    if best <= FLOOR:
        raise UsageError(
            "the density is zero wherever it was tried: shift and scale it towards the origin"
        )


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
