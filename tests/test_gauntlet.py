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
    about = (run / "run.json").read_text().replace(TASK, "evil.payload:Env-v0")
    (run / "run.json").write_text(about)
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


# 3. Whatever is wrong with a checkpoint, the one before is used, aloud


def test_every_bit_of_a_manifest_counts(run):
    """A flipped bit is noticed, or changes nothing that is read (white space)."""
    path = newest(run) / checkpoint.MANIFEST
    good, blob = checkpoint.read_manifest(path.parent), path.read_bytes()
    for at in range(0, 8 * len(blob), 97):
        flipped = bytearray(blob)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            assert checkpoint.read_manifest(path.parent) == good
        except UsageError as error:
            assert "\n" not in str(error)


FORGED = {
    "unknown setting": lambda m: m["config"]["hyperparameters"].update(x=1),
    "wrong type": lambda m: m["config"]["training"].update(num_envs="many"),
    "absurd size": lambda m: m["config"]["training"].update(num_envs=10**8),
    "absurd width": lambda m: m["config"]["hyperparameters"].update(hidden=[10**6, 10**6]),
    "absurd memory": lambda m: m["config"]["training"].update(replay_capacity=10**15),
    "absurd evaluation": lambda m: m["config"]["training"].update(eval_episodes=10**8),
    "other seeds": lambda m: m["config"].update(seeds=list(range(1000))),
    "other algorithm": lambda m: m["config"].update(algorithm="sac"),
    "other task": lambda m: m["config"].update(env="Hopper-v4"),
    "no configuration": lambda m: m.pop("config"),
    "a counter that is none": lambda m: m.update(updates="1"),
    "a counter below zero": lambda m: m.update(env_steps=-1),
    "a counter without end": lambda m: m.update(iteration=2**40),
    "a replay that is larger": lambda m: m.update(replay_added=10**6),
    "metrics of a list": lambda m: m["tally"].update(metrics=[1]),
    "returns of no seed": lambda m: m["tally"].update(returns=[[9, 1.0, 1]]),
    "versions of a list": lambda m: m.update(made_with=[]),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_checkpoint_that_makes_no_sense_is_passed_over(run, kind):
    forge(newest(run), FORGED[kind])
    with Agent.load(run) as agent:
        assert agent.run.env_steps == 50
        (line,) = agent.fallbacks
        assert str(newest(run)) in line and "the one before it is used" in line
        assert "\n" not in line


def test_a_checkpoint_of_another_algorithm_is_refused(run):
    with Agent("sac", TASK, hidden=(8, 8), training={"warmup": 20, "batch_size": 8}) as other:
        other.save(run / "checkpoints" / checkpoint.step_name(150))
    with Agent.load(run) as agent:
        assert agent.name == "dpmd" and agent.run.env_steps == 100
        assert "has algorithm sac, its run dpmd" in agent.fallbacks[0]


# 9. Other versions than those that saved are named


def test_other_versions_are_named(run, monkeypatch):
    really = checkpoint.bits_depend_on()
    other = {**really, "jax": "0.0.1", "mujoco": None}
    monkeypatch.setattr(checkpoint, "bits_depend_on", lambda: other)
    with Agent.load(run) as agent:
        (note,) = agent.notes
    assert f"jax {really['jax']} (here 0.0.1)" in note and "bits will differ" in note
