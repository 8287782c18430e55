"""What is measured: named sets of tasks with budgets, and studies read from files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rescore.algorithms import REGISTRY, presets_of
from rescore.algorithms.presets import COMPARISON
from rescore.bench.published import TASKS
from rescore.core import UsageError, did_you_mean, known
from rescore.files.json import read_json


@dataclass(frozen=True)
class Suite:
    """Tasks with their environment steps, and what differs from a preset when they are run."""

    name: str
    about: str  # a sentence
    tasks: Mapping[str, int]  # Gymnasium id -> environment steps
    # Name -> settings of its own over those below; `preset`, `seeds` and `steps` may be among them.
    algorithms: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {name: {} for name in REGISTRY}
    )
    preset: str = "default"
    seeds: int = 1  # unless more are asked for
    evaluations: int = 20  # of a run, evenly spread: every 50k steps of the paper's million
    settings: Mapping[str, Any] = field(default_factory=dict)  # of algorithm and training
    replay: Mapping[str, Any] = field(default_factory=dict)  # only for learners from replay
    # Name -> settings over all of these; `preset` among them chooses another preset.
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})


def unversioned(task: str) -> str:
    """Ant of Ant-v4; an id without version as it is."""
    return re.sub(r"-v\d+$", "", task)


def paper_tasks(version: str) -> dict[str, int]:
    """The ten tasks of Table 1 in its order; Humanoid is trained five times as long."""
    # Pusher-v4 refuses MuJoCo 3, so its place is taken by v5 and called so everywhere.
    ids = {name: f"{name}-{'v5' if name == 'Pusher' else version}" for name in TASKS}
    return {ids[name]: 5_000_000 if name == "Humanoid" else 1_000_000 for name in TASKS}


# Five environments and an update for every fifth step, whatever the preset samples.
COMPARED: dict[str, Any] = {
    "settings": {"eval_episodes": COMPARISON["eval_episodes"], "keep_checkpoints": 1},
    "replay": {name: COMPARISON[name] for name in ("num_envs", "utd", "chunk", "warmup")},
}
BUILT_IN = (
    Suite(
        "mujoco",
        "the ten tasks of the paper's Table 1, v4 (Pusher v5), 1M steps, Humanoid 5M",
        paper_tasks("v4"),
        **COMPARED,
    ),
    Suite(
        "mujoco-v5",
        "the same ten tasks as v5, which observe and reward differently",
        paper_tasks("v5"),
        **COMPARED,
    ),
    Suite(
        "small",
        "two tasks that take minutes on two cores: a look at the whole path, not a result",
        {"InvertedPendulum-v4": 6_000, "Reacher-v4": 6_000},
        algorithms={"dpmd": {}, "sac": {}},
        settings={"keep_checkpoints": 1},
        replay={"warmup": 1_000},
    ),
)
SUITES = {suite.name: suite for suite in BUILT_IN}


def find_suite(name: str) -> Suite:
    """A suite of the package by its name, or of a file by its path, checked."""
    if name in SUITES:
        return SUITES[name]
    if not name.endswith(".json"):
        hint = did_you_mean(name, SUITES, f"choose one of {', '.join(SUITES)},")
        raise UsageError(f"unknown suite {name!r}: {hint} or give the .json file of a study")
    path = Path(name)
    try:
        suite = make_suite({"name": path.stem, **mapping(read_json(path), "a suite")})
        for algorithm, own in suite.algorithms.items():
            known(algorithm, REGISTRY, "algorithm")
            preset = own.get("preset", suite.preset)
            for variant in suite.variants.values():
                chosen = variant.get("preset", preset)
                known(chosen, presets_of(algorithm), f"preset of {algorithm}")
        for task in suite.tasks:
            known(task, registered_tasks(), "task")
    except UsageError as error:
        said = str(error)
        raise UsageError(said if said.startswith(str(path)) else f"{path}: {said}") from None
    return suite


def make_suite(content: Mapping[str, Any]) -> Suite:
    """A suite of JSON's types; its form is checked, not the names of algorithms and tasks.

    `tasks` maps ids to steps, or is a list of ids beside `steps`, the budget of each; `algorithms`
    maps names to settings of their own, or is a list of names.
    """
    content = dict(content)
    keys = {f.name for f in fields(Suite)}
    for key in content:
        known(key, keys | {"steps"}, "key of a suite")
    for key in ("about", "tasks"):
        if not content.get(key):
            raise UsageError(f"a suite needs {key!r}")
    steps = content.pop("steps", None)
    if isinstance(content["tasks"], list):
        content["tasks"] = dict.fromkeys(content["tasks"], steps)
    if isinstance(content.get("algorithms"), list):
        content["algorithms"] = {name: {} for name in content["algorithms"]}
    for key in ("tasks", "algorithms", "settings", "replay", "variants"):
        mapping(content.get(key, {}), repr(key))
    for kind in ("algorithms", "variants"):
        for name, own in content.get(kind, {}).items():
            mapping(own, f"{name!r} of {kind!r}")
    counts = list(content["tasks"].items())
    for own in (content, *content.get("algorithms", {}).values()):
        counts += [(key, own[key]) for key in ("seeds", "steps", "evaluations") if key in own]
    for key, value in counts:
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{key!r} needs a whole number above 0, not {value!r}")
    return Suite(**content)


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what} must be a JSON object, not {type(value).__name__}")
    return value


def registered_tasks() -> Collection[str]:
    """Every id that Gymnasium knows, our probes among them."""
    import gymnasium

    from rescore.envs import probes

    probes.register()
    return gymnasium.registry
