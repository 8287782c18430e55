"""From a log-density to a sampler: find the mass, then reweighted score matching."""

from __future__ import annotations

import time
import warnings
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.special import logsumexp

from rescore.boltzmann.energy import Coordinates, Cost, checked, follow, within
from rescore.boltzmann.pilot import explore
from rescore.boltzmann.recipe import Method, Problem, Recipe
from rescore.boltzmann.sampler import Sampler, denoiser, draw
from rescore.core import UsageError
from rescore.diffusion.matching import score_matching
from rescore.diffusion.process import perturb
from rescore.diffusion.reverse import LogDensity
from rescore.models.learned import Learned
from rescore.models.networks import NoiseNet
from rescore.show.progress import Progress, make_progress

REFRESH_STEPS = 32  # of the reverse process, for samples that only place a_t
KEPT = 8192  # newest samples of the model, besides what the pilot found
EVIDENCE = 65_536  # points that estimate log Z
WIDER = 1.3  # than the samples: their proposal's width
FEW_DRAWS = 5.0  # effective reverse samples below which a target is mostly chance


class UntrustedFit(UserWarning):
    """The weights of a fit show that its scores may be wrong."""


def fit(
    log_density: LogDensity | None,
    dim: int,
    method: Method = "rsm",
    *,
    samples: Array | None = None,
    coordinates: tuple[Any, Any] | None = None,
    box: float | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
    **hyperparameters: Any,
) -> Sampler:
    """A diffusion sampler of exp(log_density) on R^dim, trained without its samples.

    `log_density` maps points [n, dim] to [n] and is known up to a constant; -inf lies outside the
    support. Automatic are the place and scale of the mass (climbs and annealed particles find it
    within about 100 of the origin, whitened coordinates follow), the number of reverse samples,
    and a proposal that mixes a wide Gaussian with perturbed samples of the model. An
    `UntrustedFit` warning tells when the weights of the reverse samples degenerate.

    `coordinates` = (centre, scale) are used as they are, without a search; `box` is the
    half-width of a support [-box, box]^dim; `method` "dsm" learns from `samples` [n, dim] instead
    of the density, "dem" from its gradients. All other settings are the fields of `Recipe`.
    """
    settings = {field.name for field in fields(Recipe)}
    if unknown := sorted(set(hyperparameters) - settings):
        raise UsageError(f"fit has no setting {unknown[0]!r}; it has {', '.join(sorted(settings))}")
    recipe = Recipe(method, **hyperparameters)
    began = time.monotonic()
    k_find, k_train, k_judge = jax.random.split(jax.random.key(seed), 3)
    density: LogDensity | None = None
    if recipe.method != "dsm":
        density = checked(log_density, dim)
    elif samples is None:
        raise UsageError("method 'dsm' learns from data: pass samples [n, dim]")
    points: Array | None = None
    cost = Cost()
    if samples is not None:
        points = demand_points(samples, dim)
    elif density and coordinates is None and box is None:
        points, _, cost = explore(density, dim, k_find)
    where = place(points, coordinates, box, dim)
    half = None if box is None else 1.0  # the box in the diffusion's coordinates
    problem = Problem(
        recipe,
        recipe.noise_schedule(standardised=coordinates is None and box is None),
        within(where.pull_back(density), half) if density else None,
        where,
        half,
    )
    known = problem.propose(k_find, jnp.ones(KEPT, int)) if points is None else where.to_y(points)
    # A bounded support is known exactly, any other to be within half as far again as was seen.
    reach = problem.box or round(1.5 * float(jnp.max(jnp.abs(known))), 1)
    shown = make_progress(quiet=not progress) if isinstance(progress, bool) else progress
    net = train(problem, known, reach, k_train, shown)
    draws, log_z = ({}, None) if density is None else judge(problem, net, reach, k_judge)
    cost = cost.plus(recipe.cost(dim)).plus(Cost(0 if density is None else EVIDENCE))
    seconds = time.monotonic() - began
    return Sampler(net, problem.schedule, where, reach, log_z, draws, cost, seconds)


def demand_points(samples: Array, dim: int) -> Array:
    """Data as an array [n, dim], or an error."""
    points = jnp.asarray(samples, jnp.float32)
    if points.ndim != 2 or points.shape[1] != dim or len(points) < 2:
        raise UsageError(f"samples must be points [n, {dim}], not of shape {points.shape}")
    if not bool(jnp.all(jnp.isfinite(points))):
        raise UsageError("samples must be finite")
    return points


