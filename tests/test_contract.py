"""What every registered algorithm promises; a new one is found here by itself."""

import inspect
import json
from dataclasses import asdict, fields, is_dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.algorithms import find, presets_of
from rescore.core import Spec, UsageError
from rescore.files.json import plain
from rescore.streams import Stream
from rescore.training.checkpoint import named_leaves
from rescore.training.config import Training, configure, from_plain
from rescore.training.programs import compile_programs
from rescore.training.replay import columns
from tests.small import (
    BATCH,
    NAMES,
    SPEC,
    act_of,
    experience,
    initial,
    random_batch,
    same,
    small,
    update_of,
)

pytestmark = pytest.mark.parametrize("name", NAMES)


def prepared(name):
    """The programs are those of the golden numbers."""
    algo = small(name)
    return algo, initial(algo, jax.random.key(0)), update_of(algo), act_of(algo)


def test_actions_are_finite_inside_the_box_and_keyed(name, key):
    _, state, _, act = prepared(name)
    obs = random_batch().obs
    for explore in (True, False):
        action = act(state, obs, key, explore).action
        assert action.shape == (BATCH, SPEC.act_dim) and action.dtype == jnp.float32
        assert np.all(np.abs(action) <= 1.0)
        assert same(action, act(state, obs, key, explore).action)
        if explore:  # without, an algorithm may well take its mean
            assert not same(action, act(state, obs, jax.random.fold_in(key, 1), explore).action)


def test_update_is_pure_finite_and_keeps_its_layout(name, key):
    algo, state, update, _ = prepared(name)
    before, seen = jax.tree.map(np.array, state), experience(algo)
    one = update(state, seen, key, jnp.int32(0))
    assert same(before, state), "update changed its input"
    assert same(one, update(state, seen, key, jnp.int32(0)))
    assert not same(one.state, update(state, seen, jax.random.fold_in(key, 1), jnp.int32(0)).state)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert shapes(one.state) == shapes(state)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(one.state))
    assert one.metrics and all(m.shape == () and np.isfinite(m) for m in one.metrics.values())


def test_second_call_does_not_recompile(name, key):
    algo, state, update, _ = prepared(name)
    new = update(state, experience(algo), key, jnp.int32(0)).state
    count = update._cache_size()
    update(new, experience(algo, 1), jax.random.fold_in(key, 2), jnp.int32(1))
    assert update._cache_size() == count


def test_critic_takes_its_optimiser_steps_per_update(name, key):
    """One on a batch of replay, one on each minibatch of a rollout."""
    algo, state, update, _ = prepared(name)
    for step in range(3):
        state = update(state, experience(algo, step), key, jnp.int32(step)).state
    steps = 1 if algo.source == "replay" else algo.epochs * algo.minibatches
    counts = [x for path, x in named_leaves(state.nets.critic.opt).items() if "count" in path]
    assert counts and all(count == 3 * steps for count in counts)


def test_delays_follow_the_shared_step(name, key):
    algo, state, update, _ = prepared(name)
    if algo.source == "rollout":
        pytest.skip("nothing is delayed")
    assert {algo.policy_delay, algo.target_delay} <= {1, 2, 3}
    for step in (1, 2):
        new = update(state, random_batch(), key, jnp.int32(step)).state.nets
        assert same(new.actor, state.nets.actor) == bool(step % algo.policy_delay)
        if new.target_critic is not None:
            still = same(new.target_critic, state.nets.target_critic)
            assert still == bool(step % algo.target_delay)
        if new.target_actor is not None and step % algo.target_delay:
            assert same(new.target_actor, state.nets.target_actor)
        assert not same(new.critic, state.nets.critic)


SEEDS = (3, 8)


def batches_of(algo):
    """For two updates from replay, or one from a rollout, of two seeds."""
    if algo.source == "replay":
        shape = (2, len(SEEDS), BATCH, sum(columns(SPEC, algo.keeps_particles)))
        return np.random.default_rng(0).normal(size=shape).astype(np.float32)
    each = [experience(algo, seed) for seed in SEEDS]
    return jax.tree.map(lambda *x: np.stack(x)[None], *each)


