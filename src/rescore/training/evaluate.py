"""Episodes of a fixed policy, on environments and keys of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from rescore.core import UsageError
from rescore.envs.build import is_env, make
from rescore.envs.gym import Envs
from rescore.streams import Stream
from rescore.training.loop import Run
from rescore.training.signals import Stopped, asked


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of E episodes for each of S seeds."""

    env_id: str
    returns: np.ndarray  # [S, E]
    lengths: np.ndarray  # [S, E]
    successes: np.ndarray | None = None  # [S, E] of 0 and 1, where the task tells it

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        return float(self.returns.std())

    @property
    def episodes(self) -> int:
        return self.returns.size

    @property
    def success(self) -> float | None:
        """Share of episodes that succeeded, where the task tells it."""
        return None if self.successes is None else float(np.nanmean(self.successes))

    def summary(self) -> dict[str, object]:
        """What `rescore eval` prints last."""
        told = {} if self.success is None else {"success": round(self.success, 4)}
        return {
            "env": self.env_id,
            "episodes": self.episodes,
            "mean": round(self.mean, 4),
            "std": round(self.std, 4),
            **told,
        }


MAX_STEPS = 100_000
Act = Callable[[np.ndarray, int], np.ndarray]  # (obs [S, E, obs_dim], t) -> actions


def evaluate_run(run: Run, env: Any, seeds: Sequence[int], episodes: int) -> Evaluation:
    """Episodes of the run's policies without exploration, as many for each seed."""

    def act(obs: np.ndarray, t: int) -> np.ndarray:
        chosen = run.programs.act(run.leaves, obs, Stream.EVALUATE, np.int32(t), False)
        return np.asarray(chosen.action)

    alone = isinstance(env, gymnasium.Env)  # there is one, and it belongs to the user
    envs = make(env, seeds, 1 if alone else episodes, stream=Stream.EVALUATE)
    try:
        demand_same_spaces(envs, run.envs)
        return run_in_turn(act, envs, episodes) if alone else run_episodes(act, envs)
    finally:
        if not is_env(env):
            envs.close()


def demand_same_spaces(envs: Envs, trained: Envs) -> None:
    """Refuse to evaluate where the policy's networks do not fit."""
    if envs.spec != trained.spec:
        raise UsageError(
            f"{envs.env_id} has {envs.spec.obs_dim} observations and {envs.spec.act_dim} actions, "
            f"but the policy was made for {trained.spec.obs_dim} and {trained.spec.act_dim}"
        )


def run_episodes(
    act: Act, envs: Envs, *, epoch: int = 0, see: Callable | None = None
) -> Evaluation:
    """One episode in every lane from its own seed, others in another `epoch`.

    Lanes that are done go on being stepped, and what they give is not counted.
    """
    obs = envs.reset(epoch)
    returns = np.zeros(obs.shape[:2])
    lengths = np.zeros(obs.shape[:2], np.int64)
    running = np.ones(obs.shape[:2], bool)
    successes = np.full(obs.shape[:2], np.nan)
    for t in range(MAX_STEPS):
        if asked():
            raise Stopped
        step = envs.step(act(obs, t))
        if see is not None:
            see(obs, step, running)
        returns += np.where(running, step.reward, 0.0)
        lengths += running
        successes = np.where(running, step.success, successes)
        running &= ~(step.terminated | step.truncated)
        if not running.any():
            break
        obs = step.obs
    else:
        raise UsageError(f"an episode of {envs.env_id} has no end: wrap it with a time limit")
    told = None if np.isnan(successes).all() else successes
    return Evaluation(envs.env_id, returns, lengths, told)


def run_in_turn(act: Act, envs: Envs, episodes: int) -> Evaluation:
    """Episodes one after the other, for an environment of which there is only one."""
    found = [run_episodes(act, envs, epoch=epoch) for epoch in range(episodes)]
    join = lambda parts: np.concatenate(parts, axis=1)  # noqa: E731
    told = [e.successes for e in found if e.successes is not None]
    return Evaluation(
        envs.env_id,
        join([e.returns for e in found]),
        join([e.lengths for e in found]),
        join(told) if len(told) == episodes else None,
    )
