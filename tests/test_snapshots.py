"""A restored environment continues bit for bit: the promise behind exact resume."""

from __future__ import annotations

import json
from collections import deque

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rescore.core import UsageError
from rescore.envs.build import make
from rescore.envs.snapshots import NotPlain, capture, reinstate

PAPER = [
    "HalfCheetah-v4",
    "Reacher-v4",
    "Humanoid-v4",
    "InvertedPendulum-v4",
    "Ant-v4",
    "Hopper-v4",
    "Swimmer-v4",
    "Walker2d-v4",
    "InvertedDoublePendulum-v4",
    "Pusher-v5",
]
OTHERS = ["Ant-v5", "Humanoid-v5", "Reacher-v5", "HalfCheetah-v5", "Pendulum-v1"]
OTHERS += ["rescore/Probe2-v0", "rescore/ProbeTimeLimit-v0"]


def actions(envs, steps, seed):
    shape = (steps, len(envs.seeds), envs.num_envs, envs.spec.act_dim)
    return np.random.default_rng(seed).uniform(-1.2, 1.2, shape).astype(np.float32)


def play(envs, plan):
    return [np.stack(field) for field in zip(*[envs.step(action) for action in plan])]


def through_json(snapshot):
    arrays, meta = snapshot
    return {k: np.array(v) for k, v in arrays.items()}, json.loads(json.dumps(meta, sort_keys=True))


@pytest.mark.parametrize("env_id", PAPER + OTHERS)
def test_restored_run_is_bitwise_the_same(env_id):
    with make(env_id, seeds=(3, 8)) as envs, make(env_id, seeds=(3, 8)) as other:
        envs.reset()
        play(envs, actions(envs, 57, seed=1))
        saved = through_json(envs.snapshot())
        plan = actions(envs, 60, seed=2)
        expected = play(envs, plan)
        # A used environment, in another state, and never reset by its owner.
        obs = other.restore(*saved)
        np.testing.assert_array_equal(obs, saved[0]["obs"])
        for field, want in zip(play(other, plan), expected):
            assert field.tobytes() == want.tobytes()
        # And once more into an environment that has been somewhere else since.
        other.restore(*saved)
        assert play(other, plan[:1])[1].tobytes() == expected[1][:1].tobytes()


@pytest.mark.parametrize("env_id", ["Hopper-v4", "InvertedPendulum-v4", "Reacher-v4"])
def test_the_comparison_crosses_episode_ends(env_id):
    with make(env_id) as envs:
        envs.reset()
        _, _, terminated, truncated, *_ = play(envs, actions(envs, 117, seed=1))
        assert (terminated | truncated)[57:].any()


def test_snapshot_does_not_disturb():
    with make("Ant-v4") as envs, make("Ant-v4") as watched:
        plan = actions(envs, 12, seed=0)
        envs.reset(), watched.reset()
        for action in plan:
            watched.snapshot()
            assert envs.step(action).obs.tobytes() == watched.step(action).obs.tobytes()


