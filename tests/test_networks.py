"""Layers and networks against NumPy, and as plain pytrees."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore.models.networks import ACTIVATIONS, MLP, Linear, NoiseNet, mish, sinusoid

pytestmark = pytest.mark.usefixtures("strict")

OBS, ACT, T = 5, 3, 7


@pytest.fixture(scope="module")
def nets(key) -> NoiseNet:
    """Networks of two seeds, stacked."""
    create = jax.vmap(lambda key: NoiseNet(key, OBS, ACT, T, (16, 8)))
    return jax.jit(create)(jax.random.split(key))


@pytest.fixture(scope="module")
def net(nets) -> NoiseNet:
    """The first of them, moved from its start so that its biases matter."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[0] + np.float32(0.05)), nets)


apply = jax.jit(lambda net, obs, a_t, t: net.at(obs)(a_t, t))


def mish_in_numpy(x):
    return x * np.tanh(np.logaddexp(0.0, x))


def mlp_in_numpy(mlp: MLP, x: np.ndarray) -> np.ndarray:
    """With one first layer over the concatenated inputs."""
    mlp = jax.tree.map(np.asarray, mlp)
    x = x @ np.concatenate([layer.weight for layer in mlp.first]) + mlp.first[0].bias
    for layer in mlp.rest:
        x = mish_in_numpy(x) @ layer.weight + layer.bias
    return x


mish_and_slope = jax.jit(lambda x: (mish(x), jax.vmap(jax.grad(mish))(x)))


def test_mish_is_x_tanh_softplus():
    x = np.linspace(-50, 50, 20001, dtype=np.float32)
    wide = np.float64(x)
    value, slope = mish_and_slope(x)
    np.testing.assert_allclose(value, mish_in_numpy(wide), rtol=2e-6, atol=1e-30)
    h = 1e-5
    centred = (mish_in_numpy(wide + h) - mish_in_numpy(wide - h)) / (2 * h)
    np.testing.assert_allclose(slope, centred, rtol=1e-5, atol=2e-7)


def test_mish_by_hand():
    """At 0 the slope is tanh(log 2) = 3/5."""
    value, slope = mish_and_slope(np.float32([0.0, 1.0]))
    np.testing.assert_allclose(value, [0.0, 0.8650984], rtol=1e-6)
    np.testing.assert_allclose(slope, [0.6, 1.0490363], rtol=1e-6)


