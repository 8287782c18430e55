"""Every algorithm learns tasks whose values and best actions are known in closed form."""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.agent import Agent
from rescore.algorithms import find
from rescore.envs.probes import Probe2, Probe3, Probe4, Probe5, TimeLimitProbe
from tests.small import NAMES

GAMMA = 0.9
SIZES = {"hidden": (32, 32), "T": 5, "gamma": GAMMA, "critic_lr": 3e-3, "actor_lr": 3e-3}
SIZES |= {"polyak_rate": 0.2}
SIZES |= {"critic_hidden": (32, 32), "minibatches": 8, "normalise_reward": False}
TRAINING = {"eval_every": 0, "log_every": 10_000}
BY_SOURCE = {
    "replay": {"warmup": 200, "chunk": 10, "batch_size": 64},
    "rollout": {"num_envs": 4, "chunk": 64},
}
MORE_STEPS = {"replay": 1, "rollout": 8}  # on-policy steps are used once


def trained(name: str, probe: str, steps: int) -> Agent:
    source, own = find(name).source, {f.name for f in fields(find(name))}
    sizes = {k: v for k, v in SIZES.items() if k in own}
    agent = Agent(name, f"rescore/{probe}-v0", training=TRAINING | BY_SOURCE[source], **sizes)
    # Evaluation is not asked for: a probe's return says less than its value.
    agent.evaluate = None
    return agent.learn(MORE_STEPS[source] * steps)


def value(agent: Agent, obs: float) -> float:
    state = jax.tree.map(lambda x: x[0], agent.run.state)
    one = state.nets.critic.params
    obs_row = jnp.full((1, 1), obs, jnp.float32)
    if agent.algo.source == "rollout":
        return float(one(agent.algo.see(state, obs_row))[0, 0])
    action = agent.predict(np.asarray(obs_row), deterministic=True)[0]
    return float(one.min(obs_row, jnp.asarray(action))[0])


@pytest.mark.parametrize("name", NAMES)
def test_truncation_bootstraps(name):
    """Reward 1 for ever, cut every 5 steps: the value is 1 / (1 - gamma) only if cuts bootstrap."""
    agent = trained(name, "ProbeTimeLimit", 1_200)
    assert value(agent, 0.0) == pytest.approx(TimeLimitProbe.value(GAMMA), rel=0.15)


@pytest.mark.parametrize("name", NAMES)
def test_finds_the_best_action(name):
    agent = trained(name, "Probe4", 1_000)
    action, _ = agent.predict(np.zeros((64, 1)), deterministic=True)
    assert np.mean(action) == pytest.approx(Probe4.best_action, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_value_depends_on_the_observation(name):
    agent = trained(name, "Probe2", 1_000)
    for obs in (-1.0, 1.0):
        assert value(agent, obs) == pytest.approx(Probe2.value(obs), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_reward_is_discounted_over_time(name):
    agent = trained(name, "Probe3", 1_500)
    for obs in (0.0, 1.0):
        assert value(agent, obs) == pytest.approx(Probe3.value(obs, GAMMA), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_best_action_depends_on_the_observation(name):
    agent = trained(name, "Probe5", 2_000)
    for obs in (-1.0, 1.0):
        action, _ = agent.predict(np.full((64, 1), obs), deterministic=True)
        assert np.mean(action) == pytest.approx(Probe5.best_action(obs), abs=0.12)
