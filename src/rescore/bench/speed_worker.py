"""The process that measures one case of `rescore bench speed`: its JSON in, its figures out."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rescore.agent import Agent
from rescore.algorithms import find
from rescore.algorithms.presets import COMPARISON
from rescore.bench.bare import bare_sac_ms
from rescore.bench.speed import Case, measure
from rescore.bench.timing import CALL, FIRST, best_ms
from rescore.core import Spec, Transition
from rescore.files.machine import peak_memory_mb
from rescore.streams import Stream
from rescore.training.config import configure
from rescore.training.loop import advance

ENVS = COMPARISON["num_envs"]


def examine(case: Case) -> dict[str, Any]:
    """First the whole loop, then its parts in the state that the loop left."""
    if case.obs_dim is not None:
        return examine_update(case)
    training: dict[str, Any] = {"eval_every": 0}
    if find(case.algo).source == "replay":
        training |= {**COMPARISON, "warmup": 1_000, "eval_every": 0, "chunk": case.chunk}
        training["batch_size"] = case.batch_size
    agent = Agent(
        case.algo,
        case.env,
        preset=case.preset,
        seeds=tuple(range(case.seeds)),
        training=training,
        **case.settings,
    )
    compile_s = begin(agent.run)
    iteration_ms = loop_ms(agent.run, case.seconds)
    figures = {
        "iteration_ms": iteration_ms,
        "steps_per_s": 1e3 * ENVS / iteration_ms,
        "compile_s": compile_s,
        "peak_mb": peak_memory_mb(),
        **parts(agent, case),
    }
    if agent.algo.source == "replay":
        figures |= update_figures(agent.run, case)
    agent.close()
    return figures


def begin(run: Any) -> float:
    """Through the random steps to whole cycles of updates; seconds that compiling took."""
    while run.env_steps + run.training.stride < run.warmup:
        advance(run)
    began = time.perf_counter()
    advance(run)  # compiles the update
    advance(run)  # compiles acting
    while run.algo.source == "replay" and run.updates % CALL:
        advance(run)
    jax.block_until_ready(run.leaves)
    return time.perf_counter() - began


def loop_ms(run: Any, seconds: float) -> float:
    """Milliseconds of five environment steps with what is learned from them."""
    chunks = max(1, CALL // run.training.chunk)

    def loop() -> None:
        for _ in range(chunks):
            advance(run)
        jax.block_until_ready(run.leaves)

    return best_ms(loop, seconds) * ENVS / (chunks * run.training.stride)


def parts(agent: Agent, case: Case) -> dict[str, float]:
    """Acting for all environments, `predict` for one observation, a step of one environment."""
    run = agent.run

    def act() -> np.ndarray:
        chosen = run.programs.act(run.leaves, run.obs, Stream.ACT, np.int32(0), True)
        return np.asarray(chosen.action)

    seeds, envs = run.obs.shape[:2]
    shape = (seeds, envs, run.envs.spec.act_dim)
    action = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    half, observation = case.seconds / 2, run.obs[0, 0]
    return {
        "act_ms": best_ms(act, half),
        "predict_ms": best_ms(lambda: agent.predict(observation, deterministic=True), half),
        "env_step_ms": best_ms(lambda: run.envs.step(action), half) / (envs * seeds),
    }


def update_figures(run: Any, case: Case) -> dict[str, float]:
    """An update from replay: its time, its matrix products, its share of the machine's peak."""
    batches, _ = run.memory.sample(0, CALL, case.batch_size)

    def update() -> None:
        run.leaves, _, _ = run.programs.update(run.leaves, batches, np.int32(FIRST))
        jax.block_until_ready(run.leaves)

    update_ms = best_ms(update, case.seconds) / CALL
    update_gflop, act_gflop = (work / 1e9 for work in flops(run, batches))
    # From a process where XLA has all threads.
    peak = measure(Case("peak", seconds=case.seconds / 2))["gflops"]
    return {
        "update_ms": update_ms,
        "gflop": update_gflop + act_gflop,
        "peak_gflops": peak,
        "share_of_peak": update_gflop / peak / update_ms * 1e3,
    }


def flops(run: Any, batches: Any) -> tuple[float, float]:
    """Matrix products of one update and of acting once."""
    update = jax.make_jaxpr(run.programs.update)(run.leaves, batches, np.int32(0))
    act = jax.make_jaxpr(lambda s, o: run.programs.act(s, o, Stream.ACT, np.int32(0), True))
    return products(update.jaxpr) / CALL, products(act(run.leaves, run.obs).jaxpr)


def products(jaxpr: Any) -> float:
    """Floating-point operations of all matrix products.

    Branches count as their mean, which is right for a policy's delay of 2.
    """
    total = 0.0
    for eqn in jaxpr.eqns:
        inner = [x for value in eqn.params.values() for x in jaxprs(value)]
        if eqn.primitive.name == "dot_general":
            ((left, _), _), out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
            shared = math.prod(eqn.invars[0].aval.shape[i] for i in left)
            total += 2.0 * math.prod(out.shape) * shared
        elif eqn.primitive.name == "cond":
            total += sum(map(products, inner)) / len(inner)
        else:
            total += eqn.params.get("length", 1) * sum(map(products, inner))
    return total


def jaxprs(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [x for item in value for x in jaxprs(item)]
    inner = getattr(value, "jaxpr", value)
    return [inner] if hasattr(inner, "eqns") else []


def examine_update(case: Case) -> dict[str, float]:
    """The update alone, on transitions of any size."""
    algo, _ = configure(case.algo, case.preset, case.settings, {})
    spec, seeds = Spec(case.obs_dim, 6), jnp.arange(case.seeds)
    state = jax.jit(jax.vmap(lambda s: algo.init(jax.random.key(s), spec)))(seeds)
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(case.seeds, case.batch_size, *shape)), "f4")  # noqa: E731
    obs, action = draw(case.obs_dim), draw(6).clip(-1, 1)
    rows = Transition(obs, action, draw(), jnp.zeros(obs.shape[:2]), obs)
    rows = rows._replace(particle=action) if algo.keeps_particles else rows

    @jax.jit
    def updates(state: Any) -> Any:
        def one(state: Any, step: Any) -> tuple[Any, None]:
            keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), step))(seeds)
            new = jax.vmap(algo.update, in_axes=(0, 0, 0, None))(state, rows, keys, step)
            return new.state, None

        return jax.lax.scan(one, state, jnp.arange(FIRST, FIRST + CALL))[0]

    began = time.perf_counter()
    jax.block_until_ready(updates(state))
    compile_s = time.perf_counter() - began
    ms = best_ms(lambda: jax.block_until_ready(updates(state)), case.seconds) / CALL
    return {"update_ms": ms, "compile_s": compile_s}


def peak_gflops(case: Case) -> dict[str, float]:
    """What this machine reaches in a large product of float32 matrices."""
    n = 2048
    a = jnp.ones((n, n))
    product = jax.jit(lambda a: a @ a)
    ms = best_ms(lambda: jax.block_until_ready(product(a)), case.seconds)
    return {"gflops": 2 * n**3 / 1e6 / ms}


if __name__ == "__main__":
    case = Case(**json.loads(sys.argv[1]))
    special: dict[str, Callable] = {"bare": lambda c: bare_sac_ms(c.seconds), "peak": peak_gflops}
    print(json.dumps(special.get(case.algo, examine)(case)))
