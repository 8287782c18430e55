"""The paper's numbers and the returns of random actions: data that everything else refers to."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def data(name: str) -> dict[str, Any]:
    """A data file of this package."""
    return json.loads((files("rescore.bench") / "data" / f"{name}.json").read_text("utf-8"))


# The ten tasks of Table 1 without their version, in its order.
TASKS = tuple(data("published")["returns"]["tasks"])


def published(task: str) -> dict[str, list[float]]:
    """The paper's Table 1 on this task, by algorithm: mean and deviation; empty if not in it."""
    return data("published")["returns"]["tasks"].get(task.rpartition("-v")[0] or task, {})


def published_cost(algorithm: str) -> tuple[float | None, float | None]:
    """The paper's Table 2: minutes and megabytes for 200k iterations on its GPU."""
    cost = data("published")["cost"]
    return cost["minutes"].get(algorithm), cost["megabytes"].get(algorithm)


def reference(task: str) -> tuple[float, float] | None:
    """What normalised scores call 0 and 1: random actions, and the paper's best mean."""
    random, best = data("random")["tasks"].get(task), published(task)
    return (random["mean"], max(mean for mean, _ in best.values())) if random and best else None
