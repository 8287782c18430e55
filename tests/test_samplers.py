"""The reverse process against the textbook, exact Gaussian arithmetic, and its box."""

from __future__ import annotations

from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescore.diffusion.process import noise_of_score
from rescore.diffusion.samplers import best_of, ddpm, time_grid
from rescore.diffusion.schedules import NoiseSchedule, cosine, linear, vp

MEAN, STD = np.array([0.3, -0.6]), np.array([0.5, 0.2])  # the target, a Gaussian
ROWS = 1 << 15
TOLERANCE = {20: 0.5, 150: 0.25}
KINDS = {
    "linear x0.8": partial(linear, scale=0.8),
    "linear x0.3": partial(linear, scale=0.3),
    "cosine": cosine,
    "vp": vp,
}


pytestmark = pytest.mark.usefixtures("strict")


def exact_eps(schedule: NoiseSchedule):
    """The model with the exact score of the perturbed Gaussian."""
    alpha_bar = jnp.asarray(schedule.alpha_bar, jnp.float32)

    def eps(a_t, t):
        ab = alpha_bar[t][:, None]
        mean, std = jnp.asarray(MEAN, jnp.float32)[None], jnp.asarray(STD, jnp.float32)[None]
        score = -(a_t - jnp.sqrt(ab) * mean) / (ab * std**2 + 1.0 - ab)
        return noise_of_score(schedule, score, t)

    return eps


@cache
def gaussian_samples(T: int) -> dict[str, np.ndarray]:
    """ROWS draws by every schedule; in one function, so that the noise is compiled once."""

    @jax.jit
    def draw(key):
        schedules = {name: kind(T) for name, kind in KINDS.items()}
        return {
            name: ddpm(schedule, exact_eps(schedule), key, (ROWS, 2), clip=None)
            for name, schedule in schedules.items()
        }

    return jax.tree.map(np.float64, draw(jax.random.key(1)))


def exact_moments(schedule: NoiseSchedule, std_is_variance: bool = False):
    """Mean and std of a_0 under the DDPM reverse process with the exact Gaussian score.

    Every step is affine in a_t, so the law stays Gaussian: textbook coefficients in float64.
    """
    alpha_bar = np.concatenate([[1.0], np.cumprod(1.0 - np.array(schedule.beta))])
    mean, var = np.zeros(2), np.full(2, 1.0 - alpha_bar[-1])
    for t in range(schedule.T, 0, -1):
        now, then, beta = alpha_bar[t], alpha_bar[t - 1], schedule.beta[t - 1]
        c_0 = beta * np.sqrt(then) / (1 - now)
        c_t = (1 - then) * np.sqrt(1 - beta) / (1 - now)
        posterior = beta * (1 - then) / (1 - now)
        # E[a_0 | a_t] of the target, which the exact score yields by Tweedie's formula.
        gain = np.sqrt(now) * STD**2 / (now * STD**2 + 1 - now)
        mean = c_0 * (MEAN + gain * (mean - np.sqrt(now) * MEAN)) + c_t * mean
        noise = posterior**2 if std_is_variance else posterior
        var = (c_0 * gain + c_t) ** 2 * var + noise
    return mean, np.sqrt(var)


@pytest.mark.parametrize("T", [20, 150])
@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_is_reproduced(kind, T):
    """Sample moments equal the exact ones of the discrete process, and approach the target."""
    a_0 = gaussian_samples(T)[kind]
    mean, std = exact_moments(KINDS[kind](T))
    assert np.all(np.abs(a_0.mean(0) - mean) < 4 * std / np.sqrt(ROWS))
    assert np.all(np.abs(a_0.std(0) / std - 1) < 4 / np.sqrt(2 * ROWS))
    assert abs(np.corrcoef(a_0.T)[0, 1]) < 4 / np.sqrt(ROWS)
    # What remains is the error of finitely many steps, TOLERANCE of the target's std.
    np.testing.assert_allclose(a_0.mean(0), MEAN, atol=0.01)
    np.testing.assert_allclose(a_0.std(0), STD, rtol=TOLERANCE[T])


