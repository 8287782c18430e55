"""The commands of the benchmarks: `bench run`, `report` and `bench speed`."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from rescore.algorithms import known
from rescore.bench.cells import Cell
from rescore.bench.local import default_workers, run_local, stop_on_hangup
from rescore.bench.matrix import INTERRUPTED, Outcome, Place, grown, open_matrix
from rescore.bench.suites import SUITES, Plan, cells, plan
from rescore.bench.watch import make_board
from rescore.cli import program
from rescore.core import UsageError

FAILED = 1


@dataclass(frozen=True)
class Run:
    """Train a matrix of algorithms, tasks and seeds, and keep one row of results per run.

    A cell is one training run. Finished cells are skipped, stopped ones go on from their
    checkpoint, failed ones are shown with the end of their log and left alone until --retry. Stop
    it with Ctrl-C or in any other way, and repeat the command to go on; several runners may share
    a folder.

    Suites: mujoco (the paper's ten tasks), mujoco-v5, small (minutes on two cores), and the
    studies steps, schedules, frontier (work against return), levers (where long runs settle), and
    of SDAC frontier-sdac and levers-sdac. `rescore report OUT` makes tables, figures and a page.
    """

    suite: str = "small"  # mujoco, mujoco-v5, small, or a study
    algos: tuple[str, ...] = ()  # algorithms, see `rescore list`; default those of the suite
    tasks: tuple[str, ...] = ("all",)  # of the suite, such as Ant or Ant-v4; or any Gymnasium id
    seeds: int = 1  # seeds 0 to N - 1
    steps: float | None = None  # environment steps of every task, such as 1e6; default the suite's
    out: Path | None = None  # folder of one plan, which may grow; default runs/bench/SUITE
    preset: str = "default"  # settings of the algorithms, see `rescore list`
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()  # over preset and suite
    variants: tuple[str, ...] = ()  # of a study, those to work on now; default all
    group: int = 1  # seeds trained side by side in one cell
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
        out, wanted = self.out or Path("runs") / "bench" / self.suite, self.cells(asked)
        for cell in {(c.label, c.steps): c for c in wanted}.values():
            cell.check()
        if not self.dry:
            open_matrix(out, asked)
        elif (out / "matrix.json").exists():
            grown(out, asked)  # refuses what the command itself would
        places = [Place(out, cell) for cell in wanted]
        states = [place.state() for place in places]
        print(overview(out, places, states))
        if self.dry:
            return 0
        todo = {"missing", "stopped", *(["failed"] if self.retry else [])}
        for place, outcome in zip(places, states):
            if outcome.state == "finished":  # its runner may have been killed before it tidied up
                place.tidy(self.keep_checkpoints)
        chosen = [place for place, outcome in zip(places, states) if outcome.state in todo]
        return conclude(out, places, ended=not chosen or self.work(chosen, states))

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
            settings=tuple(map(setting, self.set)),
        )

    def cells(self, asked: Plan) -> list[Cell]:
        for name in self.variants:
            known(name, SUITES[asked.suite].variants, "variant")
        return [c for c in cells(asked) if not self.variants or c.variant in self.variants]

    def work(self, chosen: list[Place], states: list[Outcome]) -> bool:
        """Whether it came to its end."""
        workers, board = self.workers or default_workers(self.threads), make_board()
        stop_on_hangup()
        if self.ray:
            from rescore.bench.ray_pool import connect, run_ray

            ray = connect(self.ray, workers * self.threads)
        board.start(len(states), sum(outcome.state == "finished" for outcome in states))
        try:
            if self.ray:
                return run_ray(ray, chosen, self.threads, board, self.keep_checkpoints)
            return run_local(chosen, workers, self.threads, board, self.keep_checkpoints)
        finally:
            board.stop()
            if self.ray:
                ray.shutdown()


@dataclass(frozen=True)
class Report:
    """Tables, figures and one page of HTML from the rows of `rescore bench run`.

    The paper's numbers stand beside ours; cells without a row are shown as missing; every number
    leads to the rows it was made of. Give folders of the studies steps and schedules too, and
    their figures are part of the page.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER")]  # of `bench run`
    out: Path = Path("report")  # folder to write: report.md, report.html and figures/
    title: str = "rescore: measured results"

    def execute(self) -> int:
        from rescore.bench.report import write_report

        for path in write_report(self.folders, self.out, self.title):
            print(path)
        return 0


@dataclass(frozen=True)
class Speed:
    """Measure what replay learners cost on this machine, and print ratios.

    An iteration is that of the paper's comparison: five steps of the environment, acting, one
    update of 256 transitions, through the real training loop. Every case runs in a process of its
    own, one after the other: leave the machine alone meanwhile. DPMD and SDAC are compared with
    the work of the released code, SAC with an update written without this library.
    """

    algos: tuple[str, ...] = ()  # replay learners, see `rescore list`; default all
    presets: tuple[str, ...] = ("default",)  # of each algorithm, where it has them
    env: str = "HalfCheetah-v4"
    seconds: float = 2.0  # for each figure, about
    rounds: int = 1  # through all cases, minutes apart; the best of each figure counts
    scaling: bool = False  # also against candidates, steps, width, batch, observation, seeds
    json: bool = False  # print one JSON object instead of tables
    record: Path | None = None  # append the figures as one JSON line to this file

    def execute(self) -> int:
        from rescore.algorithms import REGISTRY, find, presets_of
        from rescore.bench.speed import Case, measure, scaling
        from rescore.bench.speed_tables import best, compare, tables
        from rescore.training.record import append_result, surroundings

        if not self.seconds > 0:
            raise UsageError(f"--seconds must be positive, not {self.seconds}")
        if self.rounds < 1:
            raise UsageError(f"--rounds must be at least 1, not {self.rounds}")
        names = self.algos or tuple(name for name in REGISTRY if find(name).source == "replay")
        for name in names:
            if find(name).source != "replay":
                raise UsageError(f"{name} learns from rollouts: its iteration is another thing")
        shared = {"env": self.env, "seconds": self.seconds}
        cases = [
            Case(name, preset, **shared)
            for name in names
            for preset in self.presets
            if preset in presets_of(name)
        ]
        if not cases:
            raise UsageError(f"none of these algorithms has a preset {' or '.join(self.presets)}")
        reference = [Case(name, "released", **shared) for name in ("dpmd", "sdac") if name in names]
        reference += [Case("bare", **shared)] if "sac" in names else []
        # Not the comparison's rhythm: the policy acts four vector steps before it learns.
        reference += [Case(name, chunk=4, **shared) for name in ("dpmd", "sdac") if name in names]
        figures: dict[str, Any] = {"cases": {}, "ratios": {}, "scaling": {}}
        status = "cut short"
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            every = [*cases, *(case for case in reference if case not in cases)]
            for case in self.rounds * every:
                self.say(f"measuring {case.label}")
                figures["cases"][case.label] = best(figures["cases"].get(case.label), measure(case))
            for name in names if self.scaling else ():
                scales = figures["scaling"].setdefault(name, {})
                for what, value, case in scaling(name, self.seconds):
                    self.say(f"measuring {name}, {what}: {value}")
                    scales.setdefault(what, {})[value] = measure(case)
            status = "finished"
        finally:  # nothing that was measured is lost by an error, Ctrl-C or SIGTERM
            signal.signal(signal.SIGTERM, before)
            figures["ratios"] = compare(figures["cases"])
            if self.record and figures["cases"]:
                here = {"benchmark": "speed", "env": self.env, "status": status, **surroundings()}
                append_result(self.record, {**here, "figures": figures})
            print(json.dumps(figures) if self.json else tables(figures))
        return 0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is JSON."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value


def conclude(out: Path, places: list[Place], ended: bool) -> int:
    """Say what there is now, and what to type next; the exit code."""
    states = [place.state() for place in places]
    again = f"{program()} {shlex.join(sys.argv[1:])}"
    failed = [place for place, outcome in zip(places, states) if outcome.state == "failed"]
    for place in failed:
        print(f"\nfailed: {place.cell.name} ({place.state().detail}); the end of {place.log}:")
        print("\n".join(f"  {line}" for line in place.log_tail()))
    print(f"\n{overview(out, places, states)}")
    if failed:
        print(f"try the failed cells again with:\n  {again.removesuffix(' --retry')} --retry")
    if not ended or any(outcome.state not in ("finished", "failed") for outcome in states):
        print(f"go on with:\n  {again}")
    if any(outcome.state == "finished" for outcome in states):
        print(f"see the results with:\n  {program()} report {out} --out report")
    return INTERRUPTED if not ended else FAILED if failed else 0


def overview(out: Path, places: list[Place], states: list[Outcome]) -> str:
    """How many cells are in which state, and which are neither finished nor missing."""
    counts = Counter(outcome.state for outcome in states)
    parts = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    lines = [f"{out}: {len(places)} cells: {parts}"]
    for place, outcome in zip(places, states):
        if outcome.state not in ("finished", "missing"):
            lines.append(f"  {outcome.state}  {place.cell.name} ({outcome.detail})")
    return "\n".join(lines)
