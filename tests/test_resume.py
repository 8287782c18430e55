"""Resumed equals uninterrupted, bit for bit: after learning in two parts, signals and kill -9."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rescore import Agent, cli
from rescore.algorithms import find
from rescore.files.json import read_json, read_jsonl
from rescore.models.critics import CriticSettings
from rescore.training import checkpoint, session
from rescore.training.config import REPLAY_ONLY
from tests.small import NAMES, TINY_NETS, TINY_TRAINING, as_flags, small

# Episodes of Hopper end every few steps of chance: many ends, on two environments of two seeds.
STEPS, HALF = 240, 120
TRAINING = TINY_TRAINING | {"num_envs": 2, "replay_capacity": 100, "eval_every": 60}
TRAINING |= {"log_every": 40, "checkpoint_every": 60, "keep_checkpoints": 2}
FLAGS = [*as_flags(TINY_NETS | TRAINING).split(), "--quiet"]
CLOCK = {"seconds", "steps_per_s", "env_ms", "update_ms", "eta_s"}


def new_agent(folder: Path | None, seeds: tuple[int, ...] = (0, 7), **training: int) -> Agent:
    training = TRAINING | training
    return Agent("dpmd", "Hopper-v4", seeds=seeds, training=training, folder=folder, **TINY_NETS)


def arguments(folder: Path) -> list[str]:
    """The command that does what `new_agent(folder).learn(STEPS)` does."""
    what = ["train", "dpmd", "Hopper-v4", "--seeds", "0", "7", "--steps", str(STEPS)]
    return [*what, "--out", str(folder), *FLAGS]


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    return stop.value.code or 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with new_agent(folder) as agent:
        agent.learn(STEPS)
    return folder


def rows(folder: Path) -> list[dict]:
    """metrics.jsonl without the clock."""
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in metrics(folder)]


def metrics(folder: Path) -> list[dict]:
    return read_jsonl(folder / "metrics.jsonl")


def assert_same_arrays(ours: dict, theirs: dict, but: tuple[str, ...] = ()) -> None:
    assert ours.keys() == theirs.keys() >= {"state", "loop", "envs"}
    for group in ours.keys() - set(but):
        assert ours[group].keys() == theirs[group].keys()
        for name, array in ours[group].items():
            other = theirs[group][name]
            assert array.dtype == other.dtype and array.shape == other.shape
            assert array.tobytes() == other.tobytes(), f"{group} {name}"


def assert_same_run(run: Path, whole: Path) -> None:
    """Networks, optimisers, replay, environments, counters and both tables, to the last bit."""
    ours, theirs = checkpoint.load_newest(run), checkpoint.load_newest(whole)
    assert ours[0].name == theirs[0].name == f"step_{STEPS:09d}"
    assert not ours[3] and not theirs[3]
    assert_same_arrays(ours[1], theirs[1])
    assert ours[2] == theirs[2]  # counters, tally, checksums, configuration
    assert rows(run) == rows(whole)
    assert (run / "eval.csv").read_bytes() == (whole / "eval.csv").read_bytes()
    best = [checkpoint.load(folder / "best")[1] for folder in (run, whole)]
    assert all(best[0][name] == best[1][name] for name in ("files", "env_steps", "best_return"))
    kept = [sorted(os.listdir(folder / "checkpoints")) for folder in (run, whole)]
    assert kept[0] == kept[1] and not any(run.glob(".*"))


def test_the_run_is_worth_comparing(whole):
    arrays = checkpoint.load_newest(whole)[1]
    steps = [row["env_steps"] for row in rows(whole) if row["seed"] == 0]
    assert steps == [40, 80, 120, 160, 200, 240]
    assert sum(row.get("episodes", 0) for row in rows(whole)) >= 6  # episodes end on the way
    assert arrays["replay"]["rows"].shape[:2] == (2, 100)  # the ring has gone round
    assert arrays["loop"]["episode_length"].max() > 0  # it ends amid an episode
    assert np.isfinite(rows(whole)[-1]["critic_loss"])
    # Seeds differ in all that they do.
    assert not np.array_equal(*arrays["replay"]["rows"])
    assert sum(not np.array_equal(*array) for array in arrays["state"].values()) > 10


def test_in_two_parts_with_scaled_rewards_of_several_steps(tmp_path):
    """What replay remembers beside its rows is saved, too: running returns and ends of episodes."""
    critic = CriticSettings(atoms=11, normalise_rewards=True, unit_weights=True, norm="batch")
    critic = dataclasses.replace(critic, n_step=3)
    how = {"seeds": (0, 7), "training": TRAINING, "hidden": (8, 8), "critic": critic}

    def agent(folder: Path) -> Agent:
        return Agent("sac", "Hopper-v4", folder=folder, **how)

    with agent(tmp_path / "whole") as one:
        one.learn(STEPS)
    with agent(tmp_path / "run") as first:
        first.learn(HALF)
    with Agent.load(tmp_path / "run") as again:
        again.learn(STEPS - HALF)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    arrays = checkpoint.load_newest(tmp_path / "run")[1]["replay"]
    assert {"returns", "return_moments", "truncated"} <= arrays.keys()


def test_in_two_parts(whole, tmp_path):
    with new_agent(tmp_path / "run") as agent:
        agent.learn(HALF)
        saved = agent.save(tmp_path / "saved")
    with Agent.load(tmp_path / "run") as again:
        assert again.run.env_steps == HALF and not again.notes
        again.learn(STEPS - HALF)
        last = checkpoint.load(again.save(tmp_path / "end"))
    assert_same_run(tmp_path / "run", whole)
    # The same from what `save` wrote, which leaves no logs.
    with Agent.load(saved) as again:
        assert again.folder is None
        again.learn(STEPS - HALF)
        other = checkpoint.load(again.save(tmp_path / "other"))
    assert_same_arrays(last[0], other[0])


@pytest.mark.parametrize("name", [n for n in NAMES if n != "dpmd"])
def test_every_other_algorithm_in_two_parts(name, tmp_path):
    """A rollout learner stops between rollouts, where there is nothing of one to save."""
    training = {k: v for k, v in TRAINING.items() if k not in REPLAY_ONLY}
    training |= {"eval_every": 0, "eval_episodes": 1}
    if find(name).source == "replay":
        training |= {k: v for k, v in TRAINING.items() if k in REPLAY_ONLY}
    make = partial(Agent, small(name, hidden=(8, 8), T=3), "Hopper-v4", seeds=(0, 7))
    with make(training=training) as agent:
        agent.learn(STEPS)
        once = checkpoint.load(agent.save(tmp_path / "once"))
    with make(training=training) as agent:
        agent.learn(HALF).save(tmp_path / "half")
    with Agent.load(tmp_path / "half") as agent:
        assert agent.run.env_steps == HALF and not agent.notes
        agent.learn(STEPS - HALF)
        twice = checkpoint.load(agent.save(tmp_path / "twice"))
    assert_same_arrays(once[0], twice[0])
    assert once[1]["tally"] == twice[1]["tally"]
    assert ("replay" in once[0]) == (find(name).source == "replay")


def test_evaluation_and_logging_change_nothing(whole, tmp_path):
    """The same seeds once more, hardly evaluated, logged or saved."""
    changes = {"eval_every": 0, "eval_episodes": 1, "log_every": 1000, "checkpoint_every": 0}
    with new_agent(tmp_path / "run", **changes) as agent:
        agent.learn(STEPS)
    ours, theirs = checkpoint.load_newest(tmp_path / "run"), checkpoint.load_newest(whole)
    assert_same_arrays(ours[1], theirs[1])
    assert {row["env_steps"] for row in rows(tmp_path / "run")} == {STEPS}
    assert len((tmp_path / "run" / "eval.csv").read_text().splitlines()) == 3


@pytest.mark.slow  # compiles once more
def test_seeds_decide_and_do_not_disturb_each_other(whole, tmp_path):
    with new_agent(tmp_path / "run", seeds=(1, 7)) as agent:
        agent.learn(STEPS)
    ours, theirs = (checkpoint.load_newest(run)[1] for run in (tmp_path / "run", whole))
    differ = 0
    for group in ("state", "loop", "replay"):
        for name, array in ours[group].items():
            other = theirs[group][name]
            assert np.array_equal(array[1], other[1]), name  # both have seed 7 in this place
            differ += not np.array_equal(array[0], other[0])
    assert differ > 10
    seven = [[row for row in rows(run) if row["seed"] == 7] for run in (tmp_path / "run", whole)]
    assert seven[0] == seven[1]


# Interruptions

SLOW = """
import sys, time
from rescore.training import session

