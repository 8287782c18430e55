"""Tools around a run: trackers, comparisons, completion; and the examples."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

from rescore import SAC, Agent, UsageError
from rescore.files.json import read_json
from tests.small import rescore_command

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAINING = {"warmup": 20, "batch_size": 8, "eval_every": 20, "eval_episodes": 2, "log_every": 20}
PROBE = "rescore/Probe1-v0"


def train(folder: Path, **more) -> None:
    algo = SAC(hidden=(8, 8), **more)
    with Agent(algo, PROBE, training=TRAINING, folder=folder) as agent:
        agent.learn(40)


def stand_in(name: str, calls: list) -> types.ModuleType:
    """The functions that trackers call, which note how they were called."""
    module = types.ModuleType(name)

    class Run:
        def define_metric(self, names, step_metric):
            assert (names, step_metric) == ("*", "env_steps")

        def log(self, row):
            calls.append(("log", row))

        def finish(self):
            calls.append(("finish",))

    module.init = lambda **more: calls.append(("init", more)) or Run()
    module.start_run = lambda **more: calls.append(("init", more))
    module.log_params = lambda params: calls.append(("params", params))
    module.log_metrics = lambda row, step: calls.append(("log", {**row, "env_steps": step}))
    module.end_run = lambda: calls.append(("finish",))
    return module


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_trackers_are_told_metrics_and_evaluations(name, tmp_path, monkeypatch):
    calls: list = []
    monkeypatch.setitem(sys.modules, name, stand_in(name, calls))
    with Agent(
        SAC(hidden=(8, 8)), PROBE, training=TRAINING, folder=tmp_path / "run", track=[name]
    ) as agent:
        agent.learn(40)
    assert calls[0][0] == "init" and calls[-1] == ("finish",)
    rows = [row for call, *rest in calls if call == "log" for row in rest]
    assert {row["env_steps"] for row in rows} == {20, 40}
    evaluations = [row["seed0/eval/return"] for row in rows if "seed0/eval/return" in row]
    assert evaluations == [1.0, 1.0]
    assert any("seed0/critic_loss" in row for row in rows)


def tracked(folder: Path, name: str) -> Agent:
    return Agent(SAC(hidden=(8, 8)), PROBE, training=TRAINING, folder=folder, track=[name])


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with tracked(tmp_path / "run", "wandb") as agent:
        agent.learn(40)
    (made,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert [path.stat().st_size > 1_000 for path in made.glob("*.wandb")] == [True]


def test_mlflow_in_a_file(tmp_path, monkeypatch, capsys):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with tracked(tmp_path / "run", "mlflow") as agent:
        agent.learn(40)
    assert rescore_command(f"resume {tmp_path}/run --steps 60 --track mlflow --quiet") == 0
    first, second = mlflow.search_runs(output_format="list", order_by=["start_time"])
    assert first.info.status == "FINISHED" and first.data.params["algorithm"] == "sac"
    history = mlflow.MlflowClient().get_metric_history(first.info.run_id, "seed0/eval/return")
    assert [(point.step, point.value) for point in history] == [(20, 1.0), (40, 1.0)]
    assert second.data.metrics["seed0/eval/return"] == 1.0


class Stumbling:
    """A tracker's run whose server is gone after some rows."""

    def __init__(self, rows: int):
        self.left, self.calls = rows, 0

    def define_metric(self, *_, **__): ...

    def log(self, row):
        self.calls += 1
        if self.calls > self.left:
            raise ConnectionError("no\nserver")

    def finish(self):
        raise AssertionError("it is gone")


def test_a_tracker_that_fails(tmp_path, monkeypatch, capsys):
    """Before the first step it is refused; later training goes on without it."""
    module, run = types.ModuleType("wandb"), Stumbling(1)
    monkeypatch.setitem(sys.modules, "wandb", module)
    module.init = lambda **_: run
    with tracked(tmp_path / "run", "wandb") as agent:
        assert agent.learn(40).status == "finished"
    assert run.calls == 2
    assert capsys.readouterr().err == "note: wandb gets no more metrics, no server\n"

    def refuse(**_):
        raise ValueError("No API key\nconfigured")

    module.init = refuse
    with pytest.raises(UsageError, match="--track wandb cannot start: No API key configured"):
        tracked(tmp_path / "other", "wandb").learn(40)
    words = f"train sac {PROBE} --steps 40 --warmup 20 --eval-every 0 --track wandb --quiet"
    assert rescore_command(f"{words} --out {tmp_path}/again") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert read_json(tmp_path / "again" / "run.json")["status"] == "failed"


