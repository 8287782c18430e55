"""Compiled kernels for networks and their gradients, on processors with matrix units (AMX).

`python -m rescore.native` compiles them; `make setup` does it too. Without them, and with
RESCORE_NATIVE=0, the same is computed by JAX alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from rescore.core import UsageError

SOURCE = Path(__file__).with_name("kernels.cc")
NEEDED = {"amx_bf16", "amx_tile", "avx512f", "avx512_bf16", "avx512bw", "avx512vl", "avx512dq"}
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra"]
FLAGS += ["-mfma", "-mamx-tile", "-mamx-bf16"]
FLAGS += ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"]
TARGETS = [f"rescore_{name}" for name in ("values", "reverse", "keep", "pull")]
TARGETS += ["rescore_normal", "rescore_uniform"]
WIDTHS = 32  # of hidden layers are multiples of this


def library() -> Path:
    """Where the compiled kernels of this source and this jaxlib are kept."""
    from jaxlib import version

    text = SOURCE.read_text() + " ".join(FLAGS) + version.__version__
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return SOURCE.with_name("build") / f"kernels-{version.__version__}-{key}.so"


def processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def build() -> Path:
    """Compiles the kernels, unless they are there."""
    path = library()
    if path.exists():
        return path
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *FLAGS, f"-isystem{jax.ffi.include_dir()}", str(SOURCE), "-o", str(aside)]
    try:
        path.parent.mkdir(exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"the kernels were not compiled: {error}") from None
    if done.returncode:
        aside.unlink(missing_ok=True)
        first = next(iter(done.stderr.splitlines()), "no message")
        raise UsageError(f"the kernels were not compiled: {first}")
    os.replace(aside, path)
    for old in set(path.parent.glob(f"{path.name.rpartition('-')[0]}-*.so")) - {path}:
        old.unlink(missing_ok=True)  # of an older source; another jaxlib keeps its own
    return path


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


@cache
def state() -> str:
    """ "ready", or why the kernels are not used. Asked for the first time, it loads them.

    That should be before JAX has started: the kernels have a say in how many threads XLA gets.
    """
    if os.environ.get("RESCORE_NATIVE") == "0":
        return "switched off by RESCORE_NATIVE=0"
    if missing := sorted(NEEDED - processor_flags()):
        return f"this processor has no {missing[0]}"
    path = library()
    if not path.exists():
        return "not compiled: python -m rescore.native"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"could not be loaded: {error}"
    if not loaded.rescore_tiles():
        return "the system does not grant the processor's tiles"
    loaded.rescore_threads(threads())
    if (backend := start_jax()) != "cpu":
        return f"not for {backend}"
    for name in TARGETS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, name)), platform="cpu")
    return "ready"


def about() -> str:
    """The state, and with how many threads."""
    return f"ready, threads: {threads()}" if state() == "ready" else state()


_paused = False


def ready() -> bool:
    return not _paused and state() == "ready"


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
    return draw("rescore_normal", key, shape)


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """jax.random.uniform: by a kernel where it can, the same numbers."""
    if not draws(key, shape):
        return jax.random.uniform(key, shape)
    return draw("rescore_uniform", key, shape)


def draws(key: Array, shape: tuple[int, ...]) -> bool:
    """Whether the kernels would draw what JAX draws."""
    alike = jax.config.jax_threefry_partitionable and not jax.config.jax_enable_x64
    alike = alike and jax.random.key_impl(key) == "threefry2x32"
    return alike and 0 < math.prod(shape) < 2**31 and ready()


def draw(name: str, key: Array, shape: tuple[int, ...]) -> Array:
    out = jax.ShapeDtypeStruct((math.prod(shape),), jnp.float32)
    call = jax.ffi.ffi_call(name, out, vmap_method="broadcast_all")
    return call(jax.random.key_data(key)).reshape(shape)


Layers = list[tuple[Array, Array]]  # weight and bias of each layer behind the first, the head last


def values(share: Array, actions: Array, act_weight: Array, rest: Layers, mish: bool) -> Array:
    """Outputs of an ensemble of n networks: [n, R, width], [M, d], [n, d, width] -> [n, M]

    `share` is what the first layer has besides the actions; row m takes that of m modulo R.
    """
    out = jax.ShapeDtypeStruct((share.shape[0], actions.shape[0]), jnp.float32)
    call = jax.ffi.ffi_call("rescore_values", out, vmap_method="broadcast_all")
    return call(share, actions, act_weight, *flat(rest), mish=mish)


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
    call = jax.ffi.ffi_call("rescore_reverse", out, vmap_method="broadcast_all")
    operands = (share, times, start, noise, coefficients, act_weight, *flat(rest))
    return call(*operands, mish=mish, inner=np.float32(inner), outer=np.float32(outer))


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
    call = jax.ffi.ffi_call("rescore_keep", kinds, vmap_method="broadcast_all")
    out, *kept = call(first, *flat(rest), mish=mish)
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
    call = jax.ffi.ffi_call("rescore_pull", kinds, vmap_method="broadcast_all")
    out, *grads = call(*(x[None] for x in operands), mish=mish, weights=learned is not None)
    if learned is None:
        return out[0], [(None, None) for _ in rest]
    return out[0], [(weight[0], bias[0]) for weight, bias in zip(grads[::2], grads[1::2])]


finish.defvjp(finish_forward, finish_backward, symbolic_zeros=True)


def flat(rest: Layers) -> list[Array]:
    return [array for layer in rest for array in layer]
