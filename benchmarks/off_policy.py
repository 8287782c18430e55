"""Update time and memory of every replay learner as ratios to SAC, as in Table 2 of the paper.

HalfCheetah's sizes (17 observations, 6 actions), batch 256. All are measured in this one process:
the time is the mean over one cycle of the policy's delay, each the best of several; the memory is
what XLA plans for the compiled update (arguments, results, temporaries).
"""

from __future__ import annotations

import argparse
import math

import jax
import jax.numpy as jnp
import numpy as np
from foundation import SPEC, batch, best_ms

from rescore.algorithms import REGISTRY, find
from rescore.core import Algorithm
from rescore.files.run_record import append_result
from rescore.training.config import configure

# Minutes for 200k iterations and MB on an RTX 4090: Table 2 of the paper.
PAPER = {"qsm": (14.2, 997), "qvpo": (30.9, 5219), "dacer": (27.6, 1371), "dipo": (19.3, 5096)}
PAPER |= {"dpmd": (21.1, 1192), "sdac": (16.1, 1113)}


def measure(algo: Algorithm, seconds: float) -> dict[str, float]:
    """Milliseconds and megabytes of one update."""
    state = jax.jit(lambda k: algo.init(k, SPEC))(jax.random.key(0))
    rows, key = batch(), jax.random.key(1)
    rows = rows._replace(particle=rows.action) if algo.keeps_particles else rows
    update = jax.jit(algo.update).lower(state, rows, key, jnp.int32(0)).compile()
    plan = update.memory_analysis()
    used = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    once = best_ms(update, state, rows, key, jnp.int32(2), repeat=1)
    repeat = max(2, min(20, round(1e3 * seconds / once)))
    # Not from step 0, where rare parts (the entropy of DACER's policy) have their turn.
    cycle = range(1, 1 + math.lcm(algo.policy_delay, algo.target_delay))
    times = [best_ms(update, state, rows, key, jnp.int32(s), repeat=repeat) for s in cycle]
    return {"ms": round(float(np.mean(times)), 2), "mb": round(used / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["default", "paper"])
    parser.add_argument("--seconds", type=float, default=2.0, help="time per figure, about")
    parser.add_argument("--record", help="append the figures as one JSON line to this file")
    args = parser.parse_args()
    names = [name for name in REGISTRY if find(name).source == "replay"]
    found: dict[str, dict] = {}
    for preset in args.presets:
        found[preset] = {n: measure(configure(n, preset, {}, {})[0], args.seconds) for n in names}
        sac = found[preset]["sac"]
        print(f"\npreset {preset}      ms / update   x SAC        MB   x SAC   paper: min     MB")
        for name, row in sorted(found[preset].items(), key=lambda item: item[1]["ms"]):
            row |= {"ms_ratio": round(row["ms"] / sac["ms"], 2)}
            row |= {"mb_ratio": round(row["mb"] / sac["mb"], 2)}
            minutes, mb = PAPER.get(name, ("-", "-"))
            print(
                f"{name:18} {row['ms']:11.2f} {row['ms_ratio']:7.2f} {row['mb']:9.1f} "
                f"{row['mb_ratio']:7.2f} {minutes:>12} {mb:>6}"
            )
    if args.record:
        append_result(args.record, {"benchmark": "off_policy", "figures": found})


if __name__ == "__main__":
    main()
