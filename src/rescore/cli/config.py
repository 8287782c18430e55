"""Settings of a run from a file, for `rescore train --config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rescore.core import UsageError, known, one_line
from rescore.envs.task import imported
from rescore.files.json import read_json

NAMES = "algorithm preset env env_by_id env_kwargs wrappers seeds steps hyperparameters training"


def read_config(path: Path, args: list[str]) -> dict[str, Any]:
    """Settings by the names of a run's config.json, from it, from run.json or from YAML.

    What would be imported must stand on the command line too: a file may come from anywhere.
    """
    file = read_yaml(path) if path.suffix in (".yaml", ".yml") else read_json(path)
    file = file.get("config", file) if isinstance(file, dict) else None
    if not isinstance(file, dict):
        raise UsageError(f"{path} holds no settings: see the config.json of a run")
    for name in file:
        known(name, NAMES.split(), f"setting in {path}")
    for name in ("env_kwargs", "hyperparameters", "training"):
        if not isinstance(file.get(name) or {}, dict):
            raise UsageError(f"{name} in {path} must be names with values, not {file[name]!r}")
    if not file.get("env_by_id", True):
        raise UsageError(f"{path} is of an environment made in Python: train it there")
    foreign = imported(file.get("env") or "", file.get("wrappers") or ())
    if missing := [name for name in foreign if name not in args]:
        raise UsageError(f"{path} would import {missing[0]!r}: write that on the command line too")
    return file


def read_yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path} needs a package: pip install pyyaml; or write JSON") from None
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error)}") from None
