"""Policies for control loops without this library: one file, checked against `predict`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from rescore.algorithms.normalised import prepared
from rescore.core import UsageError, known
from rescore.export.onnx import serialise
from rescore.export.program import Program, trace
from rescore.files.atomic import replacing
from rescore.streams import Stream, key
from rescore.training.loop import Run
from rescore.training.policy import Policy
from rescore.training.replay import Replay

TOLERANCE = 1e-5  # of an action, in half widths of its box
ROWS = 1_000  # observations of the check


class Exported(NamedTuple):
    """The file, and how it compares to `predict` on single observations."""

    path: Path
    bytes: int
    noise_dim: int  # standard Gaussian numbers that it takes beside an observation
    difference: float  # largest, in half widths of the action box
    # Observations where it is more than 1e-5: two candidates of equal value, or rounding that the
    # first steps of a reverse process enlarge (they divide by sqrt(alpha_bar_t)).
    beyond: int
    ms: float  # per action
    predict_ms: float


def export(
    run: Run, policy: Policy, path: Path, form: str = "onnx", *, member: int = 0
) -> Exported:
    """Write the policy without exploration, best of N and statistics of observations inside."""
    known(form, ("onnx", "jax"), "format")
    envs, algo = run.envs, prepared(run.algo)
    state = jax.tree.unflatten(policy.layout, [x[0] for x in policy.leaves()])
    draw = key(envs.seeds[member], Stream.PREDICT, 0)
    scale = envs.action_scale
    program = trace(algo, state, envs.spec.obs_dim, scale, envs.act_shape, draw)
    if form == "onnx":
        about = {"algorithm": type(run.algo).__name__.lower(), "env": envs.env_id}
        content, call = serialise(program, about), run_onnx
    else:
        content, call = serialise_jax(program), run_jax
    act = call(content, program)
    sample = observations(run, member)
    theirs = np.stack([act(obs, program.noise).ravel() for obs in sample])
    ours = np.stack([envs.scaled(policy.act(obs[None], True)).ravel() for obs in sample])
    gap = np.max(np.abs(theirs - ours) / np.maximum(scale[1], 1e-6), axis=1)
    beyond = ~(gap <= TOLERANCE)  # what is not a number is beyond it, too
    if np.mean(beyond) > 0.01:
        raise UsageError(
            f"{path} was not written: it differs from predict by {gap.max():.1e}, please report it"
        )
    with replacing(path) as part:
        part.write_bytes(content)
    return Exported(
        path,
        len(content),
        len(program.noise),
        float(gap.max()),
        int(np.sum(beyond)),
        milliseconds(lambda: act(sample[0], program.noise)),
        milliseconds(lambda: policy.act(sample[:1], True)),
    )


def observations(run: Run, member: int) -> np.ndarray:
    """Some that were seen, or made up where none are kept. [ROWS, obs_dim]"""
    rng, size = np.random.default_rng(0), run.envs.spec.obs_dim
    if isinstance(run.memory, Replay) and run.memory.size:
        return run.memory.rows[member, rng.integers(run.memory.size, size=ROWS), :size]
    return rng.normal(size=(ROWS, size)).astype(np.float32)


def run_onnx(content: bytes, program: Program) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("the check needs a package: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def act(obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        given = {"observation": obs, "noise": noise} if len(noise) else {"observation": obs}
        return session.run(None, given)[0]

    return act


def serialise_jax(program: Program) -> bytes:
    """StableHLO, for `jax.export.deserialize`."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, np.float32) for v in program.flat.jaxpr.invars]
    whole = jax.jit(lambda obs, noise: jaxpr_as_fun(program.flat)(obs, noise)[0])
    try:
        return bytes(jax.export.export(whole)(*shapes).serialize())
    except ImportError:
        raise UsageError("JAX files need a package: pip install flatbuffers") from None


def run_jax(content: bytes, program: Program) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    call: Any = jax.jit(jax.export.deserialize(bytearray(content)).call)
    return lambda obs, noise: np.asarray(call(obs, noise))


def milliseconds(call: Callable[[], Any], times: int = 200) -> float:
    """Median of some calls."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1e3 * float(np.median(taken))