class Bag(gymnasium.Env):
    """Holds whatever a test puts in; moves by its generator, its list and its array."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = np.zeros(2)
        self.alias = self.total
        self.history = deque([0.0], maxlen=3)
        self.notes = {"steps": [], 3: (None, float("inf"), np.float32(0.1))}
        self.rng = self.np_random
        return self.total[:1].copy(), {}

    def step(self, action):
        self.total[0] += self.rng.normal() + self.np_random.uniform()
        self.alias[0] += self.observation_space.sample()[0]
        self.history.append(float(self.total[0]))
        self.notes["steps"].append(len(self.history))
        self.lazy = np.asfortranarray(np.ones((2, 3)))
        self.child = self.np_random.spawn(1)[0]
        return self.total[:1] + sum(self.history) + self.child.normal(), 0.0, False, False, {}


def bag(seed=0, **extra):
    env = Bag()
    env.reset(seed=seed)
    vars(env).update(extra)
    return env


def test_containers_aliases_and_generators_survive():
    env, other = bag(), bag(seed=9)
    zero = np.zeros(1, np.float32)
    env.step(zero)
    saved = through_json(capture(env))
    expected = [env.step(zero)[0][0] for _ in range(9)]
    reinstate(other, *saved)
    assert other.alias is other.total and other.rng is other.np_random
    assert other.notes[3] == (None, float("inf"), np.float32(0.1))
    assert type(other.notes[3][2]) is np.float32 and other.history.maxlen == 3
    assert other.lazy.flags.f_contiguous
    assert [other.step(zero)[0][0] for _ in range(9)] == expected


def test_attributes_made_later_disappear():
    env, other = bag(), bag()
    saved = capture(env)
    other.step(np.zeros(1))
    reinstate(other, *saved)
    assert "lazy" not in vars(other)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"thing": object()}, "Bag.thing (object) is not plain data"),
        ({"names": np.array(["a"])}, "Bag.names is an array of <U1"),
        ({"pair": list(np.zeros((2, 2)))}, "shares memory"),
        ({"raw": np.frombuffer(b"12345678")}, "does not own"),
    ],
)
def test_what_is_not_understood_is_not_saved(extra, why):
    with pytest.raises(NotPlain) as error:
        capture(bag(**extra))
    assert why in str(error.value)
    with make(lambda: bag(**extra)) as envs:
        envs.reset()
        assert envs.snapshot() is None
        assert why in envs.no_snapshot and "\n" not in envs.no_snapshot


class Own(Bag):
    """Has state that only it can name, and names it."""

    def __init__(self):
        super().__init__()
        self.hidden = {object(): 0}

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.count = 0
        return np.zeros(1), {}

    def step(self, action):
        self.count += 1
        return np.array([self.count + self.np_random.normal()]), 0.0, False, False, {}

    def snapshot(self):
        return {"count": self.count, "copy": np.full(2, self.count)}

    def restore(self, state):
        assert (state["copy"] == state["count"]).all()
        self.count = state["count"]


def test_own_methods_replace_the_walk():
    with make(Own, seeds=(0, 1)) as envs, make(Own, seeds=(0, 1)) as other:
        envs.reset()
        plan = actions(envs, 6, seed=0)
        play(envs, plan)
        other.restore(*through_json(envs.snapshot()))
        assert play(other, plan)[0].tobytes() == play(envs, plan)[0].tobytes()


def test_refusals_name_what_differs():
    with make("InvertedPendulum-v4") as envs, make("InvertedPendulum-v4", (0, 1)) as two:
        with pytest.raises(UsageError, match="call reset"):
            envs.snapshot()
        envs.reset()
        arrays, meta = through_json(envs.snapshot())
        with pytest.raises(UsageError, match="same number of seeds"):
            two.restore(arrays, meta)
        with pytest.raises(UsageError, match="is missing"):
            envs.restore({}, meta)
        with pytest.raises(UsageError, match="is missing"):
            envs.restore(arrays, {})
        with pytest.raises(UsageError, match="incomplete: '2/data/qpos' is missing"):
            envs.restore({k: v for k, v in arrays.items() if k != "0/2/data/qpos"}, meta)
        with pytest.raises(UsageError, match=r"MjData.qpos is \(2,\)"):
            envs.restore(arrays | {"0/2/data/qpos": np.zeros(1)}, meta)
        with pytest.raises(UsageError, match="the snapshot is of Other-v0"):
            envs.restore(arrays, meta | {"env_id": "Other-v0"})
        import mujoco

        meta["lanes"][0]["mujoco"] = "3.0.9"
        with pytest.raises(UsageError, match=rf"mujoco 3\.0\.9.*mujoco {mujoco.__version__}"):
            envs.restore(arrays, meta)


def test_another_model_is_refused():
    env = gymnasium.make("InvertedPendulum-v5")
    env.reset(seed=0)
    saved = capture(env)
    env.unwrapped.model.opt.gravity[2] = -5
    with pytest.raises(UsageError, match="model is another"):
        reinstate(env, *saved)


def test_other_wrappers_are_refused():
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    saved = capture(env)
    with pytest.raises(UsageError, match="TimeLimit > "):
        reinstate(env.env, *saved)


# Snapshots come from files, and files may be made to harm


def reach(tree, key):
    """The value below every key of this name in nested JSON."""
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    found = [tree[key]] if isinstance(tree, dict) and key in tree else []
    return found + [value for child in inside for value in reach(child, key)]


HARM = {
    "a pointer": lambda a, m: reach(m, "scalars")[0].update(pstack=2**60),
    "a count": lambda a, m: reach(m, "scalars")[0].update(nv_awake=2**30),
    "a count below zero": lambda a, m: reach(m, "scalars")[0].update(nbody_awake=-1),
    "a missing scalar": lambda a, m: reach(m, "scalars")[0].pop("time"),
    "a time that is none": lambda a, m: reach(m, "scalars")[0].update(time="now"),
    "an endless time": lambda a, m: reach(m, "scalars")[0].update(time=float("inf")),
    "an index": lambda a, m: indices(a, "dof_awake_ind").fill(2**30),
    "an index below zero": lambda a, m: indices(a, "body_awake_ind").fill(-1),
    "a ring of trees": lambda a, m: indices(a, "tree_asleep").fill(7),
    "another shape": lambda a, m: a.update({k: v[:1] for k, v in a.items() if k.endswith("qpos")}),
    "another type": lambda a, m: a.update(
        {k: v.astype(np.float32) for k, v in a.items() if k.endswith("qvel")}
    ),
    "a method": lambda a, m: reach(m, "attributes")[-1].update(step=1),
    "a wrapped environment": lambda a, m: reach(m, "attributes")[0].update(env=None),
    "attributes that are a list": lambda a, m: m["lanes"][0]["layers"][0].update(attributes=[]),
    "a kind that is none": lambda a, m: reach(m, "attributes")[0].update(x={"code": "1"}),
    "no layers": lambda a, m: m["lanes"][0].pop("layers"),
}


def indices(arrays, name):
    return next(array for path, array in arrays.items() if path.endswith(f"/{name}"))


@pytest.mark.parametrize("harm", HARM)
def test_what_was_not_written_is_refused_and_leaves_no_trace(harm):
    with make("Hopper-v4", seeds=(3,)) as envs, make("Hopper-v4", seeds=(3,)) as untouched:
        envs.reset()
        play(envs, actions(envs, 10, seed=1))
        arrays, meta = through_json(envs.snapshot())
        HARM[harm](arrays, meta)
        with pytest.raises(UsageError, match=r"cannot be restored") as caught:
            envs.restore(arrays, meta)
        assert "\n" not in str(caught.value)
        plan = actions(envs, 20, seed=2)
        envs.reset(epoch=1), untouched.reset(epoch=1)
        for ours, theirs in zip(play(envs, plan), play(untouched, plan)):
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(("kind", "path"), [("MT19937", "pos"), ("Philox", "buffer_pos")])
@pytest.mark.parametrize("value", [2**30, -(2**20)])
def test_a_generator_does_not_read_outside_of_its_buffer(kind, path, value):
    class Dice(Bag):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.rng = np.random.Generator(getattr(np.random, kind)(seed))
            return np.zeros(1), {}

    env = Dice()
    env.reset(seed=1)
    arrays, meta = capture(env)
    text = json.dumps(meta)
    keys, values = next(d for d in reach(meta, "dict") if path in d[0])
    values[keys.index(path)] = value
    assert json.dumps(meta) != text
    with pytest.raises(UsageError, match="outside of its buffer"):
        reinstate(env, arrays, meta)
