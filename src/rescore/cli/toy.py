"""`rescore toy`: a study of samplers on one density, written to a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from rescore.boltzmann.figures import scatters
from rescore.boltzmann.study import METHODS, Study, measure, table
from rescore.boltzmann.targets import find
from rescore.cli.folders import default_folder
from rescore.core import UsageError, known
from rescore.files.json import plain, write_json
from rescore.files.machine import surroundings
from rescore.files.run_record import append_result, new_folder
from rescore.show.progress import make_progress


@dataclass(frozen=True)
class Toy:
    """Sample a density from its energy with every method of the paper's toy studies.

    Writes metrics.json, table.md and a figure.
    """

    target: Annotated[Positional[str], arg(metavar="TARGET")]  # gmm, two-moons, ring or gmm40
    method: tuple[str, ...] = ()  # some methods only, such as rsm-gaussian dsm langevin
    seed: int = 0  # of networks and samples
    samples: int = 20_000  # per method
    updates: int | None = None  # of each diffusion model, instead of its own number
    out: Path | None = None  # folder to write; default runs/toy/TARGET/sSEED-TIME
    quiet: bool = False  # no progress display
    record: Path | None = None  # append each method's metrics as one JSON line to this file

    def execute(self) -> int:
        target, methods = find(self.target), self.method or tuple(METHODS)
        for name in methods:
            known(name, METHODS, "method")
        if self.samples < 100:
            raise UsageError(f"--samples must be at least 100, not {self.samples}")
        folder = new_folder(self.out or default_folder("toy", self.target, [self.seed]))
        settings = {} if self.updates is None else {"updates": self.updates}
        study = Study(target, self.seed, self.samples, make_progress(quiet=self.quiet), settings)
        config = {"target": self.target, "seed": self.seed, "samples": self.samples, **settings}
        # Of the code that runs, not of what it becomes meanwhile.
        here = surroundings()
        results, points = {}, {}
        for method, outcome, metrics in measure(study, methods):
            results[method], points[METHODS[method].title] = plain(metrics), outcome.samples
            if self.record:
                append_result(self.record, {**here, "config": config, "method": method, **metrics})
        write_json(folder / "metrics.json", {**config, "methods": results})
        text = table(results)
        (folder / "table.md").write_text(text + "\n", encoding="utf-8")
        print(text)
        print(f"\nmetrics         {folder / 'metrics.json'}")
        print(f"figure          {scatters(target, points, folder / 'samples.png')}")
        return 0
