"""A user's function that follows a run and may end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rescore.show.progress import Progress


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
