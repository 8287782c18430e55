"""Ensembles of action values, Bellman targets and their loss, by hand."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescore.algorithms.sac import SAC
from rescore.core import Spec, Transition, UsageError
from rescore.models.critics import (
    NORM_EPS,
    NORM_RATE,
    SUPPORT,
    Critic,
    CriticSettings,
    bellman_target,
    histogram,
    mean_return,
    td_loss,
    unit_weights,
)
from rescore.models.learned import Learned
from tests.small import initial, random_batch, same, small, update_of

pytestmark = pytest.mark.usefixtures("strict")

OBS, ACT, N = 4, 2, 3


@pytest.fixture(scope="module")
def critic(key) -> Critic:
    return jax.jit(
        lambda key: Critic.create(key, Spec(OBS, ACT), CriticSettings(ensemble=N), (8, 8), "relu")
    )(key)


def inputs(*lead):
    rng = np.random.default_rng(0)
    return np.float32(rng.normal(size=(*lead, OBS))), np.float32(rng.normal(size=(*lead, ACT)))


def by_hand(critic: Critic, obs, action) -> np.ndarray:
    """Values [n] of one state and action, member by member."""
    values = []
    for i in range(N):
        net = jax.tree.map(lambda x, i=i: np.asarray(x[i]), critic.nets)
        x = np.concatenate([obs, action]) @ np.concatenate([layer.weight for layer in net.first])
        x = x + net.first[0].bias
        for layer in net.rest:
            x = np.maximum(x, 0) @ layer.weight + layer.bias
        values.append(x[0])
    return np.array(values)


def batch(reward, terminated, obs=None, action=None) -> Transition:
    reward, terminated = np.float32(reward), np.float32(terminated)
    return Transition(obs, action, reward, terminated, obs)


def test_values_are_those_of_the_members(critic):
    obs, action = inputs(5)
    q = jax.jit(lambda critic, *x: critic(*x))(critic, obs, action)
    low = jax.jit(Critic.value)(critic, obs, action)
    assert q.shape == (N, 5) and low.shape == (5,)
    expected = np.stack([by_hand(critic, *row) for row in zip(obs, action)], axis=1)
    np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(low, expected.min(0), rtol=1e-4, atol=1e-5)
    # The minimum is not always of the same member, or it would prove nothing.
    assert len(set(np.argmin(np.concatenate([expected, -expected], axis=1), axis=0))) > 1


def test_candidates_share_their_state(critic):
    obs, _ = inputs(5)
    _, actions = inputs(6, 5)
    q = jax.jit(Critic.value)(critic, obs[None], actions)
    assert q.shape == (6, 5)
    for k, b in np.ndindex(6, 5):
        expected = by_hand(critic, obs[b], actions[k, b]).min()
        assert float(q[k, b]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_members_start_apart(critic):
    for leaf in jax.tree.leaves(critic):
        assert isinstance(leaf, jax.Array) and leaf.shape[0] == N
    for layer in (*critic.nets.first, *critic.nets.rest):
        w = np.asarray(layer.weight)
        assert not any(np.any(w[i] == w[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_bellman_target_by_hand():
    """0.5 r + 0.9 V(s'), and 0.5 r alone where the episode ended for good."""
    target = bellman_target(
        batch([2.0, 2.0, -4.0], [0, 1, 0]), jnp.array([10.0, 10.0, 0.0]), 0.9, 0.5
    )
    np.testing.assert_allclose(target, [10.0, 1.0, -2.0], rtol=1e-6)


def test_no_gradient_through_the_target():
    def total(x):
        return jnp.sum(bellman_target(batch([1.0], [0]), x, 0.99, 1.0))

    assert float(total(jnp.array([3.0]))) == pytest.approx(1 + 0.99 * 3)
    np.testing.assert_array_equal(jax.grad(total)(jnp.array([3.0])), [0.0])


def test_td_loss_by_hand():
    """Squares 1, 4 and 0, 9: the mean over rows (2.5, 4.5), the sum over members."""
    q = jnp.array([[1.0, 0.0], [2.0, 5.0]])
    loss, metrics = td_loss(q[..., None], jnp.array([2.0, 2.0]))
    assert float(loss) == pytest.approx(7.0)
    assert set(metrics) == {"critic_loss", "q"}
    assert float(metrics["critic_loss"]) == pytest.approx(7.0)
    assert float(metrics["q"]) == pytest.approx(2.0)


def test_td_loss_trains_each_member_on_its_own_residual(critic):
    """d loss / d bias of member i's head is 2 mean(q_i - y)."""
    obs, action = inputs(5)
    target = np.linspace(-1, 1, 5, dtype=np.float32)

    @jax.jit
    def gradient(critic):
        loss = lambda critic: td_loss(critic.outputs(obs, action), target)  # noqa: E731
        return jax.grad(loss, has_aux=True)(critic)[0]

    q = np.stack([by_hand(critic, *row) for row in zip(obs, action)], axis=1)
    got = gradient(critic).nets.rest[-1].bias[:, 0]
    np.testing.assert_allclose(got, 2 * (q - target).mean(1), rtol=1e-4, atol=1e-5)


def test_candidates_are_valued_by_the_smallest():
    critic = Critic.create(jax.random.key(0), Spec(3, 2), CriticSettings(ensemble=3), (8,), "mish")
    obs, actions = jax.random.normal(jax.random.key(1), (4, 3)), jnp.ones((5, 4, 2)) * 0.3
    each = critic(obs[None], actions)
    assert each.shape == (3, 5, 4)
    np.testing.assert_array_equal(critic.value(obs[None], actions), np.min(each, axis=0))


BATCH_NORM = CriticSettings(norm="batch", target=False)


def normed_critic(key, dtype=jnp.float32) -> Critic:
    """A critic whose gains, biases and statistics are not those of the start."""
    critic = Critic.create(key, Spec(OBS, ACT), BATCH_NORM, (8, 6), "relu")
    keys = iter(jax.random.split(key, 40))
    shaken = lambda x: x + 0.3 * jnp.abs(jax.random.normal(next(keys), x.shape))  # noqa: E731
    critic = eqx.tree_at(lambda c: c.norms, critic, jax.tree.map(shaken, critic.norms))
    return jax.tree.map(lambda x: x.astype(dtype), critic)


def normed_by_hand(critic: Critic, i: int, obs, action, train: bool):
    """Values [B] of member i in NumPy, and the batch statistics of every norm."""
    member = jax.tree.map(lambda x: np.asarray(x[i], float), critic)
    x, seen = np.concatenate([obs, action], axis=1).astype(float), []

    def norm(x):
        n = member.norms[len(seen)]
        seen.append((x.mean(0), x.var(0)))
        mean, var = seen[-1] if train else (n.mean, n.var)
        return n.gain * (x - mean) / np.sqrt(var + NORM_EPS) + n.bias

    first = np.concatenate([layer.weight for layer in member.nets.first])
    x = norm(x) @ first + member.nets.first[0].bias
    for layer in member.nets.rest:
        x = norm(np.maximum(x, 0)) @ layer.weight + layer.bias
    return x[:, 0], seen


def test_batch_norm_in_training_takes_the_batch_and_moves_the_statistics(key):
    critic, (obs, action) = normed_critic(key), inputs(32)
    values, moved = critic.train(obs, action)
    for i in range(2):
        expected, seen = normed_by_hand(critic, i, obs, action, train=True)
        np.testing.assert_allclose(values[i, :, 0], expected, rtol=1e-3, atol=1e-4)
        for old, new, (mean, var) in zip(critic.norms, moved, seen):
            wanted = (1 - NORM_RATE) * np.asarray(old.mean[i]) + NORM_RATE * mean
            np.testing.assert_allclose(new.mean[i], wanted, rtol=1e-4, atol=1e-5)
            wanted = (1 - NORM_RATE) * np.asarray(old.var[i]) + NORM_RATE * var
            np.testing.assert_allclose(new.var[i], wanted, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_evaluation_folds_into_plain_layers(key):
    """In float64, where nothing hides behind rounding."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        critic, (obs, action) = normed_critic(key, jnp.float64), inputs(7)
        values = critic(jnp.asarray(obs, float), jnp.asarray(action, float))
        for i in range(2):
            expected, _ = normed_by_hand(critic, i, obs, action, train=False)
            np.testing.assert_allclose(values[i], expected, rtol=1e-10, atol=1e-12)


def test_critics_with_batch_norm_learn_on_the_joint_batch(key):
    """The loss by hand: (s, a) and (s', a') normalised together, the target from s'."""
    algo = SAC(critic=BATCH_NORM, hidden=(8, 6), gamma=0.9, activation="relu")
    critic = normed_critic(key)
    nets = algo.create_nets(None, None, critic)
    (obs, action), (next_obs, a_next) = inputs(16), (x[::-1] * 1.5 for x in inputs(16))
    reward = np.linspace(-1, 1, 16, dtype=np.float32)
    ended = np.float32(np.arange(16) % 4 == 0)
    data = Transition(obs, action, reward, ended, next_obs)
    with jax.numpy_dtype_promotion("standard"):
        new, metrics = jax.jit(algo.fit_critic)(nets, data, a_next, 0.25)
    rows = [np.concatenate(pair) for pair in ((obs, next_obs), (action, a_next))]
    both = [normed_by_hand(critic, i, *rows, train=True) for i in range(2)]
    next_value = np.minimum(both[0][0][16:], both[1][0][16:]) + 0.25
    target = reward + 0.9 * (1 - ended) * next_value
    loss = sum(np.mean((values[:16] - target) ** 2) for values, _ in both)
    assert float(metrics["critic_loss"]) == pytest.approx(loss, rel=1e-3)
    for i, (_, seen) in enumerate(both):  # the statistics are those of both halves
        moved = new.params.norms[0].mean[i] - critic.norms[0].mean[i]
        wanted = NORM_RATE * (seen[0][0] - np.asarray(critic.norms[0].mean[i]))
        np.testing.assert_allclose(moved, wanted, rtol=1e-2, atol=1e-5)
    assert nets.target_critic is None


def test_a_target_over_several_steps_is_discounted_more():
    """1 + 0.9 * 0.81 * 10 where s' lies three steps ahead."""
    ahead = batch([1.0, 1.0], [0, 1])._replace(discount=np.float32([0.81, 0.81]))
    target = bellman_target(ahead, jnp.array([10.0, 10.0]), 0.9, 1.0)
    np.testing.assert_allclose(target, [1 + 7.29, 1.0], rtol=1e-6)


LAYER_NORM = CriticSettings(norm="layer", ensemble=N)


def test_layer_norm_normalises_rows_before_every_activation(key):
    critic = Critic.create(key, Spec(OBS, ACT), LAYER_NORM, (8, 6), "relu")
    shift = lambda x: x + jnp.linspace(0.1, 0.9, x.size).reshape(x.shape)  # noqa: E731
    critic = eqx.tree_at(lambda c: c.norms, critic, jax.tree.map(shift, critic.norms))
    obs, action = inputs(5)
    got = critic(obs, action)
    for i in range(N):
        member = jax.tree.map(lambda x, i=i: np.asarray(x[i], float), critic)
        first = np.concatenate([layer.weight for layer in member.nets.first])
        x = np.concatenate([obs, action], axis=1) @ first + member.nets.first[0].bias
        for norm, layer in zip(member.norms, member.nets.rest, strict=True):
            spread = np.sqrt(x.var(1, keepdims=True) + NORM_EPS)
            x = norm.gain * (x - x.mean(1, keepdims=True)) / spread + norm.bias
            x = np.maximum(x, 0) @ layer.weight + layer.bias
        np.testing.assert_allclose(got[i], x[:, 0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("atoms", [5, 101])
def test_a_histogram_holds_the_mass_of_a_gaussian(atoms):
    """Shares against quadrature: the density of the blurred target over each bin."""
    targets = np.linspace(-SUPPORT, SUPPORT, 7)
    shares = np.asarray(histogram(jnp.asarray(targets, jnp.float32), atoms))
    width = 2 * SUPPORT / (atoms - 1)
    inner = (np.arange(1000) + 0.5) / 1000 - 0.5
    for target, row in zip(targets, shares):
        at = np.linspace(-SUPPORT, SUPPORT, atoms)[:, None] + width * inner
        mass = np.exp(-0.5 * ((at - target) / (0.75 * width)) ** 2).mean(axis=1)
        np.testing.assert_allclose(row, mass / mass.sum(), atol=2e-5)


@given(st.floats(-4.5, 4.5), st.integers(60, 201))
def test_a_histogram_has_the_mean_of_its_target(target, atoms):
    """Away from the ends, where nothing is cut off; beyond them it stays at the end."""
    shares = histogram(jnp.float32([target, 40.0]), atoms)
    with np.errstate(divide="ignore"):
        values = mean_return(jnp.log(shares))
    np.testing.assert_allclose(shares.sum(1), 1.0, atol=1e-5)
    assert float(values[0]) == pytest.approx(target, abs=2e-3)
    assert SUPPORT - 2 * SUPPORT / (atoms - 1) < float(values[1]) <= SUPPORT


def test_cross_entropy_by_hand():
    """Three bins at -5, 0, 5: minus the shares of the target times the logs of the softmax."""
    logits = np.float32([[[0.0, 0.0, 0.0]], [[0.0, 1.0, 2.0]]])
    target = jnp.float32([1.0])
    shares = np.asarray(histogram(target, 3))[0]
    loss, metrics = td_loss(jnp.asarray(logits), target)
    logs = logits[:, 0] - np.log(np.exp(logits[:, 0]).sum(1, keepdims=True))
    assert float(loss) == pytest.approx(-(shares * logs).sum(), rel=1e-5)
    softmax = np.exp(logs) @ [-5.0, 0.0, 5.0]
    assert float(metrics["q"]) == pytest.approx(softmax.mean(), rel=1e-5)
    assert float(metrics["beyond_support"]) == 0.0
    assert float(td_loss(jnp.asarray(logits), jnp.float32([5.1]))[1]["beyond_support"]) == 1.0
    # Where the softmax is the target's histogram, the gradient vanishes.
    at_target = jnp.log(jnp.asarray(shares))[None, None]
    gradient = jax.grad(lambda x: td_loss(x, target)[0])(at_target)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


HISTOGRAM = CriticSettings(atoms=11, normalise_rewards=True, unit_weights=True, norm="batch")


def test_units_keep_their_direction_and_get_length_one(key):
    net = jax.tree.map(lambda x: x + 0.5, Critic.create(key, *SIZES_OF_ONE).nets)
    net = jax.tree.map(lambda x: x[0], net)
    unit = unit_weights(net)
    (*hidden, head), (*short, short_head) = rows_of(net), rows_of(unit)
    np.testing.assert_array_equal(short_head[-1], head[-1])  # its bias is left alone
    for before, after in zip((*hidden, head[:-1]), (*short, short_head[:-1])):
        size = np.sqrt(np.square(before).sum(0))
        assert np.all(np.abs(size - 1.0) > 0.1)
        np.testing.assert_allclose(after, before / size, rtol=1e-4)


SIZES_OF_ONE = (Spec(OBS, ACT), CriticSettings(ensemble=1), (8, 6), "relu")


def rows_of(net) -> list[np.ndarray]:
    """Of each layer the weights, and its bias below them."""
    first = np.concatenate([layer.weight for layer in net.first] + [net.first[0].bias[None]])
    return [first, *(np.concatenate([x.weight, x.bias[None]]) for x in net.rest)]


@pytest.mark.parametrize("name", ["sac", "td3", "dpmd", "sdac", "qsm", "qvpo", "dipo", "idem"])
@pytest.mark.parametrize("settings", [HISTOGRAM, LAYER_NORM], ids=["histogram", "layer"])
def test_every_off_policy_algorithm_takes_every_critic(name, settings, key):
    """One update moves the critic; weights that are to be of length 1 still are."""
    algo = small(name, critic=settings, policy_delay=1)
    state = initial(algo, key)
    with jax.numpy_dtype_promotion("standard"):
        new = update_of(algo)(state, random_batch(), key, jnp.int32(0))
    critic, before = new.state.nets.critic.params, state.nets.critic.params
    # Batch statistics move without a gradient, and unit weights leave this bias alone.
    assert not same(critic.nets.rest[-1].bias, before.nets.rest[-1].bias)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new.state))
    if settings.unit_weights:
        member = jax.tree.map(lambda x: x[0], critic.nets)
        *hidden, head = rows_of(member)
        for rows in (*hidden, head[:-1]):
            np.testing.assert_allclose(np.square(rows).sum(0), 1.0, rtol=1e-4)


@pytest.mark.parametrize(
    "bad",
    [
        {"atoms": 101},
        {"atoms": 1, "normalise_rewards": True},
        {"unit_weights": True},
        {"n_step": 0},
        {"norm": "group"},
    ],
)
def test_critics_that_cannot_work_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        CriticSettings(**bad)


def test_rewards_have_one_scale():
    critic = CriticSettings(normalise_rewards=True)
    with pytest.raises(UsageError, match="reward_scale"):
        small("sac", critic=critic, reward_scale=0.2)


@pytest.mark.parametrize("name", ["sac", "td3", "dpmd", "sdac"])
def test_the_policy_follows_the_copy_that_is_named(name, key):
    """Other newest weights change the policy's step under `online` alone, another copy under
    `target` alone; the Bellman target takes the newest under both.
    """
    for with_ in ("online", "target"):
        settings = CriticSettings(norm="batch", target=False, improve_with=with_)
        algo = small(name, critic=settings, policy_delay=1, T=2)
        state = initial(algo, key)
        other = initial(algo, jax.random.fold_in(key, 1)).nets.critic.params
        nets = state.nets
        assert (nets.target_critic is None) == (with_ == "online")
        newest = nets._replace(critic=nets.critic._replace(params=other))
        update, rest = update_of(algo), (random_batch(), key, jnp.int32(0))
        with jax.numpy_dtype_promotion("standard"):
            base, moved = (update(state._replace(nets=n), *rest).state for n in (nets, newest))
        assert same(base.nets.actor, moved.nets.actor) == (with_ == "target")
        assert not same(base.nets.critic.params, moved.nets.critic.params)
        if with_ == "target":
            copy = nets._replace(target_critic=other)
            with jax.numpy_dtype_promotion("standard"):
                moved = update(state._replace(nets=copy), *rest).state
            assert not same(base.nets.actor, moved.nets.actor)
            assert same(base.nets.critic, moved.nets.critic)


@pytest.mark.parametrize("reduce", ["min", "mean"])
def test_an_ensemble_is_reduced_as_asked(reduce, key):
    critic = Critic.create(key, Spec(OBS, ACT), CriticSettings(reduce=reduce), (8,), "relu")
    obs, action = inputs(5)
    expected = getattr(np, reduce)(critic(obs, action), axis=0)
    np.testing.assert_allclose(critic.value(obs, action), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["sac", "sdac", "qsm"])
def test_the_policy_follows_the_reduction_of_its_own(name, key):
    """Q_k = slope_k . a, in two dimensions: the mean's gradient is the mean slope, the minimum's
    that of the lower; the Bellman target and a ranking keep theirs."""
    slopes = np.float32([[1.0, -2.0], [3.0, 4.0]])
    action = np.float32([[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])  # Q: (1, 3), (-1, -3), (2, -4)
    expected = {"min": slopes[[0, 1, 1]], "mean": np.tile([2.0, 1.0], (3, 1))}
    obs = np.zeros((3, OBS), np.float32)
    for how in ("min", "mean", None):
        settings = CriticSettings(hidden=(2,), activation="relu", improve_reduce=how)
        algo = small(name, critic=settings)
        critic = linear_critic(slopes, key)
        seen = algo.policy_critic(initial(algo, key).nets, Learned(critic, None))
        gradient = jax.grad(lambda a, seen=seen: jnp.sum(seen.value(obs, a)))(action)
        np.testing.assert_allclose(gradient, expected[how or "min"], atol=1e-5)
        np.testing.assert_allclose(critic.value(obs, action), [1.0, -3.0, -4.0], atol=1e-5)


def linear_critic(slopes, key) -> Critic:
    """Values slope_k . a without a kink: both units of its layer stay on, their biases leave."""
    settings = CriticSettings(hidden=(2,), activation="relu")
    critic = Critic.create(key, Spec(OBS, ACT), settings, (2,), "relu")
    zero = jax.tree.map(jnp.zeros_like, critic)
    eye = jnp.broadcast_to(jnp.eye(2), (2, 2, 2))
    parts = lambda c: (  # noqa: E731
        *(c.nets.first[0].bias, c.nets.first[1].weight),
        *(c.nets.rest[0].weight, c.nets.rest[0].bias),
    )
    offset = -10.0 * jnp.sum(slopes, axis=1, keepdims=True)
    new = (jnp.full((2, 2), 10.0), eye, jnp.asarray(slopes)[..., None], offset)
    return eqx.tree_at(parts, zero, new)
