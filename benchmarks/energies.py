"""Energies with exact samples that `boltzmann.fit` is judged on, none of which it was tuned for."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from rescore.boltzmann.targets import Target, find, mixture

Sample = Callable[[Array, int], Array]


def target(name: str, log_density, sample: Sample, log_z: float, centres) -> Target:
    """A density by its samples; mode shares are of the nearest centres."""
    return Target(name, log_density, sample, float(log_z), np.asarray(centres, float), 1.0, 1.0)


def inside(log_density, contains):
    """-inf outside the support."""
    return lambda x: jnp.where(contains(x), log_density(x), -jnp.inf)


def rejected(contains, half: float) -> Sample:
    """Uniform on a part of the square, by rejection: the first n of many tries."""

    def sample(key: Array, n: int) -> Array:
        x = jax.random.uniform(key, (40 * n, 2), minval=-half, maxval=half)
        return x[jnp.nonzero(contains(x), size=n)[0]]

    return sample


def gaussian(dim: int, seed: int) -> Target:
    """A correlated Gaussian away from the origin."""
    rng = np.random.default_rng(seed)
    root, mean = np.tril(rng.normal(size=(dim, dim))), rng.normal(size=dim) * 5
    root[np.diag_indices(dim)] = rng.uniform(0.2, 2.0, dim)
    root, mean = jnp.asarray(root, jnp.float32), jnp.asarray(mean, jnp.float32)

    def log_density(x: Array) -> Array:
        z = jax.scipy.linalg.solve_triangular(root, (x - mean[None]).T, lower=True)
        return -0.5 * jnp.sum(jnp.square(z), axis=0)

    def sample(key: Array, n: int) -> Array:
        return mean[None] + jax.random.normal(key, (n, dim)) @ root.T

    log_z = jnp.sum(jnp.log(jnp.diag(root))) + 0.5 * dim * np.log(2 * np.pi)
    return target(f"gaussian-{dim}", log_density, sample, log_z, [mean])


def two_gaussians(dim: int, gap: float, name: str) -> Target:
    """0.7 and 0.3, `gap` apart along the diagonal, of unit width."""
    centre = np.full(dim, 0.5 * gap / np.sqrt(dim))
    return mixture(name, np.array([0.7, 0.3]), np.stack([centre, -centre]), 1.0, 1.0)


def gaussians(name: str, weights, centres, stds) -> Target:
    """A mixture with a width for each Gaussian."""
    log_w, mean = jnp.log(jnp.asarray(weights)), jnp.asarray(centres, jnp.float32)
    std, dim = jnp.asarray(stds, jnp.float32), mean.shape[1]

    def log_density(x: Array) -> Array:
        z = (x[:, None] - mean[None]) / std[None, :, None]
        each = -0.5 * jnp.sum(z**2, axis=-1) - dim * jnp.log(std * np.sqrt(2 * np.pi))[None]
        return logsumexp(each + log_w[None], axis=-1)

    def sample(key: Array, n: int) -> Array:
        k_mode, k_noise = jax.random.split(key)
        mode = jax.random.categorical(k_mode, log_w, shape=(n,))
        return mean[mode] + std[mode][:, None] * jax.random.normal(k_noise, (n, dim))

    return target(name, log_density, sample, 0.0, centres)


def funnel(dim: int) -> Target:
    """v ~ N(0, 9), the other coordinates N(0, e^v)."""

    def log_density(x: Array) -> Array:
        v, rest = x[:, 0], x[:, 1:]
        scale = jnp.exp(0.5 * v)[:, None]
        return norm.logpdf(v, scale=3.0) + jnp.sum(norm.logpdf(rest, scale=scale), axis=-1)

    def sample(key: Array, n: int) -> Array:
        z = jax.random.normal(key, (n, dim))
        return jnp.concatenate([3 * z[:, :1], jnp.exp(1.5 * z[:, :1]) * z[:, 1:]], axis=1)

    return target(f"funnel-{dim}", log_density, sample, 0.0, np.zeros((1, dim)))


def banana() -> Target:
    """x_2 given x_1 ~ N(x_1^2, 0.3^2)."""

    def log_density(x: Array) -> Array:
        return norm.logpdf(x[:, 0]) + norm.logpdf(x[:, 1], x[:, 0] ** 2, 0.3)

    def sample(key: Array, n: int) -> Array:
        z = jax.random.normal(key, (n, 2))
        return jnp.stack([z[:, 0], z[:, 0] ** 2 + 0.3 * z[:, 1]], axis=1)

    return target("banana", log_density, sample, 0.0, np.zeros((1, 2)))


def product(name: str, log_density_1d, dim: int, half: float, wells: bool) -> Target:
    """Independent coordinates of one law, sampled by its distribution function on a grid."""
    grid = np.linspace(-half, half, 40_001)
    density = np.exp(np.asarray(log_density_1d(jnp.asarray(grid, jnp.float32)), np.float64))
    cdf = np.cumsum(density)
    log_z = dim * np.log(cdf[-1] * (grid[1] - grid[0]))
    cdf, points = jnp.asarray(cdf / cdf[-1], jnp.float32), jnp.asarray(grid, jnp.float32)

    def sample(key: Array, n: int) -> Array:
        return jnp.interp(jax.random.uniform(key, (n, dim)), cdf, points)

    # A mode of the first coordinates stands for all: they are alike.
    corners = np.stack(np.meshgrid(*[[-1.7, 1.7]] * min(dim, 3)), -1).reshape(-1, min(dim, 3))
    centres = (
        np.pad(corners, [(0, 0), (0, dim - corners.shape[1])]) if wells else np.zeros((1, dim))
    )
    return target(name, lambda x: jnp.sum(log_density_1d(x), axis=-1), sample, log_z, centres)


def double_well(x: Array) -> Array:
    return -(x**4) + 6 * x**2 + 0.5 * x - 9.0


def many_well(dim: int) -> Target:
    """Pairs of a double well and a Gaussian, as in the studies of FAB."""
    wells = product("", double_well, dim // 2, 4.0, True)

    def log_density(x: Array) -> Array:
        return wells.log_density(x[:, ::2]) - 0.5 * jnp.sum(x[:, 1::2] ** 2, axis=-1)

    def sample(key: Array, n: int) -> Array:
        k_well, k_noise = jax.random.split(key)
        pairs = [wells.sample(k_well, n), jax.random.normal(k_noise, (n, dim // 2))]
        return jnp.stack(pairs, axis=-1).reshape(n, dim)

    centres = np.stack([wells.centres, np.zeros_like(wells.centres)], -1).reshape(-1, dim)
    log_z = wells.log_z + dim / 4 * np.log(2 * np.pi)
    return target(f"many-well-{dim}", log_density, sample, log_z, centres)


def shell(dim: int, radius: float, width: float, name: str) -> Target:
    """Radius normal about `radius`, direction uniform."""

    def log_density(x: Array) -> Array:
        r = jnp.sqrt(jnp.sum(x**2, axis=-1) + 1e-12)
        return norm.logpdf(r, radius, width) - (dim - 1) * jnp.log(r)

    def sample(key: Array, n: int) -> Array:
        k_radius, k_way = jax.random.split(key)
        way = jax.random.normal(k_way, (n, dim))
        r = radius + width * jax.random.normal(k_radius, (n, 1))
        return r * way / jnp.linalg.norm(way, axis=1, keepdims=True)

    area = np.log(2) + dim / 2 * np.log(np.pi) - float(jax.lax.lgamma(dim / 2))
    return target(name, log_density, sample, area, np.concatenate([np.eye(dim), -np.eye(dim)]))


def discs() -> Target:
    """Uniform on discs of radius 1 and 0.7 about (-2, 0) and (2, 0)."""
    place, radius = np.array([[-2.0, 0.0], [2.0, 0.0]]), np.array([1.0, 0.7])

    def contains(x: Array) -> Array:
        square = jnp.sum(jnp.square(x[:, None] - jnp.float32(place)[None]), axis=-1)
        return jnp.any(square < jnp.float32(radius**2)[None], axis=-1)

    log_z = np.log(np.pi * np.sum(radius**2))
    density = inside(lambda x: jnp.zeros(len(x)), contains)
    return target("discs", density, rejected(contains, 3.0), log_z, place)


def box_with_hole() -> Target:
    """Uniform on [-2, 2]^2 without the unit disc."""

    def contains(x: Array) -> Array:
        return jnp.all(jnp.abs(x) < 2, axis=-1) & (jnp.sum(x**2, axis=-1) > 1)

    density = inside(lambda x: jnp.zeros(len(x)), contains)
    corners = 1.5 * np.array([[1, 1], [1, -1], [-1, 1], [-1, -1.0]])
    return target("box-with-hole", density, rejected(contains, 2.0), np.log(16 - np.pi), corners)


def board() -> Target:
    """Uniform on the black squares of a board of 4 x 4."""

    def contains(x: Array) -> Array:
        square = jnp.floor(x)
        return jnp.all(jnp.abs(x) < 2, axis=-1) & (jnp.sum(square, axis=-1) % 2 == 0)

    density = inside(lambda x: jnp.zeros(len(x)), contains)
    centres = [[i + 0.5, j + 0.5] for i in range(-2, 2) for j in range(-2, 2) if (i + j) % 2 == 0]
    return target("board", density, rejected(contains, 2.0), np.log(8.0), centres)


def student(dim: int, freedom: float) -> Target:
    """Heavy tails: the multivariate t distribution."""

    def log_density(x: Array) -> Array:
        return -0.5 * (freedom + dim) * jnp.log1p(jnp.sum(x**2, axis=-1) / freedom)

    def sample(key: Array, n: int) -> Array:
        k_noise, k_chi = jax.random.split(key)
        chi = 2 * jax.random.gamma(k_chi, freedom / 2, (n, 1))
        return jax.random.normal(k_noise, (n, dim)) * jnp.sqrt(freedom / chi)

    gamma = jax.lax.lgamma(freedom / 2) - jax.lax.lgamma((freedom + dim) / 2)
    log_z = float(gamma) + 0.5 * dim * np.log(freedom * np.pi)
    return target("heavy-tails", log_density, sample, log_z, np.zeros((1, dim)))


def exponential(dim: int) -> Target:
    """Independent exponential coordinates: -inf where one is negative."""
    density = inside(lambda x: -jnp.sum(x, axis=-1), lambda x: jnp.all(x > 0, axis=-1))

    def sample(key: Array, n: int) -> Array:
        return jax.random.exponential(key, (n, dim))

    return target("exponential", density, sample, 0.0, np.ones((1, dim)))


ENERGIES: dict[str, Callable[[], Target]] = {
    "funnel": lambda: funnel(2),
    "discs": discs,
    "five-gaussians": lambda: gaussians(
        "five-gaussians",
        [0.4, 0.25, 0.15, 0.12, 0.08],
        [[4, 0, 0], [-3, 3, 1], [0, -4, 2], [1, 3, -4], [-4, -2, -3.0]],
        [0.7, 0.5, 0.9, 0.4, 0.6],
    ),
    "wells": lambda: product("wells", double_well, 5, 4.0, True),
    "gmm": lambda: find("gmm"),
    "two-moons": lambda: find("two-moons"),
    "ring": lambda: find("ring"),
    "gmm40": lambda: find("gmm40"),
    "thin-ring": lambda: shell(2, 3.0, 0.05, "thin-ring"),
    "box-with-hole": box_with_hole,
    "heavy-tails": lambda: student(2, 3.0),
    "mixture-1d": lambda: gaussians(
        "mixture-1d", [0.5, 0.3, 0.2], [[-5.0], [0.0], [4.0]], [1.0, 0.3, 0.1]
    ),
    "gaussian-2": lambda: gaussian(2, 1),
    "gaussian-10": lambda: gaussian(10, 2),
    "gaussian-20": lambda: gaussian(20, 3),
    "banana": banana,
    "widths": lambda: gaussians("widths", [0.6, 0.4], [[0, 0], [3, 3.0]], [1.0, 0.05]),
    "laplace": lambda: product("laplace", lambda x: -jnp.abs(x), 3, 20.0, False),
    "exponential": lambda: exponential(2),
    "board": board,
    "far": lambda: two_gaussians(2, 60.0, "far"),
    "three-gaussians": lambda: mixture(
        "three-gaussians",
        np.array([0.5, 0.3, 0.2]),
        3.0 * np.random.default_rng(7).normal(size=(3, 5)) + 2.0,
        0.8,
        15.0,
    ),
    "shell-5": lambda: shell(5, 4.0, 0.15, "shell-5"),
    "funnel-5": lambda: funnel(5),
    "many-well-8": lambda: many_well(8),
    "two-20": lambda: two_gaussians(20, 8.0, "two-20"),
    "hidden": lambda: gaussians("hidden", [0.5, 0.5], [[0.0] * 5, [5.0] * 5], [1.0, 0.03]),
}
