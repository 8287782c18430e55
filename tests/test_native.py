"""The compiled kernels give what JAX gives; training with them is as reproducible as without."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rescore import native
from rescore.agent import Agent
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from rescore.core import UsageError
from rescore.models.critics import Critic
from rescore.models.fused import each
from rescore.models.networks import MLP, NoiseNet
from rescore.native import units

# The code for matrix units, where a processor has none: its tiles in plain C++.
SHIM = Path(__file__).with_name("emulated_tiles.h")
AMX = units.UNITS["amx"]
EMULATED = units.Unit(
    frozenset(flag for flag in AMX.needed if not flag.startswith("amx")),
    (*AMX.flags, f"-include{SHIM}", f"-DSHIM={hashlib.sha256(SHIM.read_bytes()).hexdigest()}"),
)


UNITS = [*units.UNITS, "emulated"]
OWN = next(
    (unit for unit in units.UNITS if units.UNITS[unit].needed <= units.processor_flags()), ""
)


def switched_on(unit: str) -> Iterator[str]:
    """The kernels of a unit; what was traced with another's is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(units.UNITS, "emulated", EMULATED)
        patch.setenv("RESCORE_NATIVE", unit)
        if not units.usable_units():
            pytest.skip(f"this processor has no {unit}")
        try:
            units.build(unit)
        except UsageError as error:
            pytest.skip(str(error))
        native.loaded.cache_clear()
        jax.clear_caches()
        if native.state() != "ready":
            pytest.skip(native.state())
        yield unit
    native.loaded.cache_clear()
    jax.clear_caches()


def slow_unless_own(unit: str) -> Any:
    return unit if unit == OWN else pytest.param(unit, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=map(slow_unless_own, UNITS))
def kernels(request):
    yield from switched_on(request.param)


@pytest.fixture(scope="module", params=UNITS)
def any_unit(request):
    yield from switched_on(request.param)


@pytest.mark.parametrize("activation", ["mish", "relu"])
def test_every_unit(any_unit, activation):
    """Values, gradients, samples and noise in short, for units that this processor hardly needs."""
    q, obs, actions = critic((64, 96), activation), normal(1, 37, 5), normal(2, 37, 3)
    actor = NoiseNet(jax.random.key(0), 5, 3, 4, (32, 64), activation)
    algo = DiffusionActorCritic(hidden=(32, 64), T=4)

    @jax.jit
    def everything(q, actor, obs, actions, key):
        loss = lambda q, a: jnp.sum(jnp.sin(q(obs, a)))  # noqa: E731
        return jax.grad(loss, (0, 1))(q, actions), q(obs, actions), algo.sample(actor, obs, key, 2)

    got = everything(q, actor, obs, actions, jax.random.key(3))
    with native.switched_off():
        jax.clear_caches()
        expected = everything(q, actor, obs, actions, jax.random.key(3))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, atol=2e-4 * (1.0 + np.abs(b).max()))
        assert not np.array_equal(a, b) or a.size < 100, "the kernels did not take part"


def critic(hidden=(64, 32), activation="mish", n=2, obs_dim=5, act_dim=3) -> Critic:
    return Critic(jax.random.key(0), obs_dim, act_dim, hidden, activation, n)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("hidden", [(32,), (64, 96), (256, 256), (32, 64, 32)])
@pytest.mark.parametrize("activation", ["mish", "relu"])
def test_values_are_those_of_jax(kernels, hidden, activation):
    q = critic(hidden, activation)
    assert q.nets.kernels
    obs, actions = 3.0 * normal(1, 37, 5), normal(2, 7, 37, 3)
    with native.switched_off():
        expected = each(q.nets, obs[None], actions)
    np.testing.assert_allclose(q(obs[None], actions), expected, rtol=2e-5, atol=2e-5)
    one = q(obs, actions[0])  # a row of states for a row of actions
    np.testing.assert_allclose(one, expected[:, 0], rtol=2e-5, atol=2e-5)


def test_the_first_of_an_ensemble(kernels):
    q, obs, actions = critic((64, 32), n=3), normal(1, 37, 5), normal(2, 4, 37, 3)
    some, every = q(obs[None], actions, 2), q(obs[None], actions)
    np.testing.assert_array_equal(some, every[:2])
    both = jax.tree.map(lambda x: jnp.stack([x, -x]), q)  # mapped over seeds
    mapped = jax.vmap(lambda q: q(obs[None], actions, 1))(both)
    np.testing.assert_array_equal(mapped[0], every[:1])
    loss = lambda q: jnp.sum(q(obs[None], actions, 1))  # noqa: E731
    grad = jax.grad(loss)(q).nets.rest[0].weight
    assert np.any(grad[0]) and not np.any(grad[1:])


