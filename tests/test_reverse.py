"""Reverse sampling against densities, scipy, quadrature and closed forms."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, truncnorm

from rescore.diffusion.matching import score_matching
from rescore.diffusion.process import noise_of_velocity, perturb
from rescore.diffusion.reverse import (
    dem_target,
    mean_noise,
    reference_samples,
    reverse_samples,
    rsm_target,
    truncated_normal,
)
from rescore.diffusion.schedules import cosine, geometric, linear, vp

pytestmark = pytest.mark.usefixtures("strict")

SCHEDULES = {"linear": linear(20, 0.8), "cosine": cosine(20), "vp": vp(20), "geo": geometric(20)}
MEAN, COV = np.array([0.5, -0.4]), np.array([[0.5, -0.2], [-0.2, 0.3]])  # p_0, a Gaussian
reversed_ = jax.jit(reverse_samples, static_argnums=(0, 4, 5))
referred = jax.jit(reference_samples, static_argnums=(0, 4, 5))
TARGETS = {
    "rsm": jax.jit(rsm_target, static_argnums=(0, 1, 5, 6)),
    "dem": jax.jit(dem_target, static_argnums=(0, 1, 5, 6)),
}
truncated = jax.jit(truncated_normal)
SOMEWHERE = np.float32([[0.9, 0.1], [-1.5, 0.4], [0.0, 1.2], [0.3, -0.6]])


def log_gaussian(x):
    """log p_0, with a constant that must not matter."""
    centred = x - jnp.broadcast_to(jnp.asarray(MEAN, x.dtype), x.shape)
    precision = jnp.asarray(np.linalg.inv(COV), x.dtype)
    return 3.0 - 0.5 * jnp.sum((centred @ precision) * centred, axis=-1)


def exact_noise(schedule, a_t, t, mean=MEAN, cov=COV):
    """-std grad log p_t(a_t) for p_t = N(sqrt(ab) mean, ab cov + (1 - ab) I)."""
    ab = schedule.alpha_bar[t]
    total = ab * cov + (1 - ab) * np.eye(len(mean))
    return math.sqrt(1 - ab) * np.linalg.solve(total, (a_t - math.sqrt(ab) * mean).T).T


@pytest.mark.parametrize("name", SCHEDULES)
def test_identity_of_phi_and_q(name):
    """q_{t|0}(a_t | a_0) = alpha_bar_t^(-d/2) phi_{0|t}(a_0 | a_t), in d = 2."""
    rng = np.random.default_rng(0)
    for t in (1, 5, 12):
        ab = SCHEDULES[name].alpha_bar[t]
        for a_0, z in rng.normal(size=(5, 2, 2)):
            a_t = math.sqrt(ab) * a_0 + math.sqrt(1 - ab) * z
            q = multivariate_normal.pdf(a_t, math.sqrt(ab) * a_0, 1 - ab)
            phi = multivariate_normal.pdf(a_0, a_t / math.sqrt(ab), (1 - ab) / ab)
            assert q / phi == pytest.approx(ab ** (-2 / 2), rel=1e-6)
            if 1 - ab > 0.02:  # with the printed +d/2 it does not hold
                assert q / phi != pytest.approx(ab ** (2 / 2), rel=1e-3)


def test_erratum_of_the_exponent():
    """phi integrates to 1 with a_t - sqrt(alpha_bar) a_0 in the exponent, not with alpha_bar."""
    ab, a_t = SCHEDULES["cosine"].alpha_bar[8], 0.7
    a_0 = np.linspace(-40, 40, 200_001)
    front = (2 * np.pi * (1 - ab) / ab) ** -0.5
    mass = [
        np.trapezoid(front * np.exp(-((a_t - c * a_0) ** 2) / (2 * (1 - ab))), a_0)
        for c in (math.sqrt(ab), ab)
    ]
    assert mass[0] == pytest.approx(1.0, rel=1e-6)
    assert abs(mass[1] - 1.0) > 0.1


@pytest.mark.parametrize("box", [None, 1.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_reverse_samples_have_the_law_of_phi(name, box, key):
    """Moments of phi, or of scipy's truncation of it; their noise leads back to a_t."""
    schedule, t, n = SCHEDULES[name], 9, 20_000
    a_t = np.float32([[0.4, -0.9]])
    a_0, noise = reversed_(schedule, a_t, np.array([t]), key, n, box)
    again = perturb(schedule, a_0, jnp.full((n, 1), t), noise)
    np.testing.assert_allclose(again, np.broadcast_to(a_t, again.shape), atol=2e-4)
    ab = schedule.alpha_bar[t]
    centre, std = a_t[0] / math.sqrt(ab), math.sqrt((1 - ab) / ab)
    for axis in range(2):
        law = norm(centre[axis], std)
        if box is not None:
            low, high = (-box - centre[axis]) / std, (box - centre[axis]) / std
            law = truncnorm(low, high, centre[axis], std)
        drawn = np.float64(a_0[:, 0, axis])
        assert drawn.mean() == pytest.approx(law.mean(), abs=5 * law.std() / math.sqrt(n))
        assert drawn.std() == pytest.approx(law.std(), rel=0.03)


