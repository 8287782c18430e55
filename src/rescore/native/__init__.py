"""Compiled kernels for networks and their gradients, for x86 processors from AVX2 on.

`python -m rescore.native` compiles them; `make setup` does it too. Without them, and with
RESCORE_NATIVE=0, the same is computed by JAX alone. RESCORE_NATIVE=avx2 asks for less than the
processor has.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from rescore.native import units
from rescore.native.cores import start_jax, threads

TARGETS = ("values", "reverse", "keep", "pull", "normal", "uniform")
WIDTHS = 32  # of hidden layers are multiples of this
ACTIVATIONS = ("mish", "relu")  # that the kernels know


def open_library(unit: str) -> ctypes.CDLL | str:
    """The kernels of a unit, or why they cannot be used."""
    path = units.library(unit)
    if not path.exists():
        return "not compiled: python -m rescore.native"
    try:
        kernels = ctypes.CDLL(str(path))
    except OSError as error:
        return f"could not be loaded: {error}"
    return kernels if kernels.rescore_units() else "the system does not grant the processor's tiles"


class Loaded(NamedTuple):
    state: str  # "ready", or why the kernels are not used
    unit: str = ""


@cache
def loaded() -> Loaded:
    """The kernels of the best unit that can be used. The first time, it loads them."""
    asked = os.environ.get("RESCORE_NATIVE")
    if asked == "0":
        return Loaded("switched off by RESCORE_NATIVE=0")
    if not units.processor_flags():
        return Loaded("only for Linux on x86")
    if not (usable := units.usable_units()):
        return Loaded(f"this processor has no {asked if asked in units.UNITS else 'avx2'}")
    found = {unit: open_library(unit) for unit in usable}
    unit = next((unit for unit in usable if not isinstance(found[unit], str)), None)
    if unit is None:
        return Loaded(str(found[usable[0]]))
    found[unit].rescore_threads(threads())
    if (backend := start_jax()) != "cpu":
        return Loaded(f"not for {backend}")
    for name in TARGETS:
        handler = jax.ffi.pycapsule(getattr(found[unit], f"rescore_{name}"))
        jax.ffi.register_ffi_target(f"rescore_{unit}_{name}", handler, platform="cpu")
    return Loaded("ready", unit)


def state() -> str:
    """ "ready", or why the kernels are not used.

    It should be asked before JAX has started: the kernels have a say in how many threads XLA gets.
    """
    return loaded().state


def about() -> str:
    """The state; if it is ready, the unit and the number of threads."""
    return f"{loaded().unit}, threads: {threads()}" if state() == "ready" else state()


_paused = False


def ready() -> bool:
    return not _paused and not jax.config.jax_enable_x64 and state() == "ready"


def suits(hidden: Sequence[int], activation: str) -> bool:
    """Whether the kernels know networks of these widths and this activation."""
    return activation in ACTIVATIONS and all(width % WIDTHS == 0 for width in hidden)


@contextmanager
def switched_off() -> Iterator[None]:
    """What is traced within is JAX alone; functions that were traced before keep their kernels."""
    global _paused
    before, _paused = _paused, True
    try:
        yield
    finally:
        _paused = before


def normal(key: Array, shape: tuple[int, ...]) -> Array:
    """jax.random.normal: by a kernel where it can, the same numbers up to rounding."""
    if not draws(key, shape):
        return jax.random.normal(key, shape)
    return draw("normal", key, shape)


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """jax.random.uniform: by a kernel where it can, the same numbers."""
    if not draws(key, shape):
        return jax.random.uniform(key, shape)
    return draw("uniform", key, shape)


def draws(key: Array, shape: tuple[int, ...]) -> bool:
    """Whether the kernels would draw what JAX draws."""
    alike = jax.config.jax_threefry_partitionable and jax.random.key_impl(key) == "threefry2x32"
    return alike and 0 < math.prod(shape) < 2**31 and ready()


def draw(name: str, key: Array, shape: tuple[int, ...]) -> Array:
    out = jax.ShapeDtypeStruct((math.prod(shape),), jnp.float32)
    return kernel(name, out)(jax.random.key_data(key)).reshape(shape)


def kernel(name: str, out: Any) -> Callable:
    """The kernel of this name, as a function of arrays and attributes."""
    return jax.ffi.ffi_call(f"rescore_{loaded().unit}_{name}", out, vmap_method="broadcast_all")


Layer = tuple[Array, Array]  # weight and bias
Layers = list[Layer]  # the head last


def values(
    obs: Array,
    actions: Array,
    first: Layer,
    act_weight: Array,
    rest: Layers,
    mish: bool,
    n: int | None = None,
) -> Array:
    """Outputs of the first n of N networks, or of all: [R, obs_dim], [M, d] -> [n, M]

    `first` has the observation's weight [N, obs_dim, width] and the bias [N, width] of the first
    layer, `act_weight` [N, d, width] belongs to actions. Row m takes the state of m modulo R.
    """
    count = act_weight.shape[0] if n is None else min(n, act_weight.shape[0])
    out = jax.ShapeDtypeStruct((count, actions.shape[0]), jnp.float32)
    return kernel("values", out)(obs, actions, *first, act_weight, *flat(rest), mish=mish)


def reverse(
    obs: Array,
    times: Array,
    start: Array,
    noise: Array,
    coefficients: Array,
    first: Layer,
    act_weight: Array,
    rest: Layers,
    mish: bool,
    inner: float,
    outer: float,
) -> Array:
    """A reverse process of a noise network from `start` [M, d], all its steps: [M, d]

    obs [R, obs_dim] enters the first layer as in `values`, times [steps, width] are added at the
    steps, and noise [steps, M, d] to their results. Each step is linear in a_t, a_0 and noise; a_0
    is clipped to [-inner, inner], the result to [-outer, outer]. coefficients [steps, 5]: a_0 from
    a_t and eps; the step's own three.
    """
    out = jax.ShapeDtypeStruct(start.shape, jnp.float32)
    operands = (obs, times, start, noise, coefficients, *first, act_weight, *flat(rest))
    limits = {"inner": np.float32(inner), "outer": np.float32(outer)}
    return kernel("reverse", out)(*operands, mish=mish, **limits)


def network(inputs: list[Array], layers: Layers, mish: bool) -> Array:
    """All layers, the head last; the first takes all inputs side by side: [M, ...] -> [M, out]"""
    return through(jnp.zeros((0, layers[0][1].shape[-1])), inputs, layers, mish)


def finish(first: Array, rest: Layers, mish: bool) -> Array:
    """Layers behind the first, from its sums before the activation: [M, width] -> [M, out]"""
    width = first.shape[-1]
    nothing = (jnp.zeros((0, width)), jnp.zeros(width))
    return through(first, [jnp.zeros((first.shape[0], 0))], [nothing, *rest], mish)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def through(base: Array, inputs: list[Array], layers: Layers, mish: bool) -> Array:
    """A network whose first layer has base [M or 0, width] + x @ weight + bias: [M, out]

    x [M, in] has the inputs side by side.

    It has no forward-mode and no second derivatives; RESCORE_NATIVE=0 has both. Map it over
    networks, not over rows: every mapped call packs its own weights.
    """
    return keep(base, jnp.concatenate(inputs, axis=-1), layers, mish)[0]


def keep(base: Array, x: Array, layers: Layers, mish: bool) -> tuple[Array, list[Array]]:
    """`through`, and the sums before the activation of every hidden layer."""
    sizes = [bias.shape[-1] for _, bias in layers]
    shapes = [(1, x.shape[0], size) for size in (sizes[-1], *sizes[:-1])]
    kinds = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    operands = (base, x, *flat(layers))
    out, *kept = kernel("keep", kinds)(*(o[None] for o in operands), mish=mish)
    return out[0], [sums[0] for sums in kept]


def forward(base: Any, inputs: Any, layers: Any, mish: bool) -> tuple[Array, tuple]:
    # What nobody differentiates is not computed on the way back: None stands for it, () for others.
    asked = (base.perturbed, [x.perturbed for x in inputs], any(w.perturbed for w in flat(layers)))
    values = jax.tree.map(lambda a: a.value, (base, inputs, layers), is_leaf=is_symbolic)
    base, inputs, layers = values
    out, kept = keep(base, jnp.concatenate(inputs, axis=-1), layers, mish)
    return out, (inputs, layers, kept, jax.tree.map(lambda one: () if one else None, asked))


def backward(mish: bool, saved: tuple, grad: Any) -> tuple[Any, Any, Any]:
    inputs, layers, kept, (of_base, of_inputs, of_weights) = saved
    if isinstance(grad, SymbolicZero):
        grad = jnp.zeros(grad.shape, grad.dtype)
    (weight, _), *rest = layers
    ends = np.cumsum([x.shape[-1] for x in inputs]).tolist()
    spans = list(zip([0, *ends], ends))  # the inputs' columns of x
    wanted = [span for span, asked in zip(spans, of_inputs) if asked is not None]
    begin, end = (wanted[0][0], wanted[-1][1]) if wanted else (0, 0)
    shapes = [kept[0].shape] if of_base is not None else []
    shapes += [(grad.shape[0], end - begin)] if end > begin else []
    shapes += [x.shape for x in flat(layers)] if of_weights is not None else []
    flags = {"base": of_base is not None, "weights": of_weights is not None}
    columns = {"begin": np.int32(begin), "end": np.int32(end)}
    call = kernel("pull", [jax.ShapeDtypeStruct((1, *shape), jnp.float32) for shape in shapes])
    operands = (grad, jnp.concatenate(inputs, axis=-1), weight, *kept, *flat(rest))
    found = iter(
        [out[0] for out in call(*(o[None] for o in operands), mish=mish, **flags, **columns)]
    )
    by_base = next(found) if of_base is not None else None
    by_x = next(found) if end > begin else None
    by_inputs = [
        None
        if asked is None
        else jnp.zeros_like(x)
        if by_x is None
        else by_x[:, a - begin : b - begin]
        for x, (a, b), asked in zip(inputs, spans, of_inputs)
    ]
    return by_base, by_inputs, [(next(found, None), next(found, None)) for _ in layers]


through.defvjp(forward, backward, symbolic_zeros=True)


def is_symbolic(x: Any) -> bool:
    return hasattr(x, "perturbed")


def flat(layers: Layers) -> list[Array]:
    return [array for layer in layers for array in layer]
