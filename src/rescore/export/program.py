"""A trained policy as one function of observation and noise, in a dozen plain operators.

`act` is traced, not rewritten: calls are inlined, loops unrolled, and whatever depends on
parameters alone (tables of times, batch norm in its layers) is computed here, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from rescore import streams
from rescore.core import Algorithm

CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where primitives keep the function they call


class Program(NamedTuple):
    """(observation [obs_dim], noise [noise_dim]) -> action [*shape] in the task's units."""

    flat: ClosedJaxpr
    noise: np.ndarray  # [noise_dim], what `predict(deterministic=True)` draws


def trace(
    algo: Algorithm,
    state: Any,
    obs_dim: int,
    scale: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, ...],
    key: jax.Array,
) -> Program:
    """The policy without exploration, for one observation; `scale` is (mid, half) of actions."""
    mid, half = (np.asarray(x, np.float32) for x in scale)
    real: list[np.ndarray] = []

    def record(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        drawn = jax.random.normal(key, shape)
        real.append(np.asarray(drawn))
        return drawn

    with streams.drawn_from(record):
        algo.act(state, jnp.zeros((1, obs_dim)), key, False)

    def act(obs: jax.Array, *draws: Any) -> Any:
        waiting = list(draws)
        with streams.drawn_from(lambda _key, _shape: waiting.pop(0)):
            action = algo.act(state, obs[None], key, False).action[0]
        return (mid + half * action).reshape(shape)

    obs = jnp.zeros(obs_dim)
    used = live(flatten(act, obs, *real).jaxpr)[1][1:]
    needed = [draw for draw, is_used in zip(real, used) if is_used]
    sizes = [draw.size for draw in needed]

    def whole(obs: jax.Array, noise: jax.Array) -> Any:
        parts = iter(jnp.split(noise, np.cumsum(sizes)[:-1]) if needed else [])
        # What only exploration would use is zero here, and disappears.
        draws = [
            next(parts).reshape(x.shape) if is_used else np.zeros_like(x)
            for x, is_used in zip(real, used)
        ]
        return act(obs, *draws)

    noise = np.concatenate([draw.ravel() for draw in needed] or [np.zeros(0, np.float32)])
    return Program(flatten(whole, obs, noise), noise)


def flatten(function: Callable, *args: Any) -> ClosedJaxpr:
    """The function in primitives alone, what can be known computed."""
    nested = jax.make_jaxpr(function)(*args)
    return jax.make_jaxpr(lambda *xs: interpret(nested.jaxpr, nested.consts, xs)[0])(*args)


def interpret(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The outputs, each primitive by itself and on the spot where its inputs are known."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args]))
    read = lambda v: v.val if isinstance(v, Literal) else values[v]  # noqa: E731
    for equation in jaxpr.eqns:
        given = [read(v) for v in equation.invars]
        name, params = equation.primitive.name, equation.params
        inner = next((params[call] for call in CALLS if call in params), None)
        if name == "scan":
            found = unroll(params, given)
        elif inner is not None:
            function = getattr(inner, "jaxpr", inner)
            found = interpret(function, getattr(inner, "consts", []), given)
        elif name == "mul" and any(is_known(x) and not np.any(np.asarray(x)) for x in given):
            aval: Any = equation.outvars[0].aval
            found = [np.zeros(aval.shape, aval.dtype)]
        else:
            known = all(is_known(x) for x in given)
            with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
                found = equation.primitive.bind(*given, **params)
            found = found if equation.primitive.multiple_results else [found]
        values.update(zip(equation.outvars, found))
    return [read(v) for v in jaxpr.outvars]


def unroll(params: dict[str, Any], given: list[Any]) -> list[Any]:
    """A scan, step by step."""
    fixed, carried = params["num_consts"], params["num_carry"]
    consts, carry, rows = given[:fixed], given[fixed : fixed + carried], given[fixed + carried :]
    body, outputs = params["jaxpr"], []
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        now = [x[i] if not is_known(x) else np.asarray(x)[i] for x in rows]
        result = interpret(body.jaxpr, body.consts, [*consts, *carry, *now])
        carry = result[:carried]
        outputs.append(result[carried:])
    outputs = outputs[::-1] if params["reverse"] else outputs
    return [*carry, *(jnp.stack(column) for column in zip(*outputs))]


def is_known(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def live(jaxpr: Jaxpr) -> tuple[list[Any], list[bool]]:
    """The equations that the outputs depend on, and which inputs they do."""
    wanted = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if wanted & set(equation.outvars):
            wanted |= {v for v in equation.invars if not isinstance(v, Literal)}
            kept.append(equation)
    return kept[::-1], [v in wanted for v in jaxpr.invars]
