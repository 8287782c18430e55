"""Verdicts of `boltzmann.fit` against the truth: every energy of energies.py, several seeds.

    python benchmarks/calibrate.py --record results/toys/calibration.jsonl

One row per fit with defaults: its report, and how far plain and corrected samples are from exact
ones. Rows that the file already has from this commit are not made again; `benchmarks/tables.py`
counts them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from energies import ENERGIES

from rescore.boltzmann import UntrustedFit, fit
from rescore.boltzmann.metrics import mode_weights
from rescore.boltzmann.report import gap
from rescore.boltzmann.targets import Target
from rescore.files.json import plain, read_jsonl
from rescore.files.machine import same_code, surroundings
from rescore.files.run_record import append_result

EXACT = 100_000
# Of the funnel's v, 2,048 exact samples have a 95 % quantile with a standard error of 0.14; these
# have 0.05, so that an error of 0.2 is seen to be one.
DRAWS = 16_384
QUANTILES = (0.05, 0.5, 0.95)


def distances(target: Target, x: np.ndarray, exact: np.ndarray) -> dict:
    """Worst error of a mode's share and of a coordinate's distribution; share of density zero."""
    value = np.asarray(target.log_density(jnp.asarray(x, jnp.float32)))
    share, truth = (mode_weights(target, points)[0] for points in (x, exact))
    return {
        "share": np.max(np.abs(share - truth)),
        "marginal": max(gap(a, b) for a, b in zip(x.T, exact.T)),
        "outside": np.mean(~np.isfinite(value)),
        "quantiles": np.quantile(x[:, 0], QUANTILES),
        "quantiles_exact": np.quantile(exact[:, 0], QUANTILES),
    }


def measure(name: str, seed: int) -> dict:
    target = ENERGIES[name]()
    exact = np.asarray(target.sample(jax.random.key(1000), EXACT), np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedFit)
        sampler = fit(target.log_density, target.dim, seed=seed)
    began = time.monotonic()
    pilot = np.asarray(sampler.coordinates.to_x(sampler.particles), np.float64)
    plainly = np.asarray(sampler.sample(DRAWS, 1, correct=None), np.float64)
    corrected = np.asarray(sampler.sample(DRAWS, 1, correct="mh"), np.float64)
    return {
        "energy": name,
        "seed": seed,
        "dim": target.dim,
        "draws": DRAWS,
        "report": asdict(sampler.report),
        "log_z_off": sampler.log_z - target.log_z,
        "pilot": distances(target, pilot, exact),
        "plain": distances(target, plainly, exact),
        "corrected": distances(target, corrected, exact),
        "cost": sampler.cost._asdict(),
        "seconds": sampler.seconds,
        "sampling_seconds": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--energies", nargs="+", default=list(ENERGIES), choices=list(ENERGIES))
    options = parser.parse_args()
    here = surroundings()
    old = read_jsonl(options.record) if options.record.exists() else []
    done = {(row["energy"], row["seed"]) for row in old if same_code(row, here)}
    for seed in options.seeds:
        for name in options.energies:
            if (name, seed) in done:
                continue
            row = plain({**here, **measure(name, seed)})
            append_result(options.record, row)
            report = row["report"]
            print(
                f"{name:16} {seed} {row['seconds']:4.0f} s  {report['verdict']}: {report['reason']}"
            )


if __name__ == "__main__":
    main()
