"""Replay on the host: one ring of packed float32 rows per seed, demonstrations behind it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from rescore.core import Spec, Transition, UsageError
from rescore.envs.goals import Goals
from rescore.streams import Stream, generator

RUNNING = np.iinfo(np.int64).max  # in place of the last step of an episode that goes on


def columns(spec: Spec, particles: bool) -> list[int]:
    """Width of each field of `Transition` inside a row."""
    width = [spec.obs_dim, spec.act_dim, 1, 1, spec.obs_dim]
    return [*width, spec.act_dim] if particles else width


def pack(batch: Transition, particles: bool = False) -> np.ndarray:
    """A Transition [...] as rows [..., width]; particles start as the actions themselves."""
    fields = [batch.obs, batch.action, batch.reward[..., None], batch.terminated[..., None]]
    fields += [batch.next_obs, batch.action] if particles else [batch.next_obs]
    return np.concatenate(fields, axis=-1)


def unpack(rows: Any, spec: Spec, particles: bool = False) -> Transition:
    """Columns of packed rows [..., width] as a Transition; works on NumPy and traced arrays."""
    edges = np.cumsum([0, *columns(spec, particles)])
    fields = [rows[..., a:b] for a, b in pairwise(edges)]
    fields[2], fields[3] = fields[2][..., 0], fields[3][..., 0]
    return Transition(*fields)


class Replay:
    """FIFO memory of S seeds. A row holds a whole transition, so a batch is one gather."""

    def __init__(
        self,
        seeds: tuple[int, ...],
        capacity: int,
        spec: Spec,
        particles: bool = False,
        demos: np.ndarray | None = None,
        demo_share: float = 0.5,
    ):
        """`demos` [D, width], or those of each seed, stay for good; a batch takes `demo_share` of
        its rows from them."""
        self.seeds, self.capacity, self.spec, self.particles = seeds, capacity, spec, particles
        self.num_demos, self.demo_share = 0 if demos is None else demos.shape[-2], demo_share
        width = sum(columns(spec, particles))
        # Pages of an untouched zeros array cost no memory until they are written.
        self.rows = np.zeros((len(seeds), capacity + self.num_demos, width), np.float32)
        if demos is not None:
            self.rows[:, capacity:] = demos
        self.added = 0  # transitions ever added, per seed

    @property
    def size(self) -> int:
        return min(self.added, self.capacity)

    def add(self, batch: Transition, truncated: Any = None, extras: Any = None) -> None:
        """Append [S, N, ...] transitions; only hindsight asks which were truncated."""
        n = batch.reward.shape[1]
        self.rows[:, (self.added + np.arange(n)) % self.capacity] = pack(batch, self.particles)
        self.added += n

    def sample(self, step: int, updates: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Uniform rows [K, S, B, width] for updates `step`.., and where they lie [K, S, B]."""
        shape = (updates, len(self.seeds), batch_size)
        index = np.empty(shape, np.int64)
        rows = np.empty((*shape, self.rows.shape[-1]), np.float32)
        for s, seed in enumerate(self.seeds):
            rng = generator(seed, Stream.REPLAY, step)
            index[:, s] = self.draw(rng, updates, batch_size)
            rows[:, s] = self.rows[s].take(index[:, s], axis=0)
            self.relabel(rng, s, rows[:, s], index[:, s])
        return rows, index

    def draw(self, rng: np.random.Generator, updates: int, batch_size: int) -> np.ndarray:
        """Where K batches lie [K, B]; before the first step all of them are demonstrations."""
        shown = round(batch_size * (self.demo_share if self.size else 1.0)) * bool(self.num_demos)
        own = rng.integers(0, max(self.size, 1), (updates, batch_size - shown))
        if not shown:
            return own
        demos = rng.integers(0, self.num_demos, (updates, shown)) + self.capacity
        return np.concatenate([own, demos], axis=1)

    def relabel(
        self, rng: np.random.Generator, s: int, rows: np.ndarray, index: np.ndarray
    ) -> None:
        """Change rows [K, B, width] of a batch before it is learned from: not here."""

    def edit(self, index: np.ndarray, particles: np.ndarray) -> None:
        """Write edited particles [K, S, B, act_dim] back to the rows they came from."""
        for k, s in np.ndindex(index.shape[:2]):
            self.rows[s, index[k, s], -self.spec.act_dim :] = particles[k, s]

    def dump(self, whole: bool) -> dict[str, np.ndarray]:
        """What a checkpoint holds: the demonstrations, and if it is to be `whole` the ring."""
        demos = {"demos": self.rows[:, self.capacity :]} if self.num_demos else {}
        return {**demos, **({"rows": self.rows[:, : self.size]} if whole else {})}

    def restore(self, saved: dict[str, np.ndarray], added: int) -> None:
        """Take back the filled part [S, size, width] that a checkpoint holds."""
        rows = saved["rows"]
        if rows.shape != (*self.rows.shape[:1], min(added, self.capacity), self.rows.shape[2]):
            raise UsageError(
                f"a saved replay of shape {list(rows.shape)} does not fit one of capacity "
                f"{self.capacity}: resume with the settings that it was made with"
            )
        self.rows[:, : rows.shape[1]] = rows
        self.added = added


