"""What a fit is made of: hyperparameters, proposals h_t and regression targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.boltzmann.energy import FLOOR, Coordinates, Cost, Density, within
from rescore.core import UsageError, check_choices, check_positive
from rescore.diffusion.matching import effective_sample_size
from rescore.diffusion.process import perturb, signal_and_noise, unperturb
from rescore.diffusion.reverse import (
    dem_target,
    mean_noise,
    reference_samples,
    reverse_samples,
)
from rescore.diffusion.schedules import NoiseSchedule, geometric
from rescore.models.networks import ACTIVATIONS

Method = Literal["rsm", "dem", "dsm"]
Proposal = Callable[[Array, int], Array]  # (key, n) -> points [n, d], in the caller's coordinates


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a fit. Widths are in the coordinates that the fit chose or was given."""

    method: Method = "rsm"  # reweighted, energy, denoising score matching
    proposal: str | Proposal = "gaussian"  # h_t for every t: gaussian, uniform, or draws of it
    width: float = 1.5  # standard deviation of the proposal
    model_share: float = 0.75  # share of the rows that are noised particles and samples instead
    weights: Literal["normalised", "literal"] = "normalised"  # over K, or exp(log p_0) as it is
    reference: float | None = 2.0  # width of the Gaussian behind reverse samples; None is phi_{0|t}
    num_reverse: int | None = None  # K, reverse samples per row; default 32, or 32 + 32 dim
    level_weight: Literal["velocity", "noise"] = "velocity"  # of level t: 1 / alpha_bar_t, or 1
    schedule: NoiseSchedule | None = None  # default geometric(257), up to a ratio that hides p_0
    hidden: tuple[int, ...] = (128, 128, 128)
    activation: str = "mish"
    learning_rate: float = 2e-3  # decays to 0 on a cosine
    batch_size: int = 512  # rows a_t per update
    updates: int = 2_000
    chunk: int = 200  # updates in one compiled call, between refreshments of the model's samples
    refresh: int = 1024  # new samples of the model at each
    max_target: float = 10.0  # length per sqrt(dim) that energy-matching targets are clipped to

    def __post_init__(self):
        check_choices(self)
        if not callable(self.proposal) and self.proposal not in ("gaussian", "uniform"):
            raise UsageError(
                f"proposal must be gaussian, uniform or a function, not {self.proposal!r}"
            )
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation must be one of {', '.join(ACTIVATIONS)}")
        for name in ("batch_size", "updates", "chunk", "refresh", "num_reverse"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < np.inf:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if self.updates % min(self.chunk, self.updates):
            raise UsageError(f"updates {self.updates} must be a multiple of chunk {self.chunk}")
        check_positive(self, "width", "reference", "learning_rate", "max_target")
        if not 0.0 <= self.model_share <= 1.0:
            raise UsageError(f"model_share must lie in [0, 1], not {self.model_share}")

    def reverse_count(self, dim: int, anchored: bool) -> int:
        """K: even, for the pairs of `reference_samples`."""
        return self.num_reverse or (32 if anchored and self.method == "rsm" else 32 + 32 * dim)

    def noise_schedule(self, standardised: bool) -> NoiseSchedule:
        """Standardised coordinates leave little of p_0 at a noise-to-signal ratio of 5."""
        return self.schedule or geometric(257, last=5.0 if standardised else 20.0)

    def cost(self, dim: int, anchored: bool) -> Cost:
        """Evaluations of the energy in all updates."""
        rows = self.updates * self.batch_size
        points = rows * self.reverse_count(dim, anchored)
        if anchored and self.method == "rsm":  # particles among the reverse samples, in pairs
            points += 2 * round(self.model_share * rows)
        return {"rsm": Cost(points, 0), "dem": Cost(points, points), "dsm": Cost()}[self.method]


class Rows(NamedTuple):
    """One batch of the weighted regression."""

    a_t: Array  # [B, d]
    t: Array  # [B]
    target: Array  # [B, d] noise
    weight: Array  # [B]
    draws: Array  # [B] effective number of reverse samples
    condition: Array | None = None  # [B, k] of a family


class Problem(NamedTuple):
    """A density in the coordinates of its diffusion, ready to draw rows from."""

    recipe: Recipe
    schedule: NoiseSchedule
    energy: Density | None  # in the caller's coordinates; none for DSM
    coordinates: Coordinates
    box: float | None  # half-width of a bounded support
    anchored: bool  # whether known points have about the law p_0, and may join the reverse samples

    @property
    def dim(self) -> int:
        return self.coordinates.centre.shape[0]

    def log_density(self, y: Array, *condition: Array) -> Array:
        """In the coordinates of the diffusion."""
        assert self.energy is not None, "DSM asks for no density"
        return within(self.coordinates.pull_back(self.energy), self.box)(y, *condition)

    def at(self, condition: Array) -> Problem:
        """The same with the conditions of a batch's rows, or of its first ones. [B, k]"""
        energy = self.energy
        assert energy is not None, "DSM knows no conditions"
        return self._replace(energy=lambda x: energy(x, condition[: x.shape[-2]]))

    def rows(self, known: Array, key: Array) -> Rows:
        """A batch from h_t; `known` are points of about p_0, or of the model at least. [n, d]

        In a family each has its condition beside it, [n, d + k].
        """
        recipe, n = self.recipe, self.recipe.batch_size
        # Few calls of the generator: each takes long to compile.
        k_choose, k_noise, k_reverse = jax.random.split(key, 3)
        u = jax.random.uniform(k_choose, (2, n))
        t = 1 + jnp.minimum(u[0] * self.schedule.T, self.schedule.T - 1).astype(int)
        m = round((1.0 if recipe.method == "dsm" else recipe.model_share) * n)
        noise = jax.random.normal(k_noise, (n, self.dim))
        chosen = known[(u[1] * len(known)).astype(int)]
        a_0 = chosen[:m, : self.dim]
        a_t = perturb(self.schedule, a_0, t[:m], noise[:m])
        if recipe.method == "dsm":
            return Rows(a_t, t, noise, self.level_weight(t), jnp.ones(n))
        if m < n:
            a_t = jnp.concatenate([a_t, self.propose(key, t[m:], noise[m:])])
        own = (a_0, noise[:m]) if self.anchored and recipe.weights == "normalised" else None
        condition = chosen[:, self.dim :] if known.shape[1] > self.dim else None
        here = self if condition is None else self.at(condition)
        target, weight, draws = here.regress(a_t, t, k_reverse, own)
        return Rows(a_t, t, target, weight * self.level_weight(t), draws, condition)

    def propose(self, key: Array, t: Array, noise: Array) -> Array:
        """Draws of h_t, which is the same for all t but for a bounded support. [n, d]"""
        recipe, shape = self.recipe, noise.shape
        if callable(recipe.proposal):
            return self.coordinates.to_y(recipe.proposal(key, len(t)))
        if self.box is not None:  # noised draws of the box: a_t far off has noise without bound
            a_0 = jax.random.uniform(key, shape, minval=-self.box, maxval=self.box)
            return perturb(self.schedule, a_0, t, noise)
        if recipe.proposal == "gaussian":
            return recipe.width * noise
        half = np.sqrt(3.0) * recipe.width
        return jax.random.uniform(key, shape, minval=-half, maxval=half)

    def regress(
        self, a_t: Array, t: Array, key: Array, own: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Noise to regress on at a_t, its weight, and the effective number of its draws.

        The first rows may come with their `own` a_0 ~ p_0 and its noise, an exact draw of the
        posterior. Among the reverse samples, weighted as they are, it makes the target unbiased
        for every K (as in conditional importance sampling): with reverse samples that all miss it
        is denoising score matching, with good ones it is RSM.
        """
        recipe, k = self.recipe, self.recipe.reverse_count(self.dim, self.anchored)
        if recipe.method == "dem":
            target, share = dem_target(self.schedule, self.log_density, a_t, t, key, k, self.box)
            length = jnp.linalg.norm(target, axis=-1, keepdims=True) + 1e-12
            longest = recipe.max_target * np.sqrt(self.dim)
            target = target * jnp.minimum(1.0, longest / length)
            weight = jnp.ones(len(a_t))
        else:
            noise, log_weight = self.reverse(a_t, t, key, k)
            if own is not None:
                m, rest = len(own[0]), len(a_t) - len(own[0])
                a_0, own_noise = self.pair(*own, a_t[:m], t[:m])
                own_weight = jnp.pad(
                    self.log_weight(a_0), ((0, 0), (0, rest)), constant_values=FLOOR
                )
                log_weight = jnp.concatenate([log_weight, own_weight])
                noise = jnp.concatenate([noise, jnp.pad(own_noise, ((0, 0), (0, rest), (0, 0)))])
            target, share = mean_noise(log_weight, noise)
            literal = recipe.weights == "literal"
            weight = jnp.mean(jnp.exp(log_weight), axis=0) if literal else jnp.ones(len(a_t))
        return target, weight, len(share) * effective_sample_size(share)

    def reverse(self, a_t: Array, t: Array, key: Array, k: int) -> tuple[Array, Array]:
        """Noise of K reverse samples and the logarithm of their weights."""
        if self.reference is None:
            a_0, noise = reverse_samples(self.schedule, a_t, t, key, k, self.box)
        else:
            a_0, noise = reference_samples(self.schedule, a_t, t, key, k, self.reference)
        return noise, self.log_weight(a_0)

    def pair(self, a_0: Array, noise: Array, a_t: Array, t: Array) -> tuple[Array, Array]:
        """A draw and its noise, with its mirror image if reverse samples come in such pairs:
        conditional importance sampling is exact for draws that cannot be told apart. [1 or 2, m, d]
        """
        if self.reference is None:
            return a_0[None], noise[None]
        signal, std = signal_and_noise(self.schedule, t)
        middle = a_t * std / (jnp.square(std) + jnp.square(self.reference * signal))
        mirrored = 2.0 * middle - noise
        image = unperturb(self.schedule, a_t, t, mirrored)
        return jnp.stack([a_0, image]), jnp.stack([noise, mirrored])

    def log_weight(self, a_0: Array) -> Array:
        """log of p_0 over the law whose posterior the reverse samples have, flat or a Gaussian."""
        if self.reference is None:
            return self.log_density(a_0)
        return self.log_density(a_0) + 0.5 * jnp.sum(jnp.square(a_0 / self.reference), axis=-1)

    @property
    def reference(self) -> float | None:
        return None if self.box is not None else self.recipe.reference

    def level_weight(self, t: Array) -> Array:
        """1 / alpha_bar_t turns the squared error of noise into that of velocity."""
        if self.recipe.level_weight == "noise":
            return jnp.ones(t.shape)
        return jnp.asarray(1.0 / self.schedule.alpha_bar, jnp.float32)[t]