def test_mish_far_out():
    x = np.float32([-1e4, -100.0, 20.0, 100.0, 1e4])
    value, slope = mish_and_slope(x)
    np.testing.assert_allclose(value, [0, 0, 20, 100, 1e4], rtol=1e-7, atol=1e-37)
    np.testing.assert_allclose(slope, [0, 0, 1, 1, 1], rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_shape_and_type(name):
    y = jax.eval_shape(ACTIVATIONS[name], jax.ShapeDtypeStruct((2, 3), jnp.float32))
    assert y.shape == (2, 3) and y.dtype == jnp.float32


def test_linear_by_hand(key):
    layer = jax.jit(Linear, static_argnums=(1, 2))(key, 2, 2)
    weight, bias = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([10.0, 20.0])
    layer = eqx.tree_at(lambda m: (m.weight, m.bias), layer, (weight, bias))
    np.testing.assert_array_equal(layer(jnp.array([[[1.0, -1.0]]])), [[[8.0, 18.0]]])


def test_initial_parameters(key):
    """Truncated at two standard deviations a normal keeps 0.8796 of its std; biases are zero."""

    @jax.jit
    def create(key):
        return MLP(key, [300, 100], [256, 64], 128, "relu")

    mlp = create(key)
    kept = math.sqrt(1 - 2 * 2 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    assert kept == pytest.approx(0.8796, abs=1e-4)
    # The parts of the first layer share the fan-in of the whole.
    for layer, fan_in in zip((*mlp.first, *mlp.rest), (400, 400, 256, 64)):
        assert np.std(layer.weight) == pytest.approx(kept / math.sqrt(fan_in), rel=0.03)
        assert abs(np.mean(layer.weight)) < 5 * kept / math.sqrt(fan_in * layer.weight.size)
        assert np.max(np.abs(layer.weight)) <= 2 / math.sqrt(fan_in)
        assert layer.bias is None or not np.any(layer.bias)
    assert [layer.bias is None for layer in mlp.first] == [False, True]
    assert [layer.weight.shape for layer in mlp.rest] == [(256, 64), (64, 128)]


def test_split_first_layer_is_one_linear_of_the_concatenation(net):
    rng = np.random.default_rng(3)
    inputs = [np.float32(rng.normal(size=(4, size))) for size in (OBS, ACT, 16)]
    y = jax.jit(lambda mlp, *x: mlp(*x))(net.trunk, *inputs)
    assert y.shape == (4, ACT)
    expected = mlp_in_numpy(net.trunk, np.concatenate(inputs, axis=1))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_sinusoid_by_hand():
    """Size 4: frequencies 1 and 1/100, sines then cosines, over sqrt(4)."""
    t = np.array([[0, 1], [2, 30]])
    got = jax.jit(sinusoid, static_argnums=1)(t, 4)
    assert got.shape == (2, 2, 4)
    for i, j in np.ndindex(2, 2):
        angles = (t[i, j], t[i, j] / 100)
        expected = [*(math.sin(a) / 2 for a in angles), *(math.cos(a) / 2 for a in angles)]
        np.testing.assert_allclose(got[i, j], expected, atol=1e-6)
    np.testing.assert_allclose(np.sum(np.square(got), axis=-1), 0.5, rtol=1e-5)


def test_noise_net_against_numpy(net):
    """concat(s, a_t, embedding of t - 1) through the trunk, row by row."""
    rng = np.random.default_rng(0)
    obs, a_t = np.float32(rng.normal(size=(6, OBS))), np.float32(rng.normal(size=(6, ACT)))
    t = np.array([1, 2, 3, 5, 6, 7])
    got = apply(net, obs, a_t, t)
    for row in range(6):
        angle = (t[row] - 1) * 10_000.0 ** (-np.arange(8) / 8)
        time = mlp_in_numpy(net.time, np.concatenate([np.sin(angle), np.cos(angle)]) / 4)
        expected = mlp_in_numpy(net.trunk, np.concatenate([obs[row], a_t[row], time]))
        np.testing.assert_allclose(got[row], expected, rtol=1e-4, atol=1e-5)


def test_observations_are_bound_once_for_all_candidates(net):
    """at(obs[None]) on candidates [K, B, d] equals the network on every row by itself."""
    rng = np.random.default_rng(1)
    obs, a_t = np.float32(rng.normal(size=(4, OBS))), np.float32(rng.normal(size=(3, 4, ACT)))
    t = rng.integers(1, T + 1, (3, 4))

    @jax.jit
    def run(net, obs, a_t, t):
        one_row = lambda obs, a_t, t: net.at(obs)(a_t, t)  # noqa: E731
        by_row = jax.vmap(jax.vmap(one_row), in_axes=(None, 0, 0))(obs, a_t, t)
        return net.at(obs[None])(a_t, t), by_row, net.at(obs)(a_t[0], t[0])

    together, by_row, one = jax.tree.map(np.asarray, run(net, obs, a_t, t))
    assert together.shape == (3, 4, ACT)
    np.testing.assert_allclose(together, by_row, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one, by_row[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(by_row[0], by_row[1], atol=1e-3)


def test_time_matters(net):
    obs, a_t = np.zeros((T, OBS), np.float32), np.zeros((T, ACT), np.float32)
    y = np.asarray(apply(net, obs, a_t, np.arange(1, T + 1)))
    distance = np.abs(y[:, None] - y[None]).max(-1) + np.eye(T)
    assert distance.min() > 1e-4


def test_leaves_are_arrays(net):
    """So `grad`, `vmap` and optimisers take the module whole."""
    leaves = jax.tree.leaves(net)
    assert leaves and all(isinstance(x, jax.Array) and x.dtype == jnp.float32 for x in leaves)
    # time: 2 layers with bias; trunk: 3 inputs sharing one bias, then 2 layers.
    assert len(leaves) == 4 + 4 + 4
    assert sum(x.size for x in leaves) == (16 * 33 - 16 + 32) + 32 * 16 + 16 + (
        (OBS + ACT + 16) * 16 + 16 + 16 * 8 + 8 + 8 * ACT + ACT
    )


def test_modules_vmap_over_seeds(nets):
    """A stack of networks behaves as its members; every seed starts elsewhere."""
    rng = np.random.default_rng(2)
    obs, a_t = np.float32(rng.normal(size=(2, 6, OBS))), np.float32(rng.normal(size=(2, 6, ACT)))
    t = rng.integers(1, T + 1, (2, 6))
    stacked = jax.jit(jax.vmap(apply))(nets, obs, a_t, t)
    for i in range(2):
        member = jax.tree.map(lambda x, i=i: np.asarray(x)[i], nets)
        np.testing.assert_allclose(stacked[i], apply(member, obs[i], a_t[i], t[i]), atol=1e-5)
    weight = np.asarray(nets.trunk.first[0].weight)
    assert weight.shape == (2, OBS, 16) and not np.any(weight[0] == weight[1])
