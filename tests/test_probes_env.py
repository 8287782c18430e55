"""The probe tasks pay what their docstrings say."""

from __future__ import annotations

import numpy as np
import pytest

from rescore.envs.build import make
from rescore.envs.probes import PROBES, Probe3, Probe4, Probe5, TimeLimitProbe


def step(envs, value):
    return envs.step(np.full((1, envs.num_envs, 1), value, np.float32))


@pytest.mark.parametrize("env_id", PROBES)
def test_probes_are_ordinary_tasks(env_id):
    with make(env_id, seeds=(1,), num_envs=3) as envs:
        assert envs.spec == (1, 1) and envs.env_id == env_id and envs.notices == ()
        assert envs.reset().shape == (1, 3, 1)


def test_constant_reward():
    with make("rescore/Probe1-v0") as envs:
        envs.reset()
        for action in (-1, 0.3):
            result = step(envs, action)
            assert result.reward == 1 and result.terminated and not result.truncated


def test_reward_is_the_observation():
    with make("rescore/Probe2-v0", num_envs=40) as envs:
        obs = envs.reset()
        assert set(obs.ravel()) == {-1, 1}
        result = step(envs, 0)
        np.testing.assert_array_equal(result.reward, obs[..., 0])
        np.testing.assert_array_equal(result.next_obs, obs)


def test_two_steps_are_discounted_once():
    with make("rescore/Probe3-v0") as envs:
        assert envs.reset() == 0
        first, second = step(envs, 0), step(envs, 0)
        assert (first.reward, second.reward) == (0, 1)
        assert not first.terminated and second.terminated
        assert first.obs == 1 and second.obs == 0
        assert (Probe3.value(0.0, gamma=0.9), Probe3.value(1.0, gamma=0.9)) == (0.9, 1.0)


def test_best_actions_are_best():
    with make("rescore/Probe4-v0") as envs:
        envs.reset()
        rewards = [step(envs, a).reward.item() for a in (-1, 0, Probe4.best_action, 0.6)]
        assert rewards == pytest.approx([-2.25, -0.25, Probe4.value, -0.01], abs=1e-6)
    with make("rescore/Probe5-v0", num_envs=8) as envs:
        obs = envs.reset()
        assert (envs.step(np.vectorize(Probe5.best_action)(obs)).reward == Probe5.value).all()


def test_time_limit_truncates_and_never_terminates():
    with make("rescore/ProbeTimeLimit-v0") as envs:
        envs.reset()
        results = [step(envs, 0) for _ in range(2 * TimeLimitProbe.limit)]
    assert [int(r.truncated.item()) for r in results] == [0, 0, 0, 0, 1] * 2
    assert not any(r.terminated for r in results) and all(r.reward == 1 for r in results)
    assert TimeLimitProbe.value(gamma=0.75) == 4
