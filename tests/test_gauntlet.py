"""Promises under attack: nothing executes on load, nothing is lost, nothing goes wrong in silence.

One test for each way that was once found to break a promise; `make gauntlet` tries many at random.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import safetensors.numpy

from rescore import Agent
from rescore.bench.matrix import read_plan
from rescore.bench.report.document import Document, Entry, Section, Table, markdown
from rescore.bench.rows import read_rows
from rescore.cli import work
from rescore.core import EnvError, UsageError
from rescore.envs.build import make
from rescore.files import run_record
from rescore.files.atomic import write_all
from rescore.files.json import read_json, read_jsonl, write_json
from rescore.files.locks import Lock
from rescore.files.logs import read_eval
from rescore.files.run_record import claim
from rescore.training import checkpoint, evaluate, session
from rescore.training.signals import Stopped
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


WRAPPERS = ["evil_wrapper.Loud", "gymnasium.wrappers.vector.Loud", {"x": 1}]
WRAPPERS += ["gymnasium.wrappers.RecordVideo:video_folder=written"]


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_a_checkpoint_cannot_have_a_wrapper_imported(run, tmp_path, monkeypatch, capsys, wrapper):
    (tmp_path / "evil_wrapper.py").write_text("open('executed', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"wrappers": [wrapper], "env_kwargs": {}}
    for folder in (*checkpoint.stored(run), run / "best"):
        forge(folder, lambda m: m["config"].update(named))
    about = read_json(run / "run.json")
    about["config"].update(named)
    write_json(run / "run.json", about)
    for words in ("resume run", "eval run", "render run --best", "export run --format jax"):
        assert rescore_command(words) == 2
        said = capsys.readouterr().err
        assert "whose module would be imported" in said and said.count("\n") == 1
    assert not Path("executed").exists() and not Path("written").exists()
    if wrapper == WRAPPERS[0]:
        assert rescore_command("eval run --trust-env") == 2  # it holds no such wrapper
        assert Path("executed").exists() and "has no wrapper 'Loud'" in capsys.readouterr().err


def test_a_checkpoint_with_other_wrappers_than_its_run_is_passed_over(run):
    other = ["gymnasium.wrappers.FlattenObservation"]
    forge(newest(run), lambda m: m["config"].update(wrappers=other))
    with Agent.load(run) as agent:
        assert agent.run.env_steps == 50 and "has wrappers" in agent.fallbacks[0]


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


# 4. One process trains in a folder


def content(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("metrics.jsonl", "eval.csv", "run.json")}


def test_a_second_process_is_told_and_changes_nothing(run, capsys):
    lock, before = claim(run), content(run)
    assert rescore_command("resume run --steps 200") == 2
    said = capsys.readouterr().err
    assert f"run is being trained by process {os.getpid()}" in said and said.count("\n") == 1
    assert content(run) == before
    lock.release()


def test_who_loaded_before_another_went_on_loads_again(run):
    with Agent.load(run) as first, Agent.load(run) as second:
        second.learn(50)
        with pytest.raises(UsageError, match="gone on to step_000000150 meanwhile: load it again"):
            first.learn(50)
    assert checkpoint.env_steps_of(newest(run)) == 150


def test_a_folder_is_free_after_a_tracker_that_is_not_there(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with Agent.load(run) as agent:
        agent._track = ("wandb",)
        with pytest.raises(UsageError, match="pip install wandb"):
            agent.learn(50)
        claim(run).release()


def test_ctrl_c_while_the_folder_is_claimed_leaves_it_free(run, monkeypatch):
    with Agent.load(run) as agent:
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(Lock, "sign", lambda lock, pid: signal.raise_signal(signal.SIGINT))
            agent.learn(50)
        claim(run).release()
        assert agent.run.env_steps == 100


# 5. Processes of environments


def test_a_killed_environment_ends_in_one_line_with_the_state_saved(tmp_path, monkeypatch):
    training = {"num_envs": 1, "parallel_envs": True, "warmup": 40, "batch_size": 8}
    folder = tmp_path / "run"

    def advance(run, really=session.advance):
        really(run)
        (process,) = run.envs._vector.processes
        assert os.getpgid(process.pid) != os.getpgid(0)  # a signal to our group is ours to obey
        if run.env_steps == 20:
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(session, "advance", advance)
    agent = Agent("sac", TASK, hidden=(8, 8), training=training, folder=folder)
    with agent, pytest.raises(UsageError, match="a process of its environments ended"):
        agent.learn(100)
    assert read_json(folder / "run.json")["status"] == "failed"
    _, manifest = checkpoint.load(newest(folder))
    assert manifest["env_steps"] == 20 and "had ended" in manifest["no_snapshot"]


TO_ALL = """
import os, signal
from rescore.training import session

