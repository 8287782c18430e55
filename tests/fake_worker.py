"""A stand-in for `rescore train` and `resume` that trains nothing: the same files, in no time.

FAKE_GATE names a file without which training waits at 30 % of its steps; FAKE_FAIL, if set, ends it
with exit code 2 at half of them. Every start is noted in starts.txt beside the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from rescore.training import checkpoint

HEADER = "env_steps,seed,episode,env_seed,return,length\n"


def save(run: Path, info: dict) -> None:
    """Whole or not at all, as the real one does it: a kill may come at any time."""
    aside = run / ".run.json"
    aside.write_text(json.dumps(info))
    os.replace(aside, run / "run.json")


def main() -> int:
    words = sys.argv[1:]
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    if words[0] == "train":
        run, env, algo = Path(words[words.index("--out") + 1]), words[2], words[1]
        steps = int(words[words.index("--steps") + 1])
        first = words.index("--seeds") + 1
        seeds = []
        while not words[first + len(seeds)].startswith("--"):
            seeds.append(int(words[first + len(seeds)]))
        run.mkdir(parents=True)
        info = {"status": "running", "config": {"algorithm": algo, "env": env, "steps": steps}}
        info |= {"seeds": seeds, "wall_clock_s": 0.0, "resumes": [], "commit": "c0ffee"}
        info |= {"dirty": False, "started": "2026-01-01T00:00:00+00:00", "devices": None}
        info |= {"cpu": {"count": 2, "model": "fake"}, "versions": {"jax": "0"}}
        info |= {"env_versions": {"gymnasium": "1.4.0", "mujoco": "3.4.0"}}
        (run / "eval.csv").write_text(HEADER)
        done = 0
    else:
        run = Path(words[1])
        info = json.loads((run / "run.json").read_text())
        done = max(int(p.name[5:]) for p in (run / "checkpoints").iterdir())
    with (run.parent / "starts.txt").open("a") as file:
        file.write(f"{words[0]} {done}\n")
    steps = info["config"]["steps"]
    save(run, info)
    for at in range(done + steps // 10, steps + 1, steps // 10):
        gate = Path(os.environ.get("FAKE_GATE", sys.argv[0]))
        while at > 0.3 * steps and not gate.exists() and not stop:
            time.sleep(0.02)
        if at > steps // 2 and os.environ.get("FAKE_FAIL"):
            print("rescore: loss became nan")
            return 2
        with (run / "eval.csv").open("a") as file:
            file.writelines(f"{at},{s},{e},1,{at + s}.0,5\n" for s in info["seeds"] for e in (0, 1))
        with (run / "metrics.jsonl").open("a") as file:
            row = {"env_steps": at, "updates": at // 5, "update_ms": 2.0, "eta_s": 1.0}
            file.write(json.dumps(row) + "\n")
        checkpoint.save(run / "checkpoints" / f"step_{at:09d}", {}, {"owes_evaluation": False})
        if stop:
            break
    info["status"] = "finished" if at == steps else "stopped"
    info["wall_clock_s"] += 1.5
    save(run, info)
    return 0


if __name__ == "__main__":
    sys.exit(main())
