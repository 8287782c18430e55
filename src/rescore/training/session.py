"""Driving a run: when to report, evaluate, save and stop."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rescore.core import EnvError, NonFiniteError, UsageError
from rescore.files.atomic import replacing
from rescore.files.logs import EvalLog, EvalRow, MetricsLog
from rescore.files.run_record import RUN, mark
from rescore.show.progress import Progress
from rescore.streams import Stream, env_seed
from rescore.training import checkpoint
from rescore.training.callbacks import Callback, Ended, Event, Watched
from rescore.training.evaluate import Evaluation
from rescore.training.loop import Run, advance, report
from rescore.training.signals import Stopped, interruptible
from rescore.training.track import TRACKERS

ERRORS = "errors.log"  # traceback of an environment that failed


class Journal:
    """What a run leaves in its folder; without a folder, nothing."""

    def __init__(
        self, folder: Path | None, run: Run, config: dict[str, Any], track: Sequence[str] = ()
    ):
        """Rows beyond the step that training goes on from are dropped."""
        self.folder, self.config, self._since = folder, config, time.monotonic()
        self._told = {""}  # why environments cannot be saved, said once
        self.notes: list[str] = []
        if folder is None:
            return
        self._metrics, self._eval = MetricsLog(folder), EvalLog(folder)
        try:
            self._trackers = [TRACKERS[name](folder, config, run.env_steps) for name in track]
        except BaseException:  # such as one that has no account
            self.mark("failed")
            raise
        damaged = self._metrics.truncate(run.env_steps)
        # Rows of an evaluation that was cut short go, too: it is done again.
        damaged += self._eval.truncate(run.env_steps - run.owes_evaluation)
        if damaged:
            self.notes = [f"note: {damaged} damaged line(s) of the logs are dropped"]

    def _demand_folder(self) -> None:
        if self.folder is not None and not (self.folder / RUN).exists():
            raise UsageError(f"{self.folder} is gone: training stops, for nothing could be saved")

    def metrics(self, rows: list[dict[str, float]]) -> None:
        if self.folder is None:
            return
        self._demand_folder()
        for row in rows:
            self._metrics.write(row)
            for tracker in self._trackers:
                tracker.write(row)

    def evaluation(self, run: Run, result: Evaluation) -> None:
        if self.folder is None:
            return
        for s, seed in enumerate(run.envs.seeds):
            row: dict[str, float] = {"env_steps": run.env_steps, "seed": seed}
            row["eval/return"] = float(result.returns[s].mean())
            told = () if result.successes is None else result.successes[s]
            if np.isfinite(told).any():
                row["eval/success"] = float(np.nanmean(told))
            for tracker in self._trackers:
                tracker.write(row)
        self._eval.write(
            EvalRow(
                run.env_steps,
                seed,
                episode,
                env_seed(seed, Stream.EVALUATE, episode),
                float(result.returns[s, episode]),
                int(result.lengths[s, episode]),
                told_of(result, s, episode),
            )
            for s, seed in enumerate(run.envs.seeds)
            for episode in range(result.returns.shape[1])
        )

    def save(self, run: Run, progress: Progress) -> None:
        """A checkpoint, older ones pruned."""
        if self.folder is None:
            return
        self._demand_folder()
        arrays, meta = checkpoint.dump(run)
        if (reason := meta.get("no_snapshot", "")) not in self._told:
            progress.message(f"note: {reason}; a resumed run starts a new episode there")
            self._told.add(reason)
        target = self.folder / "checkpoints" / checkpoint.step_name(run.env_steps)
        checkpoint.save(target, arrays, {**meta, "config": self.config})
        checkpoint.prune(self.folder, run.training.keep_checkpoints)
        self.mark("running")

    def save_best(self, run: Run) -> None:
        """The policy of the best evaluation so far, without replay."""
        if self.folder is not None:
            arrays, meta = checkpoint.dump_policy(run)
            checkpoint.save(self.folder / "best", arrays, {**meta, "config": self.config})

    def failed(self, run: Run, error: EnvError) -> EnvError:
        """Save what there is, and the traceback beside it; the error with where they are."""
        said = str(error)
        if "environment step" not in said:
            said += f", evaluating at environment step {run.env_steps}"
        if self.folder is None:
            return EnvError(said)
        with replacing(self.folder / ERRORS) as part:  # not through a link
            part.write_text("".join(traceback.format_exception(error.__cause__)))
        kept = "nothing was learned yet"
        if run.updates:
            self.save(run, Progress())
            kept = "what was learned is saved"
        return EnvError(f"{said}; {kept}, the traceback is in {self.folder / ERRORS}")

    def mark(self, status: str) -> None:
        """Note status and wall-clock in run.json."""
        if self.folder is not None and (self.folder / RUN).exists():
            now = time.monotonic()
            mark(self.folder / RUN, status, now - self._since)
            self._since = now

    def end(self, status: str) -> None:
        """Note how it ended, and close the tables."""
        self.mark({"solved": "finished", "interrupted": "stopped"}.get(status, status))
        if self.folder is not None:
            opened: list[Any] = [self._metrics, self._eval, *self._trackers]
            for each in opened:
                each.close()


def drive(
    run: Run,
    total: int,
    journal: Journal,
    shown: Progress,
    callback: Callback | None = None,
    *,
    evaluate: Callable[[], Evaluation] | None,
    until: float | None = None,
) -> str:
    """Train up to `total` environment steps: "finished", "solved" before that, "stopped" by the
    callback, or "interrupted" by a signal."""
    progress = shown if callback is None else Watched(shown, callback)
    try:
        return train(run, total, journal, progress, evaluate, until)
    except Ended:
        journal.save(run, shown)
        return "stopped"
    except EnvError as error:
        raise journal.failed(run, error) from error.__cause__


def train(
    run: Run,
    total: int,
    journal: Journal,
    progress: Progress,
    evaluate: Callable[[], Evaluation] | None,
    until: float | None,
) -> str:
    """Rows of a step are written before its checkpoint, so that a resumed run can cut the rest."""
    training, pace, solved = run.training, Pace(run), False

    def save() -> None:
        journal.save(run, progress)
        if journal.folder is not None and isinstance(progress, Watched):
            progress.tell(Event("save", run.env_steps, {"folder": journal.folder}))

    saved_at = run.env_steps or None  # a run that is stopped before its first step is saved, too
    run.owes_evaluation &= evaluate is not None
    with interruptible() as interrupted:
        try:
            while run.owes_evaluation or (run.env_steps < total and not solved):
                if interrupted():
                    break
                before, owed, updates = run.env_steps, run.owes_evaluation, run.updates
                if not owed:
                    advance(run)
                    progress.moved(run.env_steps)
                    last = run.env_steps >= total
                    due = last or crossed(before, run.env_steps, training.eval_every)
                    run.owes_evaluation = due and evaluate is not None
                    # Behaviour cloning makes no steps: its rows follow the updates.
                    cloned = updates < training.pretrain and crossed(updates, run.updates, 1_000)
                    if cloned:
                        progress.message(
                            f"cloned demonstrations: {run.updates:,} of {training.pretrain:,}"
                        )
                    if last or cloned or crossed(before, run.env_steps, training.log_every):
                        rows = report(run)
                        timing = pace.measure(total)
                        journal.metrics([{**row, **timing} for row in rows])
                        progress.update(run.env_steps, summarise(rows, timing))
                if run.owes_evaluation and evaluate:
                    solved = assess(run, evaluate, journal, progress, until)
                if owed or crossed(before, run.env_steps, training.checkpoint_every):
                    save()
                    saved_at = run.env_steps
        except Stopped:
            pass  # amid an evaluation, which the resumed run does again
        except UsageError:  # an episode without end, an environment's process that died
            # Not `save()`: its callback could end the run and hide this error.
            journal.save(run, progress)
            raise
        if saved_at != run.env_steps:
            save()
        done = run.env_steps >= total and not run.owes_evaluation
        return "solved" if solved else "finished" if done else "interrupted"


def assess(
    run: Run,
    evaluate: Callable[[], Evaluation],
    journal: Journal,
    progress: Progress,
    until: float | None,
) -> bool:
    """Record an evaluation; whether it reached `until`."""
    try:
        result = evaluate()
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}, evaluating at environment step {run.env_steps}") from None
    journal.evaluation(run, result)
    if run.best_return is None or result.mean > run.best_return:
        run.best_return, run.best_at = result.mean, run.env_steps
        journal.save_best(run)
    run.owes_evaluation = False
    shown = {"env_steps": run.env_steps, "mean": result.mean, "std": result.std}
    shown |= {"episodes": result.episodes, "best": run.best_return, "best_at": run.best_at}
    shown |= {} if result.success is None else {"success": result.success}
    progress.update(run.env_steps, {"eval": shown})
    return until is not None and result.mean >= until


def told_of(result: Evaluation, s: int, episode: int) -> float | None:
    """Whether an episode succeeded; none where the task did not say."""
    told = None if result.successes is None else float(result.successes[s, episode])
    return None if told is None or math.isnan(told) else told


class Pace:
    """Speed between two reports; the run's own clocks leave evaluation and saving out."""

    def __init__(self, run: Run):
        self.run, self.began = run, time.perf_counter()
        self._mark()

    def _mark(self) -> None:
        self.steps, self.updates = self.run.env_steps, self.run.updates
        self.env, self.learn = self.run.env_seconds, self.run.learn_seconds

    def measure(self, total: int) -> dict[str, float]:
        run = self.run
        elapsed = max(run.env_seconds - self.env + run.learn_seconds - self.learn, 1e-9)
        timing = {"seconds": round(time.perf_counter() - self.began, 3)}
        if steps := run.env_steps - self.steps:  # none while it clones demonstrations
            timing["steps_per_s"] = steps / elapsed
            timing["env_ms"] = 1e3 * (run.env_seconds - self.env) / steps
        if updates := run.updates - self.updates:
            timing["update_ms"] = 1e3 * (run.learn_seconds - self.learn) / updates
        if steps and self.steps >= run.warmup:  # random actions cost nothing, updates do
            timing["eta_s"] = (total - run.env_steps) / timing["steps_per_s"]
        self._mark()
        return timing


def summarise(rows: list[dict[str, float]], timing: dict[str, float]) -> dict[str, Any]:
    """What the progress display wants: means over the seeds."""
    names = dict.fromkeys(name for row in rows for name in row)
    mean = {}
    for name in names:
        values = [row[name] for row in rows if name in row]
        mean[name] = sum(values) / len(values)
    shown = {k: v for k, v in mean.items() if k not in ("env_steps", "seed", "updates", "episodes")}
    returned = {"return": shown.pop("return")} if "return" in shown else {}
    return {**timing, **returned, "metrics": shown}


def crossed(before: int, after: int, period: int) -> bool:
    """Whether a multiple of `period` was reached on the way; never, for period 0."""
    return period > 0 and after // period > before // period
