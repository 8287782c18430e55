"""Goal-conditioned tasks: where an observation holds its goals, and what reaching one is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim


class Goals(NamedTuple):
    """Columns of a flat observation, and the task's own reward for any pair of goals."""

    achieved: slice
    desired: slice
    reward: Callable[[np.ndarray, np.ndarray], np.ndarray]  # achieved, desired [n, g] -> [n]
    terminated: Callable[[np.ndarray, np.ndarray], np.ndarray]  # the same, 0 or 1


def find_goals(env: gymnasium.Env) -> Goals | None:
    """Those of a task that follows gymnasium-robotics' GoalEnv, else none."""
    space, task = env.observation_space, env.unwrapped
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    names = ("achieved_goal", "desired_goal")
    if not all(name in parts for name in names) or not hasattr(task, "compute_reward"):
        return None
    edges = np.cumsum([0, *(flatdim(part) for part in parts.values())])
    place = dict(zip(parts, map(slice, edges[:-1], edges[1:])))
    ends: Any = getattr(task, "compute_terminated", lambda *_: False)

    def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.asarray(task.compute_reward(achieved, desired, {}), np.float32)

    def terminated(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        # One row at a time: tasks ask `if` of it.
        return np.array([bool(ends(a, d, {})) for a, d in zip(achieved, desired)], np.float32)

    return Goals(place[names[0]], place[names[1]], reward, terminated)
