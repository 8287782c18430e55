"""What an algorithm costs: each case in a process of its own, so that compilation and memory of one
do not touch another's.

An iteration is that of the paper's comparison: five environment steps, acting, one update.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rescore.algorithms import find
from rescore.algorithms.presets import COMPARISON
from rescore.core import UsageError

ENVS = COMPARISON["num_envs"]
CALL = 4  # iterations and updates that are timed together: whole cycles of the policy's delay
FIRST = 4  # number of the first one: rare parts, such as DACER's entropy, have their turn at 0
TRIES = 5  # a figure is the best of several: other work on the machine only ever adds
SLOW_TRIES = 3  # of what takes longer than its share of seconds


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    algo: str
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    chunk: int = 1  # vector steps with one policy, then as many updates in one call
    seeds: int = 1
    batch_size: int = 256
    obs_dim: int | None = None  # a number measures the update alone, on made-up transitions
    env: str = "HalfCheetah-v4"
    seconds: float = 2.0  # for each figure, about

    @property
    def label(self) -> str:
        parts = [self.algo, self.preset, *(f"{k}={v}" for k, v in self.settings.items())]
        parts += [f"chunk={self.chunk}"] if self.chunk > 1 else []
        return " ".join(parts)


def measure(case: Case) -> dict[str, Any]:
    """The figures of a case, from a fresh process."""
    # Compiling counts, so nothing may be remembered from an earlier run.
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-m", "rescore.bench.speed", json.dumps(case.__dict__)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(f"{case.label} could not be measured: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def best_ms(work: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of a call, the best of some tries that share the seconds."""
    work()
    began = time.perf_counter()
    work()
    once = time.perf_counter() - began
    calls = max(1, math.floor(seconds / TRIES / max(once, 1e-6)))
    times = []
    for _ in range(TRIES if once * TRIES < seconds else SLOW_TRIES):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - began) / calls)
    return 1e3 * min(times)


def peak_gflops(seconds: float) -> float:
    """What this machine reaches in a large product of float32 matrices."""
    import jax
    import jax.numpy as jnp

    n = 2048
    a = jnp.ones((n, n))
    product = jax.jit(lambda a: a @ a)
    return 2 * n**3 / 1e6 / best_ms(lambda: jax.block_until_ready(product(a)), seconds)


def measure_peak(seconds: float) -> float:
    """The same from a fresh process, where XLA has all threads."""
    return measure(Case("peak", seconds=seconds))["gflops"]


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


def examine(case: Case) -> dict[str, Any]:
    """In this process: first the whole loop, then its parts."""
    if case.obs_dim is not None:
        return examine_update(case)
    import jax
    import numpy as np

    from rescore.agent import Agent
    from rescore.files.machine import peak_memory_mb
    from rescore.streams import Stream
    from rescore.training.loop import advance

    training = {**COMPARISON, "warmup": 1_000, "eval_every": 0, "chunk": case.chunk}
    training["batch_size"] = case.batch_size
    seeds = tuple(range(case.seeds))
    agent = Agent(
        case.algo, case.env, preset=case.preset, seeds=seeds, training=training, **case.settings
    )
    run = agent.run
    while run.env_steps + run.training.stride < run.warmup:
        advance(run)
    began = time.perf_counter()
    advance(run)  # compiles the update
    advance(run)  # compiles acting
    while run.updates % CALL:
        advance(run)
    jax.block_until_ready(run.leaves)
    compile_s = time.perf_counter() - began

    def loop() -> None:
        for _ in range(CALL // case.chunk):
            advance(run)
        jax.block_until_ready(run.leaves)

    iteration_ms = best_ms(loop, case.seconds) / CALL
    peak_mb = peak_memory_mb()
    # Figures of parts, in the state that the loop left.
    batches, _ = run.memory.sample(0, CALL, case.batch_size)

    def update() -> None:
        run.leaves, _, _ = run.programs.update(run.leaves, batches, np.int32(FIRST))
        jax.block_until_ready(run.leaves)

    update_ms = best_ms(update, case.seconds) / CALL

    def act() -> np.ndarray:
        chosen = run.programs.act(run.leaves, run.obs, Stream.ACT, np.int32(0), True)
        return np.asarray(chosen.action)

    act_ms = best_ms(act, case.seconds / 2)
    observation = run.obs[0, 0]
    predict_ms = best_ms(lambda: agent.predict(observation, True), case.seconds / 2)
    shape = (*run.obs.shape[:2], run.envs.spec.act_dim)
    action = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    env_ms = best_ms(lambda: run.envs.step(action), case.seconds / 2) / (ENVS * case.seeds)
    update_gflop, act_gflop = (work / 1e9 for work in flops(run, batches))
    peak = measure_peak(case.seconds / 2)
    agent.close()
    return {
        "iteration_ms": iteration_ms,
        "steps_per_s": 1e3 * ENVS / iteration_ms,
        "update_ms": update_ms,
        "act_ms": act_ms,
        "predict_ms": predict_ms,
        "env_step_ms": env_ms,
        "compile_s": compile_s,
        "peak_mb": peak_mb,
        "gflop": update_gflop + act_gflop,
        "peak_gflops": peak,
        "share_of_peak": update_gflop / peak / update_ms * 1e3,
    }


def flops(run: Any, batches: Any) -> tuple[float, float]:
    """Matrix products of one update and of acting once."""
    import jax
    import numpy as np

    from rescore.streams import Stream

    update = jax.make_jaxpr(run.programs.update)(run.leaves, batches, np.int32(0))
    act = jax.make_jaxpr(lambda s, o: run.programs.act(s, o, Stream.ACT, np.int32(0), True))
    return products(update.jaxpr) / CALL, products(act(run.leaves, run.obs).jaxpr)


def examine_update(case: Case) -> dict[str, float]:
    """The update alone, on transitions of any size."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from rescore.core import Spec, Transition
    from rescore.training.config import configure

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


SCALING: dict[str, tuple[str, Sequence[int]]] = {
    "candidates in the target": ("target_candidates", (1, 2, 4, 8, 32)),
    "denoising steps T": ("T", (3, 5, 10, 20)),
    "width of two layers": ("hidden", (64, 128, 256, 512)),
    "batch size": ("batch_size", (64, 256, 1024)),
    "size of the observation": ("obs_dim", (17, 111, 376)),
    "seeds in one program": ("seeds", (1, 2, 5)),
}


def scaling(algo: str, seconds: float) -> list[tuple[str, int, Case]]:
    """Cases that change one thing of the default each, as far as the algorithm has it."""
    own = {f.name for f in fields(find(algo))} | {"batch_size", "obs_dim", "seeds"}
    found = []
    for what, (name, values) in SCALING.items():
        for value in values if name in own else ():
            change: dict[str, Any] = {"obs_dim": 17, "seconds": seconds}
            if name in ("batch_size", "obs_dim", "seeds"):
                change[name] = value
            else:
                change["settings"] = {name: (value, value) if name == "hidden" else value}
            found.append((what, value, Case(algo, **change)))
    return found


def main() -> None:
    from rescore.bench.bare import bare_sac_ms

    given = json.loads(sys.argv[1])
    if given["algo"] == "bare":
        figures = bare_sac_ms(given["seconds"])
    elif given["algo"] == "peak":
        figures = {"gflops": peak_gflops(given["seconds"])}
    else:
        figures = examine(Case(**given))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
