"""Speed and memory as ratios inside one run: `make bench`.

HalfCheetah's sizes (17 observations, 6 actions), batch 256, networks 3 x 256 with Mish. Times are
best of several, and every claim is a ratio of two things measured in this process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from rescore.agent import Agent
from rescore.algorithms.dpmd import DPMD
from rescore.core import Spec, Transition
from rescore.files.run_record import append_result
from rescore.models.networks import mish
from rescore.training.config import configure
from rescore.training.replay import Replay

SPEC, BATCH = Spec(17, 6), 256
# Figure, limit, and whether the limit is a lower one.
LIMITS = [
    ("released work / paper", 15.0, True),
    ("mish by definition / with one exponential", 1.5, True),
    ("replay of 1M HalfCheetah transitions, MB", 250.0, False),
]


def best_ms(function, *args, repeat: int) -> float:
    """Milliseconds of the quickest of `repeat` calls, after one that compiles."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def batch() -> Transition:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    n, (o, a) = BATCH, SPEC
    return Transition(draw(n, o), draw(n, a).clip(-1, 1), draw(n), jnp.zeros(n), draw(n, o))


def update_ms(algo: DPMD, repeat: int) -> float:
    """Mean of an update with a policy step and one without."""
    state = jax.jit(lambda k: algo.init(k, SPEC))(jax.random.key(0))
    update = jax.jit(algo.update)
    rows, key = batch(), jax.random.key(1)
    return np.mean([best_ms(update, state, rows, key, jnp.int32(s), repeat=repeat) for s in (0, 1)])


def updates() -> dict[str, float]:
    """The paper's work against the released work, in the same program."""
    paper, _ = configure("dpmd", "paper", {}, {})
    released, _ = configure("dpmd", "released", {}, {})
    shared = dataclasses.replace(paper, loss_at="target")
    default, _ = configure("dpmd", "default", {}, {})
    ms = {
        "paper": update_ms(paper, 15),
        "paper, loss at the target's states": update_ms(shared, 15),
        "released": update_ms(released, 3),
        "default": update_ms(default, 15),
    }
    slow = ms["released"]
    return {f"update of {k}, ms": v for k, v in ms.items()} | {
        f"released work / {k}": slow / v for k, v in ms.items() if k != "released"
    }


def activation() -> dict[str, float]:
    """Mish with one exponential against its definition."""
    x = jax.random.normal(jax.random.key(0), (8192, 256))
    plain = best_ms(jax.jit(lambda x: x * jnp.tanh(jax.nn.softplus(x))), x, repeat=20)
    return {
        "mish by definition / with one exponential": plain / best_ms(jax.jit(mish), x, repeat=20)
    }


def first_layer() -> dict[str, float]:
    """Sampling with the observation's share computed once against once per step and candidate."""
    algo, _ = configure("dpmd", "released", {"hidden": (256, 256, 256)}, {})
    actor = algo.init_nets(jax.random.key(0), Spec(376, 17)).actor.params
    obs = jax.random.normal(jax.random.key(1), (BATCH, 376))
    a_t = jax.random.normal(jax.random.key(2), (8, BATCH, 17))
    t = jnp.full((8, BATCH), 3)

    def steps(shared: bool):
        def run(actor, obs, a_t):
            eps = actor.at(obs[None])

            def step(a, _):
                new = (
                    eps(a, t) if shared else actor.at(jnp.broadcast_to(obs, (8, *obs.shape)))(a, t)
                )
                return 0.9 * a + 0.1 * new, None

            return jax.lax.scan(step, a_t, None, length=10)[0]

        return jax.jit(run)

    slow, fast = (best_ms(steps(s), actor, obs, a_t, repeat=5) for s in (False, True))
    return {"Humanoid sampling, obs share each step / once": slow / fast}


def memory(steps: int) -> dict[str, float]:
    """Replay of a million transitions, and growth of the process over a run."""
    full = Replay((0,), 1_000_000, SPEC).rows.nbytes / 1e6
    settings = {"warmup": 500, "utd": 0.05, "chunk": 20, "eval_every": 0, "log_every": 1000}
    settings |= {"replay_capacity": 20_000}
    agent = Agent("dpmd", "HalfCheetah-v4", training=settings, hidden=(32, 32), T=2)
    agent.learn(steps // 4, evaluate=False)
    before = resident_mb()
    agent.learn(steps - steps // 4, evaluate=False)
    return {
        "replay of 1M HalfCheetah transitions, MB": full,
        f"growth of the process over the last 3/4 of {steps} steps, MB": resident_mb() - before,
    }


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="length of the memory run")
    parser.add_argument("--record", help="append the figures as one JSON line to this file")
    args = parser.parse_args()
    found: dict[str, float] = {}
    for part in (updates, activation, first_layer, lambda: memory(args.steps)):
        new = {k: round(float(v), 2) for k, v in part().items()}
        for name, value in new.items():
            print(f"{value:10.2f}  {name}", flush=True)
        found |= new
    if args.record:
        append_result(args.record, {"benchmark": "foundation", "figures": found})
    print(json.dumps(found))
    missed = [
        f"{name}: {found[name]} is not {'above' if low else 'below'} {limit}"
        for name, limit, low in LIMITS
        if (found[name] < limit) == low
    ]
    sys.exit("\n".join(missed) or 0)


if __name__ == "__main__":
    main()
