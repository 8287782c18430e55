"""The replay ring against a list in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescore.core import Spec, Transition
from rescore.training.replay import Replay, columns, unpack

SPEC = Spec(3, 2)


def numbered(seeds: int, first: int, n: int) -> Transition:
    """Transitions whose every entry tells seed, number and place: 10_000 s + 10 i + field."""
    base = 10_000 * np.arange(seeds)[:, None] + 10 * (first + np.arange(n))[None]

    def field(offset, *shape):
        spread = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) / 8
        return np.float32(base.reshape(*base.shape, *[1] * len(shape)) + offset + spread)

    obs, action = field(0, SPEC.obs_dim), field(1, SPEC.act_dim)
    return Transition(obs, action, field(2), field(3), field(4, SPEC.obs_dim))


def filled(seeds=(5, 6), capacity=16, adds=((0, 4), (4, 4)), particles=False) -> Replay:
    replay = Replay(seeds, capacity, SPEC, particles)
    for first, n in adds:
        replay.add(numbered(len(seeds), first, n))
    return replay


def test_layout():
    assert columns(SPEC, False) == [3, 2, 1, 1, 3]
    assert columns(SPEC, True) == [3, 2, 1, 1, 3, 2]


@pytest.mark.parametrize("particles", [False, True])
def test_unpack_by_hand(particles):
    rows = np.arange(2 * 12, dtype=np.float32).reshape(2, 12)[:, : 12 if particles else 10]
    got = unpack(rows, SPEC, particles)
    np.testing.assert_array_equal(got.obs[1], [12, 13, 14])
    np.testing.assert_array_equal(got.action[1], [15, 16])
    np.testing.assert_array_equal(got.reward, [5, 17])
    np.testing.assert_array_equal(got.terminated, [6, 18])
    np.testing.assert_array_equal(got.next_obs[1], [19, 20, 21])
    assert got.particle is None if not particles else got.particle[1].tolist() == [22, 23]


@pytest.mark.parametrize("particles", [False, True])
def test_rows_come_back_as_they_went_in(particles):
    replay = filled(particles=particles)
    got = unpack(replay.rows[:, : replay.size], SPEC, particles)
    sent = numbered(2, 0, 8)
    for name in ("obs", "action", "reward", "terminated", "next_obs"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    if particles:
        np.testing.assert_array_equal(got.particle, sent.action)


def test_ring_by_hand():
    """Capacity 5, three adds of 2: the sixth transition takes the place of the first."""
    replay = filled((5,), 5, [(0, 2), (2, 2)])
    assert replay.size == replay.added == 4
    replay.add(numbered(1, 4, 2))
    assert replay.size == 5 and replay.added == 6
    reward = unpack(replay.rows, SPEC).reward[0]
    np.testing.assert_array_equal(reward, [52, 12, 22, 32, 42])


@given(
    capacity=st.integers(1, 12),
    n=st.integers(1, 15),
    adds=st.integers(1, 6),
    seeds=st.integers(1, 3),
    step=st.integers(0, 2**31 - 1),
)
def test_first_in_first_out(capacity, n, adds, seeds, step):
    """After any adds it holds the newest `capacity` transitions, and samples only those."""
    replay = filled(tuple(range(seeds)), capacity, [(i * n, n) for i in range(adds)])
    assert replay.added == n * adds and replay.size == min(n * adds, capacity)
    newest = range(n * adds - replay.size, n * adds)
    held = unpack(replay.rows[:, : replay.size], SPEC).reward
    rows, index = replay.sample(step, 2, 7)
    assert rows.shape == (2, seeds, 7, sum(columns(SPEC, False))) and index.shape == (2, seeds, 7)
    for s in range(seeds):
        expected = {10_000 * s + 10 * i + 2 for i in newest}
        assert set(held[s]) == expected
        for place in index[:, s].ravel():
            number = (held[s, place] - 10_000 * s - 2) / 10
            assert number % capacity == place
        everything = numbered(seeds, 0, n * adds)
        for row in rows[:, s].reshape(-1, rows.shape[-1]):
            got = unpack(row, SPEC)
            i = round((float(got.reward) - 10_000 * s - 2) / 10)
            assert i in newest
            for name in ("obs", "action", "terminated", "next_obs"):
                np.testing.assert_array_equal(getattr(got, name), getattr(everything, name)[s, i])


def test_sampled_rows_are_those_at_their_index():
    replay = filled()
    rows, index = replay.sample(3, 2, 5)
    for k, s, b in np.ndindex(index.shape):
        np.testing.assert_array_equal(rows[k, s, b], replay.rows[s, index[k, s, b]])
    assert rows.dtype == np.float32 and not np.shares_memory(rows, replay.rows)


def test_sampling_is_uniform():
    """20000 draws from 8 rows: each count within five standard deviations of 2500."""
    _, index = filled().sample(0, 10, 2000)
    for s in range(2):
        count = np.bincount(index[:, s].ravel(), minlength=16)
        assert np.all(count[8:] == 0)
        assert np.all(np.abs(count[:8] - 2500) < 5 * np.sqrt(20000 / 8 * 7 / 8))


def test_sampling_is_a_function_of_seed_and_step():
    replay = filled()
    rows, index = replay.sample(3, 2, 50)
    again, same = replay.sample(3, 2, 50)
    np.testing.assert_array_equal(rows, again)
    np.testing.assert_array_equal(index, same)
    assert np.mean(replay.sample(4, 2, 50)[1] == index) < 0.5
    assert np.mean(index[:, 0] == index[:, 1]) < 0.5
    # A seed draws the same whoever runs beside it.
    alone = filled((6,)).sample(3, 2, 50)[1]
    np.testing.assert_array_equal(alone[:, 0], index[:, 1])


def test_rings_of_seeds_are_independent():
    replay = filled()
    rows, _ = replay.sample(0, 3, 40)
    reward = unpack(rows, SPEC).reward
    assert np.all(reward[:, 0] < 10_000) and np.all(reward[:, 1] >= 10_000)


def test_edit_writes_the_particles_of_its_rows_only():
    replay = filled(particles=True)
    before = replay.rows.copy()
    index = np.array([[[0, 3], [5, 7]], [[3, 1], [2, 6]]])  # [K, S, B]; row 3 of seed 0 twice
    particles = -np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
    replay.edit(index, particles)
    expected = before.copy()
    for k, s, b in np.ndindex(index.shape):
        expected[s, index[k, s, b], -2:] = particles[k, s, b]
    np.testing.assert_array_equal(replay.rows, expected)
    # Later updates win, and nothing but the particle has moved.
    np.testing.assert_array_equal(replay.rows[0, 3, -2:], particles[1, 0, 0])
    np.testing.assert_array_equal(replay.rows[..., :-2], before[..., :-2])
    assert np.sum(np.any(replay.rows != before, axis=-1)) == 7


def test_a_million_rows_of_half_cheetah():
    """168 MB when full, and next to nothing before."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    measured = Path("/proc/self/statm").exists()
    before = resident() if measured else 0
    replay = Replay((0,), 1_000_000, Spec(17, 6))
    assert replay.rows.nbytes == 1_000_000 * (17 + 6 + 1 + 1 + 17) * 4 < 250e6
    if measured:
        assert resident() - before < 20e6


@pytest.mark.parametrize("adds", [[(0, 5)], [(0, 9), (9, 9), (18, 4)]])
def test_restore_continues_where_it_stopped(adds):
    """Half full and wrapped around: what follows is the same as without the interruption."""
    replay = filled(adds=adds)
    copy = Replay(replay.seeds, replay.capacity, SPEC)
    copy.restore({"rows": replay.rows[:, : replay.size].copy()}, replay.added)
    for one in (replay, copy):
        one.add(numbered(2, replay.added if one is replay else copy.added, 3))
    assert (copy.added, copy.size) == (replay.added, replay.size)
    np.testing.assert_array_equal(copy.rows, replay.rows)
    for a, b in zip(copy.sample(9, 2, 6), replay.sample(9, 2, 6)):
        np.testing.assert_array_equal(a, b)
