"""One sampler of a family of densities: two modes whose place, width and mass are known."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore import boltzmann
from rescore.boltzmann import Sampler, UntrustedFit, fit
from rescore.boltzmann.energy import checked
from rescore.boltzmann.family import Family, bind, named, seek
from rescore.boltzmann.flow import denoiser
from rescore.boltzmann.report import Report
from rescore.core import UsageError

TINY = {"hidden": (16, 16), "updates": 20, "chunk": 10, "batch_size": 32, "num_reverse": 16}
TRAINED = (-1.0, -0.5, 0.0, 0.5, 1.0)
UNSEEN = 0.3


def width(c):
    return 0.6 + 0.2 * c


def two_modes(x, c):
    """0.7 N(2 + c, s^2) + 0.3 N(-2, s^2) times e^c s sqrt(2 pi). x [n, 1], c [n, 1]"""
    s = width(c)
    right, left = -0.5 * ((x - 2.0 - c) / s) ** 2, -0.5 * ((x + 2.0) / s) ** 2
    return (c + jnp.logaddexp(np.log(0.7) + right, np.log(0.3) + left))[:, 0]


def log_z(c):
    return c + np.log(width(c) * np.sqrt(2.0 * np.pi))


@pytest.fixture(scope="module")
def modes() -> Sampler:
    settings = {"hidden": (64, 64), "updates": 800, "batch_size": 256}
    return fit(two_modes, 1, condition=TRAINED, **settings)


@pytest.mark.parametrize("c", [-1.0, 1.0, UNSEEN])
def test_every_member_is_sampled(modes, c):
    """Shares, means and widths of the modes and log Z(c), also between the trained conditions."""
    for correct, close in ((None, 0.2), ("auto", 0.05)):
        x = np.asarray(modes.sample(4000, 0, condition=c, correct=correct))[:, 0]
        right = x > 0.5 * c
        assert right.mean() == pytest.approx(0.7, abs=close)
        assert x[right].mean() == pytest.approx(2.0 + c, abs=close)
        assert x[~right].mean() == pytest.approx(-2.0, abs=close)
        assert x[right].std() == pytest.approx(width(c), abs=close)
    estimate, error = modes.weighted(4000, 1, condition=c).log_z()
    assert abs(estimate - log_z(c)) < 0.03 and error < 0.02
    grid = np.linspace(-6.0, 6.0, 600)[:, None]
    density = np.exp(np.float64(modes.log_prob(grid, condition=c)))
    assert density.sum() * 12.0 / 599 == pytest.approx(1.0, abs=0.02)


def test_report_is_on_the_worst_condition(modes):
    """A family is as good as its worst member, and no member's normaliser is the family's."""
    assert len(modes.family.reports) == 5 and modes.log_z is None
    for c, report in zip(TRAINED, modes.family.reports):
        assert modes.at(c).report == report
        assert modes.at(c).log_z == pytest.approx(log_z(c), abs=0.03)
    lowest = min(range(5), key=lambda i: modes.family.reports[i].effective)
    assert modes.report.effective == modes.family.reports[lowest].effective
    assert modes.report.reason.startswith(f"at condition [{TRAINED[lowest]}], the worst of 5: ")
    assert "5 conditions" in repr(modes) and "at condition" in repr(modes)

    def told(verdict: str, effective: float) -> Report:
        return Report(verdict, "so", effective, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    reports = (told("use weights", 0.9), told("do not use", 0.8), told("trusted", 0.1))
    worst = Family(jnp.array([[1.0, 2.0], [3.0, 4.5], [5.0, 6.0]]), reports).worst()
    assert worst.verdict == "do not use"
    assert worst.reason == "at condition [3.0, 4.5], the worst of 3: so"


def test_an_untrained_condition_is_not_trusted(modes):
    """No report tells of it, so that samples are corrected unless that is declined."""
    between = modes.at(UNSEEN)
    assert between.report is None and between.log_z is None
    np.testing.assert_array_equal(
        modes.sample(300, 5, condition=UNSEEN), between.sample(300, 5, correct="mh")
    )
    good = replace(modes.at(0.5).report, verdict="trusted")
    trusted = replace(modes, family=replace(modes.family, reports=(good,) * 5))
    np.testing.assert_array_equal(
        trusted.sample(30, 5, condition=0.5), modes.sample(30, 5, condition=0.5, correct=None)
    )


def test_saved_and_continued(modes, tmp_path):
    path = modes.save(tmp_path / "modes.safetensors")
    loaded = boltzmann.load(path, two_modes)
    np.testing.assert_array_equal(
        loaded.sample(50, 1, condition=UNSEEN), modes.sample(50, 1, condition=UNSEEN)
    )
    assert loaded.report == modes.report and loaded.family.reports == modes.family.reports
    longer = fit(two_modes, 1, start=loaded, **{**TINY, "learning_rate": 1e-6})
    plain = modes.sample(50, 1, condition=UNSEEN, correct=None)
    again = longer.sample(50, 1, condition=UNSEEN, correct=None)
    np.testing.assert_allclose(again, plain, atol=0.02)
    assert longer.cost.gradient == modes.cost.gradient and len(longer.family.reports) == 5
    with pytest.raises(UsageError, match="leave condition= out"):
        fit(two_modes, 1, condition=[0.0, 2.0], start=loaded, **TINY)
    one = modes.at(0.5)
    alone = boltzmann.load(one.save(tmp_path / "one.safetensors"))
    np.testing.assert_array_equal(alone.sample(20, 1), one.sample(20, 1, correct=None))
    with pytest.raises(UsageError, match="leave condition= out"):
        fit(two_modes, 1, condition=TRAINED, start=alone, **TINY)


def test_score_is_traceable(modes):
    """In the points, the level and the condition; at little noise it is the density's slope."""
    x = jnp.array([[2.0], [-2.3]])
    score = modes.score(x, 40, condition=UNSEEN)
    traced = jax.jit(lambda x, t, c: modes.score(x, t, condition=c))(x, 40, jnp.array([UNSEEN]))
    np.testing.assert_allclose(traced, score, rtol=1e-3, atol=1e-3)
    slope = jax.grad(lambda x: two_modes(x, jnp.full_like(x, UNSEEN)).sum())(x)
    np.testing.assert_allclose(score, slope, atol=0.25)