def advance(run, really=session.advance):
    really(run)
    if run.env_steps == 30:
        os.killpg(0, signal.SIGTERM)

session.advance = advance
from rescore.cli import main
main()
"""


def test_sigterm_to_the_whole_group_saves_parallel_environments(tmp_path):
    """In a process of its own: a group is what a terminal or a scheduler stops."""
    words = TRAIN.replace("--out run", f"--parallel-envs --out {tmp_path}/run").split()
    words = [sys.executable, "-c", TO_ALL, *words]
    done = subprocess.run(
        words, start_new_session=True, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and "stopped at 30 steps and saved" in done.stdout, done.stderr
    assert read_json(tmp_path / "run" / "run.json")["status"] == "stopped"
    arrays, manifest = checkpoint.load(newest(tmp_path / "run"))
    assert manifest["env_steps"] == 30 and "no_snapshot" not in manifest
    assert arrays["envs"]


class Stuck(gymnasium.Env):
    """Fails at its thirtieth step, in its own process."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    life = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.life += 1
        if self.life == 30:
            raise RuntimeError("the gripper\nis stuck")
        return np.zeros(2, np.float32), 1.0, False, self.life % 5 == 0, {}


def test_an_environment_that_fails_in_its_process_leaves_the_state_saved(tmp_path):
    training = {"num_envs": 2, "parallel_envs": True, "warmup": 20, "batch_size": 8}
    folder = tmp_path / "run"
    agent = Agent("sac", Stuck, hidden=(8, 8), training=training, folder=folder)
    with agent, pytest.raises(EnvError, match=r"RuntimeError: the gripper is stuck.*is saved"):
        agent.learn(100, evaluate=False)
    assert read_json(folder / "run.json")["status"] == "failed"
    assert "had ended" in checkpoint.load(newest(folder))[1]["no_snapshot"]
    claim(folder).release()


def test_a_callback_cannot_hide_what_went_wrong(tmp_path, monkeypatch):
    def advance(run, really=session.advance):
        really(run)
        if run.env_steps == 20:
            raise UsageError("a process of its environments ended")

    monkeypatch.setattr(session, "advance", advance)
    training = {"num_envs": 1, "warmup": 40, "batch_size": 8}
    agent = Agent("sac", TASK, hidden=(8, 8), training=training, folder=tmp_path / "run")
    with agent, pytest.raises(UsageError, match="ended"):
        agent.learn(100, callback=lambda event: event.kind != "save")
    assert agent.status == "failed"


# 6. A run killed after its last checkpoint can be completed


def test_resume_completes_what_was_killed_at_the_end(run, capsys):
    (run / "final.json").unlink()
    about = (run / "run.json").read_text().replace('"finished"', '"running"')
    (run / "run.json").write_text(about)
    words = "resume run --quiet --record rows.jsonl"
    assert rescore_command(words) == 0
    assert read_json(run / "final.json")["env_steps"] == 100
    assert read_json(run / "run.json")["status"] == "finished" and (run / "curve.png").exists()
    (run / "final.json").unlink()  # as if killed after the row was written
    assert rescore_command(words) == 0
    assert len(read_jsonl("rows.jsonl")) == 1
    assert rescore_command("resume run") == 0  # so that `until rescore resume run` ends
    assert "has done its 100 steps" in capsys.readouterr().out
    assert rescore_command("resume run --steps 60") == 2