@pytest.mark.parametrize("T", [20, 150])
@pytest.mark.parametrize("kind", KINDS)
def test_erratum_of_the_reverse_noise(kind, T):
    """The printed sigma_t is a variance; as a standard deviation it fails the test above."""
    _, wrong = exact_moments(KINDS[kind](T), std_is_variance=True)
    assert np.all(np.abs(wrong / STD - 1) > TOLERANCE[T])


@pytest.mark.parametrize("kind", KINDS)
def test_error_shrinks_with_more_steps(kind):
    """A check of the oracle itself: first order in 1 / T."""
    error = [np.abs(exact_moments(KINDS[kind](T))[1] / STD - 1).max() for T in (100, 400, 1600)]
    assert error[0] > 1.5 * error[1] > 2.25 * error[2] and error[2] < 0.1


SHAPE = (3, 4, 2)
T10 = {"linear": linear(10, 0.8), "cosine": cosine(10), "vp": vp(10)}
CASES = {
    "all steps": (cosine(10), {"steps": 10}),
    "one start": (cosine(10), {"eta": 0.0, "start_std": 0.0, "clip": None}),
}
for name, clip in product(T10, (1.0, 0.5, None)):
    CASES["ddpm", name, clip] = (T10[name], {"clip": clip})
for steps, eta in product((1, 7), (0.0, 0.6)):
    options = {"steps": steps, "eta": eta, "start_std": 0.5, "clip": None}
    CASES["ddim", steps, eta] = (cosine(20), options)


def some_network(a_t, t, np=np):
    return 1.5 * np.tanh(2.0 * a_t - 0.3) + 0.02 * t


@jax.jit
def run(key):
    """All cases, and the standard normals that `ddpm` uses: those of a_T, then one per step."""

    def eps(a_t, t):
        return some_network(a_t, t[..., None].astype(jnp.float32), jnp)

    normals = {n: jax.random.normal(key, (n + 1, *SHAPE)) for n in (1, 7, 10)}
    samples = [ddpm(schedule, eps, key, SHAPE, **kwargs) for schedule, kwargs in CASES.values()]
    return samples, normals


@cache
def results(seed: int = 0):
    samples, normals = jax.tree.map(np.float64, run(jax.random.key(seed)))
    return dict(zip(CASES, samples)), normals


