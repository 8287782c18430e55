"""From what the user names to a vector of lanes, with every refusal in one line."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rescore.core import UsageError, did_you_mean, one_line
from rescore.envs.goals import find_goals
from rescore.envs.gym import Envs
from rescore.envs.lane import Lane
from rescore.envs.spaces import demand_spaces
from rescore.envs.task import Task, load_module
from rescore.streams import Stream

HELD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # while environments' processes start


def make(
    env: str | Task | gymnasium.Env | VectorEnv | Callable[[], gymnasium.Env],
    seeds: Sequence[int] = (0,),
    num_envs: int = 1,
    *,
    parallel: bool = False,
    stream: Stream = Stream.ENV,
) -> Envs:
    """`num_envs` environments for each seed, or a `UsageError` that says what to do instead.

    `env` is a Gymnasium id, a function (or class) without arguments that builds one environment,
    one environment (only for one seed and one lane), or a vector of `len(seeds) * num_envs`.
    `parallel` gives each lane a spawned process; a script that asks for it needs the usual
    `if __name__ == "__main__":` guard.
    """
    seeds = valid_seeds(seeds)
    if num_envs < 1:
        raise UsageError(f"num_envs must be at least 1, not {num_envs}")
    count = len(seeds) * num_envs
    notices: list[str] = []
    goals = None
    if isinstance(env, VectorEnv):
        vector, env_id = _accepted(env, count, parallel), _name(env)
        demand_spaces(vector.single_observation_space, vector.single_action_space, env_id)
    else:
        factory = _factory(env, count, parallel, notices)
        first, chatter = _build(factory)
        env_id = _name(first)
        notices += chatter + _margin_notice(first, env_id)
        demand_spaces(first.observation_space, first.action_space, env_id)
        goals = find_goals(first)
        vector = _vector(factory, first, count, parallel)
    return Envs(
        vector,
        seeds,
        num_envs,
        env_id=env_id,
        stream=stream,
        notices=tuple(dict.fromkeys(notices)),
        versions=installed_versions(),
        goals=goals,
        is_ours=not isinstance(env, VectorEnv),
    )


def installed_versions() -> dict[str, str]:
    """Versions that decide what a task is; part of every recorded result."""
    return {package: version(package) for package in ("gymnasium", "mujoco")}


@dataclass(frozen=True)
class LaneFactory:
    """Builds one lane, also in a spawned process, to which ids registered here are unknown."""

    source: EnvSpec | Callable[..., gymnasium.Env]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    layers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = ()

    def __call__(self) -> Lane:
        if multiprocessing.parent_process() is not None:
            # Signals reach a whole group; the main process decides what they mean.
            os.setpgrp()
            for number in HELD:
                signal.signal(number, signal.SIG_IGN)  # also discards a pending signal
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the main process ends it by pid
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Lane(self.build())

    def build(self) -> gymnasium.Env:
        if isinstance(self.source, EnvSpec):
            env = gymnasium.make(self.source, disable_env_checker=True, **self.kwargs)
        else:
            env = self.source(**self.kwargs)
        for layer in self.layers:
            env = layer(env)
        return env


def valid_seeds(seeds: Any) -> tuple[int, ...]:
    """One seed or several, which must be numbers that differ from each other."""
    found = tuple(int(seed) for seed in np.atleast_1d(seeds))
    if not found or not all(0 <= seed < 2**32 for seed in found):
        raise UsageError(f"seeds must be numbers from 0 to {2**32 - 1}, not {found}")
    if len(set(found)) < len(found):
        raise UsageError(f"seeds must differ from each other, not {found}")
    return found


def _accepted(vector: VectorEnv, count: int, parallel: bool) -> VectorEnv:
    name = type(vector).__name__
    if parallel:
        raise UsageError(f"{name} decides itself where its environments run: leave out parallel")
    mode = vector.metadata.get("autoreset_mode")
    if mode != AutoresetMode.SAME_STEP:
        raise UsageError(
            f"{name} has autoreset mode {mode and AutoresetMode(mode).name}: build it with "
            "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
        )
    if vector.num_envs != count:
        raise UsageError(
            f"{name} holds {vector.num_envs} environments, but len(seeds) * num_envs is {count}: "
            "make the two equal"
        )
    return vector


def _factory(env: Any, count: int, parallel: bool, notices: list[str]) -> LaneFactory:
    if isinstance(env, Task):
        if not isinstance(env.base, str) and (is_env(env.base) or not callable(env.base)):
            raise UsageError("keywords and wrappers need an environment by id or as a function")
        inner = _factory(env.base, count, parallel, notices)
        return replace(inner, kwargs=dict(env.kwargs), layers=tuple(env.layers()))
    if isinstance(env, str):
        spec = _find(env)
        notices += _age_notice(spec)
        return LaneFactory(spec)
    if isinstance(env, gymnasium.Env):
        if count > 1 or parallel:
            raise UsageError(
                f"one {_name(env)} object cannot serve {count} lanes or another process: pass a "
                "function that builds it, for example `lambda: MyEnv()`"
            )
        return LaneFactory(lambda: env)
    if callable(env):
        return LaneFactory(env)
    raise UsageError(
        f"env is a {type(env).__qualname__}: pass a Gymnasium id, environment, vector, or a "
        "function that builds an environment"
    )


def _find(env_id: str) -> EnvSpec:
    """Entry of the registry. An id without a version is refused: it would change its meaning."""
    module, _, name = env_id.rpartition(":")
    if env_id.startswith("rescore/"):
        from rescore.envs import probes

        probes.register()
    if module:
        load_module(module, env_id)
    if name == "Pusher-v4" and int(installed_versions()["mujoco"].split(".")[0]) >= 3:
        raise UsageError(
            "Pusher-v4 needs mujoco<3, where its puck has the old weight: use Pusher-v5 (another "
            "task), or install mujoco<3 in an environment of its own"
        )
    if name not in gymnasium.registry:
        raise UsageError(f"no environment is called {name!r}: {_advice(name)}")
    return gymnasium.registry[name]


def _advice(name: str) -> str:
    stem = re.sub(r"-v\d+$", "", name)
    siblings = [k for k in gymnasium.registry if re.fullmatch(re.escape(stem) + r"-v\d+", k)]
    if siblings:
        latest = sorted(siblings, key=lambda k: int(k.rpartition("-v")[2]))[-2:]
        return f"say which version, {' or '.join(latest)}"
    otherwise = f"write 'package:{name}' to import the package that registers it"
    guess = did_you_mean(name, gymnasium.registry, n=3)
    return f"{guess} Else {otherwise}" if guess else otherwise


def _age_notice(spec: EnvSpec) -> list[str]:
    name = (spec.namespace, spec.name)
    same = [s for s in gymnasium.registry.values() if (s.namespace, s.name) == name]
    newest = max(same, key=lambda s: s.version or 0)
    if spec.version is None or spec.version >= (newest.version or 0):
        return []
    return [f"{spec.id} is kept for comparison with older results; {newest.id} is a different task"]


def _build(factory: LaneFactory) -> tuple[gymnasium.Env, list[str]]:
    """The first environment, and the warnings of making it as lines."""
    source = factory.source
    name = source.id if isinstance(source, EnvSpec) else getattr(source, "__name__", "env")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env = factory.build()
        except (ImportError, gymnasium.error.Error) as error:
            raise UsageError(f"{name} cannot be built here: {one_line(error)}") from error
        except UsageError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {one_line(error)}"
            raise UsageError(f"{name} failed while it was built, {cause}") from error
    if not isinstance(env, gymnasium.Env):
        raise UsageError(
            f"{name} built a {type(env).__qualname__}, not a gymnasium.Env: old gym environments "
            "need a converter, for example the package shimmy"
        )
    # Deprecations are for those who maintain the environment, not for those who train on it.
    told = [w for w in caught if not issubclass(w.category, (DeprecationWarning, FutureWarning))]
    return env, [f"{name}: {one_line(warning.message)}" for warning in told]


def is_env(env: Any) -> bool:
    """True for an environment instance: there is no second one of it."""
    return isinstance(env, gymnasium.Env | VectorEnv)


def _vector(factory: LaneFactory, first: gymnasium.Env, count: int, parallel: bool) -> VectorEnv:
    mode = AutoresetMode.SAME_STEP
    try:
        if not parallel:
            lanes: list[Callable[[], gymnasium.Env]] = [lambda: Lane(first)]
            lanes += [factory] * (count - 1)
            return SyncVectorEnv(lanes, copy=False, autoreset_mode=mode)
        first.close()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # processes inherit it
        try:
            return AsyncVectorEnv(
                [factory] * count, copy=False, context="spawn", autoreset_mode=mode
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except RuntimeError as error:
        if "space" not in str(error):
            raise
        raise UsageError(
            f"{_name(first)}: the environments of one vector must have equal spaces, but "
            f"{one_line(error)}"
        ) from error


def _margin_notice(env: gymnasium.Env, env_id: str) -> list[str]:
    """MuJoCo 3.5 silently doubled the contact thickness of Ant, Hopper, Humanoid and Pusher."""
    model: Any = getattr(env.unwrapped, "model", None)
    have = installed_versions()["mujoco"]
    is_new = tuple(int(part) for part in have.split(".")[:2]) >= (3, 5)
    if not is_new or type(model).__name__ != "MjModel" or not (model.geom_margin > 0).any():
        return []
    return [
        f"mujoco {have} adds the contact margins of two bodies where 3.4 took the larger: "
        f"{env_id} differs from results made before February 2026 (mujoco<3.5 agrees with them)"
    ]


def _name(env: gymnasium.Env | VectorEnv) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
