"""Reweighted score matching: the loss, what it is minimised by, and its weights."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from rescore.diffusion.matching import (
    effective_sample_size,
    kl_to_uniform,
    score_matching,
    weight_metrics,
)
from rescore.diffusion.process import noise_of_score, perturb
from rescore.diffusion.schedules import cosine, linear, vp

pytestmark = pytest.mark.usefixtures("strict")

SCHEDULES = [linear(20, 0.8), cosine(20), vp(20)]

size_of = jax.jit(effective_sample_size, static_argnums=1)
kl_of = jax.jit(kl_to_uniform, static_argnums=1)
perturbed = jax.jit(perturb, static_argnums=0)
noise_for = jax.jit(noise_of_score, static_argnums=0)


def gauss(n: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [n^dims, dims] and weights [n^dims] with sum w f(x) = E f(z), z ~ N(0, I)."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(n)
    grid = np.stack(np.meshgrid(*[nodes] * dims, indexing="ij"), axis=-1).reshape(-1, dims)
    product = np.prod(np.stack(np.meshgrid(*[weight] * dims, indexing="ij")), axis=0).ravel()
    return grid, product / product.sum()


def test_loss_against_numpy():
    rng = np.random.default_rng(0)
    a_t, target = rng.normal(size=(2, 4, 5, 3)).astype(np.float32)
    weight = rng.uniform(0, 2, (4, 5)).astype(np.float32)
    t = rng.integers(1, 8, (4, 5))

    @jax.jit
    def matching(a_t, t, target, weight):
        def eps(a_t, t):
            return 0.5 * a_t + 0.1 * t[..., None].astype(jnp.float32)

        return score_matching(eps, a_t, t, target, weight)

    expected = 0.0
    for k, b in np.ndindex(4, 5):
        residual = 0.5 * a_t[k, b] + 0.1 * t[k, b] - target[k, b]
        expected += weight[k, b] * sum(residual**2) / 20
    loss, metrics = matching(a_t, t, target, weight)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert metrics == {"policy_loss": loss}


def test_loss_by_hand():
    """Rows 1 * (1 + 4) and 3 * (0 + 1): the sum over the action, the mean over rows."""
    target = jnp.array([[1.0, 2.0], [0.0, -1.0]])
    loss, _ = score_matching(
        lambda a_t, t: jnp.zeros_like(a_t), target, jnp.array([1, 1]), target, jnp.array([1.0, 3.0])
    )
    assert float(loss) == 4.0


@jax.jit
def quadratic(a_t, noise, weight):
    """Hessian and gradient at zero of the loss over (A, b) of the model eps = A a_t + b."""
    d = a_t.shape[-1]

    def loss(params):
        A, b = params[: d * d].reshape(d, d), params[d * d :]
        t = jnp.ones(len(a_t), int)
        return score_matching(lambda a, _: a @ A.T + b[None], a_t, t, noise, weight)[0]

    start = jnp.zeros(d * d + d, a_t.dtype)
    return jax.hessian(loss)(start), jax.grad(loss)(start)


def least_squares(a_t, noise, weight):
    """The (A, b) that minimises the loss: one Newton step is exact."""
    d = a_t.shape[-1]
    params = -np.linalg.solve(*(np.float64(x) for x in quadratic(a_t, noise, weight)))
    return params[: d * d].reshape(d, d), params[d * d :]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_minimiser_is_the_perturbed_score(schedule):
    """Prop. 1: for p_0 = N(m, C) the minimiser is the noise of the score of
    p_t = N(sqrt(ab) m, ab C + (1 - ab) I); the quadrature of a quadratic loss is exact."""
    m = np.array([0.5, -0.3])
    root = np.array([[0.6, 0.0], [-0.4, 0.3]])
    z, w = gauss(3, 4)
    a_0, noise = np.float32(m + z[:, :2] @ root.T), np.float32(z[:, 2:])
    for t in (1, 4, 10):
        a_t = perturbed(schedule, a_0, np.full(len(w), t), noise)
        A, b = least_squares(a_t, noise, np.float32(len(w) * w))

        alpha_bar = schedule.alpha_bar[t]
        cov = alpha_bar * root @ root.T + (1 - alpha_bar) * np.eye(2)
        somewhere = np.array([[0.9, 0.1], [-1.5, 0.4], [0.0, 2.0]])
        score = -np.linalg.solve(cov, (somewhere - np.sqrt(alpha_bar) * m).T).T
        expected = noise_for(schedule, np.float32(score), np.full(3, t))
        np.testing.assert_allclose(somewhere @ A.T + b, expected, rtol=1e-3, atol=1e-4)


# pi_old = N(OLD) and Q(a) / lam = 0.5 - K (a - C)^2 / 2, so that pi_old exp(Q / lam) / Z is
# the Gaussian N(TILTED) and Z has a closed form.
OLD, K, C = (-0.2, 0.7), 3.0, 0.8
PRECISION = 1 / OLD[1] ** 2 + K
TILTED = ((OLD[0] / OLD[1] ** 2 + K * C) / PRECISION, PRECISION**-0.5)
Z = math.exp(0.5 - 0.5 * (C - OLD[0]) ** 2 / (OLD[1] ** 2 + 1 / K)) * TILTED[1] / OLD[1]


def log_weight(a_0):
    return 0.5 - 0.5 * K * (a_0 - C) ** 2


def gradient(schedule, t, density, log_weight):
    """Gradient of the loss over the parameters of a small network, by quadrature in float64."""
    x, w = gauss(60, 2)
    a_0, noise = density[0] + density[1] * x[:, :1], x[:, 1:]
    alpha_bar = schedule.alpha_bar[t]
    a_t = np.sqrt(alpha_bar) * a_0 + np.sqrt(1 - alpha_bar) * noise
    weight = len(w) * w * np.exp(log_weight(a_0[:, 0]))
    rng = np.random.default_rng(t)
    params = rng.normal(size=(4, 5))
    with jax.enable_x64(True):
        return np.asarray(network_gradient(params, a_t, np.full(len(w), t), noise, weight))


@jax.jit
def network_gradient(params, a_t, t, noise, weight):
    def loss(params):
        def eps(a_t, t):
            hidden = jnp.tanh(a_t * params[:1] + params[1:2] + 0.1 * t[:, None] * params[2:3])
            return hidden @ params[3][:, None]

        return score_matching(eps, a_t, t.astype(a_t.dtype), noise, weight)[0]

    return jax.grad(loss)(params)


def test_tilted_gaussian():
    """The closed form above, by quadrature."""
    x, w = gauss(60, 1)
    a = OLD[0] + OLD[1] * x[:, 0]
    mass = w * np.exp(log_weight(a))
    assert mass.sum() == pytest.approx(Z, rel=1e-8)
    assert mass @ a / Z == pytest.approx(TILTED[0], rel=1e-8)
    assert mass @ (a - TILTED[0]) ** 2 / Z == pytest.approx(TILTED[1] ** 2, rel=1e-8)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("t", [1, 7, 20])
def test_reweighting_has_the_gradient_of_the_tilted_density(schedule, t):
    """Eq. (loss_mirror_descent): with weight exp(Q / lam) over a_0 ~ pi_old the gradient is Z
    times that of plain denoising score matching on pi_old exp(Q / lam) / Z."""
    reweighted = gradient(schedule, t, OLD, log_weight)
    exact = gradient(schedule, t, TILTED, np.zeros_like)
    np.testing.assert_allclose(reweighted / Z, exact, rtol=1e-6, atol=1e-8)
    # Neither without the weight nor at another temperature (at t = T all signal is gone).
    for other in (np.zeros_like, lambda a: log_weight(a) / 2):
        change = gradient(schedule, t, OLD, other)
        cosine = np.sum(change * exact) / np.linalg.norm(change) / np.linalg.norm(exact)
        assert cosine < 0.9999 or t == 20


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_self_normalised_particles_find_the_tilted_score(schedule):
    """With many particles per state, K softmax(Q / lam) does what exp(Q / lam) / Z does."""
    t, n = 4, 2000
    alpha_bar = schedule.alpha_bar[t]
    x, w = gauss(3, 1)
    # Particles at the quantiles of pi_old, each with every quadrature node of the noise.
    particles = norm.ppf((np.arange(n) + 0.5) / n, *OLD)
    a_0 = np.float32(np.repeat(particles, 3)[:, None])
    noise = np.float32(np.tile(x, (n, 1)))
    weight = np.outer(np.exp(np.float32(log_weight(particles))), 3 * w)
    a_t = perturbed(schedule, a_0, np.full(3 * n, t), noise)
    A, b = least_squares(a_t, noise, np.float32(weight.ravel()))
    var = alpha_bar * TILTED[1] ** 2 + 1 - alpha_bar
    assert A[0, 0] == pytest.approx(math.sqrt(1 - alpha_bar) / var, rel=3e-3)
    assert -b[0] / A[0, 0] == pytest.approx(math.sqrt(alpha_bar) * TILTED[0], rel=3e-3)


@pytest.mark.parametrize("scale", [1, 7])
def test_effective_sample_size_and_kl_by_hand(scale):
    """Columns: equal weights, one-hot, (1, 1, 0, 0) and (1, 2, 3, 2); no scale matters."""
    weight = scale * np.float32([[1, 0, 1, 1], [1, 0, 1, 2], [1, 5, 0, 3], [1, 0, 0, 2]])
    size = [1, 1 / 4, 1 / 2, 8**2 / (4 * 18)]
    skewed = math.log(4) + sum(p * math.log(p) for p in (1 / 8, 2 / 8, 3 / 8, 2 / 8))
    kl = [0, math.log(4), math.log(2), skewed]
    for axis, w in ((0, weight), (1, weight.T)):
        np.testing.assert_allclose(size_of(w, axis), size, rtol=1e-6)
        np.testing.assert_allclose(kl_of(w, axis), kl, rtol=1e-5, atol=1e-6)
    got = jax.jit(weight_metrics)(weight)
    assert float(got["ess"]) == pytest.approx(np.mean(size), rel=1e-6)
    assert float(got["weight_kl"]) == pytest.approx(np.mean(kl), rel=1e-5)
