"""The replay ring against a list in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescore.core import Spec, Transition, UsageError
from rescore.training.replay import Replay, ReturnScale, StepsReplay, columns, unpack

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


def episodes(rng, seeds: int, num_envs: int, steps: int) -> list[tuple]:
    """Vector steps with rewards of chance, some of which end an episode in one of two ways."""
    made = []
    for first in range(steps):
        step = numbered(seeds, first * num_envs, num_envs)
        ends = rng.random((seeds, num_envs))
        step = step._replace(
            reward=np.float32(rng.normal(size=ends.shape)), terminated=np.float32(ends < 0.15)
        )
        made.append((step, (ends >= 0.15) & (ends < 0.3)))
    return made


@given(seed=st.integers(0, 99), num_envs=st.integers(1, 3), steps=st.integers(1, 30))
def test_the_scale_is_the_deviation_of_all_discounted_returns(seed, num_envs, steps):
    """Against a list of every return: reward plus 0.9 times the return before, in each episode."""
    scale, returns = ReturnScale(2, num_envs, 0.9), [[], []]
    before = np.zeros((2, num_envs))
    for step, truncated in episodes(np.random.default_rng(seed), 2, num_envs, steps):
        ended = (step.terminated > 0) | truncated
        scale.follow(step.reward, ended)
        for s, n in np.ndindex(before.shape):
            before[s, n] = step.reward[s, n] + 0.9 * before[s, n]
            returns[s].append(before[s, n])
            before[s, n] *= not ended[s, n]
    expected = [np.std(own) if len(own) > 1 else 1.0 for own in returns]
    np.testing.assert_allclose(scale.std, expected, rtol=1e-9)


def test_without_any_reward_nothing_is_scaled():
    scale = ReturnScale(1, 2, 0.9)
    assert scale.std == [1.0]
    scale.follow(np.zeros((1, 2)), np.zeros((1, 2), bool))
    assert scale.std == [1.0]


def test_batches_are_scaled_and_memory_is_not():
    rng = np.random.default_rng(0)
    scale = ReturnScale(2, 3, 0.9)
    scaled = Replay((5, 6), 100, SPEC, scale=scale)
    plain = Replay((5, 6), 100, SPEC)
    for step, truncated in episodes(rng, 2, 3, 10):
        step = step._replace(reward=np.float32([[3.0], [0.5]]) * step.reward)
        scaled.add(step, truncated)
        plain.add(step, truncated)
    np.testing.assert_array_equal(scaled.rows, plain.rows)
    got, expected = (unpack(x.sample(0, 2, 20)[0], SPEC) for x in (scaled, plain))
    assert np.all(np.abs(scale.std - 1.0) > 0.01)
    divided = expected.reward / scale.std[None, :, None]
    np.testing.assert_allclose(got.reward, divided, rtol=1e-5)
    for name in ("obs", "action", "terminated", "next_obs"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))


@given(
    seed=st.integers(0, 99),
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 30),
    n_step=st.integers(2, 5),
    capacity=st.integers(6, 60),
    particles=st.booleans(),
)
def test_rows_over_several_steps(seed, num_envs, steps, n_step, capacity, particles):
    """Against each environment's list of steps: sums stop at both kinds of end and at the newest
    step, and the discount counts the steps."""
    made = episodes(np.random.default_rng(seed), 2, num_envs, steps)
    how = {"n_step": n_step, "gamma": 0.9, "num_envs": num_envs}
    replay = StepsReplay((5, 6), capacity, SPEC, particles, **how)
    for step, truncated in made:
        replay.add(step, truncated)
    rows, _ = replay.sample(0, 2, 30)
    got = unpack(rows, SPEC, particles)
    for k, s, b in np.ndindex(got.reward.shape):
        number = round((float(got.obs[k, s, b, 0]) - 10_000 * s) / 10)
        first, lane = divmod(number, num_envs)
        total, m = 0.0, 0
        for step, truncated in made[first : first + n_step]:
            total += 0.9**m * float(step.reward[s, lane])
            m += 1
            if step.terminated[s, lane] or truncated[s, lane]:
                break
        last = made[first + m - 1][0]
        assert float(got.reward[k, s, b]) == pytest.approx(total, abs=1e-5)
        assert float(got.discount[k, s, b]) == pytest.approx(0.9 ** (m - 1), rel=1e-5)
        assert got.terminated[k, s, b] == last.terminated[s, lane]
        np.testing.assert_array_equal(got.next_obs[k, s, b], last.next_obs[s, lane])
        np.testing.assert_array_equal(got.action[k, s, b], made[first][0].action[s, lane])


def test_demonstrations_are_rows_of_one_step():
    demos = np.float32(np.random.default_rng(0).normal(size=(4, sum(columns(SPEC, False)))))
    how = {"n_step": 3, "gamma": 0.9, "num_envs": 1}
    replay = StepsReplay((0,), 20, SPEC, demos=demos, demo_share=1.0, **how)
    for step, truncated in episodes(np.random.default_rng(1), 1, 1, 10):
        replay.add(step, truncated)
    rows, index = replay.sample(0, 1, 8)
    np.testing.assert_array_equal(rows[0, 0, :, :-1], demos[index[0, 0] - 20])
    np.testing.assert_array_equal(rows[..., -1], 1.0)


def test_scale_and_ends_are_restored():
    def empty():
        how = {"n_step": 3, "gamma": 0.9, "num_envs": 2, "scale": ReturnScale(1, 2, 0.9)}
        return StepsReplay((0,), 15, SPEC, **how)

    made = episodes(np.random.default_rng(3), 1, 2, 20)
    whole, first = empty(), empty()
    for step in made[:12]:
        whole.add(*step)
        first.add(*step)
    copy = empty()
    copy.restore({k: v.copy() for k, v in first.dump(True).items()}, first.added)
    for step in made[12:]:
        whole.add(*step)
        copy.add(*step)
    np.testing.assert_array_equal(copy.sample(1, 2, 30)[0], whole.sample(1, 2, 30)[0])
    assert copy.scale.std == whole.scale.std
    small = {k: v.copy() for k, v in first.dump(False).items()}  # without rows, the scale is kept
    copy = empty()
    copy.restore(small, first.added)
    assert copy.size == 0 and copy.scale.std == first.scale.std
    for missing in ("truncated", "returns", "return_moments"):
        saved = {k: v for k, v in first.dump(True).items() if k != missing}
        with pytest.raises(UsageError, match=r"does not say|has no 'truncated'"):
            empty().restore(saved, first.added)


def test_sums_stop_where_the_environments_were_reset():
    """As after a resume that could not restore them: what follows is of other episodes."""
    scale = ReturnScale(1, 2, 0.5)
    replay = StepsReplay((0,), 9, SPEC, n_step=3, gamma=0.5, num_envs=2, scale=scale)
    for first, reward in ((0, 1.0), (2, 1.0), (4, 100.0)):
        if first == 4:
            replay.interrupt()
        step = numbered(1, first, 2)._replace(terminated=np.zeros((1, 2), np.float32))
        step = step._replace(reward=np.full((1, 2), reward, np.float32))
        replay.add(step, np.zeros((1, 2), bool))
    np.testing.assert_array_equal(scale.running, 100.0)
    got = unpack(replay.gather(np.random.default_rng(0), 0, np.arange(6)[None]), SPEC)
    np.testing.assert_array_equal(got.reward[0], [1.5, 1.5, 1.0, 1.0, 100.0, 100.0])
    np.testing.assert_array_equal(got.discount[0], [0.5, 0.5, 1.0, 1.0, 1.0, 1.0])
