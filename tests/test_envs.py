"""What `make` accepts and refuses, and what one step means."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from rescore.core import NonFiniteError, UsageError
from rescore.envs import build
from rescore.envs.build import make
from rescore.envs.gym import EnvStep, affine
from rescore.streams import Stream, env_seed


class Counter(gymnasium.Env):
    """Its observation is its step count, always in the same array; ends after 3 steps."""

    def __init__(self, low=-1.0, high=1.0, obs_space=None, act_space=None):
        self.observation_space = obs_space or spaces.Box(0, 99, (1,), np.float32)
        self.action_space = act_space or spaces.Box(low, high, (1,), np.float32)
        self.count = np.zeros(1, np.float32)
        self.seen = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count[:] = 0
        return self.count, {}

    def step(self, action):
        self.seen.append(action.copy())
        self.count += 1
        return self.count, 0.5, bool(self.count[0] == 3), False, {"noise": 1}


class Copying(Counter):
    """A new array for each observation, which Gymnasium's own vectors rely on."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs.copy(), info

    def step(self, action):
        obs, *rest = super().step(action)
        return obs.copy(), *rest


class Broken(Counter):
    """Gives one bad number at its second step."""

    def __init__(self, what, value):
        super().__init__()
        self.what, self.value = what, value

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.count[0] == 2 and self.what == "observation":
            obs = np.array([self.value], np.float32)
        if self.count[0] == 2 and self.what == "reward":
            reward = self.value
        return obs, reward, *rest


class Mixed(Counter):
    """Observations of several kinds in one dictionary."""

    def __init__(self):
        inner = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float64)])
        super().__init__(obs_space=spaces.Dict(a=inner, b=spaces.Box(-9, 9, (), np.float32)))

    def _obs(self):
        box = np.full((2, 2), self.count[0] / 2)
        return {"a": (int(self.count[0]) % 3, box), "b": np.float32(self.count[0])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self._obs(), *rest


def zeros(envs):
    return np.zeros((len(envs.seeds), envs.num_envs, envs.spec.act_dim), np.float32)


def same_step(*builders):
    return SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)


def test_shapes_and_types():
    with make("Hopper-v4", seeds=(0, 5), num_envs=3) as envs:
        assert (envs.spec.obs_dim, envs.spec.act_dim) == (11, 3)
        assert envs.reset().shape == (2, 3, 11)
        result = envs.step(zeros(envs))
        shapes = {"obs": (2, 3, 11), "reward": (2, 3), "terminated": (2, 3), "truncated": (2, 3)}
        shapes |= {"next_obs": (2, 3, 11), "action": (2, 3, 3), "success": (2, 3)}
        assert {k: v.shape for k, v in result._asdict().items()} == shapes
        assert result.terminated.dtype == result.truncated.dtype == bool
        floats = (result.obs, result.reward, result.next_obs, result.action)
        assert all(x.dtype == np.float32 for x in floats)
        assert envs.versions["gymnasium"] == gymnasium.__version__ and "mujoco" in envs.versions


def test_each_lane_has_its_own_seed():
    with make("Pendulum-v1", seeds=(0, 5), num_envs=2) as envs, make("Pendulum-v1") as raw:
        obs = envs.reset()
        assert len({row.tobytes() for row in obs.reshape(4, -1)}) == 4
        np.testing.assert_array_equal(obs, envs.reset())
        want, _ = gymnasium.make("Pendulum-v1").reset(seed=env_seed(5, Stream.ENV, 1))
        np.testing.assert_array_equal(obs[1, 1], want)
        np.testing.assert_array_equal(raw.reset()[0, 0], obs[0, 0])
    with make("Pendulum-v1", stream=Stream.EVALUATE) as other:
        assert (other.reset()[0, 0] != obs[0, 0]).any()


