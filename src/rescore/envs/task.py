"""An environment with keywords and wrappers, as plain data where they are named by text."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import gymnasium
import numpy as np

from rescore.core import UsageError, did_you_mean, one_line

OURS = "gymnasium.wrappers."  # these alone are looked up for a run that somebody else may have made
WRITES = "RecordVideo"  # wherever its settings say


@dataclass(frozen=True)
class Task:
    """What to build: an id or a function, its keywords, and wrappers from the inside out.

    A wrapper is a class or a function of the environment, or text such as
    `gymnasium.wrappers.FrameStackObservation:stack_size=4`.
    """

    base: str | Callable[..., gymnasium.Env]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[str | Callable[[gymnasium.Env], gymnasium.Env]] = ()

    @classmethod
    def of(cls, env: Any) -> Self:
        """The task of whatever names an environment."""
        return env if isinstance(env, cls) else cls(env)

    @property
    def is_data(self) -> bool:
        """Whether a file can hold all of it."""
        return all(isinstance(part, str) for part in (self.base, *self.wrappers))

    def imports(self) -> list[Any]:
        """What no file may have imported: ids with a module, wrappers that are not Gymnasium's."""
        named = isinstance(self.base, str) and ":" in self.base
        return [self.base] * named + [w for w in self.wrappers if not is_ours(w)]

    def pictured(self) -> gymnasium.Env:
        """One that draws itself, where it can."""
        make = partial(gymnasium.make, self.base) if isinstance(self.base, str) else self.base
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that v4 is old is said once, at the start of a run
            try:
                env = make(**{"render_mode": "rgb_array", **self.kwargs})
            except TypeError:  # it knows no render mode; MuJoCo's state can be drawn all the same
                env = make(**self.kwargs)
            except (ImportError, gymnasium.error.Error) as error:
                raise UsageError(f"{self.base} cannot be built here: {one_line(error)}") from None
        for layer in self.layers():
            env = layer(env)
        return env

    def layers(self) -> list[Callable[[gymnasium.Env], gymnasium.Env]]:
        """The wrappers as functions; their modules are imported here."""
        return [Layer(*find(w)) if isinstance(w, str) else w for w in self.wrappers]


@dataclass(frozen=True)
class Layer:
    """A wrapper with its keywords."""

    cls: Callable[..., gymnasium.Env]
    kwargs: Mapping[str, Any]

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        try:
            return self.cls(env, **self.kwargs)
        except (TypeError, ValueError, AssertionError) as error:
            name = getattr(self.cls, "__name__", "wrapper")
            raise UsageError(
                f"the wrapper {name} refuses its settings: {one_line(error)}"
            ) from error


def stored(config: Mapping[str, Any], trust: bool = False) -> str | Task:
    """The task that a file names; modules of other packages only if the file is trusted."""
    kwargs, wrappers = config.get("env_kwargs") or {}, config.get("wrappers") or []
    task = Task(config["env"], kwargs, wrappers)
    if not isinstance(task.base, str) or (task.imports() and not trust):
        what = (task.imports() or [task.base])[0]
        raise UsageError(
            f"it names {what!r}, whose module would be imported: load it with env=..., or with "
            f"trust_env=True (--trust-env) if you trust this folder"
        )
    return task if kwargs or wrappers else task.base


def is_ours(wrapper: Any) -> bool:
    """Whether it is the name of a wrapper of Gymnasium's that does no more than wrap."""
    path = str(wrapper).partition(":")[0]
    name = path.removeprefix(OURS)
    public = name in gymnasium.wrappers.__all__ and name != WRITES
    return isinstance(wrapper, str) and path == OURS + name and public


def find(text: str) -> tuple[Callable[..., gymnasium.Env], dict[str, Any]]:
    """Class and keywords of a wrapper given as `package.Class:key=value,key=value`."""
    path, _, settings = text.partition(":")
    module, _, name = path.rpartition(".")
    if not module:
        raise UsageError(f"wrapper {text!r} names no module: write it as package.Class:key=value")
    found = getattr(load_module(module, f"wrapper {text!r}"), name, None)
    if not callable(found):
        hint = did_you_mean(name, dir(sys.modules[module]), "see its documentation")
        raise UsageError(f"{module} has no wrapper {name!r}: {hint}")
    return found, keywords(filter(None, settings.split(",")), f"wrapper {path}")


def load_module(name: str, what: str) -> Any:
    """A module, also one that lies in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"{what}: {one_line(error) or type(error).__name__}") from error


def keywords(words: Any, what: str) -> dict[str, Any]:
    """Keywords given as `key=value`: numbers, true, false and null as such, the rest as text."""
    made = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")  # as a flag is written
        if not equals or not name.replace(".", "_").isidentifier():
            raise UsageError(f"{what} takes NAME=VALUE, not {word!r}")
        made[name] = parsed(value)
    return made


def parsed(value: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(value)
        except (ValueError, SyntaxError):
            continue
    return value


class Bounded(gymnasium.ActionWrapper):
    """Finite bounds for actions that have none."""

    def __init__(self, env: gymnasium.Env, low: float = -1.0, high: float = 1.0):
        super().__init__(env)
        box: Any = env.action_space
        limits = np.clip(box.low, low, high), np.clip(box.high, low, high)
        self.action_space = gymnasium.spaces.Box(*limits, dtype=box.dtype)

    def action(self, action: Any) -> Any:
        return action
