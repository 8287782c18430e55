"""Targets against quadrature, and metrics by hand."""

from __future__ import annotations

import importlib.util
import sys
from itertools import combinations
from pathlib import Path

import jax
import numpy as np
import pytest

from rescore.boltzmann.metrics import (
    compare,
    mmd2,
    mode_moments,
    mode_weights,
    nearest,
    sliced_w2,
)
from rescore.boltzmann.targets import TARGETS, Target, find
from rescore.core import UsageError


def on_a_grid(target: Target, points: int = 401):
    """Points [points^2, 2], their share of the mass, and log of the integral."""
    axis = np.linspace(-1.2 * target.reach, 1.2 * target.reach, points)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    value = np.exp(np.float64(jax.jit(target.log_density)(np.float32(grid))))
    return grid, value / value.sum(), np.log(value.sum() * (axis[1] - axis[0]) ** 2)


@pytest.mark.parametrize("name", TARGETS)
def test_samples_have_the_density(name):
    """The normaliser, moments of the samples and the mass of every mode, by quadrature."""
    target, n = find(name), 50_000
    grid, mass, log_z = on_a_grid(target)
    assert log_z == pytest.approx(target.log_z, abs=3e-4)
    assert mass[np.any(np.abs(grid) > target.reach, axis=1)].sum() < 1e-4
    x = np.float64(target.sample(jax.random.key(0), n))
    assert x.shape == (n, target.dim) and len(np.unique(x, axis=0)) == n
    mean, std = mass @ grid, np.sqrt(mass @ grid**2 - (mass @ grid) ** 2)
    assert np.all(np.abs(x.mean(0) - mean) < 5 * std / np.sqrt(n))
    assert np.all(np.abs(x.std(0) / std - 1) < 0.03)
    expected = np.bincount(nearest(target, grid), mass, minlength=len(target.centres))
    share, low, high = mode_weights(target, x)
    np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(0.25 / n))
    assert np.mean((low <= expected) & (expected <= high)) > 0.8


def test_two_moons_of_the_paper():
    """log Z, the bridge and the shape by quadrature."""
    target = find("two-moons")
    grid, mass, log_z = on_a_grid(target)
    assert log_z == pytest.approx(0.8042, abs=3e-4)
    assert mass[np.abs(grid[:, 0]) < target.bridge].sum() == pytest.approx(3.2e-4, abs=5e-5)
    assert mass[grid[:, 0] > 0].sum() == pytest.approx(0.5, abs=5e-3)
    assert mass @ np.abs(grid[:, 0]) == pytest.approx(1.882, abs=1e-3)


def test_unknown_target():
    with pytest.raises(UsageError, match="did you mean 'two-moons'"):
        find("three-moons")


def test_mode_moments_by_hand():
    """Heavy mode moved by (0.3, 0.4): 0.5 away; its spread doubled: covariance 4 times, error 3."""
    target, rng = find("gmm"), np.random.default_rng(0)
    noise = rng.normal(size=(4000, 2))
    exact = np.concatenate([noise + 3, noise - 3])
    moved = np.concatenate([noise + 3 + [0.3, 0.4], noise - 3])
    assert mode_moments(target, exact, exact) == (0.0, 0.0)
    assert mode_moments(target, moved, exact)[0] == pytest.approx(0.5, abs=0.02)
    small = np.concatenate([0.5 * noise + 3, 0.5 * noise - 3])
    wide = np.concatenate([noise + 3, 0.5 * noise - 3])
    assert mode_moments(target, wide, small)[1] == pytest.approx(3.0, abs=0.05)
    assert mode_moments(target, exact[:4000], exact) == (np.inf, np.inf)  # a mode is lost


