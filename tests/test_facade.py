"""The public face: Agent's verbs as in Stable-Baselines3, names that import, a quick start."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rescore
from rescore import DPMD, SAC, Agent, Training, UsageError
from rescore.core import Spec
from rescore.files.json import read_json
from rescore.files.logs import read_eval
from rescore.training.config import configure, from_plain
from rescore.training.programs import cache_folder, compile_programs
from tests.small import TINY_NETS, TINY_TRAINING

TRAINING = TINY_TRAINING | {"eval_every": 0}


class Line(gymnasium.Env):
    """Keep a point near 0; actions lie in [1, 5], so their units show."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Box(1, 5, (1,), np.float32)

    def __init__(self) -> None:
        self.x, self.t = 0.0, 0
        self.actions: list[float] = []
        self.seeds: list[int] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds += [] if seed is None else [seed]
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.actions.append(float(action[0]))
        self.x, self.t = 0.9 * self.x + 0.1 * (float(action[0]) - 3), self.t + 1
        return np.array([self.x], np.float32), -abs(self.x), False, self.t >= 7, {}


@pytest.fixture(scope="module")
def agent() -> Agent:
    """Two seeds on InvertedPendulum, 60 steps: it has learned nothing, but it acts."""
    with Agent(
        "dpmd", "InvertedPendulum-v4", seeds=(0, 5), training=TRAINING, **TINY_NETS
    ) as agent:
        yield agent.learn(60)


def some_obs(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)


# predict


def test_predict_keeps_the_shape_of_what_it_is_given(agent):
    for obs, shape in ((some_obs(1)[0], (1,)), (some_obs(1), (1, 1)), (some_obs(5), (5, 1))):
        for deterministic in (True, False):
            action, state = agent.predict(obs, deterministic=deterministic)
            assert action.shape == shape and action.dtype == np.float32
            assert state is None
    action, _ = agent.predict(some_obs(1)[0].tolist())
    assert action.shape == (1,)


def test_predict_speaks_the_units_of_the_task(agent):
    box = gymnasium.make("InvertedPendulum-v4").action_space
    assert box.high[0] == 3
    actions = np.concatenate([agent.predict(some_obs(5))[0] for _ in range(50)])
    assert all(box.contains(action) for action in actions)
    # Not the [-1, 1] of the algorithm.
    assert np.abs(actions).max() > 1.5


def test_deterministic_is_the_same_whatever_came_before(agent):
    obs = some_obs(5)
    first, _ = agent.predict(obs, deterministic=True)
    agent.predict(obs)
    agent.predict(obs[0], deterministic=True)
    agent.predict(obs, member=1)
    again, _ = agent.predict(obs, deterministic=True)
    assert np.array_equal(first, again)


def test_not_deterministic_explores(agent):
    obs = some_obs(5)
    first, _ = agent.predict(obs)
    again, _ = agent.predict(obs)
    assert not np.array_equal(first, again)


def test_members_are_the_seeds(agent):
    obs = some_obs(5)
    one, _ = agent.predict(obs, deterministic=True, member=0)
    other, _ = agent.predict(obs, deterministic=True, member=1)
    assert not np.array_equal(one, other)
    fresh = Agent("dpmd", "InvertedPendulum-v4", seeds=(0, 5), training=TRAINING, **TINY_NETS)
    fresh.run.state = agent.run.state
    # Member 1 first: no trace of which member was asked before.
    assert np.array_equal(fresh.predict(obs, deterministic=True, member=1)[0], other)
    fresh.close()


@pytest.mark.parametrize("shape", [(3,), (5,), (2, 3), (1, 1, 4), ()])
def test_predict_says_what_it_wants(agent, shape):
    with pytest.raises(UsageError, match=r"\[4\] or \[B, 4\], not") as caught:
        agent.predict(np.zeros(shape))
    assert str(list(shape)) in str(caught.value)


