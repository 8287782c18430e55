"""Rows of metrics: what is summed between two of them, and the check that all of it is finite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax
import numpy as np

from rescore.core import NonFiniteError

if TYPE_CHECKING:
    from rescore.training.loop import Run


@dataclass
class Tally:
    """What happened since the last row of metrics; part of a checkpoint, so rows are exact."""

    metrics: dict[str, list[float]] = field(default_factory=dict)  # totals per seed
    counts: dict[str, int] = field(default_factory=dict)  # of the updates in each total
    # Of episodes: index of the seed, return, length.
    returns: list[tuple[int, float, int]] = field(default_factory=list)


def settle(run: Run) -> None:
    """Fetch waiting metrics into the tally; a value that is not finite stops the run here.

    A metric that was NaN counts as not measured, but the parameters that it spoiled do not pass.
    """
    tally, fetched, run.waiting = run.tally, jax.device_get(run.waiting), []
    for name, (totals, counts) in ((n, s) for sums in fetched for n, s in sums.items()):
        bad = np.flatnonzero(~np.isfinite(totals))
        if bad.size:
            raise NonFiniteError(
                f"{name} became {totals[bad[0]]} for seed {run.envs.seeds[bad[0]]}, within the "
                f"updates before number {run.updates} (environment step {run.env_steps})"
            )
        before = tally.metrics.get(name, [0.0] * len(totals))
        tally.metrics[name] = [a + float(b) for a, b in zip(before, totals)]
        tally.counts[name] = tally.counts.get(name, 0) + int(counts[0])  # seeds share the step
    if not bool(run.programs.finite(run.leaves)):
        raise NonFiniteError(f"the parameters stopped being finite before update {run.updates}")


def report(run: Run) -> list[dict[str, float]]:
    """One row of metrics per seed since the last report, and a fresh tally."""
    settle(run)
    tally, run.tally = run.tally, Tally()
    rows = []
    for s, seed in enumerate(run.envs.seeds):
        row: dict[str, float] = {"env_steps": run.env_steps, "seed": seed, "updates": run.updates}
        if own := [pair for index, *pair in tally.returns if index == s]:
            returns, lengths = (float(np.mean(values)) for values in zip(*own))
            row |= {"return": returns, "length": lengths, "episodes": len(own)}
        seen = {name: n for name, n in tally.counts.items() if n}
        row |= {name: tally.metrics[name][s] / n for name, n in seen.items()}
        rows.append(row)
    return rows
