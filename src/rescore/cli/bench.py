"""`rescore bench run`."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from rescore.bench.local import Pool, default_workers
from rescore.bench.matrix import INTERRUPTED, CellFolder, Outcome, grown, open_matrix
from rescore.bench.plan import Cell, Plan, cells, plan
from rescore.bench.watch import Board
from rescore.cli.folders import program
from rescore.core import UsageError, known
from rescore.envs.task import keywords

FAILED = 1


@dataclass(frozen=True)
class Run:
    """Train a matrix of algorithms, tasks and seeds, and keep one row of results per run.

    A cell is one training run. Finished cells are skipped, stopped ones go on from their
    checkpoint, failed ones are shown with the end of their log and left alone until --retry. Stop
    it with Ctrl-C or in any other way, and repeat the command to go on; several runners may share
    a folder.

    Suites: mujoco (the paper's ten tasks), mujoco-v5, small (minutes on two cores), or the .json
    file of a study: tasks, algorithms and variants, such as those in benchmarks/suites.
    `rescore report OUT` makes tables, figures and a page.
    """

    suite: str = "small"  # mujoco, mujoco-v5, small, or the .json file of a study
    algos: tuple[str, ...] = ()  # algorithms, see `rescore list`; default those of the suite
    tasks: tuple[str, ...] = ("all",)  # of the suite, such as Ant or Ant-v4; or any Gymnasium id
    seeds: int | None = None  # seeds 0 to N - 1; default the suite's, or 1
    steps: float | None = None  # environment steps of every task, such as 1e6; default the suite's
    out: Path | None = None  # folder of one plan, which may grow; default runs/bench/SUITE
    preset: str | None = None  # settings of the algorithms, see `rescore list`; default the suite's
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()  # over preset and suite
    variants: tuple[str, ...] = ()  # of a study, those to work on now; default all
    group: int = 1  # seeds trained in one program, as `rescore train --seeds 0 1` does
    workers: int | None = None  # processes at a time; default as many as the cores can feed
    threads: int = 1  # of each worker
    retry: bool = False  # work on failed cells again
    keep_checkpoints: bool = False  # of finished cells too; without, their best policy is kept
    ray: str | None = None  # local (on this machine), auto (join a cluster) or an address
    dry: bool = False  # only list the cells and their states

    def execute(self) -> int:
        if self.threads < 1 or (self.workers is not None and self.workers < 1):
            raise UsageError("--workers and --threads must be at least 1")
        asked = self.plan()
        out, wanted = self.out or Path("runs") / "bench" / asked.suite.name, self.cells(asked)
        for cell in {(c.label, c.steps): c for c in wanted}.values():
            cell.check()
        if not self.dry:
            open_matrix(out, asked)
        elif (out / "matrix.json").exists():
            grown(out, asked)  # refuses what the command itself would
        folders = [CellFolder(out, cell) for cell in wanted]
        states = [folder.state() for folder in folders]
        print(overview(out, folders, states))
        if self.dry:
            return 0
        todo = {"missing", "stopped", *(["failed"] if self.retry else [])}
        for folder, outcome in zip(folders, states):
            if outcome.state == "finished":  # its runner may have been killed before it tidied up
                folder.tidy(self.keep_checkpoints)
        chosen = [folder for folder, outcome in zip(folders, states) if outcome.state in todo]
        return conclude(out, folders, ended=not chosen or self.work(chosen, states))

    def plan(self) -> Plan:
        if self.steps is not None and not self.steps.is_integer():
            raise UsageError(f"--steps must be a whole number, not {self.steps:g}")
        return plan(
            self.suite,
            self.algos,
            self.tasks,
            seeds=self.seeds,
            preset=self.preset,
            steps=None if self.steps is None else int(self.steps),
            group=self.group,
            settings=tuple(keywords(self.set, "--set").items()),
        )

    def cells(self, asked: Plan) -> list[Cell]:
        for name in self.variants:
            known(name, asked.suite.variants, "variant")
        return [c for c in cells(asked) if not self.variants or c.variant in self.variants]

    def work(self, chosen: list[CellFolder], states: list[Outcome]) -> bool:
        """Whether it came to its end."""
        workers, board = self.workers or default_workers(self.threads), Board()
        if self.ray:
            from rescore.bench.ray_pool import connect, run_ray

            ray = connect(self.ray, workers * self.threads)
        board.start(len(states), sum(outcome.state == "finished" for outcome in states))
        try:
            if self.ray:
                return run_ray(ray, chosen, self.threads, board, self.keep_checkpoints)
            return Pool(workers, self.threads, board, self.keep_checkpoints).run(chosen)
        finally:
            board.stop()
            if self.ray:
                ray.shutdown()


def conclude(out: Path, folders: list[CellFolder], ended: bool) -> int:
    """Say what there is now, and what to type next; the exit code."""
    states = [folder.state() for folder in folders]
    again = f"{program()} {shlex.join(sys.argv[1:])}"
    failed = [folder for folder, outcome in zip(folders, states) if outcome.state == "failed"]
    for folder in failed:
        print(f"\nfailed: {folder.cell.name} ({folder.state().detail}); the end of {folder.log}:")
        print("\n".join(f"  {line}" for line in folder.log_tail()))
    print(f"\n{overview(out, folders, states)}")
    if failed:
        print(f"try the failed cells again with:\n  {again.removesuffix(' --retry')} --retry")
    if not ended or any(outcome.state not in ("finished", "failed") for outcome in states):
        print(f"go on with:\n  {again}")
    if any(outcome.state == "finished" for outcome in states):
        print(f"see the results with:\n  {program()} report {out} --out report")
    return INTERRUPTED if not ended else FAILED if failed else 0


def overview(out: Path, folders: list[CellFolder], states: list[Outcome]) -> str:
    """How many cells are in which state, and which are neither finished nor missing."""
    counts = Counter(outcome.state for outcome in states)
    parts = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    lines = [f"{out}: {len(folders)} cells: {parts}"]
    for folder, outcome in zip(folders, states):
        if outcome.state not in ("finished", "missing"):
            lines.append(f"  {outcome.state}  {folder.cell.name} ({outcome.detail})")
    return "\n".join(lines)
