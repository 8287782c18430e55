"""A user's function that follows a run and may end it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rescore.core import EnvError
from rescore.files.atomic import replacing
from rescore.show.progress import Progress
from rescore.training.loop import Run
from rescore.training.session import Journal, drive
from rescore.training.track import trackers

ERRORS = "errors.log"  # traceback of an environment that failed


@dataclass(frozen=True)
class Event:
    """What happened: `values` are metrics of a report, or the summary of an evaluation."""

    kind: Literal["report", "evaluation", "save"]
    env_steps: int
    values: Mapping[str, Any]


Callback = Callable[[Event], bool | None]  # False ends the run


class Ended(Exception):
    """The callback said that it is enough."""


class Watched(Progress):
    """A progress display that tells a callback what it is told."""

    def __init__(self, shown: Progress, callback: Callback):
        self._shown, self._callback = shown, callback

    def message(self, line: str) -> None:
        self._shown.message(line)

    def moved(self, env_steps: int) -> None:
        self._shown.moved(env_steps)

    def update(self, env_steps: int, info: Mapping[str, Any]) -> None:
        self._shown.update(env_steps, info)
        kind: Any = "evaluation" if "eval" in info else "report"
        self.tell(Event(kind, env_steps, info.get("eval") or {**info, **info.get("metrics", {})}))

    def tell(self, event: Event) -> None:
        if self._callback(event) is False:
            raise Ended


class WatchedJournal(Journal):
    """A journal that tells of what it saved, to trackers too, and notes what went wrong."""

    def __init__(self, folder: Path | None, config: dict[str, Any], track: Sequence[str] = ()):
        super().__init__(folder, config, "tensorboard" in track)
        if folder is not None:
            self._logs += trackers(track, folder, config)

    def save(self, run: Run, progress: Progress) -> None:
        super().save(run, progress)
        if self.folder is not None and isinstance(progress, Watched):
            progress.tell(Event("save", run.env_steps, {"folder": self.folder}))

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
            super().save(run, Progress())
            kept = "what was learned is saved"
        return EnvError(f"{said}; {kept}, the traceback is in {self.folder / ERRORS}")

    def end(self, status: str) -> None:
        known = {"solved": "finished", "interrupted": "stopped"}
        self.mark(known.get(status, status))
        self.close()


def drive_watched(
    run: Run,
    total: int,
    journal: WatchedJournal,
    shown: Progress,
    callback: Callback | None,
    **rest,
) -> str:
    """`drive` with a callback; "stopped" means by it, "interrupted" by a signal."""
    watched = shown if callback is None else Watched(shown, callback)
    try:
        status = drive(run, total, journal, watched, **rest)
        return "interrupted" if status == "stopped" else status
    except Ended:
        journal.save(run, shown)
        return "stopped"
    except EnvError as error:
        raise journal.failed(run, error) from error.__cause__