@pytest.mark.parametrize("clip", [1.0, 0.5, None])
@pytest.mark.parametrize("name", T10)
def test_textbook_ddpm(name, clip):
    """q(a_{t-1} | a_t, a_0) of Ho et al., eq. (7), with the denoised a_0 in place of a_0."""
    samples, normals = results()
    beta, z = np.array(T10[name].beta), normals[10]
    a = np.sqrt(1 - np.prod(1 - beta)) * z[0]
    for k, t in enumerate(range(10, 0, -1)):
        now, then = np.prod(1 - beta[:t]), np.prod(1 - beta[: t - 1])
        a_0 = (a - np.sqrt(1 - now) * some_network(a, t)) / np.sqrt(now)
        a_0 = a_0 if clip is None else np.clip(a_0, -clip, clip)
        mean = np.sqrt(then) * beta[t - 1] / (1 - now) * a_0
        mean += np.sqrt(1 - beta[t - 1]) * (1 - then) / (1 - now) * a
        a = mean + np.sqrt((1 - then) / (1 - now) * beta[t - 1]) * z[k + 1]
    np.testing.assert_allclose(samples["ddpm", name, clip], a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("eta", [0.0, 0.6])
@pytest.mark.parametrize("steps", [1, 7])
def test_textbook_ddim_on_a_sub_grid(steps, eta):
    """Song et al., eq. (12) and (16), from a start of standard deviation 0.5."""
    samples, normals = results()
    alpha_bar, z = np.cumprod(1 - np.array(cosine(20).beta)), normals[steps]
    t = {1: [20], 7: [20, 17, 14, 10, 7, 4, 1]}[steps]
    a = 0.5 * z[0]
    for k, now in enumerate(t):
        at = alpha_bar[now - 1]
        to = alpha_bar[t[k + 1] - 1] if k + 1 < steps else 1.0
        eps = some_network(a, now)
        a_0 = (a - np.sqrt(1 - at) * eps) / np.sqrt(at)
        sigma = eta * np.sqrt((1 - to) / (1 - at)) * np.sqrt(1 - at / to)
        a = np.sqrt(to) * a_0 + np.sqrt(1 - to - sigma**2) * eps + sigma * z[k + 1]
    np.testing.assert_allclose(samples["ddim", steps, eta], a, rtol=1e-4, atol=1e-4)


def test_all_steps_and_the_unit_box_are_the_defaults():
    samples, _ = results()
    np.testing.assert_array_equal(samples["all steps"], samples["ddpm", "cosine", 1.0])


def test_without_noise_the_start_decides():
    """From one start (std 0) eta = 0 leads to one end, whatever the key."""
    (one, _), (other, _) = results(0), results(1)
    assert np.ptp(one["one start"]) == 0.0 and np.any(one["one start"] != 0.0)
    np.testing.assert_array_equal(one["one start"], other["one start"])


def test_same_key_same_bits():
    (one, _), (other, _) = results(0), results(1)
    again, _ = run(jax.random.key(0))
    np.testing.assert_array_equal(list(one.values()), again)
    for case in CASES.keys() - {"one start"}:
        assert np.mean(one[case] == other[case]) < 0.9
    free = one["ddpm", "cosine", None]
    assert len(np.unique(free)) == free.size  # rows and candidates have their own noise


@given(st.integers(1, 300), st.data())
def test_time_grid(T, data):
    np.testing.assert_array_equal(time_grid(T, None), range(T, 0, -1))
    np.testing.assert_array_equal(time_grid(T, T), range(T, 0, -1))
    assert list(time_grid(T, 1)) == [T]
    if T > 1:
        steps = data.draw(st.integers(2, T))
        grid = time_grid(T, steps)
        assert len(grid) == steps and grid[0] == T and grid[-1] == 1
        assert np.all(np.diff(grid) < 0)
        assert np.ptp(np.diff(grid)) <= 1  # as even as integers can be


BOXED = [(linear(10), None), (cosine(10), None), (vp(10), None), (vp(10), 3), (linear(100), 3)]


@jax.jit
def sample_random_network(key, weight, scale):
    """A network with whatever parameters, on three-dimensional actions, by every BOXED process."""

    def eps(a_t, t):
        inputs = jnp.concatenate([a_t, t[:, None].astype(jnp.float32)], axis=1)
        return scale * jnp.tanh(inputs @ weight)

    return [ddpm(schedule, eps, key, (16, 3), steps=n, clip=1.0) for schedule, n in BOXED]


@given(st.integers(0, 2**31 - 1), st.sampled_from([0.0, 1.0, 1e3, 1e10]))
def test_clipped_samples_lie_in_the_box(seed, scale):
    weight = np.random.default_rng(seed).normal(size=(4, 3))
    for a_0 in sample_random_network(jax.random.key(seed), np.float32(weight), np.float32(scale)):
        assert np.all(np.abs(a_0) <= 1.0)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_best_of_takes_the_highest_of_each_row(n):
    rng = np.random.default_rng(n)
    candidates, q = rng.normal(size=(n, 5, 3)), rng.normal(size=(n, 5))
    expected = [candidates[np.argmax(q[:, b]), b] for b in range(5)]
    got = jax.jit(best_of)(np.float32(candidates), np.float32(q))
    assert got.shape == (5, 3)
    np.testing.assert_array_equal(got, np.float32(expected))


def test_best_of_by_hand():
    candidates = jnp.arange(12.0).reshape(3, 2, 2)
    q = jnp.array([[0.0, 5.0], [2.0, -1.0], [1.0, 4.9]])
    np.testing.assert_array_equal(best_of(candidates, q), [[4.0, 5.0], [2.0, 3.0]])
