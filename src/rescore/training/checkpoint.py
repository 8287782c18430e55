"""Checkpoints: a run as arrays and JSON, in a folder that appears whole or not at all.

What is read is checked and never executed. JAX is imported only where a run is at hand: who looks
for checkpoints need not wait for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rescore.core import UsageError, one_line
from rescore.files.atomic import leftovers, remove, replacing_folder
from rescore.files.machine import bits_depend_on
from rescore.training.replay import Replay

if TYPE_CHECKING:
    from rescore.training.loop import Run
    from rescore.training.programs import Programs

FORMAT = "rescore-checkpoint"
VERSION = 6
MANIFEST = "checkpoint.json"
COUNTERS = {"env_steps": 2**53, "updates": 2**31, "iteration": 2**31, "best_at": 2**53}

Arrays = dict[str, dict[str, np.ndarray]]


class Refusal(UsageError):
    """The checkpoint is intact but unusable here; an older one would not help."""


def dump_policy(run: Run) -> tuple[Arrays, dict[str, Any]]:
    """Networks, optimisers and counters: enough to act and to evaluate."""
    from rescore.training.loop import settle

    settle(run)
    counters = {name: getattr(run, name) for name in (*COUNTERS, "best_return")}
    return {"state": named_leaves(run.state)}, {**counters, "made_with": bits_depend_on()}


def dump(run: Run) -> tuple[Arrays, dict[str, Any]]:
    """All of a run: also replay, environments and unreported episodes."""
    arrays, meta = dump_policy(run)
    lanes = ("obs", "episode_return", "episode_length")
    arrays["loop"] = {name: getattr(run, name) for name in lanes}
    meta |= {"tally": asdict(run.tally), "owes_evaluation": run.owes_evaluation}
    # A rollout is gone: it was learnt from, or an error cut it short.
    if isinstance(run.memory, Replay):
        if kept := run.memory.dump(run.training.save_replay):
            arrays["replay"] = kept
        meta["replay_added"] = run.memory.added
    snapshot = run.envs.snapshot()
    if snapshot is None:
        meta["no_snapshot"] = run.envs.no_snapshot
    else:
        arrays["envs"], meta["envs"] = snapshot
    return arrays, meta


def restore(run: Run, arrays: Arrays, meta: dict[str, Any]) -> list[str]:
    """Put a run back; returns a line for each part that could not be restored exactly."""
    from rescore.training.loop import begin_episodes

    notes = []
    for name, limit in COUNTERS.items():
        if type(meta[name]) is not int or not 0 <= meta[name] < limit:
            raise UsageError(f"{name} is {meta[name]!r}")
        setattr(run, name, meta[name])
    run.best_return = None if meta["best_return"] is None else float(meta["best_return"])
    here, there = bits_depend_on(), meta["made_with"]
    if other := [f"{k} {there.get(k)} (here {here[k]})" for k in here if there.get(k) != here[k]]:
        notes.append(
            f"bits will differ from those of one run: it was saved with {', '.join(other)}"
        )
    saved = arrays.get("replay", {})
    if saved and isinstance(run.memory, Replay):
        run.memory.restore(saved, meta["replay_added"])
    if run.env_steps and isinstance(run.memory, Replay) and "rows" not in saved:
        notes.append("the checkpoint holds no replay: it fills up with the policy's steps first")
    if run.env_steps and run.training.demos and "demos" not in saved:
        notes.append("the checkpoint holds no demonstrations: training goes on without them")
    if run.env_steps and getattr(run.memory, "scale", None) and not saved:
        notes.append("the checkpoint does not hold the deviation of returns: it starts anew")
    problem = meta.get("no_snapshot", "")
    if "envs" in arrays:
        try:
            run.obs = run.envs.restore(arrays["envs"], meta["envs"])
            for name in ("episode_return", "episode_length"):
                getattr(run, name)[:] = arrays["loop"][name]
        except Exception as error:  # files may hold anything
            problem = one_line(error)
    if run.env_steps and ("envs" not in arrays or problem):
        begin_episodes(run)
        notes.append(f"every environment starts a new episode: {problem or 'none was saved'}")
    run.owes_evaluation = bool(meta.get("owes_evaluation", False))
    if "tally" in meta:
        restore_tally(run, meta["tally"])
    return notes


def restore_tally(run: Run, saved: dict[str, Any]) -> None:
    """Metrics that wait for their row."""
    tally, seeds = run.tally, len(run.envs.seeds)
    for name, totals in saved["metrics"].items():
        tally.metrics[name] = [float(totals[s]) for s in range(seeds)]
        tally.counts[name] = int(saved["counts"][name])
    tally.returns = [(range(seeds)[s], float(value), int(n)) for s, value, n in saved["returns"]]


def saved_leaves(programs: Programs, arrays: Arrays, source: Path) -> list:
    """The leaves of a saved state, which must be as the programs have them; nothing is made."""
    return programs.layout.flatten_up_to(refill(programs.shapes, arrays["state"], source))


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
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    replaceable = folder.is_dir() and ((folder / MANIFEST).exists() or not any(folder.iterdir()))
    if folder.exists() and not replaceable:
        raise UsageError(f"{folder} holds something that is no checkpoint: choose another folder")
    digests = {}
    with replacing_folder(folder) as part:
        for name, group in arrays.items():
            path = part / f"{name}.safetensors"
            # Not ascontiguousarray, which makes a vector of a scalar.
            try:
                save_file({k: np.asarray(v, order="C") for k, v in group.items()}, path)
            except SafetensorError as error:  # a full disk
                raise OSError(f"{folder} cannot be written: {one_line(error)}") from None
            digests[path.name] = digest(path)
        manifest = {"format": FORMAT, "version": VERSION, "files": digests, **meta}
        manifest["sha256"] = signature(manifest)
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return folder


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
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UsageError(f"{path} was not written by rescore")
    if manifest.get("version") != VERSION:
        raise UsageError(
            f"{path} was written by another version of rescore (layout {manifest.get('version')}, "
            f"this one reads {VERSION}): train again, or use that version"
        )
    if manifest.get("sha256") != signature(manifest):
        raise UsageError(f"{path} is damaged: its checksum is not the one that was saved")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(re.fullmatch(r"\w+\.safetensors", f) for f in files):
        raise UsageError(f"{path} is damaged: its list of files makes no sense")
    return manifest


def signature(manifest: dict[str, Any]) -> str:
    """Checksum of what a manifest says, however it is laid out."""
    said = json.loads(json.dumps({k: v for k, v in manifest.items() if k != "sha256"}))
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def stored(run: Path) -> list[Path]:
    """Checkpoints of a run, newest first; what a link leads to is not the run's."""
    found = [p for p in (run / "checkpoints").glob("step_*") if re.fullmatch(r"step_\d+", p.name)]
    own = (p for p in found if p.is_dir() and not p.is_symlink())
    return sorted(own, key=env_steps_of, reverse=True)


