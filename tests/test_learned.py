"""Steered scalars against the published path, and the gradient step they stand on."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rescore.core import UsageError
from rescore.models.learned import Anneal, Learned, every, measured_every, polyak
from rescore.models.normalise import Moments

# Where the entropy of Gaussian noise of std alpha / 10 is -0.9 per dimension.
FIXED_POINT = 10 * math.exp(-0.9 - 0.5 * math.log(2 * math.pi * math.e))
# Value right after the step at each of these updates, as the released code computes it.
RELEASED = {
    0: "4.97",
    10_000: "3.77",
    25_000: "2.62",
    50_000: "1.65",
    75_000: "1.24",
    100_000: "1.07",
    150_000: "0.99",
    200_000: "0.984",
}


def test_path_of_the_released_code():
    anneal = Anneal(5.0, FIXED_POINT, lr=7e-3, period=250)

    @jax.jit
    def path():
        def advance(log_value, step):
            log_value = anneal.step(log_value, step)
            return log_value, jnp.exp(log_value.params)

        return jax.lax.scan(advance, anneal.create(), jnp.arange(0, 200_001, 250))[1]

    values = np.asarray(path())
    assert f"{FIXED_POINT:.4f}" == "0.9838"
    for step, printed in RELEASED.items():
        digits = len(printed.partition(".")[2])
        assert f"{values[step // 250]:.{digits}f}" == printed, step
    assert np.all(np.diff(values[:400]) < 0)  # no oscillation on the way down


def test_it_moves_at_multiples_of_its_period_only():
    anneal = Anneal(1.0, 2.0, lr=0.1, period=3)

    @jax.jit
    def path():
        def advance(log_value, step):
            log_value = anneal.step(log_value, step)
            return log_value, log_value.params

        return jax.lax.scan(advance, anneal.create(), jnp.arange(7))[1]

    moved = np.diff(np.concatenate([[0.0], path()])) != 0
    np.testing.assert_array_equal(moved, [True, False, False, True, False, False, True])
    assert float(path()[0]) == pytest.approx(0.1, rel=1e-4)  # Adam's first step is its rate


def test_equal_ends_are_a_constant():
    anneal = Anneal(0.3, 0.3, period=1)
    start = anneal.create()
    assert float(jnp.exp(start.params)) == pytest.approx(0.3, rel=1e-6)
    after = anneal.step(start, jnp.int32(0))
    assert after is start


@pytest.mark.parametrize(
    "change", [{"init": 0.0}, {"init": -1.0}, {"target": 0.0}, {"lr": 0.0}, {"period": 0}]
)
def test_impossible_values_are_refused(change):
    with pytest.raises(UsageError, match="positive"):
        Anneal(**{"init": 1.0, "target": 1.0, **change})


def test_moments_by_hand():
    """(2, 4, 6, 8) has mean 5 and std sqrt(5); a tenth of the way from (0, 1)."""
    start = Moments.create()
    assert (float(start.mean), float(start.std)) == (0.0, 1.0)
    x = jnp.array([[2.0, 4.0], [6.0, 8.0]])
    moved = start.follow(x, 0.1)
    assert float(moved.mean) == pytest.approx(0.5)
    assert float(moved.std) == pytest.approx(0.9 + 0.1 * math.sqrt(5))
    settled = Moments(jnp.float32(200.0), jnp.float32(40.0))
    np.testing.assert_allclose(settled.normalise(jnp.array([200.0, 240, 120])), [0, 1, -2])


def test_moments_of_a_constant_do_not_divide_by_zero():
    nothing = Moments(jnp.float32(3.0), jnp.float32(0.0))
    np.testing.assert_array_equal(nothing.normalise(jnp.array([3.0])), [0.0])
    assert np.isfinite(nothing.normalise(jnp.array([4.0])))


def test_one_descent_step_by_hand():
    """Gradient of (x - 3)^2 at 1 is -4; a rate of 0.1 leads to 1.4."""
    optimizer = optax.sgd(0.1)
    start = Learned.create({"x": jnp.float32(1.0)}, optimizer)
    after, metrics = start.descend(optimizer, lambda p: ((p["x"] - 3.0) ** 2, {"x": p["x"]}))
    assert float(after.params["x"]) == pytest.approx(1.4)
    assert float(metrics["x"]) == 1.0 and float(start.params["x"]) == 1.0


def test_polyak_by_hand():
    got = polyak({"x": jnp.float32(1.0)}, {"x": jnp.float32(11.0)}, 0.1)
    assert float(got["x"]) == pytest.approx(2.0)


def test_every_is_a_branch():
    """Held steps cost nothing: the compiled program has a conditional, not a select."""

    def program(step):
        return every(2, step, lambda: jnp.sin(step.astype(float)), lambda: jnp.float32(-5.0))

    run = jax.jit(program)
    np.testing.assert_allclose([run(s) for s in range(4)], [0.0, -5, math.sin(2), -5], rtol=1e-6)
    assert "cond" in str(jax.make_jaxpr(program)(jnp.int32(0)))
    assert float(every(1, jnp.int32(1), lambda: 1.0, lambda: 0.0)) == 1.0


def test_held_steps_measure_nothing():
    """While the policy waits, its metrics are NaN, which no mean counts; not zero, nor the last."""

    def program(step):
        loss = 3.0 * step.astype(jnp.float32)
        return measured_every(2, step, lambda: (step + 10, {"loss": loss}), jnp.int32(-1))

    run = jax.jit(program)
    got = [(int(new), float(metrics["loss"])) for new, metrics in map(run, range(4))]
    np.testing.assert_array_equal(got, [(10, 0.0), (-1, np.nan), (12, 6.0), (-1, np.nan)])
    assert measured_every(1, 5, lambda: (1, {"loss": 2.0}), 0) == (1, {"loss": 2.0})