def test_seeds_chunks_and_donation(name):
    """vmap over seeds, scan over updates and donated buffers work, and keep branches branches."""
    algo = small(name)
    programs, batches = compile_programs(algo, SPEC, SEEDS), batches_of(algo)
    leaves = programs.init()
    new, metrics, _ = programs.update(leaves, batches, np.int32(0))
    updates = jax.tree.leaves(batches)[0].shape[0]
    delay = algo.policy_delay if algo.source == "replay" else 1
    assert int(metrics["policy_loss"].updates[0]) == -(-updates // delay)
    assert int(metrics["critic_loss"].updates[0]) == updates
    assert all(m.total.shape == m.updates.shape == (2,) for m in metrics.values())
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(leaves[0])
    obs = np.stack([random_batch(seed).obs for seed in SEEDS])
    acted = programs.act(new, obs, Stream.ACT, np.int32(0), True)
    assert all(x.shape[:2] == (2, BATCH) for x in jax.tree.leaves(acted))
    assert acted.action.shape[2:] == (SPEC.act_dim,)


def test_a_lone_seed_gives_the_same_numbers(name):
    """Up to rounding: loops over one and over two seeds are compiled differently."""
    algo = small(name)
    both, alone = (compile_programs(algo, SPEC, seeds) for seeds in (SEEDS, SEEDS[1:]))
    batches = batches_of(algo)
    new, _, _ = both.update(both.init(), batches, np.int32(0))
    own = jax.tree.map(lambda x: x[:, 1:], batches)
    lone, _, _ = alone.update(alone.init(), own, np.int32(0))
    for a, b in zip(new, lone):
        np.testing.assert_allclose(np.asarray(a)[1], np.asarray(b)[0], atol=2e-4, rtol=2e-3)


def test_config_survives_json_and_refuses_typos(name):
    for preset in presets_of(name):
        algo, training = configure(name, preset, {}, {})
        for config in (algo, training):
            text = json.dumps(plain(asdict(config)), allow_nan=False)
            assert from_plain(type(config), json.loads(text)) == config
            hash(config)
    with pytest.raises(UsageError, match="did you mean 'gamma'"):
        configure(name, "default", {"gama": 0.9}, {})
    with pytest.raises(UsageError, match="unknown preset"):
        configure(name, "nothing", {}, {})


def test_every_field_says_what_it_is(name):
    """A comment beside or above the field: the command line shows it as help."""
    telling = {"activation", "critic_lr", "actor_lr", "schedule"}
    lines = [
        line.strip()
        for cls in find(name).__mro__
        if is_dataclass(cls)
        for line in inspect.getsource(cls).splitlines()
    ]
    for field in fields(find(name)):
        declared = (i for i, x in enumerate(lines) if x.startswith(f"{field.name}:") and "=" in x)
        at = next(declared)
        said = "#" in lines[at] or lines[at - 1].startswith("#") or field.name in telling
        assert said, f"{field.name} has no comment"


@pytest.mark.slow
def test_works_for_one_dimension_and_one_candidate(name, key):
    algo = small(name, act_candidates=1, target_candidates=1, eval_candidates=1, T=1, hidden=(4,))
    spec = Spec(1, 1)
    state = algo.init(key, spec)
    update = algo.update(state, experience(algo, 0, 3, spec), key, jnp.int32(0))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(update.state))
    assert algo.act(update.state, jnp.zeros((1, 1)), key, True).action.shape == (1, 1)


def test_training_settings_are_checked(name):
    with pytest.raises(UsageError, match="whole number of updates"):
        Training(num_envs=1, utd=0.3, chunk=1)
    with pytest.raises(UsageError, match="batch_size"):
        configure(name, "default", {}, {"batch_size": 0})
    if find(name).source == "rollout":
        with pytest.raises(UsageError, match="warmup is a setting of replay"):
            configure(name, "default", {}, {"warmup": 100})