INTERVALS = [(-1, 1), (-0.5, 4), (2, 3), (8, 9), (12, 13), (30, 30.5), (5, 100), (100, 300)]


@pytest.mark.parametrize("low, high", [*INTERVALS, *((-b, -a) for a, b in INTERVALS[1:])])
def test_truncated_normal_is_scipys(low, high):
    """A symmetric grid of u gives its quantiles in some order, in the far tails too."""
    u = np.linspace(0.01, 0.99, 99)
    ours = np.sort(truncated(np.float32(u), np.float32(low), np.float32(high)))
    # Beyond 10 deviations the tail is replaced by one that inverts: off by 1 / x^2 of its length.
    nearest = min(abs(low), abs(high)) if low * high > 0 else 1.0
    error = np.abs(ours - truncnorm.ppf(u, low, high))
    assert error.max() < (0.05 / nearest if nearest > 10 else 1e-5) + 1e-6 * nearest
    ends = truncated(np.float32([0, 1 - 6e-8]), np.float32(low), np.float32(high))
    assert np.all(np.isfinite(ends)) and np.all((ends >= low - 1e-5) & (ends <= high + 1e-5))


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_nan_in_17_dimensions_at_the_last_step(name, key):
    """Where phi is up to hundreds wide, and from an a_t that is far out."""
    schedule, far = SCHEDULES[name], np.float32(3.0)
    a_t = far * jax.random.normal(key, (64, 17))
    for t in (1, schedule.T):
        a_0, noise = reversed_(schedule, a_t, jnp.full(64, t), key, 32)
        assert np.all(np.isfinite(a_0)) and np.all(np.isfinite(noise))
        assert np.all(np.abs(a_0) <= 1.0)
        target, weight = mean_noise(-50.0 * jnp.sum(jnp.square(a_0), axis=-1), noise)
        assert np.all(np.isfinite(target)) and np.allclose(weight.sum(axis=0), 1.0, atol=1e-5)


def test_mean_target_has_the_gradient_of_k_rows():
    """In float64, through a network that is not linear."""
    rng = np.random.default_rng(0)
    a_t, t = rng.normal(size=(6, 2)), np.arange(1, 7)
    log_weight, noise = 3 * rng.normal(size=(5, 6)), rng.normal(size=(5, 6, 2))
    with jax.enable_x64(True):
        params = jnp.asarray(rng.normal(size=(2, 2)))

        def eps(params):
            return lambda a_t, t: jnp.tanh(a_t @ params) + 0.1 * t[..., None].astype(a_t.dtype)

        def one_row(params):
            target, _ = mean_noise(jnp.asarray(log_weight), jnp.asarray(noise))
            return score_matching(eps(params), jnp.asarray(a_t), t, target, jnp.ones(6))[0]

        def k_rows(params):
            weight = 5 * jax.nn.softmax(jnp.asarray(log_weight), axis=0)  # of mean 1
            rows = jnp.broadcast_to(jnp.asarray(a_t), noise.shape)
            times = jnp.broadcast_to(jnp.asarray(t), (5, 6))
            return score_matching(eps(params), rows, times, jnp.asarray(noise), weight)[0]

        one, many = jax.grad(one_row)(params), jax.grad(k_rows)(params)
    np.testing.assert_allclose(one, many, rtol=1e-12)


def test_bias_of_self_normalisation_falls_as_one_over_k(key):
    """Doubling K halves the distance of the expected target from the exact one."""
    schedule, t, rows = geometric(2, 0.7, 1.4), 1, 1 << 17
    a_t = np.float32([[0.8]])

    @jax.jit
    def expected(keys):
        def one(k, key):
            target, _ = rsm_target(
                schedule,
                lambda a: -0.5 * jnp.sum(jnp.square((a - 0.3) / 0.5), axis=-1),
                jnp.broadcast_to(a_t, (rows, 1)),
                jnp.full(rows, t),
                key,
                k,
                None,
            )
            return jnp.mean(target)

        return jnp.stack([one(k, key) for k, key in zip((8, 16, 32), keys)])

    exact = exact_noise(schedule, a_t, t, np.array([0.3]), np.array([[0.25]]))[0, 0]
    bias = np.float64(expected(jax.random.split(key, 3))) - exact
    assert abs(bias[0]) > 0.01
    assert bias[0] / bias[1] == pytest.approx(2.0, abs=0.4)
    assert bias[1] / bias[2] == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("method", ["rsm", "dem", "reference"])
