"""The two Gaussian kernels, q_{t|0} and phi_{0|t}, and the noise <-> score map."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rescore.diffusion import process
from rescore.diffusion.schedules import SCHEDULES, NoiseSchedule, cosine, linear, vp

pytestmark = pytest.mark.usefixtures("strict")

# One compilation each per schedule and shape, instead of one per primitive.
signal_and_noise, perturb, unperturb, score_of_noise, noise_of_score = (
    jax.jit(function, static_argnums=0)
    for function in (
        process.signal_and_noise,
        process.perturb,
        process.unperturb,
        process.score_of_noise,
        process.noise_of_score,
    )
)

ALL = [linear(20, 0.8), cosine(20), vp(20)]
# alpha_bar = 1, 0.9, 0.72, 0.36: easy to carry by hand.
HAND = NoiseSchedule((0.1, 0.2, 0.5))
finite = st.floats(-3.0, 3.0, width=32)


def hermite(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights with sum w f(x) = E f(z) for polynomials of degree < 2n, z ~ N(0, 1)."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weight / weight.sum()


def float32(x) -> np.ndarray:
    return np.asarray(x, np.float32)


def test_coefficients_by_hand():
    t = np.array([[0, 1], [2, 3]])
    signal, noise = signal_and_noise(HAND, t)
    assert signal.shape == noise.shape == (2, 2, 1) and signal.dtype == jnp.float32
    np.testing.assert_allclose(signal[..., 0] ** 2, [[1.0, 0.9], [0.72, 0.36]], rtol=1e-6)
    np.testing.assert_allclose(noise[..., 0] ** 2, [[0.0, 0.1], [0.28, 0.64]], rtol=1e-6)


def test_perturb_and_unperturb_by_hand():
    a_0, noise, t = float32([[1.0, -0.5]]), float32([[2.0, 1.0]]), np.array([3])
    a_t = float32([[0.6 + 1.6, -0.3 + 0.8]])
    np.testing.assert_allclose(perturb(HAND, a_0, t, noise), a_t, rtol=1e-6)
    np.testing.assert_allclose(unperturb(HAND, a_t, t, noise), a_0, rtol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
@given(t=st.integers(1, 20), a_0=st.lists(finite, min_size=3, max_size=3), z=finite)
def test_unperturb_inverts_perturb(name, t, a_0, z):
    schedule = SCHEDULES[name](20)
    signal = schedule.alpha_bar[t] ** 0.5
    a_0, noise, t = float32([a_0]), np.full((1, 3), z, np.float32), np.array([t])
    back = unperturb(schedule, perturb(schedule, a_0, t, noise), t, noise)
    # Rounding of a_t in float32, magnified by the division by sqrt(alpha_bar_t).
    assert np.max(np.abs(back - a_0)) <= 4 * np.finfo(np.float32).eps * (3 + 3 / signal)


@pytest.mark.parametrize("schedule", ALL)
def test_moments_of_both_kernels(schedule):
    """perturb draws from N(sqrt(ab) a_0, 1 - ab); unperturb from N(a_t / sqrt(ab), 1 / ab - 1)."""
    nodes, weight = hermite(3)
    t = np.repeat(np.arange(1, 21)[:, None], 3, axis=1)
    noise = np.broadcast_to(float32(nodes)[None, :, None], (20, 3, 1))
    here = np.full((20, 3, 1), 0.7, np.float32)
    alpha_bar = np.cumprod([1.0 - beta for beta in schedule.beta])
    for draw, mean, var in (
        (perturb, 0.7 * np.sqrt(alpha_bar), 1 - alpha_bar),
        (unperturb, 0.7 / np.sqrt(alpha_bar), 1 / alpha_bar - 1),
    ):
        x = np.asarray(draw(schedule, here, t, noise), np.float64)[..., 0]  # [T, nodes]
        np.testing.assert_allclose(x @ weight, mean, rtol=1e-5)
        np.testing.assert_allclose((x - mean[:, None]) ** 2 @ weight, var, rtol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 6])
@pytest.mark.parametrize("t", [1, 2, 3])
def test_q_is_phi_times_alpha_bar_to_minus_d_half(d, t):
    """q_{t|0}(a_t | a_0) = alpha_bar_t^(-d/2) phi_{0|t}(a_0 | a_t), errata 3 and 4.

    Both densities come from the code by change of variables from standard noise, and are held
    against SciPy's.
    """
    alpha_bar = [1.0, 0.9, 0.72, 0.36][t]
    rng = np.random.default_rng(d)
    a_0, noise = float32(rng.normal(size=d)), float32(rng.normal(size=d))
    time = np.array(t)
    a_t = perturb(HAND, a_0, time, noise)

    def log_density(draw):
        """log of N(noise; 0, I) over the volume that `draw` stretches noise to."""
        stretch = np.linalg.slogdet(jax.jacfwd(draw)(noise))[1]
        return norm.logpdf(noise).sum() - stretch

    log_q = log_density(lambda z: perturb(HAND, a_0, time, z))
    log_phi = log_density(lambda z: unperturb(HAND, a_t, time, z))
    a_0, a_t = np.float64(a_0), np.float64(a_t)
    var = 1 - alpha_bar
    assert log_q == pytest.approx(
        norm.logpdf(a_t, np.sqrt(alpha_bar) * a_0, np.sqrt(var)).sum(), abs=1e-4
    )
    assert log_phi == pytest.approx(
        norm.logpdf(a_0, a_t / np.sqrt(alpha_bar), np.sqrt(var / alpha_bar)).sum(), abs=1e-4
    )
    assert log_q - log_phi == pytest.approx(-d / 2 * np.log(alpha_bar), abs=1e-4)
    # As printed, with alpha_bar a_0 in the exponent, the density is another one.
    printed = norm.logpdf(a_t, alpha_bar * a_0, np.sqrt(var)).sum()
    assert abs(log_q - printed) > 1e-3


@pytest.mark.parametrize("t", [1, 2, 3])
def test_reverse_sampling_trick(t):
    """E_{p_0, q}[h l] = alpha_bar^(-1/2) E_{h, phi}[p_0 l] in one dimension, by quadrature."""
    nodes, weight = hermite(40)
    m, s, h_std = 0.3, 0.8, 1.5

    def function(a_t, a_0):
        return np.cos(a_t) + a_0 * a_t + 2.0

    x, z = (float32(g).reshape(-1, 1) for g in np.meshgrid(nodes, nodes))
    w = np.outer(weight, weight).ravel()
    time = np.full(len(w), t)
    # Forwards: a_0 from the data, a_t from q.
    a_0 = m + s * x
    a_t = perturb(HAND, a_0, time, z)
    forwards = w @ np.ravel(norm.pdf(a_t, 0, h_std) * function(np.asarray(a_t), a_0))
    # Backwards: a_t from h, a_0 from phi.
    a_t = h_std * x
    a_0 = unperturb(HAND, a_t, time, z)
    backwards = w @ np.ravel(norm.pdf(a_0, m, s) * function(a_t, np.asarray(a_0)))
    assert forwards == pytest.approx(HAND.alpha_bar[t] ** -0.5 * backwards, rel=1e-4)


@pytest.mark.parametrize("t", [1, 2, 3])
def test_score_is_the_gradient_of_either_log_density(t):
    """Eq. (score_match): over a_t, log q_{t|0}(a_t | a_0) and log phi_{0|t}(a_0 | a_t) agree."""
    alpha_bar = HAND.alpha_bar[t]
    a_0, noise = float32([0.4, -1.2, 0.0]), float32([0.3, -2.0, 1.0])
    time = np.array(t)
    a_t = perturb(HAND, a_0, time, noise)
    std, signal = float(np.sqrt(1 - alpha_bar)), float(np.sqrt(alpha_bar))

    @jax.jit
    def gradients(a_t):
        logpdf = jax.scipy.stats.norm.logpdf
        of_q = jax.grad(lambda x: jnp.sum(logpdf(x, signal * a_0, std)))
        of_phi = jax.grad(lambda x: jnp.sum(logpdf(a_0, x / signal, std / signal)))
        return of_q(a_t), of_phi(a_t)

    of_q, of_phi = gradients(a_t)
    score = score_of_noise(HAND, noise, time)
    np.testing.assert_allclose(score, of_q, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(score, of_phi, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(score, -noise / std, rtol=1e-5)


@pytest.mark.parametrize("schedule", ALL)
def test_noise_and_score_are_inverse(schedule, key):
    noise = jax.random.normal(key, (20, 3))
    t = np.arange(1, 21)
    back = noise_of_score(schedule, score_of_noise(schedule, noise, t), t)
    np.testing.assert_allclose(back, noise, rtol=1e-5)
