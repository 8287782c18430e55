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
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from rescore.core import UsageError
from rescore.native import units

TARGETS = ("values", "reverse", "keep", "pull", "normal", "uniform")
WIDTHS = 32  # of hidden layers are multiples of this
ACTIVATIONS = ("mish", "relu")  # that the kernels know


def usable_cores() -> int:
    """Cores that this process may keep busy: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def threads() -> int:
    """How many share a kernel's work: RESCORE_THREADS; else as many as XLA was given by PJRT_NPROC;
    else one for each core, at most four."""
    asked = os.environ.get("RESCORE_THREADS") or os.environ.get("PJRT_NPROC", "")
    if not asked:
        return min(usable_cores(), 4)
    if not asked.isdecimal() or int(asked) < 1:
        raise UsageError(f"RESCORE_THREADS must be a number from 1 on, not {asked!r}")
    return min(int(asked), 64)


def start_jax() -> str:
    """JAX's backend. If it starts here, on a processor alone, then with a single thread of XLA's.

    XLA's threads sleep between operations, and waking one takes longer than most of them. Who sets
    PJRT_NPROC, and not RESCORE_THREADS, has decided otherwise.
    """
    before = os.environ.get("PJRT_NPROC")
    accelerated = jax.config.jax_platforms != "cpu" and entry_points(group="jax_plugins")
    if accelerated or (before and not os.environ.get("RESCORE_THREADS")):
        return jax.default_backend()
    os.environ["PJRT_NPROC"] = "1"
    try:
        return jax.default_backend()
    finally:
        del os.environ["PJRT_NPROC"]
        if before is not None:
            os.environ["PJRT_NPROC"] = before


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


Layers = list[tuple[Array, Array]]  # weight and bias of each layer behind the first, the head last


def values(share: Array, actions: Array, act_weight: Array, rest: Layers, mish: bool) -> Array:
    """Outputs of an ensemble of n networks: [n, R, width], [M, d], [n, d, width] -> [n, M]

    `share` is what the first layer has besides the actions; row m takes that of m modulo R.
    """
    out = jax.ShapeDtypeStruct((share.shape[0], actions.shape[0]), jnp.float32)
    return kernel("values", out)(share, actions, act_weight, *flat(rest), mish=mish)


def reverse(
    share: Array,
    times: Array,
    start: Array,
    noise: Array,
    coefficients: Array,
    act_weight: Array,
    rest: Layers,
    mish: bool,
    inner: float,
    outer: float,
) -> Array:
    """A reverse process of a noise network from `start` [M, d], all its steps: [M, d]

    share [R, width] belongs to states, times [steps, width] to the steps, and noise [steps, M, d]
    is added. Each step is linear in a_t, a_0 and noise; a_0 is clipped to [-inner, inner], the
    result to [-outer, outer]. coefficients [steps, 5]: a_0 from a_t and eps; the step's own three.
    """
    out = jax.ShapeDtypeStruct(start.shape, jnp.float32)
    operands = (share, times, start, noise, coefficients, act_weight, *flat(rest))
    limits = {"inner": np.float32(inner), "outer": np.float32(outer)}
    return kernel("reverse", out)(*operands, mish=mish, **limits)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def finish(first: Array, rest: Layers, mish: bool) -> Array:
    """Layers behind the first, from its sums before the activation: [M, width] -> [M, out]

    It has no forward-mode and no second derivatives; RESCORE_NATIVE=0 has both. Map it over
    networks, not over rows: every mapped call packs its own weights.
    """
    return keep(first, rest, mish)[0]


def keep(first: Array, rest: Layers, mish: bool) -> tuple[Array, list[Array]]:
    """`finish`, and the sums before the activation of every hidden layer behind the first."""
    first, rest = first[None], [(weight[None], bias[None]) for weight, bias in rest]
    sizes = [weight.shape[-1] for weight, _ in rest]
    shapes = [(1, first.shape[1], size) for size in (sizes[-1], *sizes[:-1])]
    kinds = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    out, *kept = kernel("keep", kinds)(first, *flat(rest), mish=mish)
    return out[0], [sums[0] for sums in kept]


def finish_forward(first: Any, rest: Any, mish: bool) -> tuple[Array, tuple]:
    # Weights that nobody differentiates cost a third of the way back.
    learned = any(x.perturbed for x in flat(rest))
    first, rest = first.value, [(weight.value, bias.value) for weight, bias in rest]
    out, kept = keep(first, rest, mish)
    return out, (first, kept, rest, () if learned else None)


def finish_backward(mish: bool, saved: tuple, grad: Any) -> tuple[Array, Any]:
    first, kept, rest, learned = saved
    if isinstance(grad, SymbolicZero):
        grad = jnp.zeros(grad.shape, grad.dtype)
    operands = [grad, first, *kept, *flat(rest)]
    kinds = [first, *(flat(rest) if learned is not None else [])]
    kinds = [jax.ShapeDtypeStruct((1, *kind.shape), jnp.float32) for kind in kinds]
    call = kernel("pull", kinds)
    out, *grads = call(*(x[None] for x in operands), mish=mish, weights=learned is not None)
    if learned is None:
        return out[0], [(None, None) for _ in rest]
    return out[0], [(weight[0], bias[0]) for weight, bias in zip(grads[::2], grads[1::2])]


finish.defvjp(finish_forward, finish_backward, symbolic_zeros=True)


def flat(rest: Layers) -> list[Array]:
    return [array for layer in rest for array in layer]
