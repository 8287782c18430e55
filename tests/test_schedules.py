"""Noise schedules against their formulas and the numbers of the released code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescore.core import UsageError
from rescore.diffusion.schedules import SCHEDULES, NoiseSchedule, cosine, linear, vp

# beta_1, beta_T, alpha_bar_T and the std of phi_{0|t}, sqrt(1 / alpha_bar - 1), at five times;
# each number to the digits given. T = 20 unless said.
TABLE = {
    "linear x0.8": (linear(20, 0.8), 8e-5, 0.7992, 5.27e-6, (0.00894, 0.993, 3.84, 29.3, 436)),
    "linear x0.3": (linear(20, 0.3), 3e-5, 0.2997, 0.0346, (0.00548, 0.526, 1.23, 2.63, 5.28)),
    "cosine": (cosine(20), 0.00799, 0.999, 6.06e-6, (0.0898, 0.520, 1.18, 3.10, 406)),
    "vp": (vp(20), 0.0172, 0.386, 0.00641, (0.132, 0.780, 1.93, 4.97, 12.5)),
    "toy": (linear(20, 1.0, 0.001), 0.001, 0.999, 6.33e-11, (0.0316, 1.19, 6.15, 119, 1.26e5)),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    schedule, first, last, end, spread = TABLE[name]
    assert schedule.T == 20
    assert schedule.beta[0] == pytest.approx(first, rel=5e-3)
    assert schedule.beta[-1] == pytest.approx(last, rel=2e-3)
    assert schedule.alpha_bar[-1] == pytest.approx(end, rel=5e-3)
    std = np.sqrt(1.0 / schedule.alpha_bar[1:] - 1.0)[[0, 5, 10, 15, 19]]
    np.testing.assert_allclose(std, spread, rtol=6e-3)


def test_long_linear_schedule_reaches_pure_noise():
    assert linear(100, 0.3).alpha_bar[-1] == pytest.approx(5.21e-8, rel=2e-3)


@pytest.mark.parametrize("schedule", [linear(7, 0.8), cosine(7), vp(7)])
def test_alpha_bar_is_the_product(schedule):
    by_hand = [1.0]
    for beta in schedule.beta:
        by_hand.append(by_hand[-1] * (1.0 - beta))
    np.testing.assert_allclose(schedule.alpha_bar, by_hand, rtol=1e-12)
    assert schedule.alpha_bar.dtype == np.float64
    assert schedule.end_std == pytest.approx(math.sqrt(1.0 - by_hand[-1]), rel=1e-12)


def test_cosine_is_a_squared_cosine_until_its_cap():
    def f(t):
        return math.cos((t / 10 + 0.008) / 1.008 * math.pi / 2) ** 2

    expected = [f(t) / f(0) for t in range(10)]
    np.testing.assert_allclose(cosine(10).alpha_bar[:10], expected, rtol=1e-12)
    assert cosine(10).beta[-1] == 0.999  # uncapped it would be 1


def test_vp_is_the_integral_of_its_rate():
    """alpha_bar at the end is exp(-integral of beta over [0, 1]), whatever the grid."""
    for T in (1, 10, 200):
        assert vp(T).alpha_bar[-1] == pytest.approx(math.exp(-0.5 * (0.1 + 10)), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@given(T=st.integers(1, 300), scale=st.floats(1e-3, 1.0))
def test_alpha_bar_decreases_inside_the_unit_interval(name, T, scale):
    schedule = SCHEDULES[name](T, scale)
    alpha_bar = schedule.alpha_bar
    assert schedule.T == T and alpha_bar.shape == (T + 1,) and alpha_bar[0] == 1.0
    assert np.all(np.diff(alpha_bar) < 0)
    assert np.all((alpha_bar[1:] > 0) & (alpha_bar[1:] < 1))
    np.testing.assert_allclose(schedule.beta, scale * np.array(SCHEDULES[name](T).beta), rtol=1e-12)


def test_schedules_are_values():
    assert linear(5) == linear(5) and hash(linear(5)) == hash(linear(5))
    assert linear(5) != linear(5, 0.8)


@pytest.mark.parametrize("beta", [(), (0.0,), (1.0,), (0.1, -0.1), (0.1, 1.5), (math.nan,)])
def test_impossible_beta_is_refused(beta):
    with pytest.raises(UsageError, match="beta"):
        NoiseSchedule(beta)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("scale", [0.0, -0.5, 50.0, math.nan])
def test_impossible_scale_is_refused(name, scale):
    with pytest.raises(UsageError, match="beta"):
        SCHEDULES[name](20, scale)
