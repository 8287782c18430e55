"""A trained diffusion sampler in the caller's coordinates."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.boltzmann.energy import (
    FLOOR,
    Coordinates,
    Cost,
    Density,
    checked,
    demand_points,
    whole,
    within,
)
from rescore.boltzmann.family import Family, bind
from rescore.boltzmann.flow import How, Weighted, denoiser, draw, flow_samples, log_flow
from rescore.boltzmann.moves import has_gradient, resample, walk
from rescore.boltzmann.report import Report
from rescore.core import UsageError, known, one_line
from rescore.diffusion.process import score_of_noise
from rescore.diffusion.schedules import NoiseSchedule
from rescore.files.atomic import replacing
from rescore.models.networks import NoiseNet

Correct = Literal["auto", "mh", "weights"]
SPARE = 2  # candidates per point that weights choose from
FEWEST = 512  # candidates in any case
JUMPS = 20  # Metropolis moves of a corrected point by differences of particles
SLIDES = 10  # and by the gradient, where there is one
LAYOUT = 3  # of saved files


@partial(jax.jit, static_argnames=("log_density", "slides"))
def corrected(log_density: Density, y: Array, others: Array, key: Array, slides: int) -> Array:
    """Points nearer to the density by Metropolis moves. [n, d] -> [n, d]"""
    return walk(log_density, y, others, key, JUMPS, slides)


@dataclass(frozen=True)
class Sampler:
    """Samples of a density and the scores of its noisy versions; made by `fit`.

    That of a family of densities asks for a `condition` everywhere, which is one of its own or any
    other.
    """

    net: NoiseNet
    schedule: NoiseSchedule
    coordinates: Coordinates
    reach: float  # samples lie in [-reach, reach]^dim of the diffusion's coordinates
    particles: Array | None  # [n, dim] of the pilot or data, in the diffusion's coordinates
    log_density: Density | None  # in those coordinates; none after DSM, or if loaded without
    report: Report | None  # of a family, that on its worst condition
    cost: Cost
    seconds: float
    architecture: dict[str, Any]  # of the network
    family: Family | None = None  # if there are conditions
    boxed: bool = False  # whether the support is [-1, 1]^dim of the diffusion's coordinates

    def __repr__(self) -> str:
        told = f"\n  {self.report}" if self.report else ""
        of = f" at {len(self.family.conditions)} conditions" if self.family else ""
        return f"Sampler of dim {self.dim}{of}: {self.cost}, {self.seconds:.0f} s{told}"

    @property
    def dim(self) -> int:
        return self.coordinates.centre.shape[0]

    @property
    def log_z(self) -> float | None:
        """Estimate of the log-density's normaliser; a family has one for each condition."""
        return self.report.log_z if self.report and self.family is None else None

    def at(self, condition: Any = None) -> Sampler:
        """The sampler at one condition [k] of a family; itself if there are none."""
        family = self.family
        if family is None:
            if condition is not None:
                raise UsageError(
                    "this sampler knows no conditions: leave condition= out, or give it to `fit`"
                )
            return self
        one, particles, density = family.demand(condition), self.particles, self.log_density
        if particles is not None:  # any will do for Metropolis moves, and near ones best
            by_condition = particles.reshape(-1, len(family.conditions), self.dim)
            particles = by_condition[:, family.nearest(one)]
        return replace(
            self,
            net=bind(self.net, family.standard(one)),
            particles=particles,
            log_density=None if density is None else lambda y: density(y, one),
            report=family.report(one),
            architecture={**self.architecture, "conditions": 0},
            family=None,
        )

    def sample(
        self,
        n: int,
        key: Array | int = 0,
        *,
        condition: Any = None,
        correct: Correct | None = "auto",
        how: How = "flow",
        steps: int | None = None,
    ) -> Array:
        """n points of the density, as exact as the fit can make them. [n, dim]

        `correct` = "weights" chooses them among twice as many by their importance weights, so that
        some are equal; "mh" moves each of those by Metropolis steps as well, or the pilot's
        particles where the report leaves too few effective samples to choose from; "auto" is "mh"
        unless the report says "trusted": there is none on a `condition` that was not trained. None
        takes the model's samples as they are: those of the flow, whose law `log_prob` tells, or
        else (`how`) of ancestral sampling ("ddpm") or of annealed Langevin dynamics, where
        `steps` < T visits a sub-grid of the noise levels.
        """
        if self.family or condition is not None:
            one = self.at(condition)
            return one.sample(n, key, correct=correct, how=how, steps=steps)
        n, key = whole(n, "n"), as_key(key)
        known(how, get_args(How), "how")
        if correct is not None:
            known(correct, get_args(Correct), "correct")
        if correct == "auto":
            trusted = self.report is not None and self.report.verdict == "trusted"
            correct = None if trusted or how != "flow" or self.log_density is None else "mh"
        if correct is None:
            settings = {"schedule": self.schedule, "n": n, "dim": self.dim, "reach": self.reach}
            return self.coordinates.to_x(draw(self.net, key, how=how, steps=steps, **settings))
        k_draw, k_choose, k_walk = jax.random.split(key, 3)
        if how != "flow":
            raise UsageError(f"only samples of the flow have weights: correct=None for {how}")
        density, particles = self.demand_density(), self.particles
        if correct == "mh" and particles is not None and self.report and self.report.few:
            others, chosen = particles, jax.random.randint(k_choose, (n,), 0, len(particles))
        else:
            weighted = self.weigh(max(SPARE * n, FEWEST), k_draw)
            others, chosen = weighted.x, resample(weighted.log_weight, k_choose, n)
        y = others[chosen]
        if correct == "mh":
            slides = SLIDES if has_gradient(density, self.dim) else 0
            others = others if particles is None else particles
            y = corrected(density, y, others, k_walk, slides)
        return self.coordinates.to_x(y)

    def weighted(self, n: int, key: Array | int = 0, *, condition: Any = None) -> Weighted:
        """n points of the flow with log(p / q), for self-normalised means under the density."""
        weighted = self.at(condition).weigh(whole(n, "n"), as_key(key))
        return weighted._replace(x=self.coordinates.to_x(weighted.x))

    def weigh(self, n: int, key: Array) -> Weighted:
        """As `weighted`, in the coordinates of the diffusion."""
        density = self.demand_density()
        y, log_q = flow_samples(self.net, key, n, self.schedule, self.reach, density=True)
        value = jax.jit(density)(y)
        return Weighted(y, jnp.where(value <= 0.5 * FLOOR, -jnp.inf, value - log_q))

    def demand_density(self) -> Density:
        if self.log_density is None:
            raise UsageError("weights need the log-density: give it to `load` or `with_density`")
        return self.log_density

    def log_prob(self, x: Array, key: Array | int = 0, *, condition: Any = None) -> Array:
        """log of the model's own normalised density, by its probability flow. [n, dim] -> [n]"""
        y = self.coordinates.to_y(demand_points(x, self.dim, "x"))
        log_det = jnp.sum(jnp.log(jnp.diag(self.coordinates.root)))
        net = self.at(condition).net
        return log_flow(net, y, as_key(key), self.schedule, self.reach) - log_det

    def score(self, x: Array, t: int | Array, *, condition: Any = None) -> Array:
        """grad log p_t(x) for t = 1..T, from little noise to much. [n, dim] -> [n, dim]

        p_t is the law of centre + root y_t, where y_t is the noised y_0 and x = centre + root y.
        """
        x = demand_points(x, self.dim, "x")
        t = jnp.broadcast_to(jnp.asarray(t), x.shape[:1])
        traced = isinstance(t, jax.core.Tracer)
        if not traced and bool(jnp.any((t < 1) | (t > self.schedule.T))):
            raise UsageError(f"t must lie in 1..{self.schedule.T}")
        net = self.at(condition).net
        noise = denoiser(net, self.schedule, self.reach)(self.coordinates.to_y(x), t)
        return self.coordinates.score_in_x(score_of_noise(self.schedule, noise, t))

    def with_density(self, log_density: Density) -> Sampler:
        """The same sampler with a log-density to correct its samples by."""
        conditions = self.family.conditions if self.family else None
        density = self.coordinates.pull_back(checked(log_density, self.dim, conditions))
        return replace(self, log_density=jax.jit(within(density, 1.0 if self.boxed else None)))

    def save(self, path: str | Path) -> Path:
        """Arrays and, in the file's header, JSON: a `.safetensors` file, whole or not at all."""
        from safetensors.numpy import save_file

        leaves = jax.tree.leaves(self.net)
        arrays = {f"net.{i}": leaf for i, leaf in enumerate(leaves)}
        arrays |= self.coordinates._asdict()
        if self.particles is not None:
            arrays["particles"] = self.particles
        reports: tuple[Report, ...] = ()
        if self.family is not None:
            arrays["conditions"], reports = self.family.conditions, self.family.reports
        meta = {
            "layout": LAYOUT,
            "schedule": self.schedule.beta,
            "reach": self.reach,
            "boxed": self.boxed,
            "report": dataclasses.asdict(self.report) if self.report else None,
            "reports": [dataclasses.asdict(report) for report in reports],
            "cost": self.cost,
            "seconds": self.seconds,
            "architecture": self.architecture,
        }
        with replacing(path) as part:
            save_file(
                {name: np.asarray(a, order="C") for name, a in arrays.items()},
                part,
                {"rescore.boltzmann": json.dumps(meta)},
            )
        return Path(path)


