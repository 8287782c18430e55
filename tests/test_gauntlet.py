"""Promises under attack: nothing executes on load, nothing is lost, nothing goes wrong in silence.

One test for each way that was once found to break a promise; `make gauntlet` tries many at random.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rescore import Agent
from rescore.bench.matrix import read_plan
from rescore.core import UsageError
from rescore.training import checkpoint
from tests.small import TINY, rescore_command

TASK = "rescore/Probe5-v0"


@pytest.fixture(scope="module")
def master(tmp_path_factory) -> Path:
    """A finished run with checkpoints of 50 and 100 steps. Tests use copies."""
    out = tmp_path_factory.mktemp("master") / "run"
    assert rescore_command(f"train dpmd {TASK} {TINY} --steps 100 --quiet --out {out}") == 0
    return out


@pytest.fixture
def run(master, tmp_path, monkeypatch) -> Path:
    """A copy of it, named `run` in the present folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(master, "run")
    return Path("run")


def newest(run: Path) -> Path:
    return checkpoint.stored(run)[0]


def forge(folder: Path, change: Callable[[dict], object]) -> None:
    """Change a manifest as somebody would who can compute checksums, too."""
    arrays, manifest = checkpoint.load(folder)
    change(manifest)
    meta = {k: v for k, v in manifest.items() if k not in ("format", "version", "files", "sha256")}
    checkpoint.save(folder, arrays, meta)


# 1. Loading imports nothing that a file names


def test_a_checkpoint_cannot_have_a_module_imported(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "payload.py").write_text("open('executed', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for folder in (*checkpoint.stored(run), run / "best"):
        forge(folder, lambda m: m["config"].update(env="evil.payload:Env-v0"))
    for words in ("resume run", "eval run", "render run", "eval run --best", f"eval {newest(run)}"):
        assert rescore_command(words) == 2
        said = capsys.readouterr().err
        assert "whose module would be imported" in said and said.count("\n") == 1
    with pytest.raises(UsageError, match="trust_env=True"):
        Agent.load(run)
    for env in (["evil.payload:Env-v0"], {"entry_point": "evil.payload:Env"}, 7):
        forge(newest(run), lambda m, env=env: m["config"].update(env=env))
        with pytest.raises(UsageError, match="would be imported"):
            Agent.load(newest(run))
    assert not Path("executed").exists() and "evil.payload" not in sys.modules

    assert rescore_command("eval run --trust-env --best") == 2  # it registers no such task
    assert Path("executed").exists()
    with Agent.load(run, env=TASK) as agent:  # what the caller names is the caller's choice
        assert agent.run.env_steps == 100


@pytest.mark.parametrize("name", ["evil.payload:Env-v0", "../../outside"])
def test_a_folder_of_results_names_neither_modules_nor_paths(tmp_path, name):
    plan = {"suite": "small", "algorithms": ["dpmd"], "tasks": [name], "seeds": 1}
    plan |= {"preset": "default", "steps": 100, "group": 1, "settings": []}
    (tmp_path / "matrix.json").write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="no plain id"):
        read_plan(tmp_path)
