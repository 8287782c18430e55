"""Milliseconds of `predict` for one observation against the return, for trained policies.

The same networks, with fewer candidates to choose from or without the reverse process's noise. One
thread; pin it to a core: `taskset -c 0 python benchmarks/predict.py FOLDER ...`, each FOLDER a run
or a checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from rescore.bench.matrix import thread_settings

os.environ.update(thread_settings(1))  # before JAX starts

from rescore.agent import Agent
from rescore.bench.timing import best_ms
from rescore.files.run_record import append_result

WAYS = {
    "as trained": {},
    "best of 4": {"eval_candidates": 4},
    "one sample": {"eval_candidates": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="+", metavar="FOLDER")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="time per figure, about")
    parser.add_argument("--record", help="append a JSON line per policy to this file")
    args = parser.parse_args()
    for folder in args.policies:
        trained = Agent.load(folder)
        found = {}
        for name, change in WAYS.items():
            algo = dataclasses.replace(trained.algo, **change)
            agent = Agent(algo, trained.env, seeds=trained.seeds)
            agent.run.leaves = trained.run.leaves
            observation = agent.run.obs[0, 0]
            ms = best_ms(lambda: agent.predict(observation, deterministic=True), args.seconds)  # noqa: B023
            result = agent.evaluate(args.episodes)
            found[name] = {"ms": ms, "mean": result.mean, "std": result.std}
            print(f"{folder}, {name}: {ms:.3f} ms, {result.mean:,.1f} ± {result.std:,.1f}")
            agent.close()
        if args.record:
            about = {"benchmark": "predict", "algorithm": trained.name, "env": trained.env}
            about |= {"steps": trained.run.env_steps, "episodes": args.episodes}
            append_result(args.record, {**about, "figures": found})
        trained.close()


if __name__ == "__main__":
    main()
