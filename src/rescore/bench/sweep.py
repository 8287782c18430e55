"""A search for good settings: Optuna proposes, `rescore train` tries, in processes of its own.

A trial is a folder like any other run. One process asks and tells, so that the study's SQLite file
has one writer; a search that was stopped in any way goes on with the same command.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rescore.bench.local import POLL_S, PROGRAM, launch
from rescore.bench.matrix import thread_settings
from rescore.bench.plan import flags
from rescore.core import UsageError
from rescore.envs.task import parsed
from rescore.files.atomic import replacing
from rescore.files.json import read_json
from rescore.files.locks import Lock
from rescore.files.logs import read_eval
from rescore.files.run_record import claim
from rescore.training.checkpoint import stored
from rescore.training.signals import interruptible

STUDY = "study.db"
IN_A_ROW = 3  # failures after which a search ends: something is wrong with all of it


@dataclass(frozen=True)
class Choice:
    """A flag of `train` and what may stand there: a range, or one of several values."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    values: tuple[Any, ...] = ()

    @classmethod
    def read(cls, text: str) -> Choice:
        """From NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C."""
        name, _, said = text.partition("=")
        name = name.removeprefix("--").replace("_", "-")
        parts = said.split(":")
        try:
            if "," in said or len(parts) == 1:
                values = tuple(parsed(word) for word in filter(None, said.split(",")))
                if name and values:
                    return cls(name, values=values)
            elif len(parts) == 2 or (len(parts) == 3 and parts[2] == "log"):
                low, high, log = float(parts[0]), float(parts[1]), len(parts) == 3
                if name and low < high and (low > 0 or not log):
                    return cls(name, low, high, log)
        except ValueError:
            pass
        raise UsageError(
            f"{text!r} is no choice: write actor-lr=1e-4:1e-2:log, gamma=0.9:0.999 or "
            f"policy-delay=1,2,3"
        )

    def ask(self, trial: Any) -> Any:
        if self.values:
            return trial.suggest_categorical(self.name, self.values)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Search:
    """What is searched, and where it is kept."""

    out: Path
    train: tuple[str, ...]  # words after `rescore` that every trial begins with
    space: tuple[Choice, ...]
    trials: int
    steps: int
    workers: int = 1
    threads: int = 1
    prune: bool = True
    seed: int = 0
    say: Callable[[str], None] = print

    def study(self) -> Any:
        """The study in its file; another search in the same folder is refused."""
        optuna = find_optuna()
        wait = self.steps // 3
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=wait)
        study = optuna.create_study(
            study_name="sweep",
            storage=f"sqlite:///{self.out / STUDY}",
            pruner=pruner if self.prune else optuna.pruners.NopPruner(),
            direction="maximize",
            load_if_exists=True,
        )
        # A search that goes on must not repeat its first proposals.
        study.sampler = optuna.samplers.TPESampler(
            seed=(self.seed + len(study.trials)) % 2**32, constant_liar=self.workers > 1
        )
        mine = [list(self.train), sorted(repr(choice) for choice in self.space)]
        if study.user_attrs.get("asks", mine) != mine:
            raise UsageError(f"{self.out} holds another search: choose another folder (--out)")
        study.set_user_attr("asks", mine)
        return study

    def run(self) -> bool:
        """Trials until so many have ended; False if it was interrupted."""
        self.out.mkdir(parents=True, exist_ok=True)
        lock = claim(self.out, "searched")
        try:
            return Workers(self, self.study(), lock).run()
        finally:
            lock.release()

    def folder(self, number: int) -> Path:
        return self.out / f"trial-{number:04d}"

    def log(self, number: int) -> Path:
        return self.out / f"trial-{number:04d}.log"

    def command(self, number: int, params: Mapping[str, Any]) -> list[str]:
        """What starts a trial, or goes on with one that was stopped."""
        folder = self.folder(number)
        if folder.exists() and stored(folder):
            return ["resume", str(folder), "--quiet"]
        shutil.rmtree(folder, ignore_errors=True)  # it ended before its first checkpoint
        return [*self.train, *chosen_flags(params), "--out", str(folder), "--quiet"]


