"""Checkpoints: a run as arrays and JSON, in a folder that appears whole or not at all.

What is read is checked and never executed. JAX is imported only where a run is at hand: who looks
for checkpoints need not wait for it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rescore.core import UsageError
from rescore.files.atomic import replacing_folder
from rescore.training.replay import Replay

if TYPE_CHECKING:
    from rescore.training.loop import Run

FORMAT = "rescore-checkpoint"
VERSION = 1
MANIFEST = "checkpoint.json"

Arrays = dict[str, dict[str, np.ndarray]]


def dump_policy(run: Run) -> tuple[Arrays, dict[str, Any]]:
    """Networks, optimisers and counters: enough to act and to evaluate."""
    from rescore.training.loop import settle

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
    if isinstance(run.memory, Replay) and run.training.save_replay:
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
    from rescore.training.loop import Tally

    notes = []
    run.state = refill(run.state, arrays["state"], source)
    for name in ("env_steps", "updates", "iteration", "best_return", "best_at"):
        setattr(run, name, meta[name])
    if "replay" in arrays and isinstance(run.memory, Replay):
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
        run.tally.returns = [(seed, value, length) for seed, value, length in run.tally.returns]
    return notes


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by their path."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def refill(like: Any, arrays: dict[str, np.ndarray], source: Path) -> Any:
    """`like` with its leaves replaced from `arrays`; every path, shape and dtype must agree."""
    import jax

    paths, treedef = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    if missing := sorted(set(names) ^ set(arrays)):
        raise UsageError(f"{source} holds another algorithm's state: {missing[0]} does not match")
    for name, (_, leaf) in zip(names, paths):
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise UsageError(
                f"{source}: {name} is {arrays[name].dtype}{arrays[name].shape}, "
                f"this configuration needs {leaf.dtype}{leaf.shape}"
            )
    return jax.tree_util.tree_unflatten(treedef, [jax.numpy.asarray(arrays[n]) for n in names])


def save(folder: Path, arrays: Arrays, meta: dict[str, Any]) -> Path:
    """Write `<name>.safetensors` per group and the manifest, as one folder or not at all.

    The folder appears under its name by one rename, after everything in it reached the disk.
    It may replace an older checkpoint, but nothing else.
    """
    from safetensors.numpy import save_file

    if folder.exists() and not is_replaceable(folder):
        raise UsageError(f"{folder} holds something that is no checkpoint: choose another folder")
    digests = {}
    with replacing_folder(folder) as part:
        for name, group in arrays.items():
            path = part / f"{name}.safetensors"
            # Not ascontiguousarray, which makes a vector of a scalar.
            save_file({k: np.asarray(v, order="C") for k, v in group.items()}, path)
            digests[path.name] = digest(path)
        manifest = {"format": FORMAT, "version": VERSION, "files": digests, **meta}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return folder


def is_replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / MANIFEST).exists() or not any(folder.iterdir()))


def load(folder: Path) -> tuple[Arrays, dict[str, Any]]:
    """What `save` wrote; a UsageError names the file and what is wrong with it."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    manifest = read_manifest(folder)
    arrays = {}
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise UsageError(f"{path} is missing from the checkpoint")
        if digest(path) != expected:
            raise UsageError(f"{path} is damaged: its checksum is not the one that was saved")
        try:
            arrays[path.stem] = load_file(path)
        except SafetensorError as error:
            raise UsageError(f"{path} is damaged: {error}") from None
    return arrays, manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{folder} is no rescore checkpoint: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UsageError(f"{path} was not written by rescore")
    if manifest.get("version") != VERSION:
        raise UsageError(
            f"{path} has layout version {manifest.get('version')}, this rescore reads {VERSION}"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(re.fullmatch(r"\w+\.safetensors", f) for f in files):
        raise UsageError(f"{path} is damaged: its list of files makes no sense")
    return manifest


def stored(run: Path) -> list[Path]:
    """Checkpoints of a run, newest first."""
    found = (run / "checkpoints").glob("step_*")
    return sorted((p for p in found if p.is_dir()), reverse=True)


def load_newest(run: Path) -> tuple[Path, Arrays, dict[str, Any], list[str]]:
    """The newest checkpoint that can be read, and a line about each newer one that cannot."""
    complaints: list[str] = []
    for folder in stored(run):
        try:
            return folder, *load(folder), complaints
        except UsageError as error:
            complaints.append(str(error))
    if complaints:
        raise UsageError(f"no checkpoint of {run} can be read: " + "; ".join(complaints))
    if (run / "run.json").exists():
        raise UsageError(f"{run} holds no checkpoint yet: it ended before its first; train anew")
    raise UsageError(f"{run} holds no checkpoint: is it a folder that `rescore train` made?")


def set_aside(run: Path, env_steps: int) -> None:
    """Rename checkpoints beyond the step that training goes on from: they could not be read."""
    for folder in stored(run):
        if folder.name > step_name(env_steps):
            folder.rename(folder.with_name(f"damaged_{folder.name}"))


def step_name(env_steps: int) -> str:
    return f"step_{env_steps:09d}"


def prune(run: Path, keep: int) -> None:
    """Drop all but the newest `keep`, and what an interrupted save left behind."""
    for folder in stored(run)[keep:]:
        shutil.rmtree(folder)
    for left in (*(run / "checkpoints").glob(".step_*"), *run.glob(".best.*")):
        shutil.rmtree(left, ignore_errors=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
