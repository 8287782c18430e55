"""The types that every other module speaks: read this file first.

It imports neither JAX nor anything of ours, so that environment processes and `--help` stay light.
Axes, when present, come in this order: K updates in a chunk, S seeds, N environments, B rows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from jax import Array

Activation = Literal["mish", "relu", "gelu", "tanh"]  # of a network's hidden layers


class UsageError(ValueError):
    """What the caller asked for cannot be done; the message is one line that says what to do."""


class NonFiniteError(FloatingPointError):
    """An observation, reward or metric stopped being finite; the message says which and when."""


class EnvError(RuntimeError):
    """An environment raised or gave nonsense; the message names it, the step and the cause."""


def one_line(message: object) -> str:
    """A message without colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(message)).split())


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "", n: int = 1) -> str:
    """The names nearest to a mistyped one, or what else to do."""
    close = difflib.get_close_matches(name, list(names), n)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def known(name: str, names: Collection[str], what: str) -> str:
    """`name` if it is one of `names`, else an error with the nearest one."""
    if name in names:
        return name
    hint = did_you_mean(name, names, "choose one of " + ", ".join(sorted(names)))
    raise UsageError(f"unknown {what} {name!r}: {hint}")


def check_choices(config: Any) -> None:
    """Refuse a dataclass field that is not one of the literals its type names."""
    for name, kind in get_type_hints(type(config)).items():
        if get_origin(kind) is Literal and getattr(config, name) not in get_args(kind):
            choices = ", ".join(map(str, get_args(kind)))
            raise UsageError(f"{name} must be one of {choices}, not {getattr(config, name)!r}")


def check_positive(config: Any, *names: str) -> None:
    """Refuse a dataclass field that is neither none nor a positive, finite number."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} must be positive and finite, not {value}")


class Spec(NamedTuple):
    """All that an algorithm may know about its environment. Actions always lie in [-1, 1]."""

    obs_dim: int
    act_dim: int


class Transition(NamedTuple):
    """(s, a, r, s') and whether s' ended the episode for good; a time limit does not."""

    obs: Array  # [..., obs_dim]
    action: Array  # [..., act_dim], as executed
    reward: Array  # [...]
    terminated: Array  # [...] float: 1 masks the bootstrap
    next_obs: Array  # [..., obs_dim], the true one, never that of a reset
    particle: Array | None = None  # [..., act_dim], an editable copy of the action (DIPO)
    discount: Array | None = None  # [...], gamma^(m - 1) where (s, a, r, s') is m steps long


class RewardRule(NamedTuple):
    """What replay makes of rewards before an algorithm learns from them."""

    n_step: int = 1  # steps whose discounted rewards are summed up
    gamma: float = 1.0  # their discount
    scaled: bool = False  # whether they are divided by the running std of the discounted return


class Rollout(NamedTuple):
    """On-policy experience of one policy in the order of time, with what `act` recorded of it."""

    transition: Transition  # [L, N, ...]
    truncated: Array  # [L, N] episode truncated by a time limit: bootstrap, but do not sum across
    extras: dict[str, Array]  # [L, N, ...] the action before clipping, or its denoising chain


class Act(NamedTuple):
    """An action in [-1, 1] and what a rollout learner wants to remember of how it was made."""

    action: Array  # [B, act_dim]
    extras: dict[str, Array]


class Update(NamedTuple):
    """Result of one learning step. `edits` are new particles for the batch's rows (DIPO)."""

    state: Any
    metrics: dict[str, Array]  # scalars; NaN where this update measured nothing
    edits: Array | None = None  # [B, act_dim]


class Algorithm(Protocol):
    """Frozen hyperparameters with three pure methods; all that changes is in `state`.

    `step` counts updates and is shared by all seeds, so that a delayed part stays a branch
    (a per-seed counter would turn `cond` into `select`, and both sides would always run).
    One that learns from replay may have more: `reward_rule: RewardRule`, `normalise_obs: bool`, and
    `imitate`, an `update` that clones demonstrations.
    """

    source: ClassVar[Literal["replay", "rollout"]]
    keeps_particles: ClassVar[bool]  # whether replay holds an editable copy of each action

    def __hash__(self) -> int: ...

    def init(self, key: Array, spec: Spec) -> Any: ...

    def act(self, state: Any, obs: Array, key: Array, explore: bool) -> Act: ...

    def update(self, state: Any, batch: Any, key: Array, step: Array) -> Update: ...