@dataclass
class Workers:
    """Trials at work."""

    search: Search
    study: Any
    lock: Lock  # workers inherit it: a search that was killed counts as running until they end
    running: dict[int, tuple[Any, subprocess.Popen]] = field(default_factory=dict)
    failures: int = 0  # in a row

    def run(self) -> bool:
        waiting = [t for t in self.study.trials if not t.state.is_finished()]
        with interruptible() as interrupted:
            try:
                while not interrupted():
                    ended = sum(trial.state.is_finished() for trial in self.study.trials)
                    free = self.search.workers - len(self.running)
                    left = self.search.trials - ended - len(self.running)
                    for _ in range(min(free, left)):
                        self.start(waiting.pop(0) if waiting else None)
                    if not self.running:
                        return True
                    time.sleep(POLL_S)
                    for number in list(self.running):
                        self.look(number)
                return False
            finally:
                for _, process in self.running.values():
                    process.terminate()  # it saves; the trial goes on with the next search
                for _, process in self.running.values():
                    process.wait()

    def start(self, left: Any) -> None:
        """A trial that was left running, or a new one."""
        optuna, search = find_optuna(), self.search
        trial = self.study.ask() if left is None else optuna.trial.Trial(self.study, left._trial_id)
        params = {choice.name: choice.ask(trial) for choice in search.space}
        words = search.command(trial.number, params)
        search.say(f"trial {trial.number}: {' '.join(chosen_flags(params))}")
        settings = thread_settings(search.threads)
        process = launch([*PROGRAM, *words], search.log(trial.number), self.lock, settings)
        self.running[trial.number] = (trial, process)

    def look(self, number: int) -> None:
        """Tell the study of new evaluations, end a trial that is behind, or note that it ended."""
        states = find_optuna().trial.TrialState
        trial, process = self.running[number]
        code, folder = process.poll(), self.search.folder(number)
        seen = curve(folder)
        for step, value in seen:
            if step not in self.study.trials[number].intermediate_values:
                trial.report(value, step)
        if code is None:
            if seen and trial.should_prune():
                process.terminate()
                process.wait()
                self.end(number, f"behind at {seen[-1][0]:,} steps", states.PRUNED)
        elif (folder / "final.json").exists():
            value = float(read_json(folder / "final.json")["mean"])
            self.failures = 0
            self.end(number, f"{value:,.1f}", states.COMPLETE, value)
        else:
            log = self.search.log(number).read_text(errors="replace")
            last = (log.strip().splitlines() or ["no output"])[-1]
            self.failures += 1
            self.end(number, f"failed: {last}", states.FAIL)
            if self.failures >= IN_A_ROW:
                raise UsageError(f"{IN_A_ROW} trials in a row failed, the last with: {last}")

    def end(self, number: int, said: str, state: Any, value: float | None = None) -> None:
        del self.running[number]
        self.study.tell(number, value, state=state)
        self.search.say(f"trial {number}: {said}")


def chosen_flags(params: Mapping[str, Any]) -> list[str]:
    """Settings as `train` takes them."""
    shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in params.items()}
    return [word for name, value in shown.items() for word in flags(name, value)]


def curve(folder: Path) -> list[tuple[int, float]]:
    """Mean return of each evaluation so far."""
    try:
        rows = read_eval(folder)
    except (FileNotFoundError, UsageError):
        return []
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row.env_steps, []).append(row.return_)
    return [(step, float(np.mean(returns))) for step, returns in sorted(found.items())]


def find_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "the search needs Optuna: pip install -e '.[sweep]' in a clone, or pip install optuna"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def check_words(words: Sequence[str], space: Sequence[Choice], check: Callable) -> None:
    """Refuse a search whose first trial could not start: every end of every range is tried."""
    for choice in space:
        if not re.fullmatch(r"[a-zA-Z][\w.-]*", choice.name):
            raise UsageError(f"{choice.name!r} is no flag of `rescore train`")
        for value in choice.values or (choice.low, choice.high):
            check([*words, *chosen_flags({choice.name: value})])


def importances(study: Any) -> dict[str, float]:
    """How much each setting decides, by PED-ANOVA; nothing while there are too few trials."""
    optuna = find_optuna()
    done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    if len(done) < 4 or len({t.value for t in done}) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    except (ValueError, RuntimeError):  # all trials alike in every setting
        return {}


def draw(study: Any, path: Path) -> Path:
    """Values of the trials in their order, and the importance of each setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    ended = [t for t in study.trials if t.value is not None]
    for state, colour in (("COMPLETE", "C0"), ("PRUNED", "0.7")):
        own = [t for t in ended if t.state.name == state]
        if own:
            label = state.lower()
            left.plot([t.number for t in own], [t.value for t in own], "o", c=colour, label=label)
    left.set(xlabel="trial", ylabel="return")
    if ended:
        left.legend(frameon=False)
    found = importances(study)
    right.barh(list(found)[::-1], list(found.values())[::-1], color="C0")
    right.set(xlabel="importance (PED-ANOVA)", title="" if found else "too few trials yet")
    with replacing(path) as part:
        figure.savefig(part, format="png", facecolor="white")
    return path


def summary(study: Any) -> dict[str, Any]:
    """What a search has found so far."""
    counts = Counter(trial.state.name.lower() for trial in study.trials)
    told: dict[str, Any] = {"trials": dict(counts)}
    if counts.get("complete"):
        best = study.best_trial
        told |= {"best": best.value, "trial": best.number, "params": best.params}
    return told
