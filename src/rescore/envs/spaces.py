"""Which spaces can be served; observations, one or a batch, as rows for a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector.utils import batch_space, iterate

from rescore.core import UsageError


def parts(space: spaces.Space) -> list[spaces.Space]:
    """A space and all those in it: each has a generator of its own."""
    children: Any = ()
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    return [space, *(part for child in children for part in parts(child))]


def demand_spaces(obs: spaces.Space, action: spaces.Space, env_id: str) -> None:
    """Refuse actions that are not continuous and bounded, and observations that are no vectors."""
    if not isinstance(action, spaces.Box) or not np.issubdtype(action.dtype, np.floating):
        raise UsageError(
            f"{env_id} has {type(action).__name__} actions; diffusion policies need continuous "
            "ones: use a task with a Box of floats"
        )
    largest = np.finfo(np.float32).max
    if not (np.abs([action.low, action.high]) < largest).all():
        raise UsageError(
            f"{env_id} has unbounded actions, which cannot be scaled to [-1, 1]: give them bounds, "
            "for example --wrappers rescore.envs.task.Bounded:low=-1,high=1"
        )
    if not obs.is_np_flattenable:
        raise UsageError(
            f"{env_id} has {type(obs).__name__} observations of no fixed size: wrap it so that "
            "it gives a Box, or a Dict or Tuple of boxes"
        )
    for box in (part for part in parts(obs) if isinstance(part, spaces.Box)):
        if len(box.shape) >= 3 or (len(box.shape) == 2 and box.dtype == np.uint8):
            raise UsageError(
                f"{env_id} has image observations {box.shape}; the networks here take vectors: "
                "use a task with state observations, or encode the image in a wrapper"
            )


def as_rows(space: spaces.Space, observation: Any) -> tuple[np.ndarray, bool]:
    """Rows [B, obs_dim] float32 of one observation or of a batch, and whether it was a batch.

    A batch of a Dict or Tuple is one of arrays, as vectors of environments give it. Rows that are
    flat already are taken as they are.
    """
    size = flatdim(space)
    try:
        count = _batch(space, observation)
    except (KeyError, TypeError, ValueError, IndexError):
        flat = _array(observation)
        if flat is None or flat.shape[-1:] != (size,) or flat.ndim > 2:
            given = _given(observation)
            raise UsageError(f"predict takes {_wanted(space, size)}, not {given}") from None
        return np.atleast_2d(flat).astype(np.float32), flat.ndim == 2
    if isinstance(space, spaces.Box):
        return np.asarray(observation, np.float32).reshape(-1, size), count is not None
    ones = [observation] if count is None else iterate(batch_space(space), observation)
    rows = [np.asarray(flatten(space, one), np.float32) for one in ones]
    return np.stack(rows) if rows else np.zeros((0, size), np.float32), count is not None


def _batch(space: spaces.Space, observation: Any) -> int | None:
    """Rows of a batch; none for a single observation."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if isinstance(space, spaces.Tuple) and len(observation) != len(space):
            raise ValueError
        parts: Any = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space))
        (found,) = {_batch(part, observation[name]) for name, part in parts.items()}
        return found
    shape = np.shape(observation)
    if shape == (space.shape or ()):
        return None
    if shape[1:] != (space.shape or ()):
        raise ValueError
    return shape[0]


def _array(observation: Any) -> np.ndarray | None:
    try:
        return np.asarray(observation, np.float32)
    except (TypeError, ValueError):
        return None


def _wanted(space: spaces.Space, size: int) -> str:
    shape = list(space.shape) if isinstance(space, spaces.Box) else [size]
    batch = ", ".join(map(str, ["B", *shape]))
    whole = "observations" if isinstance(space, spaces.Box) else f"observations of {space}, or flat"
    return f"{whole} {shape} or [{batch}]"


def _given(observation: Any) -> str:
    if isinstance(observation, Mapping):
        return f"a dict of {sorted(map(str, observation))}"
    array = _array(observation)
    return f"a {type(observation).__name__}" if array is None else str(list(array.shape))
