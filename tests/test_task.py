"""Environments with keywords and wrappers, from Python, the command line and files."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rescore import Agent, UsageError, make
from rescore.envs.task import Bounded, Task, keywords, stored
from rescore.files.json import read_json
from tests.small import rescore_command

STACK = "gymnasium.wrappers.FrameStackObservation:stack_size=4"
TINY = "--hidden 8 8 --warmup 20 --batch-size 8 --log-every 20 --eval-every 0 --eval-episodes 2"


class Sized(gymnasium.Env):
    """As many numbers seen as its keyword says; actions without bounds."""

    def __init__(self, size: int = 1, name: str = "", deep: bool = False):
        assert isinstance(deep, bool) and isinstance(name, str)
        self.observation_space = spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = spaces.Box(-np.inf, 3.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        assert -2 <= action[0] <= 3
        return np.zeros(self.observation_space.shape, np.float32), 1.0, True, False, {}


gymnasium.register("task/Sized-v0", entry_point=Sized)
BOUNDED = "rescore.envs.task.Bounded:low=-2,high=4"


def test_keywords_and_wrappers_reach_the_environment():
    task = Task("task/Sized-v0", {"size": 3}, [BOUNDED, STACK])
    with make(task, num_envs=2) as envs:
        assert envs.spec == (12, 1) and envs.env_id == "task/Sized-v0"
        mid, half = envs.action_scale
        assert (mid - half, mid + half) == (-2, 3)  # a bound that was there is kept
        envs.reset()
        envs.step(-np.ones((1, 2, 1)))
    with make(Task(Sized, {"size": 2}, [lambda env: Bounded(env, -1, 1)])) as envs:
        assert envs.spec.obs_dim == 2


def test_values_are_what_they_look_like():
    words = ["a=1", "b=true", "c=null", "d=text", "e=0.5", "f=[1, 2]", "g=False", "h=x=y"]
    assert keywords(words, "it") == {
        "a": 1, "b": True, "c": None, "d": "text", "e": 0.5, "f": [1, 2], "g": False, "h": "x=y",
    }  # fmt: skip


MISFITS = {
    "has no wrapper 'FrameStak': did": Task("task/Sized-v0", {}, ["gymnasium.wrappers.FrameStak"]),
    "names no module": Task("task/Sized-v0", {}, ["FrameStack"]),
    "No module named 'nowhere'": Task("task/Sized-v0", {}, ["nowhere.Wrapper"]),
    "NAME=VALUE, not 'oops'": Task("task/Sized-v0", {}, [f"{STACK},oops"]),
    "Bounded refuses its settings": Task("task/Sized-v0", {}, [BOUNDED + ",size=3"]),
    "colour": Task("task/Sized-v0", {"colour": 1}),
    "by id or as a function": Task(Sized(), {"size": 1}),
}


@pytest.mark.parametrize("reason", MISFITS)
def test_what_does_not_fit_is_one_line(reason):
    with pytest.raises(UsageError, match=reason) as caught:
        make(MISFITS[reason])
    assert "\n" not in str(caught.value)


def test_a_file_imports_nothing_of_its_own():
    config = {"env": "task/Sized-v0", "env_kwargs": {"size": 2}, "wrappers": [STACK]}
    assert stored(config) == Task("task/Sized-v0", {"size": 2}, [STACK])
    assert stored({"env": "Hopper-v4"}) == "Hopper-v4"
    foreign = config | {"wrappers": ["evil.Wrapper"]}
    with pytest.raises(
        UsageError, match=r"'evil\.Wrapper', whose module would be imported: .*env="
    ):
        stored(foreign)
    assert stored(foreign, trust=True).wrappers == ["evil.Wrapper"]


def test_from_the_command_line_and_back_by_its_own_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = f"--steps 40 --quiet --env-kwargs size=3 name=arm --wrappers {STACK}"
    command = "train sac task/Sized-v0"
    assert rescore_command(command, TINY, flags, "--out none") == 2  # unbounded actions
    flags = flags.replace(STACK, f"gymnasium.wrappers.FlattenObservation {STACK}")
    bound = lambda **kwargs: Bounded(Sized(**kwargs))  # noqa: E731
    gymnasium.register("task/Bound-v0", entry_point=bound)
    command = "train sac task/Bound-v0"
    assert rescore_command(command, TINY, flags, "--out one --seeds 3 --gamma 0.9") == 0
    config = read_json("one/config.json")
    assert config["env_kwargs"] == {"size": 3, "name": "arm"} and config["wrappers"][1] == STACK
    assert config["hyperparameters"]["gamma"] == 0.9 and config["seeds"] == [3]
    assert rescore_command("train --config one/config.json --quiet --out two") == 0
    assert read_json("two/config.json") == config
    metrics = [(Path(run) / "eval.csv").read_text() for run in ("one", "two")]
    assert metrics[0] == metrics[1]
    # Flags go before the file; a run loads, and is evaluated, as it was trained.
    assert rescore_command("train --config one/run.json --seeds 4 --quiet --out three") == 0
    assert read_json("three/config.json") == config | {"seeds": [4]}
    with Agent.load("one") as agent:
        assert agent.run.envs.spec.obs_dim == 12 and agent.predict(np.zeros((4, 3)))
    yaml = pytest.importorskip("yaml")
    Path("short.yaml").write_text(yaml.safe_dump({"training": {"warmup": 25}, "steps": 45}))
    command = f"train sac task/Bound-v0 --config short.yaml {TINY.replace('--warmup 20', '')}"
    assert rescore_command(command, "--quiet --out four") == 0
    config = read_json("four/config.json")
    assert config["steps"] == 45 and config["training"]["warmup"] == 25


def test_a_module_in_the_present_folder(tmp_path, monkeypatch):
    (tmp_path / "my_arm.py").write_text(
        "import gymnasium\nfrom rescore.envs.probes import Probe1\n"
        "gymnasium.register('my/Arm-v0', entry_point=Probe1)\n"
        "class Loud(gymnasium.Wrapper):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    with make(Task("my_arm:my/Arm-v0", {}, ["my_arm.Loud"])) as envs:
        assert envs.env_id == "my/Arm-v0"
