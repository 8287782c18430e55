"""Collected steps of a chunk in the order of time: what an on-policy learner is given, once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rescore.core import Rollout, Transition


class Rollouts:
    """The chunk under way. It is empty between chunks, so a checkpoint has nothing to hold."""

    def __init__(self, length: int):
        self.length = length  # L, vector steps
        self.added = 0  # steps of each environment in the current rollout
        self._rollout: Rollout | None = None  # [1, S, L, N, ...], made by the first step
        self._leaves: list[np.ndarray] = []  # of it

    def add(self, seen: Transition, truncated: Any, extras: dict[str, Any]) -> None:
        """Append one step [S, N, ...] of every environment."""
        step = Rollout(seen, truncated, extras)
        if self._rollout is None:
            self._rollout = jax.tree.map(self._room, step)
            self._leaves = jax.tree.leaves(self._rollout)
        for room, x in zip(self._leaves, jax.tree.leaves(step)):
            room[0, :, self.added] = x
        self.added += 1

    def _room(self, x: Any) -> np.ndarray:
        seeds, *rest = x.shape
        return np.empty((1, seeds, self.length, *rest), np.float32)

    def interrupt(self) -> None:
        """Forget the chunk under way: it was taken, or environments begin new episodes."""
        self._rollout, self.added = None, 0

    def take(self) -> Rollout:
        """The full chunk [1, S, L, N, ...], as one batch of one update; the next one is empty."""
        assert self._rollout is not None and self.added == self.length
        rollout = self._rollout
        self.interrupt()
        return rollout
