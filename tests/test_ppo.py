"""What PPO promises beyond the contract: exact ratios, frozen statistics, an end by KL."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.agent import Agent
from rescore.algorithms import find
from rescore.core import UsageError
from rescore.models.learned import Learned
from tests.small import SPEC, experience, small

ON_POLICY = ("dppo", "ppo")
ROWS = 200


@cache
def trace(name: str, **hyperparameters):
    """Metrics of every minibatch of one update, and the update itself."""
    first, algo = small(name), small(name, minibatches=7, **hyperparameters)
    state = algo.init(jax.random.key(0), SPEC)
    rollout = experience(algo, rows=ROWS)

    def improve(state, rollout, key):
        rows, _ = algo.advantages(state, rollout)
        (extra,) = rollout.extras.values()
        return algo.improve(state.nets, rows, extra.reshape(rows.size, *extra.shape[2:]), key)

    # A second update, when networks and statistics are no longer those of the start.
    state = jax.jit(first.update)(state, rollout, jax.random.key(1), jnp.int32(0)).state
    nets, metrics = jax.jit(improve)(state, rollout, jax.random.key(2))
    return algo, state, nets, metrics


@pytest.mark.parametrize("name", ON_POLICY)
def test_ratio_is_exactly_one_on_the_first_minibatch(name):
    _, _, _, metrics = trace(name)
    gap = np.asarray(metrics["ratio_gap"])
    assert gap.shape == (14,) and gap[0] == 0.0 and np.all(gap[1:] > 0)
    assert metrics["clipped"][0] == 0.0


@pytest.mark.parametrize("name", ON_POLICY)
def test_an_update_ends_once_the_kl_is_too_large(name):
    """It keeps the step that went too far, and takes none after it."""
    _, _, free, metrics = trace(name)
    goal = float(metrics["kl"][4])
    stop = int(np.argmax(np.asarray(metrics["kl"]) >= goal))
    _, state, nets, stopped = trace(name, target_kl=goal * 0.999)
    np.testing.assert_array_equal(stopped["used"], np.arange(14) <= stop)
    count = lambda nets: int(nets.critic.opt[1][0].count) - int(state.nets.critic.opt[1][0].count)  # noqa: E731
    assert count(nets) == stop + 1 and count(free) == 14


def test_statistics_are_those_of_all_observations_and_fixed_at_evaluation():
    sizes = {"hidden": (4,), "critic_hidden": (4,), "minibatches": 2, "epochs": 1}
    training = {"num_envs": 2, "chunk": 30, "eval_every": 30, "eval_episodes": 2}
    with Agent("ppo", "InvertedPendulum-v4", training=training, **sizes) as agent:
        seen, add = [], agent.run.memory.add

        def spy(transition, *rest):
            seen.append(transition.obs[0].copy())
            add(transition, *rest)

        agent.run.memory.add = spy
        agent.learn(120)
        stats = jax.tree.map(lambda x: np.asarray(x[0]), agent.run.state.obs)
        rows = np.concatenate(seen)
        assert stats.rows == len(rows) == 120
        np.testing.assert_allclose(stats.mean, rows.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(stats.var, rows.var(axis=0), rtol=1e-3)
        before = jax.tree.map(np.array, agent.run.state)
        agent.evaluate(2)
        agent.predict(rows[0])
        assert all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(agent.run.state)))


def test_evaluation_sees_normalised_observations():
    """The mean action depends on (obs - mean) / std alone."""
    algo = small("ppo")
    state = algo.init(jax.random.key(0), SPEC)
    obs = jax.random.normal(jax.random.key(1), (6, SPEC.obs_dim))
    moved = state._replace(
        obs=state.obs._replace(mean=state.obs.mean + 3.0, var=4.0 * state.obs.var)
    )
    key = jax.random.key(2)
    ours = algo.act(state, obs, key, False).action
    np.testing.assert_allclose(algo.act(moved, 2.0 * obs + 3.0, key, False).action, ours, atol=1e-6)
    assert not np.allclose(algo.act(moved, obs, key, False).action, ours, atol=1e-4)


def test_rewards_are_divided_by_the_deviation_of_returns():
    """Ten times the reward is the same problem, and off it is not."""
    for normalise in (True, False):
        algo = small("ppo", normalise_reward=normalise)
        state = algo.init(jax.random.key(0), SPEC)
        rollout = experience(algo, rows=ROWS)
        seen = rollout.transition
        larger = rollout._replace(transition=seen._replace(reward=10.0 * seen.reward))
        targets = [algo.advantages(state, r)[0].target for r in (rollout, larger)]
        assert np.allclose(*targets, atol=1e-3) == normalise


def test_learning_rate_falls_linearly_over_updates():
    """After half of them half of the fall, read off the size of Adam's first steps."""
    algo = small("ppo", actor_lr=0.1, lr_end=0.2, lr_updates=5, max_grad_norm=None)
    optimizer = algo.optimizer(algo.actor_lr)
    steps = algo.lr_updates * algo.epochs * algo.minibatches
    x, sizes = Learned.create(jnp.float32(0.0), optimizer), []
    for _ in range(steps + 3):
        new, _ = x.descend(optimizer, lambda x: (x, {}))
        sizes.append(float(x.params - new.params))
        x = new
    assert sizes[0] == pytest.approx(0.1, rel=1e-3)
    assert sizes[steps // 2] == pytest.approx(0.06, rel=1e-2)
    assert sizes[-1] == pytest.approx(0.02, rel=1e-2)


@pytest.mark.parametrize("name", ON_POLICY)
def test_impossible_settings_are_refused(name):
    for wrong in ({"epochs": 0}, {"gae_lambda": 1.5}, {"lr_end": 2.0}, {"hidden": ()}):
        with pytest.raises(UsageError):
            find(name)(**wrong)
    algo = small(name, minibatches=500)
    state = algo.init(jax.random.key(0), SPEC)
    with pytest.raises(UsageError, match="larger chunk or fewer minibatches"):
        algo.update(state, experience(algo), jax.random.key(0), jnp.int32(0))