def advance(run, really=session.advance):
    time.sleep(0.05)
    really(run)

session.advance = advance
"""
MURDER = """
import os, signal
import safetensors.numpy
from rescore.training import checkpoint

def save_file(arrays, path, really=safetensors.numpy.save_file):
    really(arrays, path)
    if "step_000000180" in str(path) and len(os.listdir(path.parent)) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

safetensors.numpy.save_file = save_file
"""
MAIN = "\nfrom rescore.cli import main\nmain()\n"


def started(code: str, *words: object) -> subprocess.Popen:
    """The command line in a process of its own, after `code`."""
    return subprocess.Popen(
        [sys.executable, "-c", code + MAIN, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_row(run: Path, step: int, process: subprocess.Popen) -> None:
    """Until the metrics of a step are there, and a little longer."""
    path = run / "metrics.jsonl"
    while not path.exists() or step not in [row["env_steps"] for row in metrics(run)]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.07)


def test_kill_9_in_the_middle_of_a_save(whole, tmp_path):
    run = tmp_path / "run"
    process = started(MURDER, *arguments(run))
    output = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, output
    assert [p.name for p in checkpoint.stored(run)] == ["step_000000120", "step_000000060"]
    (left,) = (run / "checkpoints").glob(".*")
    assert len(os.listdir(left)) == 2 and not (left / checkpoint.MANIFEST).exists()
    assert read_json(run / "run.json")["status"] == "running"
    assert metrics(run)[-1]["env_steps"] == 160  # rows beyond what can be loaded
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 2')  # as if killed within a line, too
    (run / ".best.partial-1").mkdir()

    assert command("resume", run, "--quiet") == 0
    assert_same_run(run, whole)
    assert read_json(run / "run.json")["status"] == "finished"


def test_sigterm_then_sigint(whole, tmp_path):
    """Both save amid an interval of logging, say how to go on, and lose nothing."""
    run = tmp_path / "run"
    words = arguments(run)
    for number, step in ((signal.SIGTERM, 40), (signal.SIGINT, 120)):
        process = started(SLOW, *words)
        wait_for_row(run, step, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert f"rescore resume {run}" in out and "saved" in out
        assert "Traceback" not in err
        info = read_json(run / "run.json")
        assert info["status"] == "stopped" and info["wall_clock_s"] > 0
        stopped_at = checkpoint.load_newest(run)[2]["env_steps"]
        assert step <= stopped_at < STEPS
        assert f"stopped at {stopped_at} steps" in out
        words = ["resume", str(run), "--quiet"]
    assert command(*words) == 0
    info = read_json(run / "run.json")
    assert info["status"] == "finished" and len(info["resumes"]) == 2
    assert_same_run(run, whole)


def raised_at(step: int, times: int = 1):
    """`advance` that gets SIGINT once it is beyond a step."""

    def advance(run, really=session.advance):
        really(run)
        if run.env_steps == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return advance


def test_stopping_at_any_chunk(whole, tmp_path, monkeypatch, capsys):
    """In warm-up, and between two rows of metrics."""
    run, words = tmp_path / "run", arguments(tmp_path / "run")
    for step in (10, 110):
        monkeypatch.setattr(session, "advance", raised_at(step))
        assert command(*words) == 0
        assert f"stopped at {step} steps and saved" in capsys.readouterr().out
        monkeypatch.undo()
        words = ["resume", run, "--quiet"]
    assert command(*words) == 0
    assert_same_run(run, whole)


def test_a_second_ctrl_c_does_not_claim_to_have_saved(tmp_path, monkeypatch, capsys, request):
    monkeypatch.setattr(session, "advance", raised_at(90, times=2))
    # A shell without job control starts its background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    assert command(*arguments(tmp_path / "run")) == 130
    output = capsys.readouterr()
    assert "saved" not in output.out and output.err == "rescore: interrupted\n"
    assert checkpoint.load_newest(tmp_path / "run")[2]["env_steps"] == 60
    assert read_json(tmp_path / "run" / "run.json")["status"] == "failed"


def test_signals_are_as_before_after_learning(whole):
    """Only within `learn` are they caught; and not at all outside the main thread."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with session.interruptible() as interrupted:
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert not interrupted()
        signal.raise_signal(signal.SIGTERM)
        assert interrupted()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    seen = []

    def elsewhere() -> None:
        with session.interruptible() as interrupted:
            seen.append((interrupted(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(False, before[0])]


# What cannot be exact says so


class Opaque(gymnasium.Env):
    """Holds something that no array can stand for."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.lock, self.t = threading.Lock(), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t >= 9, {}


gymnasium.register("resume/Opaque-v0", entry_point=Opaque)


def test_an_env_that_cannot_be_saved_starts_a_new_episode(tmp_path, capsys):
    run = tmp_path / "run"
    training = TRAINING | {"num_envs": 1, "save_replay": False}
    with Agent("dpmd", "resume/Opaque-v0", training=training, folder=run, **TINY_NETS) as agent:
        agent.learn(50)
        assert agent.run.obs.item() == 5
    arrays, manifest = checkpoint.load_newest(run)[1:3]
    assert {"envs", "replay"}.isdisjoint(arrays) and "envs" not in manifest
    with Agent.load(run) as agent:
        assert agent.run.env_steps == 50
        assert agent.run.obs.item() == agent.run.episode_length.item() == 0
    assert command("resume", run, "--steps", 60, "--quiet") == 0
    notes = [s for s in capsys.readouterr().out.splitlines() if s.startswith("note: ")]
    assert len(notes) == 2
    assert "no replay" in notes[0] and "starts a new episode" in notes[1]
