"""Where metrics go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rescore.core import UsageError, known, one_line
from rescore.files.json import plain
from rescore.files.logs import Scalar


class Tracker:
    """A package that takes numbers against environment steps.

    One that cannot start is refused; one that fails later is left, for training is worth more.
    """

    name: str
    package: str
    lost = False

    def __init__(self, folder: Path, config: Mapping[str, Any], env_steps: int):
        self.api = self.package_or_advice()
        try:
            self.open(folder, config, env_steps)
        except Exception as error:  # no login, no server, a store that it no longer writes
            raise UsageError(f"--track {self.name} cannot start: {one_line(error)}") from error

    @classmethod
    def package_or_advice(cls) -> Any:
        try:
            return importlib.import_module(cls.package)
        except ImportError:
            advice = f"pip install {cls.package}"
            raise UsageError(f"--track {cls.name} needs {cls.package}: {advice}") from None

    def write(self, row: Mapping[str, Scalar]) -> None:
        if not self.lost:
            self._guarded(lambda: self.send(int(row["env_steps"]), scalars(row)))

    def close(self) -> None:
        if not self.lost:
            self._guarded(self.end)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.lost = True
            said = f"note: {self.name} gets no more metrics, {one_line(error)}"
            print(said, file=sys.stderr)

    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        """Begin, at a step; those that only append repeat what follows a checkpoint."""
        raise NotImplementedError

    def send(self, env_steps: int, row: dict[str, float]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


def scalars(row: Mapping[str, Scalar]) -> dict[str, float]:
    """Numbers by name; rows that name their seed go under `seed<n>/`."""
    prefix = f"seed{row['seed']}/" if "seed" in row else ""
    kept = {n: v for n, v in plain(row).items() if n not in ("env_steps", "seed")}
    return {prefix + n: v for n, v in kept.items() if isinstance(v, int | float)}


class Tensorboard(Tracker):
    """Events in the run's folder; those beyond `env_steps` are hidden."""

    name, package = "tensorboard", "tensorboardX"

    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        # Files are named by the second: a number keeps a quick resumption from overwriting one.
        suffix = f".{len(list((folder / 'tb').glob('events.*')))}"
        settings = {"purge_step": env_steps + 1, "filename_suffix": suffix, "flush_secs": 10}
        self._writer = self.api.SummaryWriter(str(folder / "tb"), **settings)

    def send(self, env_steps: int, row: dict[str, float]) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, env_steps)

    def end(self) -> None:
        self._writer.close()


class Wandb(Tracker):
    """Weights & Biases; WANDB_MODE=offline writes to the run's folder alone."""

    name = package = "wandb"

    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        name, project = "-".join(folder.parts[-3:]), f"rescore-{config['algorithm']}"
        self._run = self.api.init(project=project, name=name, dir=str(folder), config=dict(config))
        self._run.define_metric("*", step_metric="env_steps")

    def send(self, env_steps: int, row: dict[str, float]) -> None:
        self._run.log({**row, "env_steps": env_steps})

    def end(self) -> None:
        self._run.finish()


class Mlflow(Tracker):
    """MLflow; MLFLOW_TRACKING_URI says where, by default (version 3) the file mlflow.db."""

    name = package = "mlflow"

    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        self._run = self.api.start_run(run_name="-".join(folder.parts[-3:]))
        self.api.log_params({n: str(v)[:250] for n, v in config.items()})

    def send(self, env_steps: int, row: dict[str, float]) -> None:
        self.api.log_metrics(row, step=env_steps)

    def end(self) -> None:
        self.api.end_run()


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "tensorboard": Tensorboard}


def known_trackers(names: Sequence[str], tensorboard: bool) -> tuple[str, ...]:
    """Their names, refused before anything is written if one is unknown or not installed."""
    names = tuple(dict.fromkeys((*names, *["tensorboard"] * tensorboard)))
    for name in names:
        TRACKERS[known(name, TRACKERS, "tracker")].package_or_advice()
    return names