def load(path: str | Path, log_density: Density | None = None) -> Sampler:
    """What `Sampler.save` wrote; with its log-density, samples can be corrected again."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            meta = json.loads((file.metadata() or {})["rescore.boltzmann"])
            arrays = {name: jnp.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (SafetensorError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is no saved sampler: {reason}") from None
    if not isinstance(meta, dict) or meta.get("layout") != LAYOUT:
        said = meta.get("layout") if isinstance(meta, dict) else None
        raise UsageError(f"{path} has layout {said}, this version reads {LAYOUT}: fit again")
    try:
        sampler = restored(meta, arrays)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{path} is damaged: {one_line(error)}") from None
    return sampler if log_density is None else sampler.with_density(log_density)


def restored(meta: dict[str, Any], arrays: dict[str, Array]) -> Sampler:
    """A sampler of the numbers that `save` wrote; ValueError if they do not fit each other."""
    schedule = NoiseSchedule(tuple(meta["schedule"]))
    like = build(jax.random.key(0), schedule, **meta["architecture"])
    leaves = [arrays[f"net.{i}"] for i in range(len(jax.tree.leaves(like)))]
    dim = meta["architecture"]["dim"]
    shapes = [leaf.shape for leaf in jax.tree.leaves(like)] + [(dim,), (dim, dim)]
    found = [leaf.shape for leaf in [*leaves, arrays["centre"], arrays["root"]]]
    if found != shapes:
        raise ValueError(f"arrays of shapes {found} instead of {shapes}")
    family = None
    if "conditions" in arrays:
        reports = tuple(Report(**report) for report in meta["reports"])
        family = Family(arrays["conditions"], reports)
    return Sampler(
        jax.tree.unflatten(jax.tree.structure(like), leaves),
        schedule,
        Coordinates(arrays["centre"], arrays["root"]),
        meta["reach"],
        arrays.get("particles"),
        None,
        Report(**meta["report"]) if meta["report"] else None,
        Cost(*meta["cost"]),
        meta["seconds"],
        meta["architecture"],
        family,
        meta["boxed"],
    )


def build(
    key: Array, schedule: NoiseSchedule, dim: int, hidden: Any, activation: str, conditions: int = 0
) -> NoiseNet:
    """The network of a fit: it sees a noisy point, its level, and so many numbers beside them."""
    return NoiseNet(key, conditions, dim, schedule.T, tuple(hidden), activation)


def as_key(key: Any, name: str = "key") -> Array:
    """A key, or that of a whole number."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return jax.random.key(int(key))
    if isinstance(key, Array):
        return key
    raise UsageError(f"{name} must be a whole number or a JAX key, not {key!r}")