def env_steps_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def owes_evaluation(folder: Path) -> bool:
    """Whether the run was stopped amid an evaluation, or the checkpoint does not say."""
    try:
        return bool(read_manifest(folder)["owes_evaluation"])
    except (UsageError, KeyError):
        return True


def load_newest(run: Path, use: Callable[[Path], tuple] = load) -> tuple:
    """The newest checkpoint that can be used, what `use` gave, and a line about each newer one.

    Whatever goes wrong is damage, for which the one before is there; but a `Refusal` stays one.
    """
    complaints: list[str] = []
    for folder in stored(run):
        try:
            return folder, *attempt(use, folder), complaints
        except Refusal:
            raise
        except UsageError as error:
            complaints.append(str(error))
    if complaints:
        raise UsageError(f"no checkpoint of {run} can be read: " + "; ".join(complaints))
    if (run / "run.json").exists():
        raise UsageError(f"{run} holds no checkpoint yet: it ended before its first; train anew")
    raise UsageError(f"{run} holds no checkpoint: is it a folder that `rescore train` made?")


def attempt(use: Callable[[Path], tuple], folder: Path) -> tuple:
    """What `use` makes of a checkpoint; whatever goes wrong as a UsageError that names it."""
    try:
        return use(folder)
    except Exception as error:  # of whatever kind: files may hold anything
        if isinstance(error, UsageError) and str(folder) in str(error):
            raise
        what = error if isinstance(error, UsageError) else repr(error)
        raise UsageError(f"{folder} is damaged: {one_line(what)}") from error


def newer(run: Path, env_steps: int) -> list[Path]:
    return [folder for folder in stored(run) if env_steps_of(folder) > env_steps]


def set_aside(run: Path, env_steps: int) -> None:
    """Rename checkpoints beyond the step that training goes on from: they could not be read."""
    for folder in newer(run, env_steps):
        folder.rename(folder.with_name(f"damaged_{folder.name}"))


def whole(folder: Path) -> Path:
    """The folder, or the copy of it that a save leaves hidden if it is killed while replacing."""
    for left in () if folder.exists() else leftovers(folder):
        try:
            load(left)
            return left
        except UsageError:
            continue
    return folder


def step_name(env_steps: int) -> str:
    return f"step_{env_steps:09d}"


def prune(run: Path, keep: int) -> None:
    """Drop all but the newest `keep`, and what killed processes left behind."""
    gone = [*run.glob(".*.part*"), *run.glob(".best.*")]
    if not (run / "checkpoints").is_symlink():  # what a link leads to is not the run's
        gone += [*stored(run)[keep:], *(run / "checkpoints").glob(".step_*")]
    for path in gone:
        remove(path)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
