"""`rescore list`."""

from __future__ import annotations

from dataclasses import dataclass

from rescore.algorithms import REGISTRY, presets_of
from rescore.bench import published

TASKS = [f"{name}-v4 or {name}-v5" for name in published.TASKS if name != "Pusher"]
TASKS += ["Pusher-v5 (v4 needs mujoco < 3)", "Pendulum-v1"]


@dataclass(frozen=True)
class List:
    """Algorithms with their presets, and the tasks of the paper."""

    def execute(self) -> int:
        print("algorithms and presets")
        for name, (_, _, what) in REGISTRY.items():
            print(f"  {name:<6} {what}")
            for preset, content in presets_of(name).items():
                print(f"         --preset {preset:<10} {content.source}")
        print("\ntasks (any other Gymnasium id with Box actions works too)")
        for task in TASKS:
            print(f"  {task}")
        return 0