# 7. A replacing save always leaves a whole copy


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_kill_while_replacing_leaves_a_whole_copy(tmp_path, call, which):
    folder = tmp_path / "agent.v1"
    arrays = {"state": {"w": np.arange(3.0)}}
    checkpoint.save(folder, arrays, {"n": 1})
    if (child := os.fork()) == 0:
        calls, really = [0], getattr(os, call)

        def killed(*args, **kwargs):
            calls[0] += 1
            result = really(*args, **kwargs)
            if calls[0] == which:
                os._exit(9)
            return result

        setattr(os, call, killed)
        checkpoint.save(folder, arrays, {"n": 2})
        os._exit(0)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) in (0, 9)
    assert checkpoint.load(checkpoint.whole(folder))[1]["n"] in (1, 2)
    checkpoint.save(folder, arrays, {"n": 3})
    assert os.listdir(tmp_path) == ["agent.v1"]
    assert checkpoint.load(folder)[1]["n"] == 3


# 8. A full disk is one line


def test_a_full_disk_is_one_line_and_the_record_is_truthful(run, monkeypatch, capsys):
    def full(*_args, **_kwargs):
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left")

    def no_room(path, data):
        if data["status"] == "failed":
            raise OSError(28, "No space left on device")
        write_json(path, data)

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    monkeypatch.setattr(run_record, "write_json", no_room)
    assert rescore_command("resume run --steps 200 --quiet") == 2
    said = capsys.readouterr().err
    assert "No space left" in said and said.count("\n") == 1
    assert read_json(run / "run.json")["status"] == "failed"
    assert not [*run.rglob(".*")] and checkpoint.env_steps_of(newest(run)) == 100


# 10. Links lead nowhere


def test_links_in_a_foreign_folder_are_not_followed(run, tmp_path, capsys):
    precious = tmp_path / "precious"
    shutil.copytree(newest(run), precious / "step_000000001")
    (precious / "thesis.tex").write_text("years of work, without a newline")
    before = {path: path.read_bytes() for path in precious.rglob("*") if path.is_file()}
    for name in ("lock", "metrics.jsonl", "eval.csv"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(precious / "thesis.tex")
        assert rescore_command("resume run --steps 200 --quiet") == 2
        assert capsys.readouterr().err.count("\n") == 1
        (run / name).unlink()
    (run / "checkpoints" / "step_000000001").symlink_to(precious / "step_000000001")
    (run / ".best.00000000.part").symlink_to(precious)
    checkpoint.prune(run, 1)
    assert [path.name for path in checkpoint.stored(run)] == ["step_000000100"]
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(precious)
    checkpoint.prune(run, 0)
    assert {path: path.read_bytes() for path in precious.rglob("*") if path.is_file()} == before


# 11. Logs


def test_short_writes_are_completed():
    class Narrow(io.BytesIO):
        def write(self, data) -> int:
            return super().write(bytes(data)[:3])

    file = Narrow()
    write_all(file, b"0123456789")
    assert file.getvalue() == b"0123456789"


def test_an_older_table_of_evaluations_goes_on(run, capsys):
    rows = (run / "eval.csv").read_text().splitlines()
    (run / "eval.csv").write_text("".join(row.rpartition(",")[0] + "\n" for row in rows))
    before = read_eval(run)
    assert rescore_command("resume run --steps 150") == 0
    assert "damaged" not in capsys.readouterr().out
    after = read_eval(run)
    assert after[: len(before)] == before and len(after) > len(before)


def test_a_damaged_line_costs_that_line(run, capsys):
    for name, wrong in (("metrics.jsonl", b'{"env_steps": \xff\n[]\n'), ("eval.csv", b"a,b\n")):
        (run / name).write_bytes(wrong + (run / name).read_bytes())
    (run / "run.json").write_bytes(b"\x00")
    assert rescore_command("resume run --steps 150") == 0
    assert "3 damaged line(s) of the logs are dropped" in capsys.readouterr().out
    assert {row["env_steps"] for row in read_jsonl(run / "metrics.jsonl")} >= {20, 100, 140}
    assert len(read_eval(run)) == 6 and read_json(run / "run.json")["status"] == "finished"


# 12. Signals, from the first moment to the last


CLOCK = {"seconds", "steps_per_s", "env_ms", "update_ms", "eta_s"}


def assert_same(run: Path, master: Path) -> None:
    ours, theirs = (checkpoint.load_newest(folder) for folder in (run, master))
    assert ours[0].name == theirs[0].name and ours[2] == theirs[2]  # with the arrays' checksums
    rows = [read_jsonl(folder / "metrics.jsonl") for folder in (run, master)]
    assert all([[r.pop(name, None) for name in CLOCK] for r in both] for both in rows)
    assert rows[0] == rows[1]
    assert (run / "eval.csv").read_bytes() == (master / "eval.csv").read_bytes()


TRAIN = f"train dpmd {TASK} {TINY} --steps 100 --quiet --out run"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_saves(master, tmp_path, monkeypatch, capsys, number):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, "banner", lambda agent: signal.raise_signal(number) or [])
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        assert rescore_command(TRAIN) == 0
    finally:
        signal.signal(number, before)
    assert "stopped at 0 steps and saved" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert rescore_command("resume run --quiet") == 0
    assert_same(Path("run"), master)