class GoalReplay(Replay):
    """Hindsight (Andrychowicz et al., 2017): some rows pretend that a goal reached later was meant.

    Transitions are counted from the first ever added; number i lies at i % capacity, and the next
    one of its environment is number i + N.
    """

    def __init__(self, *args: Any, goals: Goals, share: float, num_envs: int, **rest: Any):
        super().__init__(*args, **rest)
        self.goals, self.share, self.num_envs = goals, share, num_envs
        # [S, capacity], number of the last transition of the episode that each row belongs to.
        self.last = np.full((len(self.seeds), self.capacity), RUNNING)

    def add(self, batch: Transition, truncated: Any = None, extras: Any = None) -> None:
        first, n = self.added, self.num_envs
        super().add(batch)
        self.last[:, (first + np.arange(n)) % self.capacity] = RUNNING
        for s, lane in zip(*np.nonzero((batch.terminated > 0) | truncated)):
            end = first + lane
            steps = np.arange(end, max(-1, self.added - self.capacity - 1), -n) % self.capacity
            before = np.flatnonzero(self.last[s, steps] != RUNNING)  # of the episode before
            self.last[s, steps[: before[0] if before.size else None]] = end

    def relabel(
        self, rng: np.random.Generator, s: int, rows: np.ndarray, index: np.ndarray
    ) -> None:
        chosen = (rng.random(index.shape) < self.share) & (index < self.capacity)
        at, n = index[chosen], self.num_envs
        number = at + self.capacity * ((self.added - 1 - at) // self.capacity)
        newest = self.added - n + number % n  # of the same environment
        ahead = np.maximum((np.minimum(self.last[s, at], newest) - number) // n, 0)
        later = (number + n * rng.integers(0, ahead + 1)) % self.capacity
        relabelled, spec = rows[chosen], self.spec
        seen: Any = unpack(relabelled, spec, self.particles)
        achieved, desired = self.goals.achieved, self.goals.desired
        goal: Any = unpack(self.rows[s, later], spec).next_obs[:, achieved]
        seen.obs[:, desired] = seen.next_obs[:, desired] = goal
        reached = seen.next_obs[:, achieved]
        seen.reward[:] = self.goals.reward(reached, goal)
        seen.terminated[:] = self.goals.terminated(reached, goal)
        rows[chosen] = relabelled

    def dump(self, whole: bool) -> dict[str, np.ndarray]:
        last = {"last": self.last[:, : self.size]} if whole else {}
        return {**super().dump(whole), **last}

    def restore(self, saved: dict[str, np.ndarray], added: int) -> None:
        super().restore(saved, added)
        last = saved.get("last", np.empty(0))
        if last.shape != saved["rows"].shape[:2] or last.dtype != self.last.dtype:
            raise UsageError("a saved replay does not say which rows were one episode")
        self.last[:, : self.size] = last