def one_unit(activation: str) -> MLP:
    """A network whose output is the activation of its input."""
    net = MLP(jax.random.key(0), [1], (32,), 1, activation)
    weight = jnp.zeros((1, 32)).at[0, 0].set(1.0)
    net = eqx.tree_at(lambda net: net.first[0].weight, net, weight)
    return eqx.tree_at(lambda net: net.rest[0].weight, net, weight.T)


def test_mish_is_right_far_out(kernels):
    """Value and slope from -80 to 80, against float64."""
    net, x = one_unit("mish"), np.linspace(-80.0, 80.0, 4001)
    t = np.where(x > 0, np.tanh(np.logaddexp(0.0, x)), 1.0)
    n = np.exp(np.minimum(x, 0.0)) * (np.exp(np.minimum(x, 0.0)) + 2.0)
    t = np.where(x > 0, t, n / (n + 2.0))
    rows = jnp.asarray(x[:, None], jnp.float32)
    np.testing.assert_allclose(net(rows)[:, 0], x * t, rtol=2e-5, atol=1e-30)
    slope = jax.grad(lambda x: jnp.sum(net(x)))(rows)[:, 0]
    sigmoid = 1.0 / (1.0 + np.exp(-x))
    np.testing.assert_allclose(slope, t + x * (1.0 - t**2) * sigmoid, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["mish", "relu"])
@pytest.mark.parametrize("where", ["weight", "input"])
def test_nan_is_not_hidden(kernels, activation, where):
    q, obs, action = critic((32, 32), activation), normal(1, 4, 5), normal(2, 4, 3)
    if where == "input":
        action = action.at[2].set(jnp.nan)
    else:
        q = eqx.tree_at(lambda q: q.nets.rest[0].weight, q, jnp.full((2, 32, 32), jnp.nan))
    rows = [2] if where == "input" else [0, 1, 2, 3]
    assert np.all(np.isnan(np.asarray(q(obs, action))[:, rows]))
    assert np.all(np.isnan(np.asarray(each(q.nets, obs, action))[:, rows]))


def test_error_stays_within_its_bound(kernels):
    """Large weights that cancel, against float64: 3 x 2^-16 of the sum of sizes at most."""
    net, first = MLP(jax.random.key(0), [256], (256, 256), 17, "relu"), normal(3, 64, 256)
    weight = 30.0 * normal(2, 256, 256).at[:, ::2].multiply(-1.0)
    net = eqx.tree_at(lambda net: net.rest[0].weight, net, weight)
    nothing = (jnp.zeros((0, 256)), jnp.zeros(256))
    layers = [nothing, *net.kernels["rest"]]
    _, (_, sums) = native.keep(first, jnp.zeros((64, 0)), layers, mish=False)
    h, w = np.maximum(np.asarray(first, np.float64), 0.0), np.asarray(weight, np.float64)
    assert np.all(np.abs(sums - h @ w) <= 3.0 * 2.0**-16 * (h @ np.abs(w)))


def test_other_types_and_no_rows_are_left_alone(kernels):
    q = critic((32, 32))
    whole = q(jnp.ones((4, 5)), jnp.ones((4, 3)))
    with jax.numpy_dtype_promotion("standard"):
        for dtype in (jnp.int32, jnp.bfloat16):
            got = q(jnp.ones((4, 5), dtype), jnp.ones((4, 3)))
            np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-5)
    net = MLP(jax.random.key(0), [0], (32,), 1, "relu")
    assert net(jnp.zeros((3, 0))).shape == (3, 1)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), q)
    assert half.nets.kernels is None
    assert q(jnp.zeros((0, 5)), jnp.zeros((0, 3))).shape == (2, 0)
    grad = jax.grad(lambda q: jnp.sum(q(jnp.zeros((0, 5)), jnp.zeros((0, 3)))))(q)
    assert all(np.all(x == 0) for x in jax.tree.leaves(grad))


def test_two_axes_of_networks(kernels):
    """Mapped twice, as seeds of ensembles are; 17 outputs, a wide and a narrow layer."""
    net = MLP(jax.random.key(0), [5], (128, 32), 17, "mish")
    stack = jax.tree.map(lambda x: jnp.stack([jnp.stack([x, 2 * x])] * 3), net)
    x = normal(1, 40, 5)
    got = jax.vmap(jax.vmap(lambda net: net(x)))(stack)
    with native.switched_off():
        np.testing.assert_allclose(got[0, 0], net(x), atol=5e-5)
        twice = jax.tree.map(lambda x: 2 * x, net)
        np.testing.assert_allclose(got[2, 1], twice(x), rtol=1e-4, atol=1e-3)


