"""From a log-density to a sampler: find the mass, then reweighted score matching."""

from __future__ import annotations

import time
import warnings
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from rescore.boltzmann.energy import Coordinates, Cost, Density, checked, demand_points, follow
from rescore.boltzmann.family import Family, bind, family_of, seek
from rescore.boltzmann.flow import denoiser, draw, log_flow
from rescore.boltzmann.moves import walk
from rescore.boltzmann.pilot import explore
from rescore.boltzmann.recipe import Method, Problem, Recipe
from rescore.boltzmann.report import PARTICLES, POINTS, Report, judge
from rescore.boltzmann.sampler import JUMPS, Sampler, as_key, build
from rescore.core import UsageError
from rescore.diffusion.matching import score_matching
from rescore.models.learned import Learned
from rescore.models.networks import NoiseNet
from rescore.show.progress import Progress, make_progress

REFRESH_STEPS = 32  # of the reverse process, for samples that only place a_t
KEPT = 8192  # newest samples of the model, besides what the pilot found


class UntrustedFit(UserWarning):
    """The report on a fit says that its samples may be wrong."""


def fit(
    log_density: Density | None,
    dim: int,
    method: Method = "rsm",
    *,
    condition: Any = None,
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
    `UntrustedFit` warning says that the report's verdict is "do not use".

    `condition` = values [m, k] or [m] makes it a family: `log_density` then takes points [n, dim]
    and the condition of each [n, k], one network learns all m densities, and the sampler is asked
    for one condition at a time, those between included. Its report is that on the worst of the m.

    `coordinates` = (centre, scale) are used as they are, without a search; `box` is the
    half-width of a support [-box, box]^dim; `method` "dsm" learns from `samples` [n, dim] instead
    of the density, "dem" from its gradients. All other settings are the fields of `Recipe`.
    """
    began, recipe = time.monotonic(), recipe_of(method, hyperparameters)
    k_find, k_train, k_judge = jax.random.split(as_key(seed, "seed"), 3)
    density: Density | None = None
    family = family_of(condition, start.family if start else None, start is not None)
    if family and (recipe.method == "dsm" or samples is not None):
        raise UsageError("a family is learned from its density alone: leave samples= and dsm out")
    if recipe.method != "dsm":
        density = checked(log_density, dim, family.conditions if family else None)
    elif samples is None:
        raise UsageError("method 'dsm' learns from data: pass samples [n, dim]")
    points, cost = given_points(samples, start, dim)
    standardised = coordinates is None and box is None
    if density and standardised and samples is None and start is None:
        points, cost = find(density, dim, k_find, family)
    where = start.coordinates if start else place(points, coordinates, box, dim)
    problem = Problem(
        recipe,
        start.schedule if start else recipe.noise_schedule(standardised),
        density,
        where,
        None if box is None else 1.0,  # the box in the diffusion's coordinates
        points is not None,
    )
    if density and points is None and box is not None:
        y, cost = find(problem.log_density, dim, k_find, family)
        points, problem = where.to_x(y), problem._replace(anchored=True)
    if points is None:
        known = problem.propose(
            k_find, jnp.ones(KEPT, int), jax.random.normal(k_train, (KEPT, dim))
        )
    else:
        known = where.to_y(points)
    # A bounded support is known exactly, any other to be within half as far again as was seen.
    reach = problem.box or round(1.5 * float(jnp.max(jnp.abs(known))), 1)
    found = known if problem.anchored else None
    shown = make_progress(quiet=not progress) if isinstance(progress, bool) else progress
    net, architecture = (
        (start.net, start.architecture) if start else new_network(problem, family, k_train)
    )
    net = train(net, problem, known, reach, k_train, shown, family)
    cost = cost.plus(recipe.cost(dim, problem.anchored))
    # Jitted, so that it has an identity by which programs that use it are found again.
    pulled = jax.jit(problem.log_density) if density else None
    told = (pulled, None, cost, 0.0, architecture, family, box is not None)
    sampler = Sampler(net, problem.schedule, where, reach, found, *told)
    if density:
        sampler = judged(sampler, k_judge)
        if sampler.report and sampler.report.verdict == "do not use":
            warnings.warn(str(sampler.report), UntrustedFit, stacklevel=2)
    return replace(sampler, seconds=time.monotonic() - began)


def recipe_of(method: Method, hyperparameters: dict[str, Any]) -> Recipe:
    settings = {field.name for field in fields(Recipe)}
    if unknown := sorted(set(hyperparameters) - settings):
        raise UsageError(f"fit has no setting {unknown[0]!r}; it has {', '.join(sorted(settings))}")
    return Recipe(method, **hyperparameters)


def given_points(
    samples: Array | None, start: Sampler | None, dim: int
) -> tuple[Array | None, Cost]:
    """Points of about p_0 that the caller has, as data or in a sampler to go on from."""
    if samples is not None:
        points = demand_points(samples, dim, "samples")
        if len(points) < 2 or not bool(jnp.all(jnp.isfinite(points))):
            raise UsageError("samples must be finite, and at least two")
        return points, Cost()
    if start is None:
        return None, Cost()
    if start.dim != dim:
        raise UsageError(f"start is a sampler of dim {start.dim}, not {dim}")
    found = start.particles
    return None if found is None else start.coordinates.to_x(found), start.cost


def new_network(problem: Problem, family: Family | None, key: Array) -> tuple[NoiseNet, dict]:
    """An untrained network, and the arguments that `build` makes it from."""
    recipe = problem.recipe
    architecture: dict[str, Any] = {"dim": problem.dim, "hidden": recipe.hidden}
    architecture["activation"] = recipe.activation
    if family:
        architecture["conditions"] = family.size
    return jax.jit(lambda key: build(key, problem.schedule, **architecture))(key), architecture


def find(log_density: Density, dim: int, key: Array, family: Family | None) -> tuple[Array, Cost]:
    """The pilot's particles, of a family those of every condition in turn, and their cost."""
    if family:
        return seek(log_density, dim, key, family)
    pilot = explore(log_density, dim, key)
    return pilot.particles, pilot.cost


def judged(sampler: Sampler, key: Array) -> Sampler:
    """The same with its report, that on the worst condition of a family, and the cost of it."""
    family, count = sampler.family, 1
    if family:
        count = len(family.conditions)
        members = (sampler.at(condition) for condition in family.conditions)
        reports = tuple(map(examine, members, jax.random.split(key, count)))
        family = replace(family, reports=reports)
    report = family.worst() if family else examine(sampler, key)
    points = 2 * POINTS + (PARTICLES if sampler.particles is not None else 0)
    cost = sampler.cost.plus(Cost(energy=count * points))
    return replace(sampler, report=report, cost=cost, family=family)


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
    net: NoiseNet,
    problem: Problem,
    known: Array,
    reach: float,
    key: Array,
    progress: Progress,
    family: Family | None = None,
) -> NoiseNet:
    """The velocity network after all updates; samples of the model join the `known` points."""
    recipe, schedule, dim = problem.recipe, problem.schedule, problem.dim
    chunk = min(recipe.chunk, recipe.updates)
    where, chunks = problem.coordinates, recipe.updates // chunk
    rate = optax.cosine_decay_schedule(recipe.learning_rate, recipe.updates)
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
                at = rows.condition
                seen = None if family is None or at is None else family.standard(at)
                eps = denoiser(net, schedule, condition=seen)
                value, _ = score_matching(eps, rows.a_t, rows.t, rows.target, rows.weight)
                return value, {"loss": value, "draws": jnp.mean(rows.draws)}

            return learned.descend(optimizer, loss)

        learned, metrics = jax.lax.scan(update, learned, jax.random.split(key, chunk))
        return learned, jax.tree.map(jnp.mean, metrics)

    @jax.jit
    def settle(y: Array, known: Array, where: Coordinates, key: Array) -> Array:
        """Metropolis moves bring samples of the model nearer to p_0."""
        return walk(problem._replace(coordinates=where).log_density, y, known, key, JUMPS)

    @jax.jit
    def renew(net: NoiseNet, known: Array, where: Coordinates, key: Array) -> Array:
        """Samples of the model at every condition of a family, after such moves. [n, d + k]"""
        assert family is not None
        here, m = problem._replace(coordinates=where), len(family.conditions)
        others = known[: len(known) // m * m, :dim].reshape(-1, m, dim).swapaxes(0, 1)

        def member(inputs: tuple[Array, Array, Array]) -> Array:
            condition, others, key = inputs
            k_draw, k_walk = jax.random.split(key)
            fixed = bind(net, family.standard(condition))
            y = draw(fixed, k_draw, n=-(-recipe.refresh // m), **model)
            if not problem.anchored:
                return y
            return walk(lambda y: here.log_density(y, condition), y, others, k_walk, JUMPS)

        y = jax.lax.map(member, (family.conditions, others, jax.random.split(key, m)))
        return family.beside(y.swapaxes(0, 1).reshape(-1, dim))

    model: dict[str, Any] = {
        "schedule": schedule,
        "dim": dim,
        "steps": min(REFRESH_STEPS, schedule.T),
        "reach": reach,
        "how": "ddpm",
    }
    known = family.beside(known) if family else known
    refreshes = problem.energy is not None and recipe.model_share > 0.0
    # A copy, for what is given to `improve` is gone.
    learned = jax.jit(lambda net: Learned.create(jax.tree.map(jnp.copy, net), optimizer))(net)
    # Of one size throughout, so that nothing is compiled twice.
    recent = known[np.arange(KEPT) % len(known)]
    progress.start([], recipe.updates)
    for i in range(chunks):
        k_update, k_draw, k_walk = jax.random.split(jax.random.fold_in(key, i), 3)
        learned, metrics = improve(learned, jnp.concatenate([known, recent]), where, k_update)
        follow(progress, (i + 1) * chunk, metrics)
        if refreshes and i + 1 < chunks:
            if family:
                fresh = renew(learned.params, known, where, k_draw)
            else:
                fresh = draw(learned.params, k_draw, n=recipe.refresh, **model)
                fresh = settle(fresh, known, where, k_walk) if problem.anchored else fresh
            recent = jnp.concatenate([recent, fresh])[-KEPT:]
    progress.stop()
    return learned.params
