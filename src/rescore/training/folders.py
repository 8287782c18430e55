"""The folder of a run: who may train in it, and what may be believed of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from rescore.algorithms import REGISTRY, find
from rescore.core import EnvError, UsageError
from rescore.envs.build import make, valid_seeds
from rescore.envs.task import Task, stored
from rescore.files.json import write_json
from rescore.files.locks import Lock
from rescore.files.run_record import RUN, claim, describe, mark_resumed, new_folder, readable
from rescore.training import checkpoint
from rescore.training.config import from_plain, training_for
from rescore.training.demos import saved_demos
from rescore.training.loop import Run, start

CONFIG = "config.json"  # what `rescore train --config` takes


def claim_folder(
    folder: Path, run: Run, config: dict[str, Any], passed_over: set[str] | None, again: bool
) -> Lock:
    """A folder tells of one run and has one trainer: lock it, and describe this run in it.

    `passed_over` are checkpoints that a loaded run could not read; `again` is for a trainer who
    has worked there before.
    """
    about = folder / RUN
    if not again and passed_over is None:
        new_folder(folder)
    lock = claim(folder)
    try:
        after = {path.name for path in checkpoint.newer(folder, run.env_steps)}
        if after - (passed_over or set()):
            raise UsageError(f"{folder} has gone on to {max(after)} meanwhile: load it again")
        if not readable(about):
            facts = (run.envs.versions, run.envs.notices, run.envs.seeds)
            write_json(about, describe(sys.argv, config, *facts))
            write_json(folder / CONFIG, config)
        elif not again:
            mark_resumed(about, sys.argv, run.env_steps)
        checkpoint.set_aside(folder, run.env_steps)
        checkpoint.prune(folder, run.training.keep_checkpoints)
    except BaseException:
        lock.release()
        raise
    return lock


def restored(
    source: Path, env: Any, trust_env: bool, of_run: dict[str, Any], own: type | None = None
) -> tuple[Run, Any, dict[str, Any], list[str]]:
    """A checkpoint's run, its environment, its settings and what could not be restored exactly.

    It must be one `of_run`, if that says anything; `own` is the class of a user's algorithm.
    """
    arrays, manifest = checkpoint.load(source)
    config = manifest["config"]
    name = config["algorithm"]
    if own is None and name not in REGISTRY:
        raise UsageError(
            f"{source} holds {name!r}, an algorithm that is none of ours: pass its class as "
            f"algo=... to Agent.load"
        )
    if own is not None and own.__name__.lower() != name:
        raise checkpoint.Refusal(f"{source} holds {name!r}, not {own.__name__}")
    task = ("env", "env_kwargs", "wrappers") if env is None else ()
    demand_same(config, of_run, ("algorithm", "seeds", *task), source)
    if env is None:
        env = demand_installed(config, source, trust_env)
    algo = from_plain(own or find(name), config["hyperparameters"])
    training, seeds = training_for(algo, config["training"]), valid_seeds(config["seeds"])
    demand_sizes(arrays, len(seeds), training.num_envs)
    try:
        envs = make(env, seeds, training.num_envs, parallel=training.parallel_envs)
    except UsageError as error:
        raise checkpoint.Refusal(f"{source}: {error}") from error
    try:
        leaves = partial(checkpoint.saved_leaves, arrays=arrays, source=source)
        demos = saved_demos(arrays.get("replay", {}), envs.spec, algo.keeps_particles)
        run = start(algo, training, envs, leaves, demos)
        return run, env, config, checkpoint.restore(run, arrays, manifest)
    except EnvError as error:
        envs.close()
        raise checkpoint.Refusal(f"{source}: {error}") from error
    except BaseException:
        envs.close()
        raise


def demand_same(
    config: dict[str, Any], of_run: dict[str, Any], names: Iterable[str], source: Path
) -> None:
    """Refuse a checkpoint of another run than the one whose folder it is in."""
    for name in names:
        if of_run.get(name, config.get(name)) != config.get(name):
            raise UsageError(f"{source} has {name} {config.get(name)}, its run {of_run[name]}")


def demand_sizes(arrays: checkpoint.Arrays, seeds: int, num_envs: int) -> None:
    """Refuse settings that the arrays do not bear out, before environments are made."""
    first = [array.shape[:1] for array in arrays["state"].values()]
    lanes = [array.shape[:2] for array in arrays.get("loop", {}).values()]
    lane = (seeds, num_envs)
    if any(shape != lane[:1] for shape in first) or any(shape != lane for shape in lanes):
        raise UsageError(f"its arrays are not those of {seeds} seeds x {num_envs} environments")


def demand_installed(config: dict[str, Any], source: Path, trust: bool) -> str | Task:
    """The task of a checkpoint, refused if a module that the file names would be imported."""
    if not config["env_by_id"]:
        raise checkpoint.Refusal(
            f"{source} was trained on an environment made in Python: load it with env=..."
        )
    try:
        return stored(config, trust)
    except UsageError as error:
        raise checkpoint.Refusal(f"{source}: {error}") from None