def test_derivatives_are_those_of_jax(kernels):
    q, obs, actions = critic(), normal(1, 6, 5), normal(2, 4, 6, 3)

    def of_kernel(nets, actions):
        own = eqx.tree_at(lambda q: q.nets, q, nets)
        return jnp.sum(jnp.sin(own(obs[None], actions)))

    def of_jax(nets, actions):
        return jnp.sum(jnp.sin(each(nets, obs[None], actions)))

    for argument in (0, 1):
        got = jax.grad(of_kernel, argument)(q.nets, actions)
        with native.switched_off():
            expected = jax.grad(of_jax, argument)(q.nets, actions)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, expected)


@pytest.mark.parametrize("hidden", [(32,), (64, 96), (256, 256), (32, 64, 32)])
@pytest.mark.parametrize("activation", ["mish", "relu"])
@pytest.mark.parametrize("rows", [5, 32, 77])
def test_gradients_of_layers_are_those_of_jax(kernels, hidden, activation, rows):
    """By all parameters and by the inputs; and by the inputs alone, which takes another way."""
    net, x = MLP(jax.random.key(0), [7], hidden, 3, activation), 2.0 * normal(1, rows, 7)

    def loss(net, x):
        return jnp.sum(jnp.sin(net(x)) * jnp.arange(3.0)[None])

    both, inputs = jax.grad(loss, (0, 1))(net, x), jax.grad(loss, 1)(net, x)
    with native.switched_off():
        expected = jax.grad(loss, (0, 1))(net, x)
    for got, right in zip(jax.tree.leaves(both), jax.tree.leaves(expected)):
        np.testing.assert_allclose(got, right, atol=5e-5 * (1.0 + np.abs(right).max()))
    np.testing.assert_array_equal(inputs, both[1])


def test_many_inputs_of_several_kinds(kernels):
    """Observation, action and time of Humanoid's sizes: one product, as JAX has three."""
    actor = NoiseNet(jax.random.key(0), 376, 17, 5, (64, 64))
    obs, a_t, t = normal(1, 40, 376), normal(2, 40, 17), jnp.arange(40) % 5 + 1
    of = lambda actor, a_t: jnp.sum(jnp.sin(actor(obs, a_t, t)))  # noqa: E731
    got = jax.value_and_grad(of, (0, 1))(actor, a_t)
    with native.switched_off():
        expected = jax.value_and_grad(of, (0, 1))(actor, a_t)
        np.testing.assert_allclose(actor(obs, a_t, t), actor.at(obs)(a_t, t), atol=1e-5)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, atol=1e-4 * (1.0 + np.abs(b).max()))


def test_gradients_of_some_inputs(kernels):
    """Of any choice of three inputs, by itself and with the parameters."""
    net = MLP(jax.random.key(0), [5, 3, 6], (64, 32), 2, "mish")
    inputs = (normal(1, 37, 5), normal(2, 37, 3), normal(3, 37, 6))
    loss = lambda net, *inputs: jnp.sum(jnp.sin(net(*inputs)))  # noqa: E731
    for asked in [(1,), (2,), (3,), (1, 3), (0, 2), (1, 2, 3), (0, 1, 2, 3)]:
        got = jax.grad(loss, asked)(net, *inputs)
        with native.switched_off():
            expected = jax.grad(loss, asked)(net, *inputs)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=5e-5 * (1.0 + np.abs(b).max()))


@pytest.mark.parametrize("asked", [0, 1, (0, 1)])
def test_gradients_from_given_sums(kernels, asked):
    """`finish` alone: by the sums of the first layer, by the layers behind it, by both."""
    net, first = MLP(jax.random.key(0), [5], (64, 32), 2, "mish"), normal(1, 37, 64)
    loss = lambda net, first: jnp.sum(jnp.sin(net.finish(first)))  # noqa: E731
    got = jax.grad(loss, asked)(net, first)
    with native.switched_off():
        expected = jax.grad(loss, asked)(net, first)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5 * (1.0 + np.abs(b).max()))


def test_samples_of_seeds_side_by_side(kernels):
    algo, keys = DiffusionActorCritic(hidden=(64, 64), T=3), jax.random.split(jax.random.key(1))
    actors = jax.vmap(lambda k: NoiseNet(k, 5, 3, algo.T, algo.hidden))(keys)
    obs = normal(1, 2, 9, 5)
    got = jax.vmap(lambda a, o, k: algo.sample(a, o, k, 2))(actors, obs, keys)
    for i in range(2):
        own = jax.tree.map(lambda x, i=i: x[i], actors)
        np.testing.assert_array_equal(got[i], algo.sample(own, obs[i], keys[i], 2))


