"""What the loop hands to an on-policy learner: every step, in order, with its true successor."""

import jax
import numpy as np
import pytest

from rescore.agent import Agent
from rescore.core import Transition
from rescore.training.loop import advance, collect
from rescore.training.rollout import Rollouts

TRAINING = {"num_envs": 2, "chunk": 12, "eval_episodes": 1}


def step(number: int) -> tuple[Transition, np.ndarray, dict]:
    """Two seeds, three environments; every number says where it belongs."""
    grid = 100.0 * number + np.arange(6).reshape(2, 3)
    wide = grid[..., None]
    seen = Transition(wide, wide + 0.1, grid + 0.2, grid + 0.3, wide + 0.4)
    return seen, grid + 0.5, {"sample": wide + 0.6}


def test_steps_come_out_in_order():
    rollouts = Rollouts(4)
    for number in range(4):
        rollouts.add(*step(number))
    taken = rollouts.take()
    assert taken.transition.obs.shape == (1, 2, 4, 3, 1) and taken.truncated.shape == (1, 2, 4, 3)
    for number in range(4):
        now = jax.tree.map(lambda x, number=number: x[0, :, number], taken)
        seen, truncated, extras = step(number)
        for ours, theirs in zip(jax.tree.leaves(now), jax.tree.leaves((seen, truncated, extras))):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_taken_rollout_is_not_written_again():
    """The compiled update may still read it while the next one is collected."""
    rollouts = Rollouts(2)
    for number in range(2):
        rollouts.add(*step(number))
    first = rollouts.take()
    kept = jax.tree.map(np.copy, first)
    for number in range(2, 4):
        rollouts.add(*step(number))
    second = rollouts.take()
    assert all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(kept)))
    assert second.transition.obs[0, 0, 0, 0] == 200


@pytest.fixture(scope="module")
def run():
    """Twelve steps of two environments that are cut after every fifth."""
    sizes = {"hidden": (4,), "critic_hidden": (4,), "minibatches": 2, "epochs": 1}
    with Agent("ppo", "rescore/ProbeTimeLimit-v0", training=TRAINING, **sizes) as agent:
        yield agent.run


def test_the_loop_notes_cuts_and_the_unclipped_action(run):
    for _ in range(12):
        collect(run)
    rollout = run.memory.take()
    truncated = rollout.truncated[0, 0]  # [L, N]
    assert np.array_equal(np.flatnonzero(truncated[:, 0]), [4, 9])
    assert not rollout.transition.terminated.any()
    sample, action = rollout.extras["sample"], rollout.transition.action
    assert np.array_equal(np.clip(sample, -1, 1), action) and not np.array_equal(sample, action)


def test_one_update_per_chunk(run):
    before = run.updates
    advance(run)
    assert run.updates == before + 1 and run.memory.added == 0
    assert float(run.state.obs.rows[0]) == 24  # the statistics saw each step once
