"""Vectors of Gymnasium environments as the library sees them: actions in [-1, 1], float32, [S, N].

Scaling, clipping and flattening happen here, once, for every kind of environment. A lane is one
environment; lane `s * N + n` is environment n of seed s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import iterate

from rescore.core import EnvError, NonFiniteError, Spec, UsageError, one_line
from rescore.envs.goals import Goals
from rescore.envs.lane import success_of
from rescore.envs.spaces import as_rows
from rescore.streams import Stream, env_seed


class EnvStep(NamedTuple):
    """What one step of all lanes gave. `obs` is where the next action is chosen."""

    obs: np.ndarray  # [S, N, obs_dim], that of the new episode where the old one ended
    reward: np.ndarray  # [S, N]
    terminated: np.ndarray  # [S, N] bool: ended for good, do not bootstrap
    truncated: np.ndarray  # [S, N] bool: truncated by a time limit, bootstrap
    next_obs: np.ndarray  # [S, N, obs_dim], the true successor, never that of a reset
    action: np.ndarray  # [S, N, act_dim], clipped to [-1, 1]: what was executed
    success: np.ndarray  # [S, N], of episodes that ended here; NaN where nothing was said


def affine(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width such that `mid + half * a` stays in the box for every a in [-1, 1]."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    mid, half = low + (high - low) / 2, (high - low) / 2
    # Rounding may leave the box by a last digit; rounded sums are monotone, so the ends suffice.
    outside = (mid + half > high) | (mid - half < low)
    digit = np.spacing(np.maximum(np.abs(low), np.abs(high)))
    return mid, np.where(outside, (half - digit).clip(0), half)


def _float32(values: Any) -> np.ndarray:
    """A copy in float32; what does not fit becomes infinite, and is reported as such."""
    values = np.asarray(values)
    if values.dtype == np.float32:
        return values.copy()
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


class Envs:
    """S seeds times N environments, reset by themselves in the step that ends an episode."""

    def __init__(
        self,
        vector: VectorEnv,
        seeds: tuple[int, ...],
        num_envs: int,
        *,
        env_id: str,
        stream: Stream,
        notices: tuple[str, ...],
        versions: dict[str, str],
        goals: Goals | None,
        is_ours: bool,  # its environments are lanes of `make`
    ) -> None:
        box: Any = vector.single_action_space
        self.seeds, self.num_envs, self.env_id = seeds, num_envs, env_id
        self.notices, self.versions, self.goals = notices, versions, goals
        self.no_snapshot = ""  # why the last `snapshot()` gave None
        self._obs_space = vector.single_observation_space
        self.spec = Spec(obs_dim=flatdim(self._obs_space), act_dim=int(np.prod(box.shape)))
        self._vector: Any = vector
        self._stream, self._is_ours = stream, is_ours
        # Middle and half width of the task's action box: its action is `mid + half * a`.
        self.action_scale = affine(box.low.ravel(), box.high.ravel())
        self.act_shape, self._act_dtype = box.shape, box.dtype
        self._lost = False  # whether a process of the vector has died
        self.in_step = True  # whether all lanes are where their last observation says
        self._obs: np.ndarray | None = None  # [S, N, obs_dim], what the next action is for

    def reset(self, epoch: int = 0) -> np.ndarray:
        """Start every lane from its own seed; returns obs [S, N, obs_dim].

        Another `epoch` gives other seeds.
        """
        numbers = range(epoch * self.num_envs, (epoch + 1) * self.num_envs)
        lanes = [env_seed(s, self._stream, n) for s in self.seeds for n in numbers]
        # Only these two promise to take a seed for each lane.
        each = isinstance(self._vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        with self._named("reset"):
            obs, _ = self._ask("reset", seed=lanes if each else lanes[0])
            flat = self._flat(obs)
        self._demand_finite("observation", flat)
        self._obs, self.in_step = self._grid(flat), True
        return self._obs.copy()

    def step(self, action: np.ndarray) -> EnvStep:
        """Execute actions [S, N, act_dim], clipped to [-1, 1] here and nowhere else."""
        executed = self.executed(action)
        self.in_step = False  # until all of them have moved
        with self._named("step"):
            obs, reward, terminated, truncated, infos = self._ask("step", self.scaled(executed))
            obs = self._flat(obs)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        next_obs = obs.copy()
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            final = self._final(infos)
            for lane in ended:
                next_obs[lane] = _float32(flatten(self._obs_space, final[lane]))
            self._demand_finite("observation", obs)
        reward = _float32(reward)
        self._demand_finite("observation", next_obs)
        self._demand_finite("reward", reward)
        self._obs, self.in_step = self._grid(obs), True
        flags = self._grid(terminated), self._grid(truncated)
        seen = self._obs.copy(), self._grid(reward), *flags, self._grid(next_obs)
        return EnvStep(*seen, executed, self._grid(success_of(infos, len(reward))))

    def executed(self, action: np.ndarray) -> np.ndarray:
        """The action that will take effect, clipped to [-1, 1]: what replay should hold."""
        action = np.asarray(action, np.float32)
        shape = (len(self.seeds), self.num_envs, self.spec.act_dim)
        if action.shape != shape:
            raise UsageError(
                f"{self.env_id} takes actions of shape {shape}, one row for each seed and "
                f"environment, not {action.shape}"
            )
        if self._obs is None:
            raise UsageError("call reset() or restore() before the first step()")
        self._demand_finite("action", action.reshape(-1, self.spec.act_dim))
        return np.clip(action, -1, 1)

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations as the task gives them, one or a batch: [B, obs_dim], and which it was."""
        return as_rows(self._obs_space, observation)

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Actions [..., act_dim] in [-1, 1] as the task takes them: [rows, *shape of its box]."""
        mid, half = self.action_scale
        scaled = mid + half * action.reshape(-1, self.spec.act_dim)
        return scaled.astype(self._act_dtype).reshape(-1, *self.act_shape)

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict] | None:
        """Exact state as arrays and JSON; None, with the reason in `no_snapshot`, if there is none.

        Randomness outside the environment object (NumPy's global generator) cannot be seen.
        """
        if self._obs is None:
            raise UsageError("call reset() before snapshot(): there is nothing to save yet")
        if self._lost:
            self.no_snapshot = f"{self.env_id}: one of its processes had ended"
            return None
        if not self.in_step:
            self.no_snapshot = f"{self.env_id}: a step of its environments was cut short"
            return None
        if not self._is_ours:
            self.no_snapshot = f"{self.env_id} is a vector made elsewhere: its state is not ours"
            return None
        lanes = self._ask("call", "capture")
        problem = next((lane for lane in lanes if isinstance(lane, str)), "")
        self.no_snapshot = problem and f"{self.env_id} cannot be saved: {problem}"
        if problem:
            return None
        arrays = {"obs": self._obs.copy()}
        for i, (lane, _) in enumerate(lanes):
            arrays |= {f"{i}/{path}": array for path, array in lane.items()}
        return arrays, {"env_id": self.env_id, "lanes": [lane for _, lane in lanes]}

    def restore(self, arrays: dict[str, np.ndarray], meta: dict) -> np.ndarray:
        """Put all lanes back to a snapshot, bit for bit; returns obs [S, N, obs_dim]."""
        if not self._is_ours:
            raise UsageError(f"{self.env_id} is a vector made elsewhere: it cannot be restored")
        shape = (len(self.seeds), self.num_envs, self.spec.obs_dim)
        self._demand_ours(arrays, meta, shape)
        count = len(self.seeds) * self.num_envs
        lanes: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
        for name, array in arrays.items():
            lane, _, path = name.partition("/")
            if path:
                lanes[int(lane)][path] = array
        # What is made on the first reset, and is no state, must be there.
        self.reset()
        self._ask("set_attr", "inbox", list(zip(lanes, meta["lanes"])))
        problem = next((p for p in self._ask("call", "reinstate") if p), None)
        if problem:
            self._obs = None
            raise UsageError(f"{self.env_id} cannot be restored: {problem}")
        self._obs = np.array(arrays["obs"], np.float32)
        return self._obs.copy()

    def close(self) -> None:
        """End the environments and their processes; calling it twice is fine."""
        self._vector.close(**({"terminate": True} if self._lost else {}))

    def _ask(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """A call of the vector; that one of its processes is dead is said in one line."""
        try:
            return getattr(self._vector, what)(*args, **kwargs)
        except (EOFError, ConnectionError) as error:
            if not isinstance(self._vector, AsyncVectorEnv):
                raise
            self._lost = True
            self._vector._state = AsyncState.DEFAULT  # or close() would wait for the dead process
            raise UsageError(
                f"{self.env_id}: a process of its environments ended; was it killed, or out of "
                "memory?"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grid(self, lanes: np.ndarray) -> np.ndarray:
        return lanes.reshape(len(self.seeds), self.num_envs, *lanes.shape[1:])

    def _flat(self, obs: Any) -> np.ndarray:
        """[S * N, obs_dim] float32, never a view of what the vector keeps."""
        if isinstance(self._obs_space, spaces.Box):
            flat = np.asarray(obs).reshape(-1, self.spec.obs_dim)
        else:
            lanes = iterate(self._vector.observation_space, obs)
            flat = np.stack([np.asarray(flatten(self._obs_space, lane)) for lane in lanes])
        return _float32(flat)

    def _final(self, infos: dict) -> np.ndarray:
        if "final_obs" not in infos:
            raise UsageError(
                f"{self.env_id} ended an episode without infos['final_obs']: a vector with "
                "SAME_STEP autoreset must give the last observation there"
            )
        return infos["final_obs"]

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Within, what the environment raises becomes one line with its name."""
        try:
            yield
        except UsageError:  # a process that died has its own words
            raise
        except Exception as error:
            self._lost = self._lost or isinstance(
                self._vector, AsyncVectorEnv
            )  # its process has ended
            cause = f"{type(error).__name__}: {one_line(error)}"
            raise EnvError(f"{self.env_id} failed in {what}, {cause}") from error

    def _demand_finite(self, what: str, lanes: np.ndarray) -> None:
        if np.isfinite(lanes).all():
            return
        bad = ~np.isfinite(lanes).reshape(len(lanes), -1).all(axis=1)
        s, n = divmod(int(np.flatnonzero(bad)[0]), self.num_envs)
        raise NonFiniteError(
            f"{self.env_id}: {what} is not finite in environment {n} of seed {self.seeds[s]}"
        )

    def _demand_ours(self, arrays: dict, meta: dict, shape: tuple[int, ...]) -> None:
        """Refuse a snapshot of something else before anything is touched."""
        missing = {"env_id", "lanes"} - meta.keys() or {"obs"} - arrays.keys()
        if missing:
            raise UsageError(f"not a snapshot of environments: {sorted(missing)} is missing")
        if meta["env_id"] != self.env_id:
            raise UsageError(f"the snapshot is of {meta['env_id']}, not of {self.env_id}")
        if arrays["obs"].shape != shape or len(meta["lanes"]) != shape[0] * shape[1]:
            raise UsageError(
                f"the snapshot holds observations {arrays['obs'].shape}, this run needs {shape}: "
                "restore with the same number of seeds and environments"
            )
