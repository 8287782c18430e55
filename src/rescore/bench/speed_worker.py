"""The process that measures one case of `rescore bench speed`: its JSON in, its figures out."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import jax
import numpy as np

from rescore.agent import Agent
from rescore.algorithms import find
from rescore.algorithms.presets import COMPARISON
from rescore.bench.speed import ENVS, Case, Figures, best_ms
from rescore.files.machine import peak_memory_mb
from rescore.streams import Stream
from rescore.training.loop import Run, advance

CALL = 12  # iterations and updates timed together: whole cycles of policy delays of 1 to 4
FIRST = 12  # number of the first one: rare parts, such as DACER's entropy, have their turn at 0


def examine(case: Case) -> Figures:
    """First the whole loop, then its parts in the state that the loop left."""
    training: dict[str, Any] = {"eval_every": 0}
    if find(case.algo).source == "replay":
        training |= {**COMPARISON, "warmup": 1_000, "eval_every": 0, "chunk": case.chunk}
    agent = Agent(case.algo, case.env, preset=case.preset, training=training, **case.settings)
    compile_s = begin(agent.run)
    iteration_ms = loop_ms(agent.run, case.seconds)
    figures = {
        "iteration_ms": iteration_ms,
        "steps_per_s": 1e3 * ENVS / iteration_ms,
        "compile_s": compile_s,
        "peak_mb": peak_memory_mb() or math.nan,
        **parts(agent, case.seconds / 2),
    }
    if agent.algo.source == "replay":
        figures["update_ms"] = update_ms(agent.run, case.seconds)
    agent.close()
    return figures


def begin(run: Run) -> float:
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


def loop_ms(run: Run, seconds: float) -> float:
    """Milliseconds of five environment steps with what is learned from them."""
    chunks = max(1, CALL // run.training.chunk)

    def loop() -> None:
        for _ in range(chunks):
            advance(run)
        jax.block_until_ready(run.leaves)

    return best_ms(loop, seconds) * ENVS / (chunks * run.training.stride)


def parts(agent: Agent, seconds: float) -> Figures:
    """Acting for all environments, `predict` for one observation, a step of one environment."""
    run = agent.run

    def act() -> np.ndarray:
        chosen = run.programs.act(run.leaves, run.obs, Stream.ACT, np.int32(0), True)
        return np.asarray(chosen.action)

    shape = (*run.obs.shape[:2], run.envs.spec.act_dim)
    action = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    observation = run.obs[0, 0]
    return {
        "act_ms": best_ms(act, seconds),
        "predict_ms": best_ms(lambda: agent.predict(observation, deterministic=True), seconds),
        "env_step_ms": best_ms(lambda: run.envs.step(action), seconds) / shape[1],
    }


def update_ms(run: Any, seconds: float) -> float:
    """Milliseconds of an update from replay."""
    batches, _ = run.memory.sample(0, CALL, run.training.batch_size)

    def update() -> None:
        run.leaves, _, _ = run.programs.update(run.leaves, batches, np.int32(FIRST))
        jax.block_until_ready(run.leaves)

    return best_ms(update, seconds) / CALL


if __name__ == "__main__":
    print(json.dumps(examine(Case(**json.loads(sys.argv[1])))))
