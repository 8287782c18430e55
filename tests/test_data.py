"""Demonstrations and hindsight: which rows a batch holds, and what they say."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescore import DPMD, Agent, UsageError
from rescore.algorithms import REGISTRY, find
from rescore.core import Spec, Transition
from rescore.envs.build import make
from rescore.envs.goals import Goals, find_goals
from rescore.models.critics import CriticSettings
from rescore.training.demos import FIELDS, read_demos, record_episodes, write_npz
from rescore.training.replay import GoalReplay, Replay, pack, unpack
from tests.small import SPEC, initial, random_batch, rescore_command, same, small

POINT = Spec(obs_dim=3, act_dim=1)  # achieved goal, desired goal, a serial number
LINE = Goals(
    slice(0, 1),
    slice(1, 2),
    lambda achieved, desired: -np.abs(achieved - desired)[:, 0],
    lambda achieved, desired: (achieved == desired)[:, 0].astype(np.float32),
)


class Reach(gymnasium.Env):
    """A point on a line that is to reach a goal; two actions of different width."""

    action_space = gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
    observation_space = gymnasium.spaces.Dict(
        {
            name: gymnasium.spaces.Box(-5, 5, (1,))
            for name in ("observation", "desired_goal", "achieved_goal")
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal, self.t = np.zeros(1), self.np_random.uniform(-1, 1, 1), 0
        return self.look(), {}

    def step(self, action):
        self.t += 1
        self.at = np.clip(self.at + 0.2 * action[:1], -2, 2)
        reward = self.compute_reward(self.at, self.goal, {})
        return self.look(), float(reward), False, self.t >= 10, {"is_success": reward == 0.0}

    def look(self):
        parts = {"observation": self.at, "desired_goal": self.goal, "achieved_goal": self.at}
        return {name: np.float32(value) for name, value in parts.items()}

    def compute_reward(self, achieved, desired, info):
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.3).astype(np.float32)


def lived(replay: Replay, rng: np.random.Generator, steps: int, num_envs: int) -> list[list]:
    """Fills a replay with random walks; for each transition its environment and episode."""
    at = rng.normal(size=(num_envs, 1)).astype(np.float32)
    episode, log = np.zeros(num_envs, int), []
    for t in range(steps):
        then = at + rng.normal(size=at.shape).astype(np.float32)
        goal = np.full_like(at, 9.0)
        number = (t * num_envs + np.arange(num_envs, dtype=np.float32))[:, None]
        obs = np.concatenate([at, goal, number], axis=1)
        next_obs = np.concatenate([then, goal, number + 0.5], axis=1)
        ended, cut = rng.random((2, num_envs)) < 0.15
        zeros = np.zeros((1, num_envs), np.float32)
        told = ended[None].astype(np.float32)
        replay.add(Transition(obs[None], zeros[..., None], zeros, told, next_obs[None]), cut[None])
        log += [[n, episode[n], float(then[n, 0])] for n in range(num_envs)]
        over = ended | cut
        episode += over
        at = np.where(over[:, None], rng.normal(size=at.shape).astype(np.float32), then)
    return log


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 3), st.integers(6, 60))
def test_hindsight_goals_were_reached_later_in_the_same_episode(seed, steps, num_envs, capacity):
    rng = np.random.default_rng(seed)
    replay = GoalReplay((0,), capacity, POINT, goals=LINE, share=0.7, num_envs=num_envs)
    log = lived(replay, rng, steps, num_envs)
    before = replay.rows.copy()
    rows, _ = replay.sample(seed, 2, 32)
    seen = unpack(rows[:, 0], POINT)
    assert same(before, replay.rows)  # memory keeps what happened
    changed = seen.obs[..., 1] != 9.0
    for k, b in np.ndindex(changed.shape):
        number = round(float(seen.obs[k, b, 2]))
        goal, achieved = seen.obs[k, b, 1], seen.next_obs[k, b, 0]
        assert seen.next_obs[k, b, 1] == goal and achieved == np.float32(log[number][2])
        if not changed[k, b]:
            assert seen.reward[k, b] == 0.0
            continue
        later = [g for e, n, g in log[number:] if [e, n] == log[number][:2]]
        assert goal in np.float32(later)
        assert seen.reward[k, b] == -abs(achieved - goal)
        assert seen.terminated[k, b] == (achieved == goal)
    assert 0.4 < changed.mean() < 0.95


def test_hindsight_survives_a_checkpoint():
    rng = np.random.default_rng(3)
    first, again = (
        GoalReplay((0,), 30, POINT, goals=LINE, share=0.5, num_envs=2) for _ in range(2)
    )
    lived(first, rng, 25, 2)
    again.restore(first.dump(whole=True), first.added)
    assert same(first.sample(7, 3, 16), again.sample(7, 3, 16))
    with pytest.raises(UsageError, match="no 'last' of its rows"):
        again.restore({"rows": first.dump(whole=True)["rows"]}, first.added)


def test_the_task_is_asked_for_the_reward_of_another_goal():
    goals = find_goals(Reach())
    obs = gymnasium.spaces.flatten(
        Reach.observation_space, {"observation": [3.0], "desired_goal": [2.0], "achieved_goal": [1]}
    )
    assert obs[goals.achieved] == [1.0] and obs[goals.desired] == [2.0]
    assert goals.reward(np.float32([[0.0], [1.0]]), np.float32([[0.1], [0.1]])).tolist() == [0, -1]
    assert find_goals(gymnasium.make("Pendulum-v1")) is None


def test_hindsight_trains_a_goal_task_and_refuses_another():
    training = {"hindsight": 0.8, "warmup": 20, "batch_size": 8, "eval_every": 0}
    with Agent(small("sac"), Reach, training=training) as agent:
        agent.learn(30, evaluate=False)
        assert isinstance(agent.run.memory, GoalReplay)
    with pytest.raises(UsageError, match="goal-conditioned"):
        Agent(small("sac"), "rescore/Probe1-v0", training=training).learn(30)


def test_a_batch_takes_its_share_of_demonstrations():
    demos = pack(jax.tree.map(np.asarray, random_batch(1, 10)._replace(particle=None)))
    replay = Replay((0, 1), 50, SPEC, demos=demos, demo_share=0.25)
    rows, index = replay.sample(0, 2, 8)
    assert (index >= 50).all()  # nothing else is there yet
    own = jax.tree.map(lambda x: np.asarray(x)[None].repeat(2, 0), random_batch(2, 20))
    replay.add(own._replace(particle=None))
    rows, index = replay.sample(0, 2, 8)
    assert ((index >= 50).sum(axis=-1) == 2).all()
    assert (rows[index >= 50][:, None] == demos[None]).all(-1).any(1).all()
    kept = replay.dump(whole=False)
    assert (kept["demos"] == demos).all() and "rows" not in kept


def test_demonstrations_come_back_from_a_file_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    with make(Reach, (0,), 3, parallel=False) as envs:
        act = lambda obs, t: rng.uniform(-1, 1, (1, 3, 2)).astype(np.float32)  # noqa: E731
        seen = record_episodes(act, envs)
        assert len(seen.reward) == 30
        write_npz(tmp_path / "d.npz", seen, envs)
        with np.load(tmp_path / "d.npz") as file:
            low, high = Reach.action_space.low, Reach.action_space.high
            assert (file["actions"] >= low).all() and (file["actions"] <= high).all()
        rows = read_demos(str(tmp_path / "d.npz"), envs, particles=False)
    np.testing.assert_allclose(rows, pack(seen), atol=1e-6)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"actions": np.full((4, 2), 9.0)}, "half width"),
        ({"observations": np.zeros((4, 5))}, "another task"),
        ({"rewards": np.full(4, np.nan)}, "not finite"),
        ({"rewards": None}, "has no rewards"),
        ({"rewards": np.array([object()] * 4)}, "plain arrays"),
        ({name: np.zeros((0, 3)) for name in FIELDS}, "no transition"),
    ],
)
def test_bad_demonstrations_are_refused_in_one_line(change, said, tmp_path):
    sizes = {"observations": 3, "actions": 2, "next_observations": 3}
    good = {name: np.zeros((4, sizes[name]) if name in sizes else 4) for name in FIELDS}
    np.savez(tmp_path / "d.npz", **{k: v for k, v in (good | change).items() if v is not None})
    with make(Reach, (0,), 1, parallel=False) as envs:
        with pytest.raises(UsageError, match=said) as error:
            read_demos(str(tmp_path / "d.npz"), envs, particles=False)
        assert "\n" not in str(error.value)
        with pytest.raises(UsageError, match="does not exist"):
            read_demos(str(tmp_path / "none.npz"), envs, particles=False)


@pytest.mark.parametrize("name", [n for n in REGISTRY if hasattr(find(n), "imitate")])
def test_every_diffusion_policy_can_imitate(name, key):
    algo = small(name)
    step = lambda s, b: algo.imitate(s, b, key, jnp.int32(0))  # noqa: E731
    state = jax.eval_shape(lambda: algo.init(key, SPEC))
    after = jax.eval_shape(step, state, random_batch())
    assert jax.tree.structure(after.state) == jax.tree.structure(state)
    assert "policy_loss" in after.metrics


@pytest.mark.parametrize("preset", [{}, pytest.param({"posterior": None}, marks=pytest.mark.slow)])
def test_cloned_policies_do_what_they_were_shown(preset, key):
    algo = DPMD(hidden=(32, 32), T=4, actor_lr=3e-3, actor_lr_end=3e-3, **preset)
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (2000, SPEC.obs_dim)).astype(np.float32)
    shown = np.stack([0.8 * np.sign(obs[:, 0]), -0.5 + 0 * obs[:, 0]], axis=1).astype(np.float32)
    batch = random_batch()._replace(particle=None)

    @jax.jit
    def step(state, k, pick):
        now = batch._replace(obs=jnp.asarray(obs)[pick], action=jnp.asarray(shown)[pick])
        return algo.imitate(state, now, k, jnp.int32(1)).state

    state = initial(algo, key)
    for i in range(400):
        state = step(state, jax.random.fold_in(key, i), jnp.asarray(rng.integers(0, 2000, 16)))
    action = algo.sample(state.nets.actor.params, jnp.asarray(obs[:200]), key, 8)
    away = jnp.abs(action - shown[None, :200])[:, jnp.abs(obs[:200, 0]) > 0.2]
    assert float(jnp.median(away)) < 0.15


def test_pretraining_goes_on_where_it_was_stopped(tmp_path):
    demos = tmp_path / "d.npz"
    with make("rescore/Probe3-v0", (0,), 2, parallel=False) as envs:
        act = lambda obs, t: np.zeros((1, 2, envs.spec.act_dim), np.float32)  # noqa: E731
        write_npz(demos, record_episodes(act, envs), envs)
    training = {"warmup": 10, "batch_size": 4, "eval_every": 0, "log_every": 10}
    training |= {"demos": str(demos), "pretrain": 130}

    def agent() -> Agent:
        return Agent(small("dpmd"), "rescore/Probe3-v0", training=training)

    whole = agent().learn(20, evaluate=False)
    assert whole.run.updates == 130 + 15
    half = agent()
    from rescore.training.loop import advance

    advance(half.run)  # a part of the cloning
    assert half.run.env_steps == 0 and 0 < half.run.updates < 130
    half.save(tmp_path / "half")
    demos.unlink()  # the checkpoint holds them
    again = Agent.load(tmp_path / "half").learn(20, evaluate=False)
    assert same(whole.run.state, again.run.state)
    assert same(whole.run.memory.rows, again.run.memory.rows)


def test_a_best_policy_says_what_it_goes_on_without(tmp_path):
    rng = np.random.default_rng(0)
    demos = tmp_path / "d.npz"
    with make("rescore/Probe3-v0", (0,), 2, parallel=False) as envs:
        act = lambda obs, t: rng.uniform(-1, 1, (1, 2, envs.spec.act_dim))  # noqa: E731
        write_npz(demos, record_episodes(act, envs), envs)
    training = {"warmup": 10, "batch_size": 4, "eval_every": 15, "demos": str(demos)}
    algo, folder = small("sac", critic=CriticSettings(normalise_rewards=True)), tmp_path / "run"
    with Agent(algo, "rescore/Probe3-v0", training=training, folder=folder) as agent:
        agent.learn(30)
    with Agent.load(folder, best=True) as best:
        notes = "; ".join(best.notes)
        assert "no demonstrations" in notes and "deviation of returns" in notes
        best.learn(20, evaluate=False)
    with Agent.load(folder) as whole:
        assert not whole.notes


def test_what_cannot_be_pretrained_is_said():
    with pytest.raises(UsageError, match="name them"):
        Agent("dpmd", "rescore/Probe1-v0", training={"pretrain": 5})
    with pytest.raises(UsageError, match="those can: dpmd"):
        Agent("sac", "rescore/Probe1-v0", training={"pretrain": 5, "demos": "x.npz"})
    with pytest.raises(UsageError, match="setting of replay"):
        Agent("ppo", "rescore/Probe1-v0", training={"demos": "x.npz"})
    for critic, training in (
        ({"n_step": 3}, {"hindsight": 0.5}),
        ({"normalise_rewards": True}, {"pretrain": 5, "demos": "x.npz"}),
    ):
        with pytest.raises(UsageError, match=next(iter(critic))):
            Agent("dpmd", "rescore/Probe1-v0", critic=critic, training=training)


def test_a_run_exports_its_replay_and_its_policy(tmp_path, capsys):
    training = {"warmup": 10, "batch_size": 4, "eval_every": 0, "replay_capacity": 25}
    with Agent(small("sac"), "rescore/Probe3-v0", training=training) as agent:
        agent.learn(40, evaluate=False)
        agent.save(tmp_path / "a")
        rows = agent.run.memory.rows[0]
    assert rescore_command("data export", tmp_path / "a", "--out", tmp_path / "r.npz") == 0
    with np.load(tmp_path / "r.npz") as file:
        oldest_first = rows[np.arange(40 - 25, 40) % 25]
        assert (file["rewards"] == unpack(oldest_first, agent.run.envs.spec).reward).all()
    assert rescore_command("data export", tmp_path / "a", "--last 7 --out", tmp_path / "l.npz") == 0
    assert len(np.load(tmp_path / "l.npz")["rewards"]) == 7
    out = tmp_path / "e.npz"
    assert rescore_command("data export", tmp_path / "a", "--episodes 2 --out", out) == 0
    assert "transitions" in capsys.readouterr().out
    assert rescore_command("data export", tmp_path / "a", "--last -1") == 2
    assert rescore_command("data export", tmp_path / "nothing") == 2
