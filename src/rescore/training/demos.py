"""Demonstrations: transitions of somebody else, from a file or from a Minari dataset."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rescore.core import Spec, Transition, UsageError
from rescore.envs.gym import Envs, EnvStep
from rescore.files.atomic import replacing
from rescore.training.evaluate import Act, run_episodes
from rescore.training.replay import columns, pack

MINARI = "minari:"
FIELDS = ("observations", "actions", "rewards", "terminations", "next_observations")


def read_demos(source: str | None, envs: Envs, particles: bool) -> np.ndarray | None:
    """Rows [D, width] of replay: observations flat, actions in [-1, 1]."""
    if source is None:
        return None
    named = source.startswith(MINARI)
    fields = read_minari(source.removeprefix(MINARI), envs) if named else read_npz(Path(source))
    return rows_of(source, fields, envs, particles)


def rows_of(
    source: str, fields: Mapping[str, np.ndarray], envs: Envs, particles: bool
) -> np.ndarray:
    spec, count = envs.spec, len(fields["rewards"])
    wide = {"observations": spec.obs_dim, "actions": spec.act_dim}
    wide["next_observations"] = spec.obs_dim
    made = {}
    for name in FIELDS:
        try:
            shape = (count, wide[name]) if name in wide else (count,)
            made[name] = np.asarray(fields[name], np.float32).reshape(shape)
        except (TypeError, ValueError):
            raise UsageError(
                f"{source}: {name} {np.shape(fields[name])} should be {list(shape)} for "
                f"{envs.env_id}: are these demonstrations of another task?"
            ) from None
        if not np.isfinite(made[name]).all():
            raise UsageError(f"{source}: {name} holds values that are not finite")
    if not count:
        raise UsageError(f"{source} holds no transition")
    mid, half = envs.action_scale
    action = (made["actions"] - mid) / np.where(half > 0, half, 1.0)
    if np.abs(action).max() > 1.001:
        worst = np.abs(action).max()
        raise UsageError(
            f"{source}: actions reach {worst:.3g} times the half width of the action box of "
            f"{envs.env_id}: give them as the task takes them"
        )
    action = np.clip(action, -1, 1).astype(np.float32)
    ended = (made["terminations"] > 0).astype(np.float32)
    host: list[Any] = [made["observations"], action, made["rewards"], ended]
    host.append(made["next_observations"])
    return pack(Transition(*host), particles)


def saved_demos(saved: dict[str, np.ndarray], spec: Spec, particles: bool) -> np.ndarray | None:
    """The demonstrations of a checkpoint, which holds them for every seed."""
    demos = saved.get("demos")
    if demos is None:
        return None
    if demos.ndim != 3 or demos.shape[2] != sum(columns(spec, particles)):
        raise UsageError(f"saved demonstrations of shape {list(demos.shape)} are of another task")
    return demos  # [S, D, width]: particles of each seed were edited on their own


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a file, never an object that could run code."""
    try:
        with np.load(path) as file:  # objects are refused unless they are asked for
            held = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist: make one with `rescore data export RUN`"
        ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise UsageError(f"{path} is no npz file of plain arrays: {error}") from None
    if "terminals" in held:  # another common name
        held.setdefault("terminations", held["terminals"])
    if missing := [name for name in FIELDS if name not in held]:
        raise UsageError(f"{path} has no {missing[0]}: it needs {', '.join(FIELDS)}")
    return held


def read_minari(name: str, envs: Envs) -> dict[str, np.ndarray]:
    """All episodes of a dataset, downloaded before by `minari download`."""
    try:
        import minari
    except ImportError:
        raise UsageError(
            "Minari is not installed: pip install minari, or give an npz file"
        ) from None
    try:
        dataset = minari.load_dataset(name)
    except Exception as error:
        raise UsageError(
            f"Minari has no dataset {name!r} here: run `minari download {name}` ({error})"
        ) from None
    parts: dict[str, list[np.ndarray]] = {field: [] for field in FIELDS}
    for episode in dataset.iterate_episodes():
        obs = envs.rows(episode.observations)[0]
        seen = (obs[:-1], episode.actions, episode.rewards, episode.terminations, obs[1:])
        for field, values in zip(FIELDS, seen):
            parts[field].append(np.asarray(values))
    return {field: np.concatenate(values) for field, values in parts.items()}


def record_episodes(act: Act, envs: Envs) -> Transition:
    """Every transition [D, ...] of one episode in each lane."""
    seen: list[list[np.ndarray]] = []

    def see(obs: np.ndarray, step: EnvStep, running: np.ndarray) -> None:
        ended = step.terminated.astype(np.float32)
        fields = (obs, step.action, step.reward, ended, step.next_obs)
        seen.append([field[running] for field in fields])

    run_episodes(act, envs, see=see)
    host: list[Any] = [np.concatenate(parts) for parts in zip(*seen)]
    return Transition(*host)


def write_npz(path: Path, rows: Transition, envs: Envs) -> None:
    """Transitions [D, ...] as a file that `read_npz` takes, actions as the task takes them."""
    taken = envs.scaled(np.asarray(rows.action))
    fields: Any = zip(FIELDS, (rows.obs, taken, rows.reward, rows.terminated, rows.next_obs))
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **dict(fields))