def test_a_tracker_that_is_not_there(tmp_path, monkeypatch):
    """It is refused before anything is written."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match="--track mlflow needs mlflow: pip install mlflow"):
        tracked(tmp_path / "run", "mlflow")
    with pytest.raises(UsageError, match="unknown tracker 'wanbd': did you mean 'wandb'"):
        tracked(tmp_path / "run", "wanbd")
    words = f"train sac {PROBE} --steps 40 --warmup 20 --track mlflow --quiet"
    assert rescore_command(f"{words} --out {tmp_path}/run") == 2
    assert not (tmp_path / "run").exists()
    with Agent(SAC(hidden=(8, 8)), PROBE, training=TRAINING, folder=tmp_path / "run") as agent:
        agent.learn(40)
    with pytest.raises(UsageError, match=r"^--track mlflow needs mlflow: pip install mlflow$"):
        Agent.load(tmp_path / "run", track=["mlflow"])


def test_runs_are_compared(tmp_path, capsys):
    for name, more in {"a": {}, "b": {"gamma": 0.5}, "c": {"gamma": 0.5}}.items():
        train(tmp_path / name, **more)
    capsys.readouterr()
    folders = " ".join(str(tmp_path / name) for name in "abc")
    assert rescore_command(f"compare {folders} --out {tmp_path}/curves.png") == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert last == str(tmp_path / "curves.png") and Path(last).stat().st_size > 10_000
    # Two settings of one algorithm are two curves; runs of the same settings are one.
    assert len(lines) == 2 and "seeds" in head
    assert re.search(r"a +1 +40 +1.0 +1.0", lines[0]) and re.search(r"b +2 +40 ", lines[1])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_flags(shell, capsys):
    assert rescore_command(f"completion {shell}") == 0
    script = capsys.readouterr().out
    test = f"{script}\nCOMP_WORDS=(rescore train --env-k); COMP_CWORD=2; _rescore; echo $COMPREPLY"
    test += "\nCOMP_WORDS=(rescore exp); COMP_CWORD=1; _rescore; echo $COMPREPLY"
    test += "\nCOMP_WORDS=(rescore train --critic.l); COMP_CWORD=2; _rescore; echo $COMPREPLY"
    if shell == "bash":
        done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["--env-kwargs", "export", "--critic.lr"]
    else:
        assert script.startswith("autoload")


BAD = {
    "compare": "name the folders|Missing",
    "compare nowhere": "nowhere is not the folder of a run",
    "completion tcsh": "tcsh",
    "train sac Hopper-v4 --track tensorbord": "tensorbord",
    "resume nowhere --track mlfow": "mlfow",
    "train sac Hopper-v4 --env-kwargs fast": "--env-kwargs takes NAME=VALUE, not 'fast'",
    "train sac Hopper-v4 --env-kwargs fast=1": "Hopper-v4 .*fast",
    "train sac Hopper-v4 --wrappers Stack": "names no module",
    "train sac Hopper-v4 --wrappers gymnasium.wrappers.Stack": "has no wrapper 'Stack'",
    "train --config nowhere.json": "nowhere.json does not exist",
    "train --config list.json": "list.json holds no settings",
    "train --config typo.json": "setting in typo.json 'sead': did you mean 'seeds'",
    "train --config broken.yaml": "broken.yaml cannot be read",
    "train --config imports.json": "would import 'evil.Wrapper': write that on the command line",
    "train --config module.json": "would import 'evil:Env-v0'",
    "train --config python.json": "made in Python",
    "train td3 Hopper-v4 --config sac.json": "which algorithm and preset",
    "train --config sac.json": "Missing|env",
    "train --config shape.json": "training in shape.json must be names with values",
}
FILES = {
    "list.json": "[1]",
    "typo.json": '{"algorithm": "sac", "sead": 1}',
    "broken.yaml": "{a: [",
    "imports.json": '{"algorithm": "sac", "env": "Hopper-v4", "wrappers": ["evil.Wrapper"]}',
    "module.json": '{"algorithm": "sac", "env": "evil:Env-v0"}',
    "python.json": '{"algorithm": "sac", "env": "Mine", "env_by_id": false}',
    "sac.json": '{"algorithm": "sac"}',
    "shape.json": '{"algorithm": "sac", "env": "Hopper-v4", "training": 3}',
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    assert rescore_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(BAD[command], line), line
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()


SLOW = ("sweep",)  # its trials are processes of their own, and compile each for itself
JOURNEYS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "control_loop")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in JOURNEYS]
)
def test_examples_run(name, tmp_path, monkeypatch, capsys):
    """The loop without JAX is run by test_export.py, on a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "120"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


SHORTER = {
    r"STEPS = [\d_]+": "STEPS = 60",
    r"HIDDEN = .*": "HIDDEN = (8, 8)",
    r"SHORT = .*": "SHORT = dict(updates=20, chunk=10, hidden=(16, 16), num_reverse=16)",
}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads(path.read_text())["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    assert not any(cell.get("outputs") for cell in cells)
    for pattern, shorter in SHORTER.items():
        code = re.sub(pattern, shorter, code)
    exec(compile(code, path.name, "exec"), {"__name__": path.stem})