def test_ctrl_c_in_a_finalizer_is_not_lost(tmp_path, monkeypatch, capsys):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, "banner", lambda agent: Finalized() and [])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert rescore_command(TRAIN) == 0
    signal.signal(signal.SIGINT, before)
    said = capsys.readouterr()
    assert "stopped at 0 steps and saved" in said.out and not said.err


def test_a_signal_amid_an_evaluation_saves_and_it_is_done_again(master, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []

    def interrupted(*args, really=evaluate.run_episodes):
        calls.append(1)
        if len(calls) in (1, 3):
            signal.raise_signal(signal.SIGTERM)
        return really(*args)

    monkeypatch.setattr(evaluate, "run_episodes", interrupted)
    assert rescore_command(TRAIN) == 0
    for at in (50, 100):
        assert checkpoint.load(newest(Path("run")))[1]["owes_evaluation"]
        assert checkpoint.env_steps_of(newest(Path("run"))) == at
        assert rescore_command("resume run --quiet") == 0
    assert_same(Path("run"), master)


def test_nohup_stays_deaf(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with session.interruptible() as interrupted:
        signal.raise_signal(signal.SIGHUP)
        assert not interrupted()
    signal.signal(signal.SIGHUP, before)


# 14. Names, ends and modes


def test_names_sort_beyond_a_thousand_million_steps(tmp_path):
    for step in (999_999_999, 1_000_000_000, 12_000_000_000):
        checkpoint.save(tmp_path / "checkpoints" / checkpoint.step_name(step), {}, {"n": step})
    assert checkpoint.load_newest(tmp_path)[2]["n"] == 12_000_000_000
    checkpoint.set_aside(tmp_path, 1_000_000_000)
    assert checkpoint.load_newest(tmp_path)[2]["n"] == 1_000_000_000


def test_an_episode_without_end_does_not_block_the_last_save(master, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def endless(*_args):
        raise UsageError("an episode has no end")

    monkeypatch.setattr(evaluate, "run_episodes", endless)
    assert rescore_command(TRAIN.replace("--eval-every 50", "--eval-every 0")) == 2
    assert checkpoint.env_steps_of(newest(Path("run"))) == 100
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert rescore_command("resume run --quiet") == 0
    assert read_json("run/final.json")["env_steps"] == 100 and len(read_eval("run")) == 2


def test_a_deleted_folder_stops_the_run(run, monkeypatch, capsys):
    def advance(state, really=session.advance):
        really(state)
        shutil.rmtree(run, ignore_errors=True)

    monkeypatch.setattr(session, "advance", advance)
    assert rescore_command("resume run --steps 100000 --quiet") == 2
    assert "run is gone: training stops" in capsys.readouterr().err and not run.exists()


def test_modes_follow_the_umask(run):
    (run / "lock").unlink()
    before = os.umask(0o027)
    try:
        with Agent.load(run) as agent:
            agent.learn(50)
    finally:
        os.umask(before)
    made = [newest(run), *newest(run).iterdir(), run / "lock", run / "eval.csv", run / "run.json"]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o750, 0o640}


ROW = {"algorithm": "dpmd", "env": "Hopper-v4", "seed": 0, "steps": 10, "group": [0], "updates": 5}
ROW |= {"evaluations": [[10, 1.0, 0.5]], "versions": {"mujoco": "3"}, "wall_clock_s": 1.0}
ROW |= {"env_steps": 10}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("evaluations", "x"),
        ("evaluations", [[1]]),
        ("evaluations", [[1, "a"]]),
        ("evaluations", [[1, None, 0]]),
        ("algorithm", 3),
        ("seed", "0"),
        ("versions", ["3"]),
        ("wall_clock_s", "long"),
        ("config", 7),
    ],
)
def test_damaged_rows_are_one_line(tmp_path, name, value):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    assert read_rows(path)[0].label == "dpmd"
    path.write_text(json.dumps({**ROW, name: value}) + "\n")
    with pytest.raises(UsageError, match="line 1 is damaged") as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)


