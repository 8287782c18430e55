"""Milliseconds per environment step with one update, beside SBX, which its own interpreter runs.

SBX needs PyTorch, so it is not installed with us: make a virtual environment with `sbx-rl`,
`gymnasium[mujoco]` and our pins (constraints.txt), and name its python. Every round starts each
learner anew on one core; the smallest of the rounds is the one that others disturbed least.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rescore.files.run_record import append_result
from rescore.show import text

ROOT = Path(__file__).parents[1]
OURS = [("dpmd", "default"), ("sdac", "default"), ("sac", "crossq"), ("sac", "default")]
THEIRS = ["SAC", "CrossQ"]
ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

# Both print what a step costs once everything is compiled: wall-clock and processor time.
OUR_PROGRAM = """
import sys, time
import rescore
from rescore.training.loop import advance
name, preset, env, start, steps = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
training = dict(num_envs=1, utd=1.0, chunk=5, warmup=start, batch_size=256, eval_every=0)
agent = rescore.Agent(name, env, preset=preset, training=training)
while agent.run.env_steps < start + 500:
    advance(agent.run)
began = time.perf_counter(), time.process_time()
while agent.run.env_steps < start + 500 + steps:
    advance(agent.run)
print((time.perf_counter() - began[0]) / steps, (time.process_time() - began[1]) / steps)
"""
THEIR_PROGRAM = """
import sys, time
import sbx
name, env, start, steps = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
model = getattr(sbx, name)("MlpPolicy", env, learning_starts=start, verbose=0)
model.learn(start + 500)
began = time.perf_counter(), time.process_time()
model.learn(steps, reset_num_timesteps=False)
print((time.perf_counter() - began[0]) / steps, (time.process_time() - began[1]) / steps)
"""


def measure(python: str, program: str, *arguments: object) -> dict[str, float]:
    """Milliseconds per step of a program in a process of its own."""
    command = [python, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "XLA_FLAGS": ONE_CORE, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))} failed:\n{done.stderr[-2000:]}")
    wall, cpu = map(float, done.stdout.split()[-2:])
    return {"wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sbx-python", required=True, help="interpreter that can import sbx")
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--steps", type=int, default=1_000, help="steps that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append the figures as one JSON line")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})

    figures: dict[str, list[dict[str, float]]] = {}
    for round in range(args.rounds):
        for name, preset in OURS:
            given = (name, preset, args.env, 1_000, args.steps)
            cost = measure(sys.executable, OUR_PROGRAM, *given)
            figures.setdefault(f"{name} {preset}", []).append(cost)
        for name in THEIRS:
            cost = measure(args.sbx_python, THEIR_PROGRAM, name, args.env, 1_000, args.steps)
            figures.setdefault(f"SBX {name}", []).append(cost)
        print(f"round {round + 1} of {args.rounds}: {json.dumps(figures)}", flush=True)

    def least(name: str, what: str) -> float:
        return min(cost[what] for cost in figures[name])

    lines = [[n, f"{least(n, 'wall_ms'):.1f}", f"{least(n, 'cpu_ms'):.1f}"] for n in figures]
    print(text.table(["", "ms per step", "processor ms"], lines))
    if args.record:
        versions = "import json, sbx, jax; print(json.dumps([sbx.__version__, jax.__version__]))"
        seen = subprocess.run([args.sbx_python, "-c", versions], capture_output=True, text=True)
        theirs = dict(zip(("sbx", "jax"), json.loads(seen.stdout)))
        append_result(args.record, {"env": args.env, "sbx_versions": theirs, "rounds": figures})


if __name__ == "__main__":
    main()
