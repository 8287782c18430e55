"""A run as arrays and JSON, and back: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rescore.core import UsageError
from rescore.training.checkpoint import named_leaves, refill
from rescore.training.loop import Run, Tally, settle

Arrays = dict[str, dict[str, np.ndarray]]


def dump_policy(run: Run) -> tuple[Arrays, dict[str, Any]]:
    """Networks, optimisers and counters: enough to act and to evaluate."""
    settle(run)
    counters = {"env_steps": run.env_steps, "updates": run.updates, "iteration": run.iteration}
    best = {"best_return": run.best_return, "best_at": run.best_at}
    return {"state": named_leaves(run.state)}, {**counters, **best}


def dump(run: Run) -> tuple[Arrays, dict[str, Any]]:
    """All of a run: also replay, environments and unreported episodes."""
    arrays, meta = dump_policy(run)
    arrays["loop"] = {
        "obs": run.obs,
        "episode_return": run.episode_return,
        "episode_length": run.episode_length,
    }
    meta["tally"] = asdict(run.tally)
    # Checkpoints fall between chunks, where a rollout has been learnt from and is gone.
    if run.algo.source == "replay" and run.training.save_replay:
        arrays["replay"] = {"rows": run.memory.rows[:, : run.memory.size]}
        meta["replay_added"] = run.memory.added
    snapshot = run.envs.snapshot()
    if snapshot is None:
        meta["no_snapshot"] = run.envs.no_snapshot
    else:
        arrays["envs"], meta["envs"] = snapshot
    return arrays, meta


def restore(run: Run, arrays: Arrays, meta: dict[str, Any], source: Path) -> list[str]:
    """Put a run back; returns a line for each part that could not be restored exactly."""
    notes = []
    run.state = refill(run.state, arrays["state"], source)
    for name in ("env_steps", "updates", "iteration", "best_return", "best_at"):
        setattr(run, name, meta[name])
    if "replay" in arrays:
        run.memory.restore(arrays["replay"]["rows"], meta["replay_added"])
    elif run.env_steps and run.algo.source == "replay":
        notes.append("the checkpoint holds no replay: it fills up with the policy's steps first")
    problem = meta.get("no_snapshot", "")
    if "envs" in arrays:
        try:
            run.obs = run.envs.restore(arrays["envs"], meta["envs"])
            run.episode_return = arrays["loop"]["episode_return"].copy()
            run.episode_length = arrays["loop"]["episode_length"].copy()
        except UsageError as error:
            problem = str(error)
    if run.env_steps and ("envs" not in arrays or problem):
        # Other seeds than at the start, which would repeat the first episodes.
        run.obs = run.envs.reset(epoch=run.iteration)
        notes.append(f"every environment starts a new episode: {problem or 'none was saved'}")
    if "tally" in meta:
        run.tally = Tally(**meta["tally"])
        run.tally.returns = [tuple(r) for r in run.tally.returns]
    return notes