class Sampling(Counter):
    """Draws its observations from their space, as many examples do."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


def test_spaces_are_seeded_too():
    with make(Sampling, seeds=(0, 1)) as envs, make(Sampling, seeds=(0, 1)) as again:
        obs = envs.reset()
        np.testing.assert_array_equal(obs, again.reset())
        assert obs[0] != obs[1]


def test_actions_are_scaled_to_the_box_and_clipped_once():
    raw = gymnasium.make("InvertedPendulum-v4")
    with make("InvertedPendulum-v4") as envs:
        want, _ = raw.reset(seed=env_seed(0, Stream.ENV, 0))
        np.testing.assert_array_equal(envs.reset()[0, 0], want.astype(np.float32))
        for action in (0.3, -2.0, 1.0):
            result = envs.step(np.full((1, 1, 1), action, np.float32))
            executed = np.clip(np.float32(action), -1, 1)
            want, reward, *_ = raw.step(np.array([3 * executed], np.float32))
            np.testing.assert_array_equal(result.next_obs[0, 0], want.astype(np.float32))
            assert result.action == executed and result.reward == np.float32(reward)


def test_the_environment_gets_its_own_units_and_type():
    env = Counter(low=-1.0, high=3.0)
    with make(env) as envs:
        envs.reset()
        for action in (-5, -1, 0, 0.5, 1, 7):
            envs.step(np.full((1, 1, 1), action, np.float32))
    assert [a.item() for a in env.seen] == [-1, -1, 1, 2, 3, 3]
    assert {a.dtype for a in env.seen} == {np.dtype(np.float32)}


BOUND = st.floats(-1e4, 1e4)


@given(BOUND, BOUND, st.lists(st.floats(-1, 1, width=32), min_size=2), st.sampled_from("fd"))
def test_scaling_is_affine_monotone_and_stays_inside(one, two, points, dtype):
    low, high = np.array(sorted([one, two]), dtype)
    mid, half = affine(low, high)
    a = np.sort(np.array([-1, *points, 1], np.float32))
    scaled = (mid + half * a).astype(dtype)
    assert (scaled >= low).all() and (scaled <= high).all()
    assert (np.diff(scaled) >= 0).all()
    t = (a.astype(np.float64) + 1) / 2
    expected = (1 - t) * np.float64(low) + t * np.float64(high)
    np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-6 * np.abs([low, high]).max())


def test_successor_is_never_the_reset_observation():
    with make(Counter, num_envs=2) as envs:
        assert (envs.reset() == 0).all()
        results = [envs.step(zeros(envs)) for _ in range(4)]
    assert [r.next_obs[0, 1].item() for r in results] == [1, 2, 3, 1]
    assert [r.obs[0, 1].item() for r in results] == [1, 2, 0, 1]
    assert [r.terminated[0, 1].item() for r in results] == [False, False, True, False]
    assert not any(r.truncated.any() for r in results)


def test_time_limit_is_truncation():
    limited = gymnasium.wrappers.TimeLimit(Counter(), max_episode_steps=2)
    with make(limited) as envs:
        envs.reset()
        envs.step(zeros(envs))
        result = envs.step(zeros(envs))
    assert result.truncated and not result.terminated
    assert (result.next_obs.item(), result.obs.item()) == (2, 0)


def test_returned_arrays_are_the_callers_own():
    with make(Counter) as envs:
        first = envs.reset()
        first[...] = 7
        step = envs.step(zeros(envs))
        kept = EnvStep(*[field.copy() for field in step])
        envs.step(zeros(envs))
        for field, copy in zip(step, kept):
            np.testing.assert_array_equal(field, copy)


@pytest.mark.parametrize("vector", [False, True])
def test_dictionaries_are_flattened(vector):
    source = same_step(Mixed, Mixed) if vector else Mixed
    with make(source, num_envs=2) as envs:
        assert envs.spec.obs_dim == 8
        np.testing.assert_array_equal(envs.reset()[0, 0], [1, 0, 0, 0, 0, 0, 0, 0])
        results = [envs.step(zeros(envs)) for _ in range(3)]
        np.testing.assert_array_equal(results[0].obs[0, 1], [0, 1, 0, *[0.5] * 4, 1])
        np.testing.assert_array_equal(results[2].next_obs[0, 1], [1, 0, 0, *[1.5] * 4, 3])
        np.testing.assert_array_equal(results[2].obs[0, 1], [1, 0, 0, 0, 0, 0, 0, 0])


def test_actions_of_any_shape():
    env = Counter(act_space=spaces.Box(-2, 2, (2, 3), np.float64))
    with make(env) as envs:
        envs.reset()
        envs.step(np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 1, 6))
    assert env.seen[0].shape == (2, 3) and env.seen[0].dtype == np.float64
    assert (env.seen[0][0, 0], env.seen[0][1, 2]) == (-2, 2)


def test_a_vector_of_the_users():
    with make(same_step(Copying, Copying), seeds=(0, 1)) as envs:
        envs.reset()
        results = [envs.step(zeros(envs)) for _ in range(3)]
        assert (results[2].next_obs == 3).all() and (results[2].obs == 0).all()
        assert envs.snapshot() is None and "made elsewhere" in envs.no_snapshot


BAD = [(w, v) for w in ("observation", "reward") for v in (np.nan, -np.inf)]


@pytest.mark.parametrize(("what", "value"), [*BAD, ("reward", 1e300)])
def test_non_finite_numbers_are_located(what, value):
    vector = same_step(Counter, Counter, Counter, lambda: Broken(what, value))
    with make(vector, seeds=(4, 6), num_envs=2) as envs:
        envs.reset()
        envs.step(zeros(envs))
        match = f"{what} is not finite in environment 1 of seed 6"
        with pytest.raises(NonFiniteError, match=match):
            envs.step(zeros(envs))


def test_bad_actions_are_refused():
    with make(Counter, num_envs=2) as envs:
        with pytest.raises(UsageError, match="reset"):
            envs.step(zeros(envs))
        envs.reset()
        with pytest.raises(UsageError, match=r"\(1, 2, 1\).*not \(2, 1\)"):
            envs.step(np.zeros((2, 1)))
        with pytest.raises(NonFiniteError, match="action is not finite in environment 1 of seed 0"):
            envs.step(np.array([[[0.0], [np.nan]]]))


def image():
    return Counter(obs_space=spaces.Dict(eye=spaces.Box(0, 255, (8, 8, 3), np.uint8)))


def text():
    return Counter(obs_space=spaces.Sequence(spaces.Discrete(2)))


def whole():
    return Counter(act_space=spaces.Box(0, 3, (1,), np.int64))


def huge():
    return Counter(high=np.finfo(np.float32).max)


def missing():
    raise gymnasium.error.DependencyNotInstalled("no frobnicator,\nrun `pip install frobnicator`")


def next_step():
    return SyncVectorEnv([Counter])


REFUSED = [
    ("Hoper-v4", {}, "did you mean 'Hopper-v4'"),
    ("Hopper", {}, "say which version, Hopper-v4 or Hopper-v5"),
    ("Hopper-v9", {}, "say which version, Hopper-v4 or Hopper-v5"),
    ("qqqq", {}, "package:qqqq"),
    ("rescore/Probe9-v0", {}, "did you mean 'rescore/Probe"),
    ("no_such_package:Task-v0", {}, "no_such_package"),
    ("Hopper-v3", {}, "gymnasium-robotics"),
    ("CartPole-v1", {}, "Discrete actions"),
    (whole, {}, "need continuous"),
    (lambda: Counter(high=np.inf), {}, "unbounded actions"),
    (huge, {}, "unbounded actions"),
    (image, {}, "image observations (8, 8, 3)"),
    (text, {}, "Sequence observations"),
    (missing, {}, "pip install frobnicator"),
    (object, {}, "not a gymnasium.Env"),
    (7, {}, "env is a int"),
    (Counter(), {"num_envs": 2}, "pass a function that builds it"),
    (Counter(), {"parallel": True}, "pass a function that builds it"),
    (Counter, {"num_envs": 0}, "at least 1"),
    (Counter, {"seeds": ()}, "seeds must be"),
    (Counter, {"seeds": (0, -1)}, "seeds must be"),
    (next_step(), {}, "NEXT_STEP: build it with autoreset_mode=gymnasium.vector.Autoreset"),
    (same_step(Counter), {"num_envs": 2}, "holds 1 environments"),
    (same_step(Counter), {"parallel": True}, "leave out parallel"),
    (same_step(whole), {}, "need continuous"),
    (same_step(image), {}, "image observations"),
]


@pytest.mark.parametrize(("env", "options", "says"), REFUSED)
def test_refusals_are_one_line_that_helps(env, options, says):
    with pytest.raises(UsageError) as error:
        make(env, **options)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_ids_without_versions_that_exist_are_fine():
    gymnasium.register("Unversioned", entry_point=Counter)
    with make(f"{__name__}:Unversioned") as envs:
        assert envs.env_id == "Unversioned" and envs.notices == ()


def test_pusher_v4_depends_on_mujoco(monkeypatch):
    monkeypatch.setattr(build, "installed_versions", lambda: {"mujoco": "3.4.0"})
    with pytest.raises(UsageError, match="use Pusher-v5"):
        make("Pusher-v4")


def test_versions_are_noticed_and_warnings_kept_quiet(recwarn, monkeypatch):
    with make("Hopper-v4") as envs:
        assert len(envs.notices) == 1 and "Hopper-v5 is a different task" in envs.notices[0]
    with make("Hopper-v5") as envs:
        assert envs.notices == ()
    monkeypatch.setattr(build, "installed_versions", lambda: {"mujoco": "3.17.0"})
    with make("Hopper-v5") as envs:
        assert "mujoco 3.17.0 adds the contact margins" in envs.notices[0]
    with make("HalfCheetah-v5") as envs:
        assert envs.notices == ()
    assert not recwarn.list


def test_processes_give_the_same_bits():
    kwargs = {"seeds": (0, 1), "num_envs": 1}
    with (
        make("Hopper-v4", **kwargs) as here,
        make("Hopper-v4", **kwargs, parallel=True) as there,
    ):
        assert here.reset().tobytes() == there.reset().tobytes()
        rng = np.random.default_rng(0)
        plan = rng.uniform(-1, 1, (40, 2, 1, 3)).astype(np.float32)
        for action in plan:
            pairs = list(zip(here.step(action), there.step(action)))
            assert all(a.tobytes() == b.tobytes() for a, b in pairs)
        mine, theirs = here.snapshot(), there.snapshot()
        assert mine[1] == theirs[1] and mine[0].keys() == theirs[0].keys()
        for action in plan[:20]:
            expected = here.step(action)
        there.restore(*mine)
        for action in plan[:20]:
            result = there.step(action)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, result))


def test_import_is_light():
    code = (
        "import sys, rescore.envs; light = not {'jax', 'gymnasium'} & set(sys.modules);"
        "from rescore.envs.build import make; make('Pendulum-v1').reset();"
        "sys.exit(not (light and 'jax' not in sys.modules and 'mujoco' not in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
