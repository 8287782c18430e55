"""Following a run: callbacks, evaluation on the user's environment, environments that fail."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rescore import SAC, Agent, UsageError
from rescore.core import EnvError
from rescore.files.json import read_json
from rescore.files.logs import read_eval

TRAINING = {"warmup": 20, "batch_size": 8, "eval_every": 20, "eval_episodes": 2, "log_every": 10}
TRAINING |= {"checkpoint_every": 30}


class Short(gymnasium.Env):
    """Episodes of two steps; fails, or gives a wrong shape, at a step of its life."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, fails_at: int = 10**9, wrong: bool = False):
        self.life, self.fails_at, self.wrong, self.open = 0, fails_at, wrong, True
        self.seeds: list[int] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds += [] if seed is None else [seed]
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.life += 1
        if self.life >= self.fails_at:
            if self.wrong:
                return np.zeros(5, np.float32), 0.0, False, False, {}
            raise RuntimeError("the gripper\nis stuck")
        return np.zeros(2, np.float32), 1.0, False, self.life % 2 == 0, {"success": 1}

    def close(self):
        self.open = False


def agent(env, **more) -> Agent:
    return Agent(SAC(hidden=(8, 8)), env, training=TRAINING, **more)


def test_a_callback_is_told_and_may_stop(tmp_path):
    events = []

    def callback(event):
        events.append((event.kind, event.env_steps))
        if event.kind == "evaluation":
            assert event.values["mean"] == 2.0 and event.values["success"] == 1.0
            return event.env_steps < 40
        if event.kind == "report":
            assert event.values["steps_per_s"] > 0
        return None

    learner = agent(Short, folder=tmp_path / "run")
    assert learner.status == "new"
    assert learner.learn(100, callback=callback) is learner
    assert learner.status == "stopped" and learner.run.env_steps == 40
    assert ("report", 10) in events and ("save", 30) in events and events[-1] == ("evaluation", 40)
    assert read_json(tmp_path / "run" / "run.json")["status"] == "stopped"
    assert {row.success for row in read_eval(tmp_path / "run")} == {1.0}
    with Agent.load(tmp_path / "run", env=Short) as again:
        assert again.run.env_steps == 40
        again.learn(10)
        assert again.status == "finished"


@pytest.mark.parametrize("kind", ["report", "evaluation", "save"])
def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(tmp_path, kind):
    """At step 60 all three are due; no evaluation is left out or done twice."""
    agent(Short, folder=tmp_path / "whole").learn(80).close()
    stop = lambda event: event.kind != kind or event.env_steps < 60  # noqa: E731
    with agent(Short, folder=tmp_path / "run").learn(80, callback=stop) as learner:
        assert learner.status == "stopped" and learner.run.env_steps == 60
    with Agent.load(tmp_path / "run", env=Short) as again:
        again.learn(20)
    assert read_eval(tmp_path / "run") == read_eval(tmp_path / "whole")


def test_one_robot_has_no_second_copy():
    made: list[Short] = []

    def factory() -> Short:
        made.append(Short())
        return made[-1]

    learner = agent(factory)
    learner.learn(40)
    # Those of the two evaluations have been closed again.
    assert [env.open for env in made] == [True, False, False, False, False]
    robot = Short()
    learner = agent(robot)
    learner.learn(40)
    assert learner.run.best_return is None
    twin = Short()
    learner = agent(robot).learn(40, eval_env=twin, until=2.0)
    assert learner.status == "solved" and learner.run.env_steps == 20
    assert twin.open and len(twin.seeds) == 2 == len(set(twin.seeds))
    result = learner.evaluate(3)
    assert result.returns.tolist() == [[2.0, 2.0, 2.0]] and result.success == 1.0


def test_an_environment_that_raises(tmp_path):
    learner = agent(lambda: Short(fails_at=38), folder=tmp_path / "run")
    with pytest.raises(EnvError) as caught:
        learner.learn(100, evaluate=False)
    said = str(caught.value)
    assert (
        "Short failed in step, RuntimeError: the gripper is stuck, at environment step 37" in said
    )
    assert "what was learned is saved" in said and "\n" not in said
    assert "RuntimeError: the gripper" in (tmp_path / "run" / "errors.log").read_text()
    assert read_json(tmp_path / "run" / "run.json")["status"] == "failed"
    with Agent.load(tmp_path / "run", env=Short) as again:
        assert again.run.env_steps == 37 and again.run.updates > 0


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_learning_goes_on_after_an_environment_raised(algo):
    """Nobody knows where that step left the lanes: they begin new episodes, and can be saved."""
    made = []

    def short():
        made.append(Short())
        return made[-1]

    sizes = {"hidden": (8, 8), "training": {"num_envs": 2, "chunk": 10, "log_every": 10}}
    if algo == "ppo":
        sizes |= {"critic_hidden": (8,), "minibatches": 2, "epochs": 1}
    else:
        sizes["training"] |= {"warmup": 20, "batch_size": 4}
    with Agent(algo, short, **sizes) as learner:
        learner.learn(40, evaluate=False)
        made[1].fails_at = made[1].life + 4
        with pytest.raises(EnvError, match="the gripper is stuck"):
            learner.learn(40, evaluate=False)
        assert made[0].life == made[1].life  # the lane before the one that failed has moved
        assert learner.run.envs.snapshot() is None
        assert "was cut short" in learner.run.envs.no_snapshot
        made[1].fails_at, before, resets = 10**9, learner.run.updates, len(made[0].seeds)
        learner.learn(40, evaluate=False)
        assert learner.run.updates > before and len(made[0].seeds) == resets + 1
        assert learner.run.envs.in_step


def test_an_evaluation_on_another_task_is_refused_when_it_is_due():
    learner = agent(Short)
    with pytest.raises(UsageError, match=r"has 4 observations and 1 actions, but .* for 2 and 1"):
        learner.learn(40, eval_env="InvertedPendulum-v5")


def test_an_environment_with_a_wrong_shape():
    with pytest.raises(EnvError, match=r"Short failed in step, ValueError.*at environment step 4"):
        agent(lambda: Short(fails_at=5, wrong=True)).learn(100, evaluate=False)


def test_an_environment_that_cannot_be_built():
    def broken() -> gymnasium.Env:
        raise OSError("no camera at /dev/video0")

    with pytest.raises(UsageError, match="broken failed while it was built, OSError: no camera"):
        agent(broken).learn(100)
