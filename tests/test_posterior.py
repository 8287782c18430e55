"""Learned posteriors: the sampler against a closed form, the loss against quadrature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rescore.algorithms.posterior_actor import PosteriorSettings
from rescore.core import Spec, UsageError
from rescore.diffusion.posterior import ancestral, levels, log_squashed, noiseless, soft_loss
from rescore.models.learned import Anneal
from rescore.models.networks import Denoiser
from rescore.training.config import configure
from tests.small import initial, random_batch, small

MEAN, STD = 0.7, 0.4


def exact(sigma):
    """The posterior of u_0 ~ N(MEAN, STD^2) at noise level t, in closed form."""
    precision = jnp.asarray(1.0 / np.square(sigma), jnp.float32)

    def q(u_t, t):
        p = precision[t - 1][..., None]
        var = 1.0 / (1.0 / STD**2 + p)
        return var * (MEAN / STD**2 + p * u_t), 0.5 * jnp.log(var) * jnp.ones_like(u_t)

    return q


@pytest.mark.parametrize("T", [1, 2, 4, 7])
def test_exact_posteriors_sample_their_gaussian_in_any_number_of_steps(T, key):
    sigma = levels(T, 0.25, 1.5)
    assert len(sigma) == T and np.isinf(sigma[-1]) and np.all(np.diff(sigma) > 0)
    drawn = ancestral(exact(sigma), sigma, key, (40_000, 1))
    u_0 = np.asarray(drawn.u_0)[:, 0]
    assert stats.kstest(u_0, stats.norm(MEAN, STD).cdf).pvalue > 1e-3
    # The density is that of the first draw, which is the sample itself if there is but one step.
    log_density = stats.norm(MEAN, STD).logpdf(u_0) - np.log(1.0 - np.tanh(u_0.astype(float)) ** 2)
    if T == 1:
        np.testing.assert_allclose(drawn.log_density, log_density, rtol=1e-3, atol=1e-3)
    assert np.mean(drawn.log_density) == pytest.approx(np.mean(log_density), abs=0.03)


def test_a_state_far_out_cannot_leave_where_tanh_tells_actions_apart(key):
    """There the KL divergence to pi_old was 1e6, and its gradient threw the whole policy off."""
    one, two = (Denoiser(k, 3, 2, [0.5, np.inf], [32], "mish") for k in jax.random.split(key))
    obs = 1e4 * jax.random.normal(key, (256, 3))
    t = jnp.full(256, 2)
    (mean, log_std), (old, old_log_std) = (
        net.at(obs)(jnp.zeros((256, 2)), t) for net in (one, two)
    )
    p = stats.norm(np.float64(mean), np.exp(np.float64(log_std)))
    q = stats.norm(np.float64(old), np.exp(np.float64(old_log_std)))
    assert np.max(np.abs(p.mean())) > 4  # they do saturate
    divergence = np.log(q.std() / p.std()) + (p.var() + (p.mean() - q.mean()) ** 2) / (2 * q.var())
    assert np.max(divergence) < 1e5
    assert np.all(np.abs(np.tanh(p.mean())) < 1)


@pytest.mark.parametrize("T", [1, 2, 4, 7])
def test_without_noise_exact_posteriors_end_at_their_mean(T):
    sigma = levels(T, 0.25, 1.5)
    np.testing.assert_allclose(noiseless(exact(sigma), sigma, (3, 1)), MEAN, rtol=1e-6)


def test_without_exploration_the_key_does_not_matter(key):
    algo, spec = small("dpmd"), Spec(3, 2)
    state, obs = algo.init(key, spec), jax.random.normal(key, (4, 3))
    one, other = (algo.act(state, obs, jax.random.key(k), False).action for k in (1, 2))
    explored, again = (algo.act(state, obs, jax.random.key(k), True).action for k in (1, 2))
    np.testing.assert_array_equal(one, other)
    assert not np.allclose(explored, again)


def test_the_density_of_a_squashed_gaussian_integrates_to_one():
    action = np.linspace(-1 + 1e-6, 1 - 1e-6, 200_001)
    u = jnp.asarray(np.arctanh(action), jnp.float32)[:, None]
    log_p = log_squashed(u, jnp.full(u.shape, 0.5), jnp.full(u.shape, np.log(0.8)))
    assert np.trapezoid(np.exp(np.asarray(log_p, float)), action) == pytest.approx(1.0, abs=1e-3)


def value(action):
    return -6.0 * jnp.sum(jnp.square(action - 0.3), axis=-1)


@pytest.mark.parametrize(("t", "anchor"), [(1, 0.0), (2, 0.0), (3, 0.0), (2, 0.6), (3, 0.6)])
def test_the_loss_is_a_kl_divergence_up_to_a_constant(t, anchor):
    """Between two Gaussians q it differs as KL(q || p) does, for p ~ exp(value) N(u_t | u_0,
    sigma^2), or with an anchor the geometric mean of the latter with the old posterior."""
    sigma, u_t = levels(3, 0.25, 1.5), 0.9
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.linspace(-12, 12, 400_001)

    def loss(mean, std):  # soft_loss is a mean over rows: one node at a time, weighted here
        def one(z):
            q = lambda u, t: (jnp.full_like(u, mean), jnp.full_like(u, np.log(std)))  # noqa: E731
            args = (jnp.full((1, 1), u_t), jnp.array([t]), jnp.full((1, 1), z), sigma)
            old = (jnp.full((1, 1), -0.2), jnp.full((1, 1), np.log(0.6))) if anchor else None
            return soft_loss(q, value, *args, old, anchor)[0]

        found = jax.vmap(one)(jnp.asarray(nodes, jnp.float32))
        return float(np.sum(weights * np.asarray(found, float)) / np.sum(weights))

    def kl(mean, std):
        log_q = stats.norm(mean, std).logpdf(grid)
        slope = np.log1p(-(np.tanh(grid) ** 2) + 1e-300)
        near = np.maximum(slope, -2 * np.abs(grid))
        if np.isfinite(sigma[t - 1]):
            near = near - 0.5 * (grid - u_t) ** 2 / sigma[t - 1] ** 2
        log_p = (1 - anchor) * near + anchor * stats.norm(-0.2, 0.6).logpdf(grid)
        log_p += -6.0 * (np.tanh(grid) - 0.3) ** 2
        return np.trapezoid(np.exp(log_q) * (log_q - log_p), grid)

    pairs = [(0.2, 0.5), (0.8, 0.3), (-0.4, 0.2)]
    gaps = [loss(*pair) - kl(*pair) for pair in pairs]
    np.testing.assert_allclose(gaps, gaps[0], atol=2e-3)


def test_the_gradient_of_the_mean_is_that_of_a_weighted_regression():
    """target = u_t + sigma^2 grad(value + log-determinant) at the draw, weight 1 / sigma^2."""
    sigma, t = levels(4, 0.25, 1.5), jnp.array([1, 2, 3])
    mean = jnp.array([[0.1, -0.4], [0.5, 0.0], [-1.0, 0.3]])
    u_t, noise = mean + 0.2, jnp.array([[0.3, -1.0], [0.0, 0.7], [1.2, -0.2]])
    log_std = jnp.full(mean.shape, -1.0)
    q = lambda m: lambda u, t: (m, log_std)  # noqa: E731
    found = jax.grad(lambda m: soft_loss(q(m), value, u_t, t, noise, sigma)[0])(mean)

    u_0 = np.asarray(mean + np.exp(-1.0) * noise, float)
    action = np.tanh(u_0)
    slope = -12.0 * (action - 0.3) * (1.0 - action**2) - 2.0 * action
    std = sigma[np.asarray(t) - 1][:, None]
    target = np.asarray(u_t) + std**2 * slope
    # The draw moves with the mean: the distance is between u_0 and u_t, its mean that of `mean`.
    regression = (u_0 - target) / std**2 / len(t)
    np.testing.assert_allclose(found, regression, rtol=2e-4, atol=2e-5)


def test_the_last_level_ignores_the_noisy_action(key):
    net = Denoiser(key, 3, 2, levels(3, 0.25, 1.5), (8, 8), "mish")
    obs = jnp.ones((4, 3))
    last = jnp.full(4, 3)
    near, far = (net.at(obs)(jnp.full((4, 2), u), last) for u in (0.0, 50.0))
    np.testing.assert_array_equal(near[0], far[0])
    # With little noise the mean of u_0 is almost u_t itself.
    fine = Denoiser(key, 3, 2, levels(3, 1e-4, 1.5), (8, 8), "mish")
    mean, log_std = fine.at(obs)(jnp.full((4, 2), 0.5), jnp.ones(4, int))
    np.testing.assert_allclose(mean, 0.5, atol=1e-3)
    assert np.all((np.asarray(log_std) > -5) & (np.asarray(log_std) < 2))


@pytest.mark.parametrize(
    "wrong", [{"low": -1.0}, {"low": 2.0, "high": 1.0}, {"lam": 0.0}, {"bonus": -1.0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UsageError):
        PosteriorSettings(**wrong)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("dpmd", {"schedule": "linear"}),
        ("dpmd", {"lam": Anneal(5.0, 1.0)}),
        ("dpmd", {"noise": Anneal(0.3, 0.1)}),
        ("sdac", {"reverse_draws": 64}),
    ],
)
def test_what_posteriors_do_not_look_at_is_refused(name, settings):
    (setting,) = settings
    with pytest.raises(UsageError, match=f"{setting} has no effect .* preset 'paper'"):
        configure(name, "default", settings, {})
    algo, _ = configure(name, "paper", settings, {})
    assert getattr(algo, setting) == settings[setting]


def test_a_batch_without_the_last_level_measures_no_entropy(key):
    """Then lam stays: with four rows and T = 40, hardly one has it."""
    algo = small("dpmd", T=40, policy_delay=1)
    state, batch = initial(algo, key), random_batch(rows=4)
    keys = jax.random.split(key, 8)
    step = jax.jit(lambda k: algo.update(state, batch, k, jnp.int32(0)))
    seen = [step(k) for k in keys]
    unmeasured = [u for u in seen if np.isnan(u.metrics["entropy"])]
    assert unmeasured
    for update in unmeasured:
        assert float(update.state.log_lam.params) == float(state.log_lam.params)
        assert np.isfinite(float(update.metrics["policy_loss"]))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("dpmd", {"preset": "paper", "anchor": 0.2}, "anchor has no effect .* is a noise network"),
        ("dpmd", {"noise_in": "candidates"}, "gets noise when acting, or none"),
        ("sdac", {"preset": "paper", "noise_in": "none"}, "choose noise_in, too"),
    ],
)
def test_noise_and_anchor_are_refused_where_nothing_looks_at_them(name, settings, said):
    own = dict(settings)
    with pytest.raises(UsageError, match=said):
        configure(name, own.pop("preset", "default"), own, {})


def test_the_bonus_of_the_value_is_a_multiple_of_lam_times_the_entropy(key):
    """Critics that say 0 everywhere, no reward: the target is gamma bonus lam H alone."""
    batch = random_batch()._replace(reward=jnp.zeros(16), terminated=jnp.zeros(16))
    losses = []
    for bonus in (1.0, 0.5, 3.0):
        algo = small("dpmd", posterior=PosteriorSettings(bonus=bonus))
        state = initial(algo, key)
        silent = jax.tree.map(jnp.zeros_like, state.nets.critic.params)
        critic = state.nets.critic._replace(params=silent)
        state = state._replace(nets=state.nets._replace(critic=critic))
        losses.append(float(algo.update(state, batch, key, jnp.int32(1)).metrics["critic_loss"]))
    assert losses[0] > 0
    np.testing.assert_allclose(losses / np.float64(losses[0]), [1.0, 0.25, 9.0], rtol=1e-4)