def test_text_of_rows_is_no_markdown():
    entry = Entry("a|b\n<script> [x](http://x)", below=("c|d",))
    text = markdown(Document("T", [("k|", "v|w")], [Section("s", [Table(["h"], [[entry]])])]))
    assert "a\\|b \\<script\\> [x\\](http" in text and "c\\|d" in text and "v\\|w" in text


# 15. The Makefile keeps to the project


def test_make_stays_inside_and_pins_everything():
    root = Path(__file__).parents[1]
    makefile = (root / "Makefile").read_text()
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR", "JAX_COMPILATION_CACHE_DIR"):
        assert f"export {name} := $(CURDIR)/" in makefile
    files = [(root / name).read_text().splitlines() for name in ("constraints.txt", "hashes.txt")]
    pins, hashed = ([x for x in lines if not x.startswith("#")] for lines in files)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", x) for x in hashed)
    plain = lambda x: x.split(" ")[0].lower().replace("_", "-")  # noqa: E731
    assert {*map(plain, hashed)} == {*map(plain, pins)}


@pytest.mark.parametrize("hashes", ["", "1"])
def test_build_tools_are_pinned_too(hashes):
    root = Path(__file__).parents[1]
    words = ["make", "--dry-run", "--always-make", "setup", f"HASHES={hashes}"]
    said = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
    own = [line for line in said.splitlines() if " -e " in line]
    assert len(own) == 1
    needed = "--no-build-isolation" if hashes else "PIP_BUILD_CONSTRAINT=constraints.txt"
    assert needed in own[0]
    tools = tomllib.loads((root / "pyproject.toml").read_text())["build-system"]["requires"]
    pins = re.findall(r"^([\w.-]+)==", (root / "constraints.txt").read_text(), re.MULTILINE)
    assert tools and {re.split(r"[<>=~! ]", tool)[0] for tool in tools} <= {*pins}


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment")
def test_commands_leave_the_home_folder_alone(monkeypatch):
    monkeypatch.setenv("MPLCONFIGDIR", "")  # so that it is put back
    monkeypatch.delenv("MPLCONFIGDIR")
    assert rescore_command("completion --help") == 0
    assert Path(os.environ["MPLCONFIGDIR"]).is_relative_to(sys.prefix)


def test_mujoco_leaves_no_log_in_the_present_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    envs = make("Hopper-v4", [0], 1)
    envs.reset()
    envs._vector.envs[0].unwrapped.data.qvel[:] = 1e12
    envs.step(np.zeros((1, 1, 3), np.float32))
    assert "simulation is unstable" in capsys.readouterr().err
    assert not os.listdir(tmp_path)


def test_the_page_names_tests_that_exist():
    page = (Path(__file__).parents[1] / "docs" / "reliability.md").read_text()
    numbers = re.findall(r"^\| (\d+)\. ", page, re.MULTILINE)
    assert [int(number) for number in numbers] == [*range(1, 16)]
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert not [n for n in re.findall(r"`(test_\w+)`", page) if f"def {n}(" not in tests]


# All of it at random


@pytest.mark.parametrize(
    ("kills", "mutations"), [(2, 25), pytest.param(400, 600, marks=pytest.mark.slow)]
)
def test_the_gauntlet(kills, mutations):
    words = ["--kills", str(kills), "--mutations", str(mutations), "--algorithms"]
    words += ["dpmd"] if kills < 10 else ["sac", "dpmd", "ppo"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gauntlet", *words],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not reached" not in done.stdout and done.stdout.startswith("| promise | tried |")
