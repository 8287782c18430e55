"""From a log-density to a sampler: find the mass, then reweighted score matching."""

from __future__ import annotations

import time
import warnings
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.boltzmann.energy import Coordinates, Cost, checked, demand_points, follow
from rescore.boltzmann.flow import denoiser, draw, log_flow
from rescore.boltzmann.moves import walk
from rescore.boltzmann.pilot import explore
from rescore.boltzmann.recipe import Method, Problem, Recipe
from rescore.boltzmann.report import PARTICLES, POINTS, Report, judge
from rescore.boltzmann.sampler import JUMPS, Sampler, as_key, build
from rescore.core import UsageError
from rescore.diffusion.matching import score_matching
from rescore.diffusion.reverse import LogDensity
from rescore.models.learned import Learned
from rescore.models.networks import NoiseNet
from rescore.show.progress import Progress, make_progress

REFRESH_STEPS = 32  # of the reverse process, for samples that only place a_t
KEPT = 8192  # newest samples of the model, besides what the pilot found


class UntrustedFit(UserWarning):
    """The report on a fit says that its samples may be wrong."""


def fit(
    log_density: LogDensity | None,
    dim: int,
    method: Method = "rsm",
    *,
    samples: Array | None = None,
    coordinates: tuple[Any, Any] | None = None,
    box: float | None = None,
    start: Sampler | None = None,
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
    k_find, k_train, k_judge = jax.random.split(as_key(seed, "seed"), 3)
    density: LogDensity | None = None
    if recipe.method != "dsm":
        density = checked(log_density, dim)
    elif samples is None:
        raise UsageError("method 'dsm' learns from data: pass samples [n, dim]")
    cost, points = Cost(), None
    if samples is not None:
        points = demand_points(samples, dim, "samples")
        if len(points) < 2 or not bool(jnp.all(jnp.isfinite(points))):
            raise UsageError("samples must be finite, and at least two")
    elif start is not None:
        cost = start.cost
        if start.dim != dim:
            raise UsageError(f"start is a sampler of dim {start.dim}, not {dim}")
        if start.particles is not None:
            points = start.coordinates.to_x(start.particles)
    elif density and coordinates is None and box is None:
        points, _, cost = explore(density, dim, k_find)
    where = start.coordinates if start else place(points, coordinates, box, dim)
    standardised = coordinates is None and box is None
    problem = Problem(
        recipe,
        start.schedule if start else recipe.noise_schedule(standardised),
        density,
        where,
        None if box is None else 1.0,  # the box in the diffusion's coordinates
        points is not None,
    )
    if density and points is None and box is not None:
        y, _, cost = explore(problem.log_density, dim, k_find)
        points, problem = where.to_x(y), problem._replace(anchored=True)
    if points is None:
        known = problem.propose(
            k_find, jnp.ones(KEPT, int), jax.random.normal(k_train, (KEPT, dim))
        )
    else:
        known = where.to_y(points)
    # A bounded support is known exactly, any other to be within half as far again as was seen.
    reach = problem.box or round(1.5 * float(jnp.max(jnp.abs(known))), 1)
    shown = make_progress(quiet=not progress) if isinstance(progress, bool) else progress
    architecture: dict[str, Any] = (
        start.architecture
        if start
        else {
            "dim": dim,
            "hidden": recipe.hidden,
            "activation": recipe.activation,
        }
    )
    if start:
        net = start.net
    else:
        net = jax.jit(lambda key: build(key, problem.schedule, **architecture))(k_train)
    net = train(net, problem, known, reach, k_train, shown)
    cost = cost.plus(recipe.cost(dim, problem.anchored))
    pulled = problem.log_density if density else None
    found = known if problem.anchored else None
    sampler = Sampler(
        net, problem.schedule, where, reach, found, pulled, None, cost, 0.0, architecture
    )
    if density:
        report = examine(sampler, k_judge)
        cost = cost.plus(Cost(energy=2 * POINTS + (PARTICLES if problem.anchored else 0)))
        sampler = replace(sampler, report=report, cost=cost)
        if report.verdict == "do not use":
            warnings.warn(str(report), UntrustedFit, stacklevel=2)
    return replace(sampler, seconds=time.monotonic() - began)


def examine(sampler: Sampler, key: Array) -> Report:
    """The report on a trained sampler: it weighs samples, and the pilot's particles if any."""
    k_draw, k_particles = jax.random.split(key)
    assert sampler.log_density is not None, "the density was fitted to"
    weighted, particles = sampler.weigh(POINTS, k_draw), sampler.particles
    if particles is None:
        return judge(weighted, sampler.log_density)
    known = particles[:: max(1, len(particles) // PARTICLES)][:PARTICLES]
    log_q = log_flow(sampler.net, known, k_particles, sampler.schedule, sampler.reach)
    return judge(weighted, sampler.log_density, particles, sampler.log_density(known) - log_q)


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


def train(
    net: NoiseNet, problem: Problem, known: Array, reach: float, key: Array, progress: Progress
) -> NoiseNet:
    """The velocity network after all updates; samples of the model join the `known` points."""
    recipe, schedule, dim = problem.recipe, problem.schedule, problem.dim
    where, chunks = problem.coordinates, -(-recipe.updates // recipe.chunk)
    rate = optax.cosine_decay_schedule(recipe.learning_rate, chunks * recipe.chunk)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    @partial(jax.jit, donate_argnums=0)
    def improve(
        learned: Learned, known: Array, where: Coordinates, key: Array
    ) -> tuple[Learned, dict[str, Array]]:
        # Coordinates are an argument, so that another seed finds this compiled.
        here = problem._replace(coordinates=where)

        def update(learned: Learned, key: Array) -> tuple[Learned, dict[str, Array]]:
            rows = here.rows(known, key)

            def loss(net: NoiseNet) -> tuple[Array, dict[str, Array]]:
                eps = denoiser(net, schedule)
                value, _ = score_matching(eps, rows.a_t, rows.t, rows.target, rows.weight)
                return value, {"loss": value, "draws": jnp.mean(rows.draws)}

            return learned.descend(optimizer, loss)

        learned, metrics = jax.lax.scan(update, learned, jax.random.split(key, recipe.chunk))
        return learned, jax.tree.map(jnp.mean, metrics)

    @jax.jit
    def settle(y: Array, known: Array, where: Coordinates, key: Array) -> Array:
        """Metropolis moves bring samples of the model nearer to p_0."""
        return walk(problem._replace(coordinates=where).log_density, y, known, key, JUMPS)

    refreshes = problem.energy is not None and recipe.model_share > 0.0
    # A copy, for what is given to `improve` is gone.
    learned = Learned.create(jax.tree.map(jnp.copy, net), optimizer)
    # Of one size throughout, so that nothing is compiled twice.
    recent = known[jnp.arange(KEPT) % len(known)]
    progress.start([], chunks * recipe.chunk)
    for i in range(chunks):
        k_update, k_draw, k_walk = jax.random.split(jax.random.fold_in(key, i), 3)
        learned, metrics = improve(learned, jnp.concatenate([known, recent]), where, k_update)
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
                how="ddpm",
            )
            fresh = settle(fresh, known, where, k_walk) if problem.anchored else fresh
            recent = jnp.concatenate([recent, fresh])[-KEPT:]
    progress.stop()
    return learned.params
