"""`rescore compare`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from rescore.core import UsageError
from rescore.files.json import read_json
from rescore.files.logs import read_eval
from rescore.files.run_record import RUN
from rescore.show.curves import learning_curve, summarise


@dataclass(frozen=True)
class Compare:
    """Learning curves of several runs in one figure, and a table of their returns.

    Runs with the same settings are seeds of one curve; others of one algorithm are told apart by
    their folders.
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN")]  # folders of runs
    out: Path = Path("compare.png")  # figure to write

    def execute(self) -> int:
        if not self.runs:
            raise UsageError("name the folders of the runs to compare")
        groups = grouped(self.runs)
        path = learning_curve(groups, self.out)
        width = max(map(len, groups))
        print(f"{'':{width}}  seeds      steps       last       best")
        for label, folders in groups.items():
            rows = [read_eval(folder) for folder in folders]
            curve = summarise(rows)
            last = [r.success for run in rows for r in run if r.env_steps == curve.env_steps[-1]]
            told = [success for success in last if success is not None]
            print(
                f"{label:{width}}  {curve.seeds:5d}  {curve.env_steps[-1]:9,d}  "
                f"{curve.mean[-1]:9,.1f}  {curve.mean.max():9,.1f}"
                + (f"  success {sum(told) / len(told):.0%}" if told else "")
            )
        print(path)
        return 0


def grouped(runs: tuple[Path, ...]) -> dict[str, list[Path]]:
    """Folders by label: algorithm, its preset, task or folder where these tell groups apart."""
    by_settings: dict[str, list[Path]] = {}
    for folder in runs:
        if not (folder / RUN).exists():
            raise UsageError(f"{folder} is not the folder of a run")
        config = read_json(folder / RUN)["config"]
        same = {k: v for k, v in config.items() if k not in ("seeds", "steps")}
        by_settings.setdefault(json.dumps(same, sort_keys=True), []).append(folder)
    configs = [json.loads(text) for text in by_settings]
    tasks = {config["env"] for config in configs}
    names = [c["algorithm"] + (f"  {c['env']}" if len(tasks) > 1 else "") for c in configs]
    seen = Counter(names)
    labels = [
        name if seen[name] == 1 else f"{name}  {folders[0]}"
        for name, folders in zip(names, by_settings.values())
    ]
    return dict(zip(labels, by_settings.values()))
