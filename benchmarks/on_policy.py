"""Speed of PPO against stepping its environments alone, as a ratio inside one run.

    python benchmarks/on_policy.py --steps 1000000 --record results/ppo/speed.jsonl

Training and bare stepping take turns, so that a busy machine slows both alike. Bare stepping
executes uniformly random actions in environments of their own; training is all of it, acting,
recording and learning, without evaluations. Compilation is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import jax
import numpy as np

from rescore.agent import Agent
from rescore.envs import make
from rescore.files.run_record import append_result
from rescore.training.loop import advance, settle

LIMIT = 0.5  # share of the environments' own speed


def measure(env_id: str, steps: int) -> dict[str, float]:
    agent = Agent("ppo", env_id)
    run, training = agent.run, agent.training
    rng = np.random.default_rng(0)
    shape = (training.chunk, 1, training.num_envs, run.envs.spec.act_dim)
    actions = rng.uniform(-1, 1, shape).astype(np.float32)
    bare = make(env_id, (0,), training.num_envs)
    bare.reset()

    def train() -> None:
        advance(run)
        settle(run)  # waits for the update

    def step() -> None:
        for action in actions:
            bare.step(action)

    for part in (train, step, train):  # the second update would show a second compilation
        part()
    first, spent = run.env_steps, {train: 0.0, step: 0.0}
    while run.env_steps - first < steps:
        for part in spent:
            began = time.perf_counter()
            part()
            spent[part] += time.perf_counter() - began
    done = run.env_steps - first
    agent.close(), bare.close()
    return {
        "steps": done,
        "PPO, steps/s": done / spent[train],
        "environments alone, steps/s": done / spent[step],
        "PPO / environments alone": spent[step] / spent[train],
        "PPO, seconds": spent[train],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--record", help="append the figures as one JSON line to this file")
    args = parser.parse_args()
    found = {k: round(v, 3) for k, v in measure(args.env, args.steps).items()}
    for name, value in found.items():
        print(f"{value:14,.3f}  {name}")
    if args.record:
        row = {"benchmark": "on_policy", "env": args.env, "jax": jax.__version__}
        append_result(args.record, {**row, "figures": found})
    print(json.dumps(found))
    ratio = found["PPO / environments alone"]
    sys.exit(f"{ratio} is below {LIMIT}" if ratio < LIMIT else 0)


if __name__ == "__main__":
    main()