def test_a_bound_network_is_the_network_there(modes):
    y = jax.random.normal(jax.random.key(0), (7, 1))
    t = jnp.arange(1, 8) * 30
    seen = modes.family.standard(jnp.full((7, 1), UNSEEN))
    np.testing.assert_allclose(
        denoiser(bind(modes.net, seen[0]), modes.schedule)(y, t),
        denoiser(modes.net, modes.schedule, condition=seen)(y, t),
        atol=1e-5,
    )
    np.testing.assert_allclose(modes.family.standard(modes.family.conditions).std(), 1.0, rtol=1e-5)


def test_particles_are_those_of_their_condition():
    """Gaussians at (c_1, c_2) of width 0.5, three of them; the third is nearest to (9, 9)."""

    def gaussian(x, c):
        return -2.0 * jnp.sum(jnp.square(x - c), axis=-1)

    family = Family(jnp.array([[0.0, 4.0], [-3.0, 1.0], [8.0, 8.0]]))
    points, cost = seek(checked(gaussian, 2, family.conditions), 2, jax.random.key(0), family)
    rows = family.beside(points)
    for i, condition in enumerate(family.conditions):
        np.testing.assert_array_equal(rows[i::3, 2:], np.tile(condition, (len(points) // 3, 1)))
        np.testing.assert_allclose(points[i::3].mean(axis=0), condition, atol=0.06)
        np.testing.assert_allclose(points[i::3].std(axis=0), 0.5, atol=0.05)
    assert family.nearest(jnp.array([9.0, 9.0])) == 2 and cost.energy > 3 * 4096


SLOW = [pytest.param(case, marks=pytest.mark.slow) for case in ("box", "numpy")]


@pytest.mark.parametrize("case", ["dem", "one", *SLOW])
def test_other_ways_to_fit(case):
    """Conditions [m, 2] in a box, of energy matching without a pilot, without a gradient, alone."""

    def gaussian(x, c):
        return -0.5 * (((x - c[:, :1]) / (1.0 + c[:, 1:] ** 2)) ** 2).sum(axis=-1)

    settings = {
        "box": {"box": 3.0},
        "dem": {"method": "dem", "coordinates": (0.0, 2.0)},
        "numpy": {},
        "one": {},
    }[case]
    conditions = [[0.5, 0.0]] if case == "one" else [[0.5, 0.0], [-0.5, 1.0], [0.0, 0.3]]
    density = boltzmann.from_numpy(gaussian) if case == "numpy" else gaussian
    sampler = fit(density, 2, condition=np.array(conditions), **settings, **TINY)
    assert sampler.sample(64, condition=[0.2, 0.1]).shape == (64, 2)
    x = np.asarray(sampler.sample(1000, condition=(0.5, 0.0), correct="mh"))
    if case != "box":
        np.testing.assert_allclose(x.mean(axis=0), 0.5, atol=0.25)
    assert np.all(np.isfinite(x)) and len(sampler.family.reports) == len(conditions)


def test_a_member_without_mass_is_named():
    def cut(x, c):  # no mass at all where c = 1
        return jnp.where(c[:, 0] < 1.0, -0.5 * jnp.sum(x**2, axis=-1), -jnp.inf)

    with pytest.raises(UsageError, match=r"at condition \[1.0\]: the density is zero"):
        fit(cut, 2, condition=[0.0, 1.0], **TINY)


def test_an_untrusted_member_is_told():
    def far(x, c):
        return -0.5 * jnp.sum(jnp.square((x - c) / 0.5), axis=-1)

    with pytest.warns(UntrustedFit, match=r"do not use: at condition \[60.0\], the worst of 2"):
        fit(far, 2, condition=[0.0, 60.0], coordinates=(0.0, 1.0), **TINY)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        (None, r"of a family: pass condition=, one number, such as \[-1.0\]"),
        ([0.0, 1.0], "one number, not of shape.*one condition at a time"),
        ("hot", "must be numbers"),
    ],
)
def test_bad_condition_is_one_line(modes, condition, says):
    for ask in (modes.sample, modes.weighted, modes.at):
        arguments = {} if ask == modes.at else {"n": 5}
        with pytest.raises(UsageError, match=says):
            ask(condition=condition, **arguments)
    for ask in (modes.log_prob, lambda x, condition: modes.score(x, 1, condition=condition)):
        with pytest.raises(UsageError, match=says):
            ask(jnp.zeros((2, 1)), condition=condition)
    with pytest.raises(UsageError, match="knows no conditions: leave condition= out"):
        modes.at(0.5).sample(5, condition=0.5)


@pytest.mark.parametrize(
    ("log_density", "settings", "says"),
    [
        (two_modes, {"condition": np.ones((2, 2, 2))}, r"\[m, k\] or \[m\].*shape \(2, 2, 2\)"),
        (two_modes, {"condition": 0.5}, r"\[m, k\] or \[m\]"),
        (two_modes, {"condition": []}, r"\[m, k\] or \[m\]"),
        (two_modes, {"condition": [0.0, np.nan]}, "finite"),
        (two_modes, {"condition": ["hot"]}, "must be numbers"),
        (two_modes, {}, "fails on points.*missing 1 required"),
        (lambda x: -x[:, 0], {"condition": [0.0]}, r"fails on points.*a row of \[n, 1\] for each"),
        (lambda x, c: -x[:, 0] * jnp.nan, {"condition": [3.0]}, r"nan at .* condition \[3.0\]"),
        (
            lambda x, c: -jnp.sum((x - c[:, 0]) ** 2, axis=-1),
            {"condition": [0.0, 1.0]},
            "depends on the other points",
        ),
        (two_modes, {"condition": [0.0], "samples": np.ones((5, 1))}, "leave samples= and dsm out"),
        (two_modes, {"condition": [0.0], "method": "dsm"}, "leave samples= and dsm out"),
    ],
)
def test_bad_family_is_one_line(log_density, settings, says):
    allowed = jax.numpy_rank_promotion("allow")  # as callers have it
    with allowed, pytest.raises(UsageError, match=says) as error:
        fit(log_density, 1, **settings)
    assert "\n" not in str(error.value)


def test_conditions_in_messages():
    assert named(jnp.array([0.1, 1e6, -2.0])) == "[0.1, 1000000.0, -2.0]"
