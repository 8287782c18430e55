"""Many dimensions and particles: `boltzmann.fit` beside its rivals, in metrics of iDEM's tables.

    python benchmarks/dimensions.py --record results/toys/dimensions.jsonl

One row per energy, method and seed. The truth is exact samples, or for particles the ends of long
Hamiltonian chains; the row `chains` is a second set of either against the first: the floor of each
metric and, for particles, what Markov chains give for their cost. Rows that the file already has
from this commit are not made again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from energies import many_well, two_gaussians
from particles import DW4, LJ13, Particles, double_wells, lennard_jones
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from rescore.boltzmann import UntrustedFit, fit
from rescore.boltzmann.energy import Cost, checked
from rescore.boltzmann.fab import fit_flow
from rescore.boltzmann.moves import FIRST, LEAPS, Walkers, glides
from rescore.boltzmann.pilot import CLIMBS, STARTS, climber, explore, highest
from rescore.boltzmann.study import ENERGY_MATCHING
from rescore.boltzmann.targets import Target, find
from rescore.files.json import plain, read_jsonl
from rescore.files.machine import same_code, surroundings
from rescore.files.run_record import append_result

POINTS = 1000  # samples of each side that the exact W2 compares, as many as iDEM's test sets hold
SAMPLES = 2048
MOVES = 1000  # Hamiltonian moves of a chain; the last quarter is kept at four places
BINS = 200  # of the histogram of distances


@dataclass(frozen=True)
class Problem:
    """A log-density, and what is known of its truth."""

    name: str
    log_density: Callable
    dim: int
    exact: Callable | None = None  # (key, n) -> samples
    log_z: float | None = None
    particles: Particles | None = None


def of_target(target: Target, name: str) -> Problem:
    return Problem(name, target.log_density, target.dim, target.sample, target.log_z)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "gmm40": lambda: of_target(find("gmm40"), "gmm40"),
    "dw4": lambda: Problem("dw4", double_wells, DW4.dim, particles=DW4),
    "two-20": lambda: of_target(two_gaussians(20, 8.0, "two-20"), "two-20"),
    "many-well-32": lambda: of_target(many_well(32), "many-well-32"),
    "two-50": lambda: of_target(two_gaussians(50, 8.0, "two-50"), "two-50"),
    "lj13": lambda: Problem("lj13", lennard_jones, LJ13.dim, particles=LJ13),
}


def chains(problem: Problem, key: jax.Array) -> tuple[np.ndarray, Cost]:
    """Hamiltonian chains from the ends of climbs that began at random, at four late times."""
    density = checked(problem.log_density, problem.dim)
    k_climb, k_peak, k_walk = jax.random.split(key, 3)
    # Not from climbs that ended half-way: one step size for all would leave them there.
    x, _ = highest(density, climber(density, problem.dim)(k_climb), k_peak, STARTS)
    unit, part = jnp.eye(problem.dim), MOVES // 16

    @jax.jit
    def walk(walkers: Walkers, size: jax.Array, key: jax.Array) -> tuple[Walkers, jax.Array]:
        return glides(density, walkers, unit, size, key, part)

    walkers, size, kept = Walkers(x, density(x)), jnp.float32(FIRST), []
    for i in range(16):
        walkers, size = walk(walkers, size, jax.random.fold_in(k_walk, i))
        kept += [np.asarray(walkers.x)] if i >= 12 else []
    return np.concatenate(kept), Cost(gradient=STARTS * (CLIMBS + 16 * part * (LEAPS + 1)))


def truth(problem: Problem, seed: int) -> tuple[np.ndarray, Cost]:
    key = jax.random.key(seed)
    if problem.exact is None:
        return chains(problem, key)
    return np.asarray(problem.exact(key, 4 * SAMPLES)), Cost()


def w2(x: np.ndarray, y: np.ndarray) -> float:
    """Exact Wasserstein-2 distance of as many points each."""
    squares = cdist(x, y, "sqeuclidean")
    return float(np.sqrt(np.mean(squares[linear_sum_assignment(squares)])))


def line_w2(x: np.ndarray, y: np.ndarray) -> float:
    """The same of numbers, by quantiles."""
    levels = (np.arange(4000) + 0.5) / 4000
    return float(np.sqrt(np.mean((np.quantile(x, levels) - np.quantile(y, levels)) ** 2)))


def total_variation(x: np.ndarray, y: np.ndarray) -> float:
    edges = np.linspace(0.0, max(x.max(), y.max()), BINS + 1)
    a, b = (np.histogram(values, edges)[0] / len(values) for values in (x, y))
    return float(0.5 * np.sum(np.abs(a - b)))


def compare(problem: Problem, x: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    density = jax.jit(problem.log_density)
    energies = [-np.asarray(density(jnp.asarray(p, jnp.float32)), np.float64) for p in (x, exact)]
    a, b = (points[rng.permutation(len(points))[:POINTS]] for points in (x, exact))
    metrics = {"w2": w2(a, b), "energy_w2": line_w2(*energies), "energy_mean": energies[0].mean()}
    metrics["energy_mean_exact"] = energies[1].mean()
    if problem.particles is not None:
        far = [np.asarray(problem.particles.distances(jnp.asarray(p))).ravel() for p in (x, exact)]
        metrics |= {"distance_w2": line_w2(*far), "distance_tv": total_variation(*far)}
        a, b = (problem.particles.shuffled(points, rng) for points in (a, b))
        metrics["w2_shuffled"] = w2(a, b)
    return metrics


def measure(problem: Problem, methods: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """A row per method, as soon as it is there."""
    exact, _ = truth(problem, 1000)

    def row(method: str, x: Any, cost: Cost, seconds: float, **rest: Any) -> dict[str, Any]:
        found = compare(problem, np.asarray(x, np.float64), exact.astype(np.float64))
        return {"method": method, **found, "cost": cost._asdict(), "seconds": seconds, **rest}

    if "chains" in methods:
        began = time.monotonic()
        x, cost = truth(problem, 2000 + seed)
        yield row("chains", x, cost, time.monotonic() - began)
    if "pilot" in methods:
        began = time.monotonic()
        pilot = explore(
            checked(problem.log_density, problem.dim), problem.dim, jax.random.key(seed)
        )
        x = np.asarray(pilot.particles)
        yield row("pilot", x, pilot.cost, time.monotonic() - began)
    for method, settings in {"rsm": {}, "idem": {"method": "dem", **ENERGY_MATCHING}}.items():
        if method not in methods:
            continue
        sampler = fit(problem.log_density, problem.dim, seed=seed, **settings)
        told = {"report": sampler.report and vars(sampler.report)}
        for name, correct in ((method, None), (f"{method}-mh", "mh")):
            began = time.monotonic()
            x = sampler.sample(SAMPLES, 1, correct=correct)
            yield row(name, x, sampler.cost, sampler.seconds + time.monotonic() - began, **told)
    if "fab" in methods:
        width = float(np.std(exact))
        flow = fit_flow(problem.log_density, problem.dim, (0.0, width), seed=seed)
        yield row("fab", flow.sample(SAMPLES, 1), flow.cost, flow.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--energies", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    choices = ["chains", "pilot", "rsm", "idem", "fab"]
    parser.add_argument("--methods", nargs="+", default=choices[:3], choices=choices)
    options = parser.parse_args()
    here = surroundings()
    old = read_jsonl(options.record) if options.record.exists() else []
    done = {(r["energy"], r["seed"], r["method"]) for r in old if same_code(r, here)}
    warnings.simplefilter("ignore", UntrustedFit)
    for name in options.energies:
        for seed in options.seeds:
            problem = PROBLEMS[name]()
            left = [m for m in options.methods if (name, seed, m) not in done]
            for row in measure(problem, left, seed):
                made = plain({**here, "energy": name, "dim": problem.dim, "seed": seed, **row})
                append_result(options.record, made)
                print(
                    f"{name} {row['method']} {seed}: W2 {row['w2']:.3f}, of energies "
                    f"{row['energy_w2']:.3f}, {row['seconds']:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
