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
    """Columns of packed rows [..., width] as a Transition; works on NumPy and traced arrays.

    One column more, behind all others, is the discount of rows over several steps.
    """
    edges = np.cumsum([0, *columns(spec, particles)])
    fields = [rows[..., a:b] for a, b in pairwise(edges)]
    fields[2], fields[3] = fields[2][..., 0], fields[3][..., 0]
    transition = Transition(*fields)
    if rows.shape[-1] > edges[-1]:
        return transition._replace(discount=rows[..., -1])
    return transition


class ReturnScale:
    """Standard deviation of the discounted return of each seed, over all its steps so far."""

    def __init__(self, seeds: int, num_envs: int, gamma: float):
        self.gamma, self.count = gamma, 0
        self.running = np.zeros((seeds, num_envs))  # of the episode so far
        self.mean, self.squares = np.zeros(seeds), np.zeros(seeds)  # of `count` values

    def follow(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """One more step [S, N]: Chan's formula for N more values."""
        self.running = self.gamma * self.running + reward
        n, before = reward.shape[1], self.count
        self.count += n
        gap = self.running.mean(axis=1) - self.mean
        self.mean = self.mean + gap * n / self.count
        self.squares = self.squares + n * self.running.var(axis=1)
        self.squares = self.squares + gap**2 * before * n / self.count
        self.running[ended] = 0.0

    @property
    def std(self) -> np.ndarray:
        """[S]; 1 while all returns were alike, as without a reward."""
        var = self.squares / max(self.count, 1)
        return np.where(var > 1e-12, np.sqrt(var), 1.0)

    def dump(self) -> dict[str, np.ndarray]:
        moments = np.stack([np.full_like(self.mean, self.count), self.mean, self.squares])
        return {"returns": self.running, "return_moments": moments}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        running, moments = (saved.get(k, np.empty(0)) for k in ("returns", "return_moments"))
        if running.shape != self.running.shape or moments.shape != (3, len(self.mean)):
            raise UsageError("a saved replay does not say by what its rewards are to be divided")
        count, self.mean, self.squares = moments
        self.running, self.count = running.copy(), int(count[0])


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
        scale: ReturnScale | None = None,
    ):
        """`demos` [D, width], or those of each seed, stay for good; a batch takes `demo_share` of
        its rows from them. Rewards of a batch are divided by what `scale` says at that time."""
        self.seeds, self.capacity, self.spec, self.particles = seeds, capacity, spec, particles
        self.num_demos, self.demo_share = 0 if demos is None else demos.shape[-2], demo_share
        self.scale = scale
        width = sum(columns(spec, particles))
        # Pages of an untouched zeros array cost no memory until they are written.
        self.rows = np.zeros((len(seeds), capacity + self.num_demos, width), np.float32)
        if demos is not None:
            self.rows[:, capacity:] = demos
        self.added = 0  # transitions ever added, per seed
        self.marks: dict[str, np.ndarray] = {}  # what a subclass knows of each row [S, capacity]

    @property
    def size(self) -> int:
        return min(self.added, self.capacity)

    def add(self, batch: Transition, truncated: Any = None, extras: Any = None) -> None:
        """Append [S, N, ...] transitions; whether they were truncated is asked by some only."""
        n = batch.reward.shape[1]
        self.rows[:, (self.added + np.arange(n)) % self.capacity] = pack(batch, self.particles)
        self.added += n
        if self.scale:
            self.scale.follow(np.asarray(batch.reward), (batch.terminated > 0) | truncated)

    def sample(self, step: int, updates: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Uniform rows [K, S, B, width] for updates `step`.., and where they lie [K, S, B]."""
        index = np.empty((updates, len(self.seeds), batch_size), np.int64)
        rows = []
        for s, seed in enumerate(self.seeds):
            rng = generator(seed, Stream.REPLAY, step)
            index[:, s] = self.draw(rng, updates, batch_size)
            rows.append(self.gather(rng, s, index[:, s]))
            if self.scale:
                reward: Any = unpack(rows[-1], self.spec, self.particles).reward
                reward /= np.float32(self.scale.std[s])
        return np.stack(rows, axis=1), index

    def draw(self, rng: np.random.Generator, updates: int, batch_size: int) -> np.ndarray:
        """Where K batches lie [K, B]; before the first step all of them are demonstrations."""
        shown = round(batch_size * (self.demo_share if self.size else 1.0)) * bool(self.num_demos)
        own = rng.integers(0, max(self.size, 1), (updates, batch_size - shown))
        if not shown:
            return own
        demos = rng.integers(0, self.num_demos, (updates, shown)) + self.capacity
        return np.concatenate([own, demos], axis=1)

    def gather(self, rng: np.random.Generator, s: int, index: np.ndarray) -> np.ndarray:
        """Copies of these rows of a seed, as they are to be learned from. [K, B, width]"""
        return self.rows[s].take(index, axis=0)

    def numbers(self, index: np.ndarray) -> np.ndarray:
        """Which transition lies at each place of the ring, counted from the first ever added."""
        return index + self.capacity * ((self.added - 1 - index) // self.capacity)

    def edit(self, index: np.ndarray, particles: np.ndarray) -> None:
        """Write edited particles [K, S, B, act_dim] back to the rows they came from."""
        for k, s in np.ndindex(index.shape[:2]):
            self.rows[s, index[k, s], -self.spec.act_dim :] = particles[k, s]

    def dump(self, whole: bool) -> dict[str, np.ndarray]:
        """For a checkpoint: demonstrations, the scale of returns and, if `whole`, the ring."""
        demos = {"demos": self.rows[:, self.capacity :]} if self.num_demos else {}
        scale = self.scale.dump() if self.scale else {}
        ring = {"rows": self.rows, **self.marks} if whole else {}
        return {**demos, **scale, **{name: x[:, : self.size] for name, x in ring.items()}}

    def restore(self, saved: dict[str, np.ndarray], added: int) -> None:
        """Take back what a checkpoint holds, the ring as its filled part [S, size, width]."""
        if self.scale:
            self.scale.restore(saved)
        if (rows := saved.get("rows")) is None:
            return
        if rows.shape != (*self.rows.shape[:1], min(added, self.capacity), self.rows.shape[2]):
            raise UsageError(
                f"a saved replay of shape {list(rows.shape)} does not fit one of capacity "
                f"{self.capacity}: resume with the settings that it was made with"
            )
        for name, own in self.marks.items():
            mark = saved.get(name, np.empty(0))
            if mark.shape != rows.shape[:2] or mark.dtype != own.dtype:
                raise UsageError(
                    f"a saved replay has no {name!r} of its rows: resume with the settings that it "
                    "was made with"
                )
            own[:, : rows.shape[1]] = mark
        self.rows[:, : rows.shape[1]] = rows
        self.added = added

    def interrupt(self) -> None:
        """Every environment begins a new episode, whatever became of the one before."""
        if self.scale:
            self.scale.running[:] = 0.0


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
        self.marks["last"] = self.last

    def add(self, batch: Transition, truncated: Any = None, extras: Any = None) -> None:
        first, n = self.added, self.num_envs
        super().add(batch, truncated)
        self.last[:, (first + np.arange(n)) % self.capacity] = RUNNING
        for s, lane in zip(*np.nonzero((batch.terminated > 0) | truncated)):
            self.close(s, first + lane)

    def close(self, s: int, end: int) -> None:
        """The episode that goes on in this environment ends with this transition."""
        oldest = max(-1, self.added - self.capacity - 1)
        steps = np.arange(end, oldest, -self.num_envs) % self.capacity
        before = np.flatnonzero(self.last[s, steps] != RUNNING)  # of the episode before
        self.last[s, steps[: before[0] if before.size else None]] = end

    def interrupt(self) -> None:
        super().interrupt()
        for s, end in np.ndindex(len(self.seeds), min(self.num_envs, self.added)):
            self.close(s, self.added - 1 - end)

    def gather(self, rng: np.random.Generator, s: int, index: np.ndarray) -> np.ndarray:
        rows = super().gather(rng, s, index)
        chosen = (rng.random(index.shape) < self.share) & (index < self.capacity)
        at, n = index[chosen], self.num_envs
        number = self.numbers(at)
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
        return rows


class StepsReplay(Replay):
    """Rows over n steps: the sum of their discounted rewards, and the state they lead to.

    Shorter where the episode ends, or the newest step is reached, before that. The number of a
    transition's successor is larger by N.
    """

    def __init__(self, *args: Any, n_step: int, gamma: float, num_envs: int, **rest: Any):
        super().__init__(*args, **rest)
        self.n_step, self.gamma, self.num_envs = n_step, gamma, num_envs
        self.truncated = np.zeros((len(self.seeds), self.capacity), bool)
        self.marks["truncated"] = self.truncated

    def add(self, batch: Transition, truncated: Any = None, extras: Any = None) -> None:
        self.truncated[:, (self.added + np.arange(self.num_envs)) % self.capacity] = truncated
        super().add(batch, truncated)

    def gather(self, rng: np.random.Generator, s: int, index: np.ndarray) -> np.ndarray:
        rows = super().gather(rng, s, index)
        seen, ring = (unpack(x, self.spec, self.particles) for x in (rows, self.rows[s]))
        reward, discount = np.asarray(seen.reward), np.ones(index.shape, np.float32)
        at = index.copy()
        going = at < self.capacity  # demonstrations do not say what comes next
        number = self.numbers(at)
        for _ in range(self.n_step - 1):
            number = number + self.num_envs
            ended = self.truncated[s, at % self.capacity] | (ring.terminated[at] > 0)
            going = going & ~ended & (number < self.added)
            at = np.where(going, number % self.capacity, at)
            discount[going] *= self.gamma
            reward[going] += discount[going] * ring.reward[at[going]]
        last = at[moved := at != index]
        seen.terminated[moved], seen.next_obs[moved] = ring.terminated[last], ring.next_obs[last]
        return np.concatenate([rows, discount[..., None]], axis=-1)

    def interrupt(self) -> None:
        super().interrupt()
        newest = self.added - 1 - np.arange(min(self.num_envs, self.added))
        self.truncated[:, newest % self.capacity] = True
