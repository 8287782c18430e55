"""One environment in its process, as the lanes of a vector are."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from rescore.core import UsageError, one_line
from rescore.envs import snapshots

SUCCESS = ("is_success", "success")  # names under which infos tell it


class Lane(gymnasium.Wrapper):
    """One environment in its process, able to save and restore itself.

    Of the infos only an episode's success is kept: vectors collect them key by key, which would
    cost more than all else in this module.
    """

    inbox: Any = None  # what `reinstate` reads: vectors pass arguments to all lanes alike

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        if "mujoco" in sys.modules:
            # By itself MuJoCo also leaves a MUJOCO_LOG.TXT in the current folder.
            sys.modules["mujoco"].set_mju_user_warning(
                lambda said: print(f"MuJoCo: {one_line(said)}", file=sys.stderr)
            )

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            # Some environments draw from their spaces, which are otherwise seeded at random.
            for env in (self.env, self.env.unwrapped):
                env.observation_space.seed(seed + 1)
                env.action_space.seed(seed + 2)
        obs, _ = self.env.reset(seed=seed, options=options)
        return obs, {}

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            return obs, reward, terminated, truncated, {}
        # The vector resets before it hands the last observation on, and some environments write
        # every observation into the same array.
        obs = deepcopy(obs)
        told = {name: float(info[name]) for name in SUCCESS if name in info}
        return obs, reward, terminated, truncated, told

    def capture(self) -> tuple[dict[str, np.ndarray], dict] | str:
        """Arrays and JSON, or the reason why not: an exception would end a spawned process."""
        try:
            return snapshots.capture(self.env)
        except snapshots.NotPlain as error:
            return str(error)

    def reinstate(self) -> str | None:
        """Put back what lies in `inbox`; returns what is wrong with it, if anything."""
        arrays, meta = self.inbox
        self.inbox = None
        try:
            snapshots.reinstate(self.env, arrays, meta)
        except UsageError as error:
            return str(error)
        return None


def success_of(infos: dict, count: int) -> np.ndarray:
    """What the infos of a vector tell. [count] NaN where no episode ended or nothing was said."""
    final = infos.get("final_info", {})
    found = [name for name in SUCCESS if isinstance(final, dict) and name in final]
    if not found:
        return np.full(count, np.nan, np.float32)
    said = np.asarray(final.get(f"_{found[0]}", np.ones(count, bool)))
    return np.where(said, np.asarray(final[found[0]], np.float32), np.nan)
