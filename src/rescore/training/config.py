"""How a run is driven: everything about training that is not the algorithm's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from rescore.algorithms import REGISTRY, find, presets_of
from rescore.core import Algorithm, RewardRule, UsageError, known

# Settings may come from a foreign file: refuse absurd sizes before allocating memory.
LARGEST = {"num_envs": 10_000, "eval_episodes": 10_000, "batch_size": 10**7, "chunk": 10**7}


@dataclass(frozen=True)
class Training:
    """Rhythm of collection, learning, evaluation and saving. Steps count per seed."""

    num_envs: int = 1  # environments stepped together for each seed
    utd: float = 1.0  # updates per environment step (update-to-data ratio)
    chunk: int = 5  # vector steps with one policy, then their updates; the length of a rollout
    warmup: int = 5_000  # environment steps of uniform random actions before learning starts
    batch_size: int = 256  # transitions per update
    replay_capacity: int = 1_000_000  # transitions kept per seed, oldest dropped first
    hindsight: float = 0.0  # share of a batch whose goal becomes one that was reached later
    demos: str | None = None  # demonstrations: an npz file, or a Minari dataset as minari:ID
    demo_share: float = 0.5  # share of a batch that is taken from the demonstrations
    pretrain: int = 0  # updates of behaviour cloning on the demonstrations before the first step
    parallel_envs: bool = False  # step environments in spawned processes, not in this one
    eval_every: int = 10_000  # environment steps between evaluations; 0 evaluates only at the end
    eval_episodes: int = 10  # episodes per evaluation and seed
    log_every: int = 1_000  # environment steps between rows of metrics.jsonl
    checkpoint_every: int = 50_000  # environment steps between checkpoints; 0 saves only at the end
    keep_checkpoints: int = 2  # newest checkpoints kept
    save_replay: bool = True  # without it checkpoints are small but a resumed run is not exact

    def __post_init__(self):
        positive = ("num_envs", "chunk", "batch_size", "replay_capacity", "eval_episodes")
        for name in (*positive, "log_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
            if getattr(self, name) > LARGEST.get(name, 10**9):
                raise UsageError(f"{name} must be at most {LARGEST.get(name, 10**9):,}")
        for name in ("warmup", "eval_every", "checkpoint_every", "pretrain"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("hindsight", "demo_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} must lie in [0, 1], not {getattr(self, name)}")
        if self.pretrain and self.demos is None:
            raise UsageError("pretrain clones demonstrations: name them with demos (--demos FILE)")
        if not 0 < self.utd < math.inf:
            raise UsageError(f"utd must be a positive number, not {self.utd}")
        if abs(self.updates - round(self.updates)) > 1e-9:
            raise UsageError(
                f"chunk x num_envs x utd must be a whole number of updates, but "
                f"{self.chunk} x {self.num_envs} x {self.utd:g} = {self.updates:g}"
            )

    @property
    def updates(self) -> float:
        """Updates per chunk; a whole number once validated."""
        return self.chunk * self.num_envs * self.utd

    @property
    def stride(self) -> int:
        """Environment steps per chunk and seed."""
        return self.chunk * self.num_envs


REPLAY_ONLY = ["utd", "warmup", "batch_size", "replay_capacity", "save_replay"]
REPLAY_ONLY += ["hindsight", "demos", "demo_share", "pretrain"]


def training_for(algo: Algorithm, values: dict[str, Any] | Training) -> Training:
    """Training settings for this algorithm; those that it would not look at are refused."""
    training = values if isinstance(values, Training) else from_plain(Training, values)
    if algo.source == "rollout":
        for name in REPLAY_ONLY:
            if getattr(training, name) != getattr(Training, name):
                raise UsageError(
                    f"{name} is a setting of replay, but {type(algo).__name__} learns once from "
                    f"each rollout of chunk x num_envs steps: leave it out"
                )
    if training.pretrain and not hasattr(algo, "imitate"):
        able = ", ".join(name for name in REGISTRY if hasattr(find(name), "imitate"))
        raise UsageError(f"{type(algo).__name__} cannot clone demonstrations; those can: {able}")
    rule: RewardRule = getattr(algo, "reward_rule", RewardRule())
    if training.hindsight and rule.n_step > 1:
        raise UsageError("hindsight and critic.n_step do not go together: leave one out")
    if training.pretrain and rule.scaled:
        raise UsageError(
            "pretrain learns from demonstrations before any step says how large returns are: "
            "leave out critic.normalise_rewards"
        )
    return training


def from_plain(cls: type, values: dict[str, Any]) -> Any:
    """A dataclass from what JSON made of it: nested ones rebuilt, lists as tuples, no typos."""
    hints = get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    made = {}
    for name, value in values.items():
        kind = hints[known(name, names, f"setting of {cls.__name__}")]
        kinds = [k for k in (kind, *get_args(kind)) if isinstance(k, type)]
        nested = [k for k in kinds if dataclasses.is_dataclass(k)]
        if nested and isinstance(value, dict):
            value = from_plain(nested[0], value)
        if isinstance(value, float) and int in kinds and float not in kinds:
            if not value.is_integer():
                raise UsageError(f"{name} of {cls.__name__} must be a whole number, not {value}")
            value = int(value)
        if isinstance(value, int) and abs(value) > 10**9:
            raise UsageError(f"{name} of {cls.__name__} is too large: {value:,}")
        made[name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**made)
    except TypeError as error:
        raise UsageError(f"{cls.__name__} cannot be made from {values}: {error}") from None


def overlaid(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `values`; of a mapping in both, only the names that `over` has."""
    both = {
        k: v for k, v in over.items() if isinstance(v, dict) and isinstance(values.get(k), dict)
    }
    return {**values, **over} | {k: overlaid(values[k], v) for k, v in both.items()}


def recorded(name: str, hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """Those of a run's record, whose parts are whole: a setting that they lack was off then."""
    algo = from_plain(find(name), hyperparameters)
    return {key: getattr(algo, key) for key in hyperparameters}


def configure(
    name: str, preset: str, hyperparameters: dict[str, Any], training: dict[str, Any] | Training
) -> tuple[Algorithm, Training]:
    """An algorithm and its training settings: the preset's values, then those given.

    A whole `Training` leaves nothing to the preset. A mapping for a part, such as the critic,
    changes only the settings that it names.
    """
    chosen = presets_of(name)[known(preset, presets_of(name), f"preset of {name}")]
    own = {f.name: f.default for f in dataclasses.fields(find(name))} | chosen.algorithm
    parts: dict[str, Any] = {k: v for k, v in own.items() if dataclasses.is_dataclass(v)}
    parts = {k: dataclasses.asdict(v) for k, v in parts.items()}
    algo = from_plain(find(name), overlaid(chosen.algorithm | parts, hyperparameters))
    if not isinstance(training, Training):
        training = {**chosen.training, **training}
    return algo, training_for(algo, training)
