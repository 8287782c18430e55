"""Five seeds in one program against five programs, on the same two cores.

Programs of one seed get one core and one thread each, two at a time, which is the best that five of
them can do; the program of five seeds has both cores. Both run the real training loop.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess

from rescore.bench.matrix import thread_settings
from rescore.bench.speed import Case, measure
from rescore.files.run_record import append_result

SEEDS = 5


def side_by_side(case: Case, cores: list[int]) -> list[float]:
    """Milliseconds of an iteration of one seed, in a program on each core at the same time."""
    programs = []
    for core in cores:
        here = {**os.environ, **thread_settings(1)}
        start = ["taskset", "-c", str(core), *case.command]
        programs.append(subprocess.Popen(start, env=here, stdout=subprocess.PIPE, text=True))
    outputs = [program.communicate()[0] for program in programs]
    if any(program.returncode for program in programs):
        raise SystemExit("a program failed: its message is above")
    return [json.loads(text.splitlines()[-1])["iteration_ms"] for text in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algos", nargs="+", default=["dpmd", "sac"])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each figure, about")
    parser.add_argument("--record", help="append the figures as one JSON line to this file")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    found = {}
    for algo in args.algos:
        one = side_by_side(Case(algo, seconds=args.seconds), cores)
        five = measure(Case(algo, seeds=SEEDS, seconds=args.seconds))["iteration_ms"]
        apart = SEEDS * sum(one) / len(one) / len(cores)  # five seeds' iterations, two at a time
        found[algo] = {"programs_ms": apart, "one_program_ms": five, "ratio": apart / five}
        print(f"{algo}: {apart:.2f} ms by {SEEDS} programs, {five:.2f} by one: {apart / five:.2f}x")
    if args.record:
        append_result(args.record, {"benchmark": "seeds", "seeds": SEEDS, "figures": found})


if __name__ == "__main__":
    main()
