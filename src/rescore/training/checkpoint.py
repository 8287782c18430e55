"""Arrays and JSON on disk: written aside and renamed, checked on load, never executed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from rescore.core import UsageError

FORMAT = "rescore-checkpoint"
VERSION = 2
MANIFEST = "checkpoint.json"


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


def save(folder: Path, arrays: dict[str, dict[str, np.ndarray]], meta: dict[str, Any]) -> Path:
    """Write `<name>.safetensors` per group and the manifest, as one folder or not at all.

    The folder appears under its name by one rename, after everything in it reached the disk.
    It may replace an older checkpoint, but nothing else.
    """
    from safetensors.numpy import save_file

    if folder.exists() and not is_replaceable(folder):
        raise UsageError(f"{folder} holds something that is no checkpoint: choose another folder")
    aside = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    digests = {}
    for name, group in arrays.items():
        path = aside / f"{name}.safetensors"
        # Not ascontiguousarray, which makes a vector of a scalar.
        save_file({k: np.asarray(v, order="C") for k, v in group.items()}, path)
        digests[path.name] = digest(path)
        flush(path)
    manifest = {"format": FORMAT, "version": VERSION, "files": digests, **meta}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    flush(aside / MANIFEST)
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
        os.rename(folder, old)
        os.rename(aside, folder)
        shutil.rmtree(old)
    else:
        os.rename(aside, folder)
    flush(folder.parent)
    return folder


def is_replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / MANIFEST).exists() or not any(folder.iterdir()))


def load(folder: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
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
            f"{path} was written by another version of rescore (layout {manifest.get('version')}, "
            f"this one reads {VERSION}): train again, or use that version"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(re.fullmatch(r"\w+\.safetensors", f) for f in files):
        raise UsageError(f"{path} is damaged: its list of files makes no sense")
    return manifest


def stored(run: Path) -> list[Path]:
    """Checkpoints of a run, newest first."""
    found = (run / "checkpoints").glob("step_*")
    return sorted((p for p in found if p.is_dir()), reverse=True)


def load_newest(run: Path) -> tuple[Path, dict, dict[str, Any], list[str]]:
    """The newest checkpoint that can be read, and a line about each newer one that cannot."""
    complaints = []
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


def flush(path: Path) -> None:
    """Force a file or folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
