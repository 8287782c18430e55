"""The denoising chain as a policy: its probability, its width, its share of the advantage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.core import Spec
from rescore.diffusion.chain import reverse_step, sample_chain
from rescore.diffusion.samplers import ddpm
from rescore.diffusion.schedules import cosine, vp
from tests.small import experience, small

MIN_STD = 0.1


def eps(a_t, t):
    """A model that bends, and depends on time."""
    return jnp.tanh(a_t) * (0.3 + 0.1 * t.astype(a_t.dtype)[..., None])


def textbook(schedule, chain: np.ndarray) -> float:
    """log of the product of all kernels' densities, in float64 and with nothing of ours."""
    beta = np.asarray(schedule.beta, np.float64)
    alpha, alpha_bar = 1 - beta, np.cumprod(1 - beta)
    density = 1.0
    for k, t in enumerate(range(len(beta) - 1, -1, -1)):  # zero-based t, as in Ho et al. (2020)
        a_t, a_s = chain[k], chain[k + 1]
        noise = np.tanh(a_t) * (0.3 + 0.1 * (t + 1))
        a_0 = np.clip((a_t - np.sqrt(1 - alpha_bar[t]) * noise) / np.sqrt(alpha_bar[t]), -1, 1)
        before = alpha_bar[t - 1] if t else 1.0
        mean = np.sqrt(before) * beta[t] / (1 - alpha_bar[t]) * a_0
        mean += np.sqrt(alpha[t]) * (1 - before) / (1 - alpha_bar[t]) * a_t
        std = max(np.sqrt(beta[t] * (1 - before) / (1 - alpha_bar[t])), MIN_STD)
        density *= np.prod(np.exp(-(((a_s - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi)))
    return float(np.log(density))


@pytest.mark.parametrize("schedule", [cosine(5), vp(7)], ids=["cosine", "vp"])
def test_log_probability_of_a_chain_is_that_of_its_kernels(schedule):
    T = schedule.T
    chain = sample_chain(schedule, eps, jax.random.key(0), (20, 2), MIN_STD)  # [T + 1, 20, 2]
    t = jnp.broadcast_to(jnp.arange(T, 0, -1)[:, None], (T, 20))
    with jax.enable_x64(True):
        chain = jnp.asarray(np.asarray(chain), jnp.float64)
        steps = reverse_step(schedule, eps, chain[:-1], t, MIN_STD)
        found = jnp.sum(steps.log_prob(chain[1:]), axis=(0, 2))
        assert found.dtype == jnp.float64
    expected = [textbook(schedule, np.asarray(chain)[:, i]) for i in range(20)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_every_step_is_as_wide_as_the_floor_says():
    schedule, rows = cosine(5), 20_000
    chain = sample_chain(schedule, eps, jax.random.key(1), (rows, 1), 0.3)
    assert float(chain[0].std()) == pytest.approx(1.0, abs=0.02)
    for k in range(5):
        t = jnp.full(rows, 5 - k)
        step = reverse_step(schedule, eps, chain[k], t, 0.3)
        std = float(jnp.exp(step.log_std[0, 0]))
        assert std >= 0.3 - 1e-6
        assert float((chain[k + 1] - step.mean).std()) == pytest.approx(std, rel=0.03)
    assert std == pytest.approx(0.3)  # the last one, which has no noise of its own


def test_without_a_floor_it_is_the_reverse_process():
    key, shape = jax.random.key(2), (50, 2)
    chain = sample_chain(cosine(6), eps, key, shape, 1e-12)
    plain = ddpm(cosine(6), eps, key, shape, start_std=1.0)
    np.testing.assert_allclose(chain[-1], plain, atol=1e-5)


def test_acting_remembers_the_chain_that_it_executes():
    algo, spec = small("dppo"), Spec(5, 2)
    state = algo.init(jax.random.key(0), spec)
    obs = jax.random.normal(jax.random.key(1), (64, 5))
    act = algo.act(state, obs, jax.random.key(2), True)
    chain = act.extras["chain"]
    assert chain.shape == (64, algo.T + 1, 2)
    assert np.array_equal(np.clip(chain[:, -1], -1, 1), act.action)
    assert np.abs(chain).max() > 1
    assert algo.act(state, obs, jax.random.key(2), False).extras == {}


def trained(act_dim: int, **hyperparameters) -> dict[str, float]:
    algo, spec = small("dppo", **hyperparameters), Spec(3, act_dim)
    state = algo.init(jax.random.key(0), spec)
    rollout = experience(algo, rows=40, spec=spec)
    return jax.jit(algo.update)(state, rollout, jax.random.key(1), jnp.int32(0)).metrics


def test_mean_over_dimensions_is_the_sum_of_one():
    one = {reduce: trained(1, reduce=reduce) for reduce in ("sum", "mean")}
    assert all(np.array_equal(one["sum"][m], one["mean"][m]) for m in one["sum"])
    three = {reduce: float(trained(3, reduce=reduce)["ratio_gap"]) for reduce in ("sum", "mean")}
    assert three["mean"] < 0.7 * three["sum"]
