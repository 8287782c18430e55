"""What tests share: small versions of every algorithm and of a training run, and commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore import cli
from rescore.algorithms import REGISTRY, find, presets_of
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from rescore.core import Rollout, Spec, Transition, Update
from rescore.models.critics import CriticSettings

# Small enough to compile in seconds; nothing learns with it. Tests of one task share the programs.
TINY_NETS = {"hidden": (8, 8), "T": 3, "act_candidates": 1}
TINY_TRAINING = {"num_envs": 1, "chunk": 5, "utd": 1.0, "warmup": 40, "batch_size": 16}
TINY_TRAINING |= {"replay_capacity": 1000, "log_every": 20, "eval_every": 50, "eval_episodes": 2}
TINY_TRAINING |= {"checkpoint_every": 50}


def as_flags(settings: dict[str, Any]) -> str:
    """The settings as they are typed."""
    words = (
        (k.replace("_", "-"), v if isinstance(v, tuple) else (v,)) for k, v in settings.items()
    )
    return " ".join(f"--{name} {' '.join(map(str, values))}" for name, values in words)


TINY = as_flags(TINY_NETS | TINY_TRAINING)

# DPMD and SDAC by samples, as in the paper, instead of learned posteriors.
DRAWS = {"posterior": None, "critic": CriticSettings(), "b1": 0.9, "noise_in": "candidates"}
DRAWS |= {"act_with": "target", "reward_scale": 1.0, "averaging": None}

SPEC = Spec(obs_dim=5, act_dim=2)
BATCH = 16
SIZES = {
    "hidden": (16, 16),
    "T": 4,
    "act_candidates": 2,
    "target_candidates": 2,
    "eval_candidates": 3,
    "reverse_draws": 4,
    "num_samples": 3,
    "uniform_actions": 2,
    "entropy_states": 4,
    "entropy_draws": 5,
    "edit_steps": 2,
    "critic_hidden": (16, 16),
    "epochs": 2,
    "minibatches": 2,
}


def rescore_command(*words: object) -> int:
    """The exit code of a command, run in this process."""
    with pytest.raises(SystemExit) as stop:
        cli.main([part for word in words for part in str(word).split()])
    return stop.value.code or 0


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):  # a folder that is deleted while we look
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def small(name: str, preset: str = "default", **more):
    """The algorithm with its preset's choices and little work; settings it has no use for go."""
    cls, given = find(name), presets_of(name)[preset].algorithm | SIZES | more
    own = {field.name for field in fields(cls)}
    idle = "without_posteriors" if given.get("posterior", True) else "only_posteriors"
    own -= set(getattr(cls, idle, ()))
    return cls(**{k: v for k, v in given.items() if k in own})


def random_batch(seed: int = 0, rows: int = BATCH, spec: Spec = SPEC) -> Transition:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return Transition(
        obs=draw(rows, spec.obs_dim),
        action=jnp.clip(draw(rows, spec.act_dim), -1, 1),
        reward=draw(rows),
        terminated=jnp.asarray(rng.random(rows) < 0.2, jnp.float32),
        next_obs=draw(rows, spec.obs_dim),
        particle=jnp.clip(draw(rows, spec.act_dim), -1, 1),
    )


def experience(algo, seed: int = 0, rows: int = BATCH, spec: Spec = SPEC):
    """What `algo.update` learns from: a batch of replay, or a rollout of one environment."""
    batch = random_batch(seed, rows, spec)
    if algo.source == "replay":
        return batch
    rng = np.random.default_rng(seed + 1)
    key = jax.random.key(seed)
    shapes = jax.eval_shape(lambda: algo.act(algo.init(key, spec), batch.obs, key, True).extras)
    extras = {k: jnp.asarray(rng.normal(size=x.shape), jnp.float32) for k, x in shapes.items()}
    truncated = jnp.asarray(rng.random(rows) < 0.2, jnp.float32)
    return jax.tree.map(lambda x: x[:, None], Rollout(batch, truncated, extras))


def same(a, b) -> bool:
    """Bitwise equality of two pytrees."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))
    )


class Regression(NamedTuple):
    """What a diffusion algorithm chooses of the one weighted regression, eq. (general_loss_g)."""

    obs: jax.Array
    a_t: jax.Array
    t: jax.Array
    target: jax.Array
    weight: jax.Array | float


@cache
def compiled_step(algo: Any) -> Any:
    """`algo.update` with the regression that it asked for beside its result."""
    assert algo.policy_delay == 1, "a branch would hide it"
    really, seen = DiffusionActorCritic.regress, []

    def watch(self: Any, actor: Any, *inputs: Any) -> tuple[Any, dict]:
        seen.append(Regression(*inputs))
        return really(self, actor, *inputs)

    def step(*inputs: Any) -> tuple[Regression, Update]:
        with mock.patch.object(DiffusionActorCritic, "regress", watch):
            update = algo.update(*inputs)
        return seen.pop(), update

    return jax.jit(step)


def policy_step(algo: Any, state: Any, batch: Transition, key: jax.Array, step: int = 0):
    return compiled_step(algo)(state, batch, key, jnp.int32(step))


def proposed(algo: Any, state: Any, batch: Transition, key: jax.Array) -> tuple[jax.Array, ...]:
    """Only where the regression is asked: obs, a_t and t. What makes the target is not compiled."""
    where = jax.jit(lambda *inputs: compiled_step(algo)(*inputs)[0][:3])
    return where(state, batch, key, jnp.int32(0))


@cache
def first_of(algo: Any, spec: Spec = SPEC) -> Any:
    """`algo.init` as one program, which all tests of a process share."""
    return jax.jit(lambda key: algo.init(key, spec))


@cache
def update_of(algo: Any) -> Any:
    """`algo.update`, likewise."""
    return jax.jit(algo.update)


@cache
def act_of(algo: Any) -> Any:
    """`algo.act`, likewise."""
    return jax.jit(algo.act, static_argnums=3)


def initial(algo: Any, key: jax.Array, spec: Spec = SPEC) -> Any:
    """The first state."""
    return first_of(algo, spec)(key)


NAMES = sorted(REGISTRY)