def test_gradients_of_a_stack_are_those_of_its_members(kernels):
    """Mapped over networks, as critics are."""
    q, obs, actions = critic((64, 64), n=3), normal(1, 40, 5), normal(2, 40, 3)
    loss = lambda nets: jnp.sum(jnp.square(each(nets, obs, actions)))  # noqa: E731
    whole = jax.grad(loss)(q.nets)
    for i in range(3):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], q.nets)
        for got, right in zip(jax.tree.leaves(whole), jax.tree.leaves(jax.grad(loss)(one))):
            np.testing.assert_allclose(got[i], right[0], rtol=1e-4, atol=1e-5)


def test_seeds_side_by_side_equal_one_by_one(kernels):
    q, obs, actions = critic(), normal(1, 2, 9, 5), normal(2, 2, 4, 9, 3)
    both = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), q)
    got = jax.jit(jax.vmap(lambda q, o, a: q(o[None], a)))(both, obs, actions)
    for i in range(2):
        own = jax.tree.map(lambda x, i=i: x[i], both)
        np.testing.assert_array_equal(got[i], own(obs[i][None], actions[i]))


@pytest.mark.parametrize("shape", [(1,), (16,), (7, 5), (1000, 33)])
def test_noise_is_that_of_jax(kernels, shape):
    for seed in range(3):
        key = jax.random.key(seed)
        got, expected = native.normal(key, shape), jax.random.normal(key, shape)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        exact = jax.random.uniform(key, shape)
        np.testing.assert_array_equal(native.uniform(key, shape), exact)
    both = jax.vmap(lambda k: native.normal(k, shape))(jax.random.split(key))
    np.testing.assert_array_equal(both[1], native.normal(jax.random.split(key)[1], shape))


@pytest.mark.parametrize("rows", [1, 31, 32, 100])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_samples_are_those_of_jax(kernels, rows, eta):
    algo = DiffusionActorCritic(hidden=(64, 64), T=5)
    actor = NoiseNet(jax.random.key(0), 5, 3, algo.T, algo.hidden)
    obs, key = normal(1, rows, 5), jax.random.key(3)
    with native.switched_off():
        expected = algo.sample(actor, obs, key, 2, eta)
    got = algo.sample(actor, obs, key, 2, eta)
    np.testing.assert_allclose(got, expected, atol=2e-4)  # noise 5 steps ahead of the difference
    assert np.all(np.abs(got) <= 1.0)


def test_other_networks_are_left_to_jax(kernels):
    assert critic((20,)).nets.kernels is None and critic((32,), "gelu").nets.kernels is None
    q = critic((32,))
    odd = q(normal(1, 4, 1, 5), normal(2, 4, 6, 3))  # states that do not repeat with the rows
    assert odd.shape == (2, 4, 6)


@pytest.mark.parametrize("name", ["dpmd", "sdac", "dacer", "sac"])
def test_training_with_kernels_repeats(kernels, name):
    """Two seeds in one program, twice the same bits; and close to JAX after a few updates."""

    def learn() -> np.ndarray:
        training = {"warmup": 16, "batch_size": 8, "chunk": 4}
        with Agent(name, "Pendulum-v1", seeds=(0, 1), hidden=(32, 32), training=training) as agent:
            agent.learn(24)
            return np.concatenate([np.ravel(x) for x in jax.tree.leaves(agent.run.state)])

    first, second = learn(), learn()
    np.testing.assert_array_equal(first, second)
    with native.switched_off():
        without = learn()
    np.testing.assert_allclose(first, without, atol=5e-3)
    assert not np.array_equal(first, without), "the kernels did not take part"


SAME_BITS = """
import hashlib, os, threading, time
import jax, jax.numpy as jnp
from rescore import native
from rescore.core import Spec
from rescore.algorithms.sdac import SDAC
assert native.state() == "ready" and os.environ["PJRT_NPROC"] == "2"
algo = SDAC(hidden=(64, 64))
nets = algo.init_nets(jax.random.key(0), Spec(5, 3))
obs = jax.random.normal(jax.random.key(1), (130, 5))
@jax.jit
def work(i):
    q, key = nets.critic.params, jax.random.key(i)
    actions = algo.sample(nets.actor.params, obs, key, 4)
    loss = lambda q: jnp.mean(q(obs, actions[0]) ** 2)
    return actions, q.min(obs[None], actions), jax.grad(loss)(q)
found = {}
def several(name):
    digest = hashlib.sha256()
    for i in range(100):
        for leaf in jax.tree.leaves(work(i)):
            digest.update(leaf.tobytes())
        time.sleep(0.005 * (i % 20 == 0))  # longer than helpers look out
    found[name] = digest.hexdigest()
several("alone")
side_by_side = [threading.Thread(target=several, args=(name,)) for name in "ab"]
for thread in side_by_side: thread.start()
for thread in side_by_side: thread.join()
assert found["alone"] == found["a"] == found["b"]
print(found["alone"])
"""


