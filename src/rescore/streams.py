"""All randomness as a function of three numbers: key(seed, stream, step). No state, no globals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jax import Array


class Stream(IntEnum):
    """Who draws. A number never changes its meaning: it is part of every recorded result."""

    INIT = 0
    ENV = 1
    ACT = 2
    UPDATE = 3
    REPLAY = 4
    EVALUATE = 5
    WARMUP = 6
    PREDICT = 7


def key(seed: int | Array, stream: Stream, step: int | Array) -> Array:
    """JAX key of one draw; traceable in seed and step."""
    import jax

    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), int(stream)), step)


Source = Callable[["Array", tuple[int, ...]], Any]
_source: ContextVar[Source | None] = ContextVar("source", default=None)


@contextlib.contextmanager
def drawn_from(source: Source) -> Iterator[None]:
    """Within, Gaussian numbers come from `source(key, shape)`: an exported policy takes them."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard Gaussian numbers of this shape."""
    import jax

    return (_source.get() or jax.random.normal)(key, shape)


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform numbers in [0, 1) of this shape."""
    import jax

    return jax.random.uniform(key, shape)


def generator(seed: int, stream: Stream, step: int) -> np.random.Generator:
    """NumPy generator of one draw, counter based: nothing to save, nothing to restore."""
    counter = [0, 0, step, int(stream)]
    return np.random.Generator(np.random.Philox(key=seed, counter=counter))


def env_seed(seed: int, stream: Stream, lane: int) -> int:
    """Seed of one environment, almost surely another for each seed, stream and lane."""
    return int(np.random.SeedSequence([seed, int(stream), lane]).generate_state(1)[0])