def test_targets_are_the_noise_of_the_perturbed_score(name, method, key):
    """For a Gaussian p_0, with many draws, at any a_t: what every minimiser must be."""
    schedule, k = SCHEDULES[name], 20_000
    ratio = np.sqrt(1 / schedule.alpha_bar - 1)
    for wide in (0.2, 0.5, 1.0):  # of phi; energy matching has much variance where it is wider
        t = int(np.argmin(np.abs(ratio - wide)))
        times = np.full(len(SOMEWHERE), t)
        if method == "reference":
            a_0, noise = referred(schedule, SOMEWHERE, times, key, k, 1.5)
            again = perturb(schedule, a_0, jnp.broadcast_to(jnp.asarray(t), a_0.shape[:-1]), noise)
            np.testing.assert_allclose(again[:100], np.tile(SOMEWHERE, (100, 1, 1)), atol=1e-4)
            log_reference = -0.5 * jnp.sum(jnp.square(a_0 / 1.5), axis=-1)
            target, _ = mean_noise(log_gaussian(a_0) - log_reference, noise)
        else:
            target, _ = TARGETS[method](schedule, log_gaussian, SOMEWHERE, times, key, k, None)
        np.testing.assert_allclose(target, exact_noise(schedule, SOMEWHERE, t), atol=0.1)


def test_reference_samples_of_the_reference_itself_have_no_error(key):
    """If p_0 is the reference, pairs of opposite noise give the score exactly, with K = 2."""
    schedule, t = SCHEDULES["geo"], np.array([1, 7, 14, 20])
    _, noise = referred(schedule, SOMEWHERE, t, key, 2, 0.8)
    target, _ = mean_noise(jnp.zeros((2, 4)), noise)
    for row, (a_t, level) in enumerate(zip(SOMEWHERE, t)):
        exact = exact_noise(schedule, a_t[None], level, np.zeros(2), 0.64 * np.eye(2))[0]
        np.testing.assert_allclose(target[row], exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("proposal", [1.0, 2.0])
def test_minimiser_of_the_literal_loss(proposal):
    """Weights p_0(a_0) over a_t ~ N(0, proposal^2) and phi: by quadrature, in one dimension."""
    schedule, t, (mean, std) = SCHEDULES["cosine"], 8, (0.4, 0.6)
    ab = schedule.alpha_bar[t]
    nodes, mass = np.polynomial.hermite_e.hermegauss(80)
    a_t, noise = np.meshgrid(proposal * nodes, nodes, indexing="ij")
    a_0 = (a_t - math.sqrt(1 - ab) * noise) / math.sqrt(ab)
    weight = np.outer(mass, mass) * norm.pdf(a_0, mean, std)
    with jax.enable_x64(True):
        rows = jnp.asarray(a_t.reshape(-1, 1))
        target, weight = jnp.asarray(noise.reshape(-1, 1)), jnp.asarray(weight.ravel())

        def loss(line):
            def eps(a, t):
                return line[0] * a + line[1]

            return score_matching(eps, rows, jnp.full(len(rows), t), target, weight)[0]

        start = jnp.zeros(2)
        slope, offset = -np.linalg.solve(jax.hessian(loss)(start), jax.grad(loss)(start))
    var = ab * std**2 + 1 - ab
    assert slope == pytest.approx(math.sqrt(1 - ab) / var, rel=1e-6)
    assert offset == pytest.approx(-math.sqrt(1 - ab) * math.sqrt(ab) * mean / var, rel=1e-6)


def test_literal_weights_vanish_with_the_noise(key):
    """E_phi[p_0] = alpha_bar_t^(d/2) p_t(a_t): why the literal loss neglects large t."""
    schedule = SCHEDULES["cosine"]
    for t in (3, 12, 18):
        ab = schedule.alpha_bar[t]
        a_0, _ = reversed_(schedule, SOMEWHERE, np.full(4, t), key, 200_000, None)
        mean = jnp.mean(jnp.exp(log_gaussian(a_0) - 3.0), axis=0)
        mean = np.float64(mean) / (2 * np.pi * math.sqrt(np.linalg.det(COV)))
        p_t = multivariate_normal(math.sqrt(ab) * MEAN, ab * COV + (1 - ab) * np.eye(2))
        np.testing.assert_allclose(mean, ab * p_t.pdf(SOMEWHERE), rtol=0.1)


def test_velocity_of_the_standard_normal_is_zero():
    """Its score is -a_t, so its noise is sqrt(1 - alpha_bar) a_t; and v inverts by definition."""
    schedule, t = SCHEDULES["vp"], np.array([1, 6, 13, 20])
    ab = schedule.alpha_bar[t][:, None]
    got = noise_of_velocity(schedule, jnp.zeros((4, 2)), SOMEWHERE, t)
    np.testing.assert_allclose(got, np.sqrt(1 - ab) * SOMEWHERE, rtol=1e-5)
    a_0, noise = np.float32(np.random.default_rng(1).normal(size=(2, 4, 2)))
    velocity = np.float32(np.sqrt(ab) * noise - np.sqrt(1 - ab) * a_0)
    got = noise_of_velocity(schedule, velocity, perturb(schedule, a_0, t, noise), t)
    np.testing.assert_allclose(got, noise, atol=1e-5)
