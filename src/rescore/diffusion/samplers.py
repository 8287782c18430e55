"""Reverse processes. "The model" is always `eps(a_t, t)` with the observation already bound."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams
from rescore.core import UsageError
from rescore.diffusion.process import score_of_noise, unperturb
from rescore.diffusion.schedules import NoiseSchedule

Model = Callable[[Array, Array], Array]  # (a_t [..., d], t [...]) -> noise [..., d]


def time_grid(T: int, steps: int | None) -> np.ndarray:
    """Times visited by the reverse process, from T down to 1; T alone for one step. [steps]"""
    steps = T if steps is None else steps
    if not 1 <= steps <= T:
        raise UsageError(f"a reverse process of a {T}-step model has 1 to {T} steps, not {steps}")
    return np.linspace(T, 1, steps).round().astype(int)


def reverse_coefficients(schedule: NoiseSchedule, t: np.ndarray, eta: float = 1.0) -> np.ndarray:
    """Of a_0, a_t and the noise, in each step of a reverse process over times t. [steps, 3]"""
    at, after = schedule.alpha_bar[t], schedule.alpha_bar[np.append(t[1:], 0)]
    var = eta**2 * (1.0 - after) / (1.0 - at) * (1.0 - at / after)
    # a_s = sqrt(alpha_bar_s) a_0 + sqrt(1 - alpha_bar_s - var) noise(a_t, a_0) + sqrt(var) z
    to_a_t = np.sqrt(np.maximum(1.0 - after - var, 0.0) / (1.0 - at))
    to_a_0 = np.sqrt(after) - to_a_t * np.sqrt(at)
    return np.stack([to_a_0, to_a_t, np.sqrt(var)], axis=1)


def ddpm(
    schedule: NoiseSchedule,
    eps: Model,
    key: Array,
    shape: tuple[int, ...],
    *,
    steps: int | None = None,
    start_std: float | None = None,
    eta: float = 1.0,
    clip: float | None = 1.0,
) -> Array:
    """a_0 by the reverse process of eq. (annealed_langevin_2), its noise of variance sigma_t^2.

    Each step draws from q(a_s | a_t, a_0) with a_0 denoised and clipped to the box: at the last
    one a_0 itself is returned, so a clipped sample always lies in the box. `steps` < T visits a
    sub-grid; eta scales the noise (1: ancestral, 0: deterministic DDIM); `start_std` is the
    standard deviation of a_T.
    """
    t = time_grid(schedule.T, steps)
    coefficients = jnp.asarray(reverse_coefficients(schedule, t, eta), jnp.float32)

    def step(a_t: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        t, (to_a_0, to_a_t, std), z = inputs
        t = jnp.broadcast_to(t, shape[:-1])
        a_0 = unperturb(schedule, a_t, t, eps(a_t, t))
        if clip is not None:
            a_0 = jnp.clip(a_0, -clip, clip)
        return to_a_0 * a_0 + to_a_t * a_t + std * z, None

    z = streams.normal(key, (len(t) + 1, *shape))
    start = (schedule.end_std if start_std is None else start_std) * z[0]
    a_0, _ = jax.lax.scan(step, start, (jnp.asarray(t), coefficients, z[1:]))
    return a_0


def clipped_ddpm(schedule: NoiseSchedule, eps: Model, key: Array, shape: tuple[int, ...]) -> Array:
    """a_0 by steps of variance beta_t, each state clipped to the box: QSM's reverse process.

    It follows a model that is no noise, such as a scaled gradient, in small steps: nothing is
    denoised to a_0 on the way.
    """
    beta = np.asarray(schedule.beta)[::-1]
    at = schedule.alpha_bar[:0:-1]
    quiet = np.append(np.ones(schedule.T - 1), 0.0)  # the last step adds no noise
    rows = np.stack([beta / np.sqrt(1.0 - at), 1.0 / np.sqrt(1.0 - beta), quiet * np.sqrt(beta)], 1)

    def step(a_t: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        t, (drift, grow, std), z = inputs
        noise = eps(a_t, jnp.broadcast_to(t, shape[:-1]))
        return jnp.clip(grow * (a_t - drift * noise) + std * z, -1.0, 1.0), None

    z = streams.normal(key, (schedule.T + 1, *shape))
    times = jnp.arange(schedule.T, 0, -1)
    return jax.lax.scan(step, z[0], (times, jnp.asarray(rows, jnp.float32), z[1:]))[0]


def shrinking_langevin(
    score: Callable[[Array], Array], key: Array, shape: tuple[int, ...], steps: int
) -> Array:
    """Langevin steps delta from 1 towards 0 on one score, each state clipped to the box."""
    delta = jnp.asarray(1.0 - np.arange(steps) / steps, jnp.float32)

    def step(a: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        delta, z = inputs
        return jnp.clip(a + 0.5 * delta * score(a) + jnp.sqrt(delta) * z, -1.0, 1.0), None

    z = streams.normal(key, (steps + 1, *shape))
    return jax.lax.scan(step, z[0], (delta, z[1:]))[0]


def langevin(
    score: Callable[[Array], Array], start: Array, key: Array, step_size: float | Array, steps: int
) -> Array:
    """`steps` of x + step_size score(x) + sqrt(2 step_size) z from `start`, unadjusted."""

    def step(x: Array, key: Array) -> tuple[Array, None]:
        z = streams.normal(key, x.shape)
        return x + step_size * score(x) + jnp.sqrt(2.0 * step_size) * z, None

    return jax.lax.scan(step, start, jax.random.split(key, steps))[0]


def annealed_langevin(
    schedule: NoiseSchedule,
    eps: Model,
    key: Array,
    shape: tuple[int, ...],
    *,
    levels: int | None = None,
    steps: int = 10,
    step_size: float = 0.1,
) -> Array:
    """a_0 by `steps` of Langevin dynamics at each noise level, eq. (annealed_langevin).

    The step at level t is step_size (1 - alpha_bar_t): no narrower density is met there. `levels`
    < T visits a sub-grid of the noise levels. The last a_t is denoised.
    """

    def level(a_t: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        t, variance, key = inputs
        t = jnp.broadcast_to(t, shape[:-1])

        def score(a: Array) -> Array:
            return score_of_noise(schedule, eps(a, t), t)

        return langevin(score, a_t, key, step_size * variance, steps), None

    times = time_grid(schedule.T, levels)
    variance = jnp.asarray(1.0 - schedule.alpha_bar[times], jnp.float32)
    k_start, *keys = jax.random.split(key, len(times) + 1)
    start = schedule.end_std * streams.normal(k_start, shape)
    a_t, _ = jax.lax.scan(level, start, (jnp.asarray(times), variance, jnp.stack(keys)))
    last = jnp.broadcast_to(jnp.asarray(times[-1]), shape[:-1])
    return unperturb(schedule, a_t, last, eps(a_t, last))


def best_of(candidates: Array, q: Array) -> Array:
    """The candidate of highest value for each row, eq. (behavior_policy). [N, B, d] -> [B, d]"""
    best = jnp.argmax(q, axis=0)[None, :, None]
    return jnp.take_along_axis(candidates, best, axis=0)[0]
