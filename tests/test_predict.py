"""`predict` takes what an environment gives and returns what it takes, as in SB3."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten

from rescore import SAC, Agent, UsageError
from rescore.envs.spaces import as_rows

TRAINING = {"warmup": 20, "batch_size": 8, "eval_every": 0, "eval_episodes": 2}
BOX = spaces.Box(-1, 1, (2, 3), np.float32)
NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([BOX, spaces.Discrete(3)]),
        "a": spaces.MultiBinary(2),
        "c": spaces.Box(-1, 1, (), np.float32),
    }
)
SPACES = {
    "box": BOX,
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "discrete": spaces.Discrete(4),
    "tuple": spaces.Tuple([BOX, BOX]),
    "nested": NESTED,
}


def stacked(space: spaces.Space, ones: list) -> object:
    """A batch as vectors of environments give it."""
    if isinstance(space, spaces.Dict):
        return {name: stacked(space[name], [one[name] for one in ones]) for name in space}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [one[i] for one in ones]) for i, part in enumerate(space))
    return np.stack(ones)


@pytest.mark.parametrize("name", SPACES)
def test_one_or_a_batch_of_any_space(name):
    space = SPACES[name]
    space.seed(0)
    ones = [space.sample() for _ in range(3)]
    flat = np.stack([np.asarray(flatten(space, one), np.float32) for one in ones])
    rows, batched = as_rows(space, ones[0])
    assert not batched and rows.dtype == np.float32 and np.array_equal(rows, flat[:1])
    rows, batched = as_rows(space, stacked(space, ones))
    assert batched and np.array_equal(rows, flat)
    rows, batched = as_rows(space, stacked(space, ones[:1]))
    assert batched and rows.shape == (1, flat.shape[1])


@pytest.mark.parametrize("wrong", [{}, {"b": 1}, {"a": 1, "b": 2, "c": 3}, np.zeros(3), "x", None])
def test_what_is_no_observation_is_refused_in_one_line(wrong):
    with pytest.raises(UsageError, match=r"predict takes observations of Dict.* not") as caught:
        as_rows(NESTED, wrong)
    assert "\n" not in str(caught.value)


def test_a_flat_row_is_taken_as_it_is():
    flat = np.arange(6.0)
    rows, batched = as_rows(BOX, flat)
    assert not batched and np.array_equal(rows, flat[None])


class Matrix(gymnasium.Env):
    """A Dict seen, a matrix done; the goal tells of success."""

    observation_space = spaces.Dict({"x": BOX, "goal": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Box(
        np.float32([[1, 2, 3], [-5, 0, 9]]), np.float32([[2, 4, 6], [5, 1, 10]])
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action.shape == (2, 3) and self.action_space.contains(action)
        self.steps += 1
        ended = self.steps == 4
        good = {"is_success": bool(self.np_random.random() < 2)} if ended else {}
        return self.observation_space.sample(), 1.0, False, ended, good


@pytest.fixture(scope="module")
def agent() -> Agent:
    with Agent(SAC(hidden=(8, 8)), Matrix, training=TRAINING) as agent:
        yield agent.learn(30)


def test_actions_have_the_shape_and_units_of_the_task(agent):
    env = Matrix()
    obs, _ = env.reset(seed=0)
    action, state = agent.predict(obs, state="kept", episode_start=np.ones(1, bool))
    assert env.action_space.contains(action) and state == "kept"
    batch = {name: np.stack([part] * 5) for name, part in obs.items()}
    actions, _ = agent.predict(batch, None, None, True)  # in Stable-Baselines3's order
    assert actions.shape == (5, 2, 3) and actions.dtype == np.float32
    assert np.allclose(actions, agent.predict(obs, deterministic=True)[0], atol=1e-5)
    with pytest.raises(UsageError, match="member must be 0 to 0, not 1"):
        agent.predict(obs, member=1)


def test_success_is_part_of_an_evaluation(agent):
    result = agent.evaluate(3)
    assert result.success == 1.0 and result.summary()["success"] == 1.0
    assert result.successes.shape == (1, 3)


class VecEnv:
    """What SB3's evaluate_policy calls of a DummyVecEnv."""

    def __init__(self, env: gymnasium.Env):
        self.env, self.num_envs = env, 1

    def reset(self) -> dict:
        return {name: part[None] for name, part in self.env.reset(seed=0)[0].items()}

    def step(self, actions: np.ndarray) -> tuple:
        obs, reward, terminated, truncated, info = self.env.step(actions[0])
        done = terminated or truncated
        obs = self.env.reset()[0] if done else obs
        batch = {name: part[None] for name, part in obs.items()}
        return batch, np.array([reward]), np.array([done]), [info]


def evaluate_policy(model, env: VecEnv, episodes: int) -> float:
    """A stand-in with the loop of the original."""
    returns, current = [], np.zeros(env.num_envs)
    observations, states = env.reset(), None
    episode_starts = np.ones((env.num_envs,), dtype=bool)
    while len(returns) < episodes:
        actions, states = model.predict(
            observations, state=states, episode_start=episode_starts, deterministic=True
        )
        observations, rewards, dones, _ = env.step(actions)
        current += rewards
        episode_starts = dones
        if dones[0]:
            returns.append(current[0])
            current[:] = 0
    return float(np.mean(returns))


def test_the_calls_of_stable_baselines(agent):
    assert evaluate_policy(agent, VecEnv(Matrix()), 3) == 4.0


def test_stable_baselines_itself(agent):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.monitor import Monitor

    for env in (Matrix(), Monitor(Matrix()), make_vec_env(Matrix, n_envs=2)):
        mean, std = evaluation.evaluate_policy(agent, env, n_eval_episodes=2, warn=False)
        assert (mean, std) == (4.0, 0.0)


def test_an_agent_says_what_it_is_and_is_not_copied(agent):
    assert repr(agent) == "<Agent sac on Matrix, seeds (0,), 30 steps>"
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match=r"use save and Agent\.load"):
            copied(agent)


def test_observations_are_normalised_in_predict_too():
    """The policy that training runs, statistics included."""
    algo = SAC(hidden=(8, 8), normalise_obs=True)
    with Agent(algo, "rescore/Probe2-v0", training=TRAINING) as agent:
        agent.learn(30, evaluate=False)
        assert agent.predict(np.ones(1), deterministic=True)[0].shape == (1,)