def test_a_loop_written_for_stable_baselines_works(agent):
    env = gymnasium.make("InvertedPendulum-v4")
    obs, _ = env.reset(seed=0)
    total, done = 0.0, False
    while not done:
        action, _states = agent.predict(obs, deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    env.close()
    assert total > 0


# evaluate, save, load


def test_evaluate_gives_raw_returns_and_the_same_ones_again(agent):
    result = rescore.evaluate(agent, 2)
    assert result.returns.shape == result.lengths.shape == (2, 2)
    assert result.mean == pytest.approx(result.returns.mean()) and result.episodes == 4
    again = agent.evaluate()
    assert np.array_equal(result.returns, again.returns)
    # Returns of this task are small integers: it takes some episodes to tell starts apart.
    ten, others = agent.evaluate(10).returns, [agent.evaluate(10, seed=s) for s in (100, 200, 300)]
    assert any(not np.array_equal(ten, other.returns) for other in others)
    assert json.loads(json.dumps(result.summary())).keys() == {"env", "episodes", "mean", "std"}


def test_saved_agents_come_back_whole(agent, tmp_path):
    folder = agent.save(tmp_path / "agent")
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    with Agent.load(folder) as loaded:
        assert loaded.config == agent.config and not loaded.notes
        assert (loaded.algo, loaded.training) == (agent.algo, agent.training)
        assert (loaded.run.env_steps, loaded.run.updates) == (60, agent.run.updates)
        obs = some_obs(5)
        for member in (0, 1):
            ours, _ = agent.predict(obs, deterministic=True, member=member)
            theirs, _ = loaded.predict(obs, deterministic=True, member=member)
            assert np.array_equal(ours, theirs)
        assert np.array_equal(loaded.evaluate(2).returns, agent.evaluate(2).returns)
    # Saving over an older save is fine; over anything else it is refused.
    agent.save(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UsageError, match="choose another"):
        agent.save(tmp_path / "other")


def test_learning_moves_every_seed_and_none_alike(agent):
    fresh = Agent("dpmd", "InvertedPendulum-v4", seeds=(0, 5), training=TRAINING, **TINY_NETS)
    before = np.asarray(fresh.run.state.inner.nets.actor.params.trunk.rest[-1].bias)
    after = np.asarray(agent.run.state.inner.nets.actor.params.trunk.rest[-1].bias)
    assert (before != after).any(axis=1).all()
    assert not np.array_equal(after[0], after[1])
    assert not np.array_equal(agent.run.memory.rows[0, :60], agent.run.memory.rows[1, :60])
    fresh.close()


# Environments and algorithms of one's own


def test_a_function_that_makes_the_env(tmp_path):
    made: list[Line] = []

    def factory() -> Line:
        made.append(Line())
        return made[-1]

    folder = tmp_path / "run"
    agent = Agent(DPMD(**TINY_NETS), factory, training=TRAINING, folder=folder)
    assert not made  # a constructor starts nothing
    agent.learn(60)
    assert agent.preset == "custom" and agent.name == "dpmd"
    # Trained in the units of the task, and evaluated on environments of its own.
    assert min(made[0].actions) >= 1 and max(made[0].actions) <= 5 and max(made[0].actions) > 4
    assert len(made) == 3 and len(made[0].actions) == 60
    seeds = [row.env_seed for row in read_eval(folder)]
    assert [env.seeds for env in made[1:]] == [[seed] for seed in seeds]
    assert len({made[0].seeds[0], *seeds}) == 3
    action, _ = agent.predict(np.zeros(1))
    assert 1 <= action[0] <= 5
    assert read_json(folder / "run.json")["status"] == "finished"

    saved = agent.save(tmp_path / "saved")
    with pytest.raises(UsageError, match="made in Python: load it with env"):
        Agent.load(saved)
    again = Agent.load(saved, env=Line)
    assert again.algo == agent.algo and again.preset == "custom" and not again.notes
    assert np.array_equal(again.run.obs, agent.run.obs)
    obs = np.ones(1)
    assert agent.predict(obs, deterministic=True) == again.predict(obs, deterministic=True)

    with pytest.raises(UsageError, match="holds another run"):
        Agent(DPMD(**TINY_NETS), Line, training=TRAINING, folder=folder).learn(60)
    assert Agent.load(folder, env=Line).run.env_steps == 60


def test_an_env_already_made_is_trained_on_but_not_evaluated_with():
    env = Line()
    agent = Agent(DPMD(**TINY_NETS), env, training=TRAINING | {"eval_every": 20})
    agent.learn(60)
    assert len(env.actions) == 60 and agent.run.best_return is None
    with pytest.raises(UsageError, match="environments of its own"):
        agent.evaluate(1)
    assert len(env.actions) == 60
    with pytest.raises(UsageError, match="pass a function"):
        Agent(DPMD(**TINY_NETS), Line(), seeds=(0, 1), training=TRAINING).learn(60)


def test_a_task_of_another_package_is_found_again(tmp_path, monkeypatch):
    (tmp_path / "far_away.py").write_text(
        "import gymnasium\nfrom rescore.envs.probes import Probe1\n"
        "gymnasium.register('far/Away-v0', entry_point=Probe1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    agent = Agent("dpmd", "far_away:far/Away-v0", training=TRAINING, **TINY_NETS)
    saved = agent.save(tmp_path / "saved")
    del gymnasium.registry["far/Away-v0"], sys.modules["far_away"]
    with Agent.load(saved, trust_env=True) as again:
        assert again.run.envs.env_id == "far/Away-v0"


def test_what_cannot_be_is_refused_when_it_is_said():
    with pytest.raises(UsageError, match="no environment"):
        Agent("dpmd").learn(100)
    with pytest.raises(UsageError, match="did you mean 'gamma'"):
        Agent("dpmd", "Hopper-v4", gama=0.9)
    with pytest.raises(UsageError, match="did you mean 'warmup'"):
        Agent("dpmd", "Hopper-v4", training={"warm_up": 5})
    with pytest.raises(UsageError, match="did you mean 'warmup'"):
        Agent(DPMD(), "Hopper-v4", training={"warm_up": 5})
    with pytest.raises(UsageError, match="own constructor"):
        Agent(DPMD(), "Hopper-v4", gamma=0.9)
    with pytest.raises(UsageError, match="seeds must"):
        Agent("dpmd", "Hopper-v4", seeds=(0, -1))
    with pytest.raises(UsageError, match="is not a folder"):
        Agent.load("/nowhere")
    assert Agent("dpmd", "Hopper-v4", seeds=np.int64(3)).seeds == (3,)


# Configurations


def test_configurations_survive_json():
    algo, training = configure("dpmd", "default", dict(TINY_NETS), dict(TRAINING))
    for config in (algo, training, DPMD(), Training()):
        text = json.dumps(asdict(config))
        again = from_plain(type(config), json.loads(text))
        assert again == config and hash(again) == hash(config)
    with pytest.raises(UsageError, match="did you mean 'num_envs'"):
        from_plain(Training, {"num_env": 2})


# Names and speed


def test_every_public_name_imports():
    for name in rescore.__all__:
        assert getattr(rescore, name) is not None
    assert set(dir(rescore)) >= set(rescore.__all__)
    expected = {"Agent", "evaluate", "make", "DPMD", "NoiseSchedule", "perturb", "unperturb"}
    assert expected | {"score_matching", "linear", "cosine", "vp"} <= set(rescore.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        rescore.Agnet  # noqa: B018
    assert (Path(rescore.__file__).parent / "py.typed").exists()


def best_time(*arguments: str) -> tuple[float, str]:
    """Processor seconds of the quickest of three starts of Python, and what it printed."""
    times, text = [], ""
    for _ in range(3):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=True
        )
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
        text = done.stdout
    return min(times), text


def test_import_is_quick():
    heavy = "{'jax', 'numpy', 'gymnasium', 'mujoco', 'tyro', 'matplotlib'}"
    code = f"import sys, rescore; print({heavy} & sys.modules.keys())"
    seconds, loaded = best_time("-c", code)
    assert loaded.strip() == "set()"
    assert seconds < 0.5


def test_help_is_quick():
    seconds, text = best_time("-m", "rescore", "--help")
    assert "rescore train dpmd" in text
    assert seconds < 0.5


def test_evaluation_can_be_left_out():
    made: list[Line] = []

    def factory() -> Line:
        made.append(Line())
        return made[-1]

    agent = Agent(DPMD(**TINY_NETS), factory, training=TRAINING | {"eval_every": 20})
    agent.learn(60, evaluate=False)
    assert len(made) == 1 and agent.run.best_return is None
    with pytest.raises(UsageError, match="until needs evaluations"):
        agent.learn(60, until=1.0, evaluate=False)


def test_what_would_be_ignored_is_refused():
    with pytest.raises(UsageError, match="differ from each other"):
        Agent("dpmd", "Hopper-v4", seeds=(3, 3))
    agent = Agent(DPMD(**TINY_NETS), Line(), training=TRAINING)
    with pytest.raises(UsageError, match="until needs evaluations"):
        agent.learn(60, until=1.0)


def test_whole_numbers_may_be_written_as_floats():
    agent = Agent("sac", "Hopper-v4", training={"replay_capacity": 1e4, "chunk": 5.0})
    assert agent.training.replay_capacity == 10_000
    assert isinstance(agent.training.replay_capacity, int) and isinstance(agent.training.chunk, int)
    with pytest.raises(UsageError, match=r"chunk of Training must be a whole number, not 2\.5"):
        Agent("sac", "Hopper-v4", training={"chunk": 2.5})


@dataclass(frozen=True)
class Mine(SAC):
    """An algorithm that the library does not know."""

    favourite: int = 3


def test_an_algorithm_of_ones_own_is_loaded_with_its_class(tmp_path):
    training = {"warmup": 10, "batch_size": 4, "eval_every": 0}
    with Agent(Mine(hidden=(8, 8), favourite=7), "rescore/Probe1-v0", training=training) as agent:
        agent.learn(20, evaluate=False)
        agent.save(tmp_path / "mine")
    with Agent.load(tmp_path / "mine", algo=Mine) as again:
        assert again.algo.favourite == 7 and again.run.env_steps == 20
    with pytest.raises(UsageError, match="algo="):
        Agent.load(tmp_path / "mine")
    with pytest.raises(UsageError, match="not SAC"):
        Agent.load(tmp_path / "mine", algo=SAC)


def test_compiled_programs_are_kept_for_the_next_start(tmp_path, monkeypatch):
    code = "from rescore.training.programs import keep_compiled; import jax; keep_compiled();"
    code += "print(jax.config.jax_compilation_cache_dir)"
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    run = lambda **more: subprocess.run(  # noqa: E731
        [sys.executable, "-c", code], env={**env, **more}, capture_output=True, text=True
    )
    assert run().stdout.strip() == str(Path(__file__).parents[1] / ".jax_cache")  # a clone
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(tmp_path) == tmp_path / "rescore" / "compiled"
    chosen = str(tmp_path / "mine")
    assert run(JAX_COMPILATION_CACHE_DIR=chosen).stdout.strip() == chosen


def test_an_algorithm_must_be_frozen():
    @dataclass
    class Loose:
        gamma: float = 0.9

    with pytest.raises(UsageError, match="frozen"):
        compile_programs(Loose(), Spec(1, 1), (0,))