def test_distances_by_hand():
    """A shift s has W2 = |s| in every direction it points along: |s| / sqrt(2) on average."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 2))
    assert sliced_w2(x, x) == 0.0
    assert sliced_w2(x + np.array([2.0, 0.0]), x) == pytest.approx(2 / np.sqrt(2), rel=0.1)
    y = rng.normal(size=(3000, 2))
    assert abs(mmd2(x, y)) < 2e-3
    assert mmd2(x + np.array([1.0, 0.0]), y) > 0.02
    # Two far points on each side of a distance of 1 and the kernel exp(-1 / 1).
    a, b = np.array([[0.0], [0.0]]), np.array([[1.0], [2.0]])
    width = np.median([0, 1, 1, 0])
    by_hand = 1 + np.exp(-1 / width) - 2 * np.mean(np.exp(-np.array([1, 4, 1, 4]) / width))
    assert mmd2(a, b) == pytest.approx(by_hand)


@pytest.mark.slow
def test_metrics_of_exact_samples_are_small():
    for name in ("gmm", "two-moons"):
        target = find(name)
        x, exact = (np.asarray(target.sample(jax.random.key(s), 20_000)) for s in (0, 1))
        metrics = compare(target, x, exact)
        assert metrics["mode_weight_error"] < 0.02 and metrics["mean_error"] < 0.08
        assert metrics["cov_error"] < 0.08 and metrics["sliced_w2"] < 0.1
        assert (metrics["bridge"] is None) == (name == "gmm")


def study(name: str):
    """A module of benchmarks/, which is no package."""
    file = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_particles():
    """Energies pair by pair in NumPy; the basis keeps lengths and takes the centre out."""
    particles, rng = study("particles"), np.random.default_rng(0)
    for kind, density, energy in (
        (particles.DW4, particles.double_wells, lambda d: 0.9 * (d - 4) ** 4 - 4 * (d - 4) ** 2),
        (particles.LJ13, particles.lennard_jones, lambda d: 2 * (d**-12 - 2 * d**-6)),
    ):
        x = np.float32(3.0 * rng.normal(size=(2, kind.dim)))
        at = np.float64(kind.places(x))
        np.testing.assert_allclose(at.mean(axis=1), 0.0, atol=1e-6)
        square = np.sum(np.float64(x) ** 2, axis=1)
        np.testing.assert_allclose(np.sum(at**2, axis=(1, 2)), square, rtol=1e-5)
        pairs = [sum(energy(np.linalg.norm(a - b)) for a, b in combinations(one, 2)) for one in at]
        spring = 0.5 * square if kind is particles.LJ13 else 0.0
        np.testing.assert_allclose(-np.float64(density(x)), np.array(pairs) + spring, rtol=1e-4)


def test_shuffled_particles():
    """Distances stay, in another order; turns and names are even: the mean of each place is 0."""
    particles, rng = study("particles"), np.random.default_rng(0)
    for kind in (particles.DW4, particles.LJ13):
        x = np.float32(3.0 * rng.normal(size=(3, kind.dim)))
        other = kind.shuffled(x, rng)
        near, far = (np.sort(kind.distances(np.float32(p)), axis=1) for p in (x, other))
        np.testing.assert_allclose(near, far, rtol=1e-4)
        assert not np.allclose(x, other, atol=0.1)
    many = particles.DW4.shuffled(np.tile(x[:1, :6], (20_000, 1)), rng)
    scale = np.sqrt(np.mean(many**2))
    np.testing.assert_allclose(many.mean(axis=0) / scale, 0.0, atol=0.03)
    np.testing.assert_allclose(np.cov(many.T) / scale**2, np.eye(6), atol=0.05)


def test_forty_centres():
    """The first and the last of the known ones, and their width, softplus(1)."""
    target = find("gmm40")
    np.testing.assert_allclose(target.centres[0], [-0.2995, 21.4577], atol=1e-4)
    assert target.centres.shape == (40, 2)
    assert target.narrowest == pytest.approx(np.log1p(np.e), rel=1e-6)


def test_the_calibration_can_tell_its_limits(monkeypatch):
    """As many exact samples as it measures are right: shares, distributions and quantiles."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    calibrate = study("calibrate")
    for name in ("funnel", "five-gaussians"):
        target = calibrate.ENERGIES[name]()
        x, exact = (
            np.float64(target.sample(jax.random.key(s), n))
            for s, n in ((0, calibrate.DRAWS), (1000, calibrate.EXACT))
        )
        found = calibrate.distances(target, x, exact)
        assert found["share"] < 0.01 and found["marginal"] < 0.02 and found["outside"] == 0.0
        if name == "funnel":  # whose v is N(0, 9)
            for law in ("quantiles", "quantiles_exact"):
                np.testing.assert_allclose(found[law], [-4.935, 0.0, 4.935], atol=0.1)