def test_threads_do_not_change_bits(kernels):
    """More threads than cores too, and two callers: some come late, or when all is done."""
    if kernels == "emulated":
        pytest.skip("its tiles are known to this process only")
    found = set()
    for threads in ("1", "2", "5"):
        environ = {**os.environ, "RESCORE_THREADS": threads, "PJRT_NPROC": "2"}
        command = [sys.executable, "-c", SAME_BITS]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_number_of_threads(monkeypatch):
    monkeypatch.delenv("RESCORE_THREADS", raising=False)
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    monkeypatch.setattr("rescore.native.cores.usable_cores", lambda: 16)
    assert native.threads() == 4
    monkeypatch.setenv("PJRT_NPROC", "2")
    assert native.threads() == 2
    monkeypatch.setenv("RESCORE_THREADS", "3")
    assert native.threads() == 3


@pytest.mark.parametrize("asked", ["0", "two", "-1", "1.5"])
def test_bad_number_of_threads(monkeypatch, asked):
    monkeypatch.setenv("RESCORE_THREADS", asked)
    with pytest.raises(UsageError, match="RESCORE_THREADS must be a number from 1 on"):
        native.threads()


def test_reasons_are_told(monkeypatch, tmp_path):
    monkeypatch.setenv("RESCORE_NATIVE", "0")
    native.loaded.cache_clear()
    assert native.state() == "switched off by RESCORE_NATIVE=0"
    everything = set().union(*(unit.needed for unit in units.UNITS.values()))
    for asked, flags, expected in [
        ("", set(), "only for Linux on x86"),
        ("", {"sse2"}, "this processor has no avx2"),
        ("amx", {"fma", "avx2"}, "this processor has no amx"),
        ("", everything, "not compiled: python -m rescore.native"),
    ]:
        monkeypatch.setenv("RESCORE_NATIVE", asked)
        monkeypatch.setattr(units, "processor_flags", lambda flags=flags: flags)
        monkeypatch.setattr(units, "library", lambda unit: tmp_path / "none")
        native.loaded.cache_clear()
        assert native.state() == expected
    native.loaded.cache_clear()


def test_no_compiler_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(units, "library", lambda unit: tmp_path / "kernels.so")
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"were not compiled: .*nothing"):
        units.build("avx2")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(UsageError, match="were not compiled"):
        units.build("avx2")


def test_unknown_unit_is_refused(monkeypatch):
    monkeypatch.setenv("RESCORE_NATIVE", "AVX2")
    with pytest.raises(UsageError, match="must be 0 or one of amx, avx512, avx2"):
        units.usable_units()


def test_next_best_unit_steps_in(any_unit, monkeypatch):
    """Where the best was not compiled, or the system does not grant it."""
    if any_unit == "emulated":
        pytest.skip("no unit of a processor")
    monkeypatch.setenv("RESCORE_NATIVE", "")
    monkeypatch.setattr(units, "processor_flags", lambda: units.UNITS[any_unit].needed | {"amx"})
    best = units.Unit(frozenset({"amx"}), ("-mamx",))
    monkeypatch.setattr(units, "UNITS", {"best": best, any_unit: units.UNITS[any_unit]})
    native.loaded.cache_clear()
    assert native.loaded() == ("ready", any_unit)
    native.loaded.cache_clear()


@pytest.mark.parametrize("x", [-3e38, -1e37, -130.0, -95.0, 1e12, 1e30, 3e38])
def test_extreme_sums(any_unit, x):
    """Value and slope of mish where its parts leave float32."""
    net = one_unit("mish")
    value, slope = jax.value_and_grad(lambda x: net(x[None, None])[0, 0])(jnp.float32(x))
    np.testing.assert_allclose(value, max(x, 0.0), atol=1e-35)
    np.testing.assert_allclose(slope, float(x > 0), atol=1e-35)


def test_networks_that_suit():
    assert native.suits((64, 32), "relu") and native.suits((256, 256), "mish")
    assert not native.suits((100,), "mish") and not native.suits((64, 64), "tanh")
