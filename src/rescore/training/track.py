"""Trackers outside the run's folder: Weights & Biases, MLflow. Both are optional packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rescore.core import UsageError, known
from rescore.files.logs import Scalar, scalars


class Tracker:
    """A package that takes numbers against environment steps."""

    package: str

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        try:
            self.api = importlib.import_module(self.package)
        except ImportError:
            advice = f"pip install {self.package}"
            raise UsageError(f"--track {self.package} needs {self.package}: {advice}") from None
        self.open(folder, config)

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def truncate(self, env_steps: int) -> int:
        """Trackers only append: a resumed run repeats the steps after its checkpoint."""
        return 0


class Wandb(Tracker):
    """Weights & Biases; WANDB_MODE=offline writes to the run's folder alone."""

    package = "wandb"

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        name, project = "-".join(folder.parts[-3:]), f"rescore-{config['algorithm']}"
        self._run = self.api.init(project=project, name=name, dir=str(folder), config=dict(config))

    def write(self, row: Mapping[str, Scalar]) -> None:
        self._run.log({**scalars(row), "env_steps": int(row["env_steps"])})

    def close(self) -> None:
        self._run.finish()


class Mlflow(Tracker):
    """MLflow; MLFLOW_TRACKING_URI says where, by default the folder mlruns."""

    package = "mlflow"

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = self.api.start_run(run_name="-".join(folder.parts[-3:]))
        self.api.log_params({n: str(v)[:250] for n, v in config.items()})

    def write(self, row: Mapping[str, Scalar]) -> None:
        self.api.log_metrics(scalars(row), step=int(row["env_steps"]))

    def close(self) -> None:
        self.api.end_run()


TRACKERS: dict[str, type[Tracker] | None] = {"wandb": Wandb, "mlflow": Mlflow, "tensorboard": None}


def trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Any]:
    """The trackers of these names; TensorBoard is a log of the folder itself."""
    wanted = [TRACKERS[known(name, TRACKERS, "tracker")] for name in dict.fromkeys(names)]
    return [tracker(folder, config) for tracker in wanted if tracker is not None]