def place(
    points: Array | None, coordinates: tuple[Any, Any] | None, box: float | None, dim: int
) -> Coordinates:
    """Those that were asked for, else those that whiten the points."""
    if box is not None:
        if not box > 0:
            raise UsageError(f"box must be positive, not {box}")
        return Coordinates.scaled(0.0, box, dim)
    if coordinates is not None:
        return Coordinates.scaled(*coordinates, dim)
    assert points is not None, "without a place, points were found or given"
    return Coordinates.whitening(points)


def train(problem: Problem, known: Array, reach: float, key: Array, progress: Progress) -> NoiseNet:
    """The velocity network after all updates; samples of the model join the `known` points."""
    recipe, schedule, dim = problem.recipe, problem.schedule, problem.dim
    chunks = -(-recipe.updates // recipe.chunk)
    rate = optax.cosine_decay_schedule(recipe.learning_rate, chunks * recipe.chunk)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    @jax.jit
    def start(key: Array) -> Learned:
        net = NoiseNet(key, 0, dim, schedule.T, recipe.hidden, recipe.activation)
        return Learned.create(net, optimizer)

    @partial(jax.jit, donate_argnums=0)
    def improve(learned: Learned, known: Array, key: Array) -> tuple[Learned, dict[str, Array]]:
        def update(learned: Learned, key: Array) -> tuple[Learned, dict[str, Array]]:
            rows = problem.rows(known, key)

            def loss(net: NoiseNet) -> tuple[Array, dict[str, Array]]:
                eps = denoiser(net, schedule)
                value, _ = score_matching(eps, rows.a_t, rows.t, rows.target, rows.weight)
                return value, {"loss": value, "draws": jnp.mean(rows.draws)}

            return learned.descend(optimizer, loss)

        learned, metrics = jax.lax.scan(update, learned, jax.random.split(key, recipe.chunk))
        return learned, jax.tree.map(jnp.mean, metrics)

    refreshes = problem.log_density is not None and recipe.model_share > 0.0
    # Of one size throughout, so that nothing is compiled twice.
    learned, recent = start(key), known[jnp.arange(KEPT) % len(known)]
    progress.start([], chunks * recipe.chunk)
    for i in range(chunks):
        k_update, k_draw = jax.random.split(jax.random.fold_in(key, i))
        learned, metrics = improve(learned, jnp.concatenate([known, recent]), k_update)
        follow(progress, (i + 1) * recipe.chunk, metrics)
        if refreshes and i + 1 < chunks:
            fresh = draw(
                learned.params,
                k_draw,
                schedule=schedule,
                n=recipe.refresh,
                dim=dim,
                steps=min(REFRESH_STEPS, schedule.T),
                reach=reach,
            )
            recent = jnp.concatenate([recent, fresh])[-KEPT:]
    progress.stop()
    return learned.params


def judge(
    problem: Problem, net: NoiseNet, reach: float, key: Array
) -> tuple[dict[int, float], float]:
    """Effective reverse samples at levels of noise, and log Z; warns where few decide."""
    schedule = problem.schedule
    k_draw, k_noise, k_reverse, k_evidence = jax.random.split(key, 4)
    steps = min(4 * REFRESH_STEPS, schedule.T)
    y = draw(net, k_draw, schedule=schedule, n=1024, dim=problem.dim, steps=steps, reach=reach)

    @jax.jit
    def effective(t: Array) -> Array:
        t = jnp.broadcast_to(t, y.shape[:1])
        y_t = perturb(schedule, y, t, jax.random.normal(k_noise, y.shape))
        return jnp.mean(problem.regress(y_t, t, k_reverse)[2])

    levels = np.linspace(1, schedule.T, 8).round().astype(int)
    draws = {int(t): float(effective(jnp.asarray(t))) for t in levels}
    worst = min(draws, key=lambda t: draws[t])
    if draws[worst] < FEW_DRAWS:
        warnings.warn(
            f"at noise level {worst} of {schedule.T} only {draws[worst]:.1f} effective reverse "
            "samples decide the score: samples may be wrong; raise num_reverse, or check that "
            "coordinates and proposal cover the mass",
            UntrustedFit,
            stacklevel=3,
        )
    return draws, log_evidence(problem.log_density, y, k_evidence)


def log_evidence(log_density: LogDensity, y: Array, key: Array) -> float:
    """log of the integral of the density, by importance sampling about the points y."""
    around = Coordinates.whitening(y)
    z = WIDER * jax.random.normal(key, (EVIDENCE, y.shape[1]))
    log_proposal = jax.scipy.stats.norm.logpdf(z, scale=WIDER).sum(axis=-1)
    log_weight = jax.jit(around.pull_back(log_density))(z) - log_proposal
    return float(logsumexp(log_weight) - np.log(EVIDENCE))
