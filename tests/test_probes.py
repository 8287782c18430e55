"""Every algorithm learns tasks whose values and best actions are known in closed form.

The two quick probes learn from a recording of random actions, all updates in one compiled call
that both share. The slow ones go the whole way, through environments, loop and replay.
"""

import dataclasses
from dataclasses import fields
from functools import cache
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.agent import Agent
from rescore.algorithms import find
from rescore.algorithms.normalised import State as Normalised
from rescore.core import Spec, Transition
from rescore.envs.probes import Probe2, Probe3, Probe4, Probe5, TimeLimitProbe
from rescore.models.critics import CriticSettings
from tests.small import NAMES

GAMMA = 0.9
SIZES = {
    "hidden": (32, 32),
    "T": 5,
    "gamma": GAMMA,
    "critic": CriticSettings(lr=3e-3),
    "actor_lr": 3e-3,
}
SIZES |= {"polyak_rate": 0.2}
OWN = {
    # Entropy is part of SAC's value: with this temperature less than a hundredth of it.
    "sac": {"alpha": 1e-3},
    # Its gradient ends where the chain is clipped. At the rate of the others, 3e-3, the policy
    # leaps over 0.5 to the border and stays at exactly 1, whatever the critic knows.
    "dacer": {"actor_lr": 1e-3},
    # M_q times the slope of a probe is the whole length of a step: 50 would leap over the top.
    "qsm": {"schedule": "vp", "gradient": "raw", "q_scale": 1.0},
}
SIZES |= {"critic_hidden": (32, 32), "minibatches": 8, "normalise_reward": False}
TRAINING = {"eval_every": 0, "log_every": 10_000}
BY_SOURCE = {
    "replay": {"warmup": 200, "chunk": 10, "batch_size": 64},
    "rollout": {"num_envs": 4, "chunk": 64},
}
MORE_STEPS = {"replay": 1, "rollout": 8}  # on-policy steps are used once
REPLAY, ROLLOUT = (
    [n for n in NAMES if find(n).source == source] for source in ("replay", "rollout")
)
ROWS, BATCH, UPDATES = 512, 64, 800


def sizes(name: str) -> dict:
    own = {field.name for field in fields(find(name))}
    return {k: v for k, v in (SIZES | OWN.get(name, {})).items() if k in own}


def recorded(env: gymnasium.Env) -> Transition:
    """Experience of random actions. [ROWS, ...]"""
    rng, rows = np.random.default_rng(0), []
    obs, _ = env.reset(seed=0)
    for _ in range(ROWS):
        action = rng.uniform(-1, 1, 1)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append(Transition(obs, action, reward, terminated, next_obs))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return Transition(*(jnp.asarray(np.stack(x), jnp.float32) for x in list(zip(*rows))[:5]))


@cache
def learner(name: str):
    """Learning from a recording, and a look at what was learned: actions and their values."""
    algo = find(name)(**sizes(name))

    @jax.jit
    def learn(recording: Transition):
        def one(carry: tuple, step: jax.Array):
            state, particle = carry
            k_rows, k_update = jax.random.split(jax.random.fold_in(jax.random.key(1), step))
            pick = jax.random.randint(k_rows, (BATCH,), 0, ROWS)
            batch = jax.tree.map(lambda x: x[pick], recording._replace(particle=particle))
            new = algo.update(state, batch, k_update, step)
            edited = particle if new.edits is None else particle.at[pick].set(new.edits)
            return (new.state, edited), None

        start = (algo.init(jax.random.key(0), Spec(1, 1)), recording.action)
        return jax.lax.scan(one, start, jnp.arange(UPDATES))[0][0]

    @jax.jit
    def look(state, obs: jax.Array):
        action = algo.act(state, obs, jax.random.key(2), False).action
        return action, state.nets.critic.params.value(obs, action) / algo.reward_scale

    return learn, look


@pytest.mark.parametrize("name", REPLAY)
def test_truncation_bootstraps(name):
    """Reward 1 for ever, cut every 5 steps: the value is 1 / (1 - gamma) only if cuts bootstrap."""
    learn, look = learner(name)
    _, value = look(learn(recorded(TimeLimitProbe())), jnp.zeros((64, 1)))
    assert float(jnp.mean(value)) == pytest.approx(TimeLimitProbe.value(GAMMA), rel=0.15)


@pytest.mark.parametrize("name", REPLAY)
def test_finds_the_best_action(name):
    learn, look = learner(name)
    action, value = look(learn(recorded(Probe4())), jnp.zeros((64, 1)))
    assert float(jnp.mean(action)) == pytest.approx(Probe4.best_action, abs=0.1)
    assert float(jnp.mean(value)) == pytest.approx(Probe4.value, abs=0.1)


# The whole way


def trained(name: str, probe: str, steps: int, **settings: Any) -> Agent:
    source = find(name).source
    training = TRAINING | BY_SOURCE[source]
    agent = Agent(name, f"rescore/{probe}-v0", training=training, **(sizes(name) | settings))
    # A probe's return says less than its value.
    return agent.learn(MORE_STEPS[source] * steps, evaluate=False)


def value(agent: Agent, obs: float) -> float:
    state = jax.tree.map(lambda x: x[0], agent.run.state)
    seen = obs_row = jnp.full((1, 1), obs, jnp.float32)
    if isinstance(state, Normalised):
        state, seen = state.inner, state.obs.normalise(obs_row)
    one = state.nets.critic.params
    if agent.algo.source == "rollout":
        return float(one(agent.algo.normalise(state, obs_row))[0, 0])
    action = agent.predict(np.asarray(obs_row), deterministic=True)[0]
    return float(one.value(seen, jnp.asarray(action))[0]) / agent.algo.reward_scale


@pytest.mark.parametrize("name", ["td3", *ROLLOUT])
def test_the_loop_bootstraps_at_time_limits(name):
    """What environments, loop and replay make of a cut is the same for all replay learners."""
    agent = trained(name, "ProbeTimeLimit", 1_200)
    assert value(agent, 0.0) == pytest.approx(TimeLimitProbe.value(GAMMA), rel=0.15)


@pytest.mark.parametrize("critic", [{"n_step": 3}, {"normalise_rewards": True}], ids=str)
def test_values_of_several_steps_and_of_scaled_rewards(critic):
    critic = dataclasses.replace(SIZES["critic"], **critic)
    agent = trained("td3", "ProbeTimeLimit", 1_200, critic=critic)
    scale = agent.run.memory.scale
    unit = float(scale.std[0]) if scale else 1.0
    assert value(agent, 0.0) * unit == pytest.approx(TimeLimitProbe.value(GAMMA), rel=0.15)


@pytest.mark.parametrize("name", ROLLOUT)
def test_rollouts_find_the_best_action(name):
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
