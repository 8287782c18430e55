"""Randomness as a function of (seed, stream, step), and of nothing else."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescore.streams import Stream, env_seed, generator, key

SEEDS = st.integers(0, 2**32 - 1)
STEPS = st.integers(0, 2**31 - 1)
STREAMS = st.sampled_from(Stream)


def bits(seed, stream, step) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key(seed, stream, step))).tolist())


def test_numbers_of_the_streams_never_change():
    """They are part of every recorded result; new ones go to the end."""
    names = ["INIT", "ENV", "ACT", "UPDATE", "REPLAY", "EVALUATE", "WARMUP", "PREDICT"]
    assert [stream.name for stream in sorted(Stream)][:8] == names
    assert [int(Stream[name]) for name in names] == list(range(8))


def test_key_depends_on_each_number():
    grid = list(itertools.product((0, 1, 2, 77), Stream, (0, 1, 2, 5000)))
    assert len({bits(*point) for point in grid}) == len(grid)


@given(SEEDS, STREAMS, STEPS)
def test_key_is_two_folds_of_its_seed(seed, stream, step):
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), int(stream)), step)
    assert bits(seed, stream, step) == tuple(jax.random.key_data(expected).tolist())


def test_key_is_traceable():
    """Under jit and vmap over seeds and steps, with the bits it has outside."""
    seeds, steps = np.array([0, 3, 2**31 - 1]), np.array([0, 10, 123_456])

    @jax.jit
    def table(seeds, steps):
        over_steps = jax.vmap(lambda seed, step: key(seed, Stream.UPDATE, step), (None, 0))
        return jax.random.key_data(jax.vmap(over_steps, (0, None))(seeds, steps))

    got = np.asarray(table(seeds, steps))
    for i, j in np.ndindex(3, 3):
        assert tuple(got[i, j]) == bits(int(seeds[i]), Stream.UPDATE, int(steps[j]))


def test_unsigned_seeds_trace_to_the_same_bits():
    got = jax.jit(lambda s: jax.random.key_data(key(s, Stream.ACT, 1)))(jnp.uint32(2**32 - 1))
    assert tuple(np.asarray(got).tolist()) == bits(2**32 - 1, Stream.ACT, 1)


@given(SEEDS, STREAMS, STEPS)
def test_generator_is_reproducible_and_its_own(seed, stream, step):
    def draw(*where):
        return generator(*where).integers(0, 2**63, 4).tolist()

    here = draw(seed, stream, step)
    assert here == draw(seed, stream, step)
    other = Stream((int(stream) + 1) % len(Stream))
    for elsewhere in ((seed + 1, stream, step), (seed, other, step), (seed, stream, step + 1)):
        assert set(here).isdisjoint(draw(*elsewhere))


def test_long_draws_never_meet():
    """A stream's counter starts 2^128 blocks from the next: no step runs into its successor."""
    first, second = (generator(1, Stream.REPLAY, step).integers(0, 2**63, 5000) for step in (0, 1))
    assert not np.isin(first, second).any()


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1])
def test_large_seeds(seed):
    assert len({bits(seed, Stream.INIT, 0), bits(seed ^ 1, Stream.INIT, 0)}) == 2
    generator(seed, Stream.INIT, 0).normal()
    assert 0 <= env_seed(seed, Stream.ENV, 0) < 2**32


def test_env_seeds_are_distinct():
    grid = list(itertools.product(range(10), Stream, range(32)))
    seeds = [env_seed(*point) for point in grid]
    assert len(set(seeds)) == len(grid) and all(type(seed) is int for seed in seeds)
    assert seeds == [env_seed(*point) for point in grid]
