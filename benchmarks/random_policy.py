"""Returns of uniformly random actions: the zero of normalised scores. Rewrites the data file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import rescore
from rescore.bench.suites import SUITES
from rescore.files.json import plain, write_json
from rescore.files.machine import source_commit
from rescore.streams import Stream, generator
from rescore.training.evaluate import run_episodes

FILE = Path(rescore.__file__).parent / "bench" / "data" / "random.json"
EPISODES = 20


def measure(task: str) -> dict[str, float]:
    with rescore.make(task, (0,), EPISODES, stream=Stream.EVALUATE) as envs:
        shape = (1, EPISODES, envs.spec.act_dim)

        def act(_: np.ndarray, t: int) -> np.ndarray:
            return generator(0, Stream.WARMUP, t).uniform(-1, 1, shape).astype(np.float32)

        returns = run_episodes(act, envs).returns
        return {"mean": round(returns.mean(), 3), "std": round(returns.std(), 3), **envs.versions}


def main() -> None:
    tasks = dict.fromkeys(task for suite in SUITES.values() for task in suite.tasks)
    about = f"mean and std of the return of uniformly random actions over {EPISODES} episodes"
    found = {}
    for task in tasks:
        found[task] = measure(task)
        print(task, found[task], flush=True)
    made = {"about": about, "command": "python benchmarks/random_policy.py", **source_commit()}
    write_json(FILE, plain({**made, "tasks": found}))


if __name__ == "__main__":
    main()
