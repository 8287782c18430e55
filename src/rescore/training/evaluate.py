"""Episodes of a fixed policy, on environments and keys of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rescore.core import UsageError
from rescore.envs.gym import Envs
from rescore.training.signals import Stopped, asked


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of E episodes for each of S seeds."""

    env_id: str
    returns: np.ndarray  # [S, E]
    lengths: np.ndarray  # [S, E]

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        return float(self.returns.std())

    @property
    def episodes(self) -> int:
        return self.returns.size

    def summary(self) -> dict[str, object]:
        """What `rescore eval` prints last."""
        return {
            "env": self.env_id,
            "episodes": self.episodes,
            "mean": round(self.mean, 4),
            "std": round(self.std, 4),
        }


def run_episodes(
    act: Callable[[np.ndarray, int], np.ndarray], envs: Envs, max_steps: int = 100_000
) -> Evaluation:
    """One episode in every lane from its own seed; `act(obs [S, E, obs_dim], t)` -> actions.

    Lanes that are done go on being stepped, and what they give is not counted.
    """
    obs = envs.reset()
    returns = np.zeros(obs.shape[:2])
    lengths = np.zeros(obs.shape[:2], np.int64)
    running = np.ones(obs.shape[:2], bool)
    for t in range(max_steps):
        if asked():
            raise Stopped
        step = envs.step(act(obs, t))
        returns += np.where(running, step.reward, 0.0)
        lengths += running
        running &= ~(step.terminated | step.truncated)
        if not running.any():
            break
        obs = step.obs
    else:
        raise UsageError(f"an episode of {envs.env_id} has no end: wrap it with a time limit")
    return Evaluation(envs.env_id, returns, lengths)
