"""Replay on the host: one ring of packed float32 rows per seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from rescore.core import Spec, Transition, UsageError
from rescore.streams import Stream, generator


def columns(spec: Spec, particles: bool) -> list[int]:
    """Width of each field of `Transition` inside a row."""
    width = [spec.obs_dim, spec.act_dim, 1, 1, spec.obs_dim]
    return [*width, spec.act_dim] if particles else width


def unpack(rows: Any, spec: Spec, particles: bool = False) -> Transition:
    """Columns of packed rows [..., width] as a Transition; works on NumPy and traced arrays."""
    edges = np.cumsum([0, *columns(spec, particles)])
    fields = [rows[..., a:b] for a, b in pairwise(edges)]
    fields[2], fields[3] = fields[2][..., 0], fields[3][..., 0]
    return Transition(*fields)


class Replay:
    """FIFO memory of S seeds. A row holds a whole transition, so a batch is one gather."""

    def __init__(self, seeds: tuple[int, ...], capacity: int, spec: Spec, particles: bool = False):
        self.seeds, self.capacity, self.spec, self.particles = seeds, capacity, spec, particles
        # Pages of an untouched zeros array cost no memory until they are written.
        self.rows = np.zeros((len(seeds), capacity, sum(columns(spec, particles))), np.float32)
        self.added = 0  # transitions ever added, per seed

    @property
    def size(self) -> int:
        return min(self.added, self.capacity)

    def add(self, batch: Transition, *_: Any) -> None:
        """Append [S, N, ...] transitions; what else a rollout would keep of them is dropped."""
        fields = [batch.obs, batch.action, batch.reward[..., None], batch.terminated[..., None]]
        fields += [batch.next_obs, batch.action] if self.particles else [batch.next_obs]
        n = batch.reward.shape[1]
        place = (self.added + np.arange(n)) % self.capacity
        self.rows[:, place] = np.concatenate(fields, axis=-1)
        self.added += n

    def sample(self, step: int, updates: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Uniform rows [K, S, B, width] for updates `step`.., and where they lie [K, S, B]."""
        shape = (updates, len(self.seeds), batch_size)
        index = np.empty(shape, np.int64)
        rows = np.empty((*shape, self.rows.shape[-1]), np.float32)
        for s, seed in enumerate(self.seeds):
            rng = generator(seed, Stream.REPLAY, step)
            index[:, s] = rng.integers(0, self.size, (updates, batch_size))
            rows[:, s] = self.rows[s].take(index[:, s], axis=0)
        return rows, index

    def edit(self, index: np.ndarray, particles: np.ndarray) -> None:
        """Write edited particles [K, S, B, act_dim] back to the rows they came from."""
        for k, s in np.ndindex(index.shape[:2]):
            self.rows[s, index[k, s], -self.spec.act_dim :] = particles[k, s]

    def restore(self, rows: np.ndarray, added: int) -> None:
        """Take back the filled part [S, size, width] that a checkpoint holds."""
        if rows.shape != (*self.rows.shape[:1], min(added, self.capacity), self.rows.shape[2]):
            raise UsageError(
                f"a saved replay of shape {list(rows.shape)} does not fit one of capacity "
                f"{self.capacity}: resume with the settings that it was made with"
            )
        self.rows[:, : rows.shape[1]] = rows
        self.added = added
