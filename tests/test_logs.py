"""Logs survive kill -9, resume without a trace, and say where a file is damaged."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rescore.core import UsageError
from rescore.files import run_record
from rescore.files.json import read_json, read_jsonl, write_json
from rescore.files.logs import (
    EvalLog,
    EvalRow,
    MetricsLog,
    read_eval,
    read_metrics,
)
from rescore.training.track import TRACKERS


def episodes(env_steps, seeds=(0, 1)):
    return [
        EvalRow(env_steps, seed, episode, 100 + episode, env_steps / 3 + episode, 7)
        for seed in seeds
        for episode in range(3)
    ]


def write_until(folder, steps):
    metrics, evaluations = MetricsLog(folder), EvalLog(folder)
    for step in steps:
        metrics.write({"env_steps": step, "q": np.float32(step) / 7, "phase": "train"})
        evaluations.write(episodes(step))
    return metrics, evaluations


def test_rows_come_back(tmp_path):
    row = {"env_steps": 5, "q": math.nan, "loss": np.float32(0.5), "n": np.int64(3), "s": "x"}
    MetricsLog(tmp_path).write(row)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["q"] is None
    (back,) = read_metrics(tmp_path)
    assert math.isnan(back["q"])
    assert (back["loss"], back["n"], back["s"]) == (0.5, 3, "x")
    EvalLog(tmp_path).write(episodes(10))
    assert read_eval(tmp_path) == episodes(10)
    head = "env_steps,seed,episode,env_seed,return,length,success\n"
    assert (tmp_path / "eval.csv").read_text().startswith(head)


def test_resume_leaves_no_trace(tmp_path):
    straight, resumed = tmp_path / "a", tmp_path / "b"
    write_until(straight, range(0, 50, 5))
    write_until(resumed, range(0, 40, 5))
    for name in ("metrics.jsonl", "eval.csv"):
        with open(resumed / name, "a") as file:
            file.write("39,0,0,1")  # torn
    logs = MetricsLog(resumed), EvalLog(resumed)
    for log in logs:
        log.truncate(20)
    for step in range(25, 50, 5):
        logs[0].write({"env_steps": step, "q": np.float32(step) / 7, "phase": "train"})
        logs[1].write(episodes(step))
    for name in ("metrics.jsonl", "eval.csv"):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes()
    assert sorted(os.listdir(resumed)) == ["eval.csv", "metrics.jsonl"]


def test_torn_last_line_is_ignored_and_damage_is_named(tmp_path):
    write_until(tmp_path, [5, 10])
    for name in ("metrics.jsonl", "eval.csv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1])  # even a row lacking only its newline
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [5]
    assert len(read_eval(tmp_path)) == 11
    for name, read in (("metrics.jsonl", read_metrics), ("eval.csv", read_eval)):
        lines = (tmp_path / name).read_bytes().split(b"\n")
        lines.insert(1, b"garbage")
        (tmp_path / name).write_bytes(b"\n".join(lines))
        with pytest.raises(UsageError, match=rf"{name}, line 2"):
            read(tmp_path)
    with pytest.raises(UsageError, match=r"eval\.csv"):
        read_eval(tmp_path / "nowhere")


def test_survives_kill(tmp_path):
    program = (
        "import sys, itertools; from rescore.files.logs import MetricsLog\n"
        "log = MetricsLog(sys.argv[1])\n"
        "for step in itertools.count(): log.write({'env_steps': step, 'x': 'y' * 500})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=environment)
    path = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 10
    while not (path.exists() and path.stat().st_size > 10_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = [row["env_steps"] for row in read_metrics(tmp_path)]
    assert len(steps) > 10 and steps == list(range(len(steps)))
    MetricsLog(tmp_path).write({"env_steps": len(steps)})
    assert len(read_metrics(tmp_path)) == len(steps) + 1


def test_tensorboard(tmp_path):
    begun = TRACKERS["tensorboard"](tmp_path, {}, 0)
    begun.write({"env_steps": 5, "seed": 1, "q": 0.5, "bad": math.inf, "phase": "train"})
    begun.close()
    resumed = TRACKERS["tensorboard"](tmp_path, {}, 5)
    resumed.write({"env_steps": 10, "q": 0.25})
    resumed.close()
    first, second = (path.read_bytes() for path in sorted((tmp_path / "tb").iterdir()))
    assert b"seed1/q" in first and b"bad" not in first and b"phase" not in first
    assert b"q" in second and second != first


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"best": -math.inf, "state": 2**127})
    assert read_json(path) == {"best": -math.inf, "state": 2**127}
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert read_json(path)["state"] == 2**127
    path.write_text('{"a": ')
    with pytest.raises(UsageError, match=r"run\.json is damaged"):
        read_json(path)
    with pytest.raises(UsageError, match="does not exist"):
        read_json(tmp_path / "none.json")


def test_run_record(tmp_path):
    path = tmp_path / "run.json"
    data = run_record.describe(["train"], {"lr": 1e-3}, {"HalfCheetah-v4": "3.4.0"}, [], [0, 1])
    assert data["versions"]["numpy"] == np.__version__ and data["versions"]["jax"]
    assert data["status"] == "running" and data["seeds"] == [0, 1] and data["cpu"]["model"]
    write_json(path, data)
    run_record.mark(path, "running", 2.5)
    run_record.mark_resumed(path, ["resume"], 100)
    data = run_record.mark(path, "finished", 1.5)
    assert data["wall_clock_s"] == 4.0 and data["ended"] and data["status"] == "finished"
    assert data["resumes"][0]["env_steps"] == 100


def test_results_are_never_deleted(tmp_path):
    path = tmp_path / "results" / "speed.jsonl"
    run_record.append_result(path, {"seed": 0, "wall_clock_s": np.float64(1.5), "config": {"a": 1}})
    path.write_bytes(path.read_bytes()[:-1])
    run_record.append_result(path, {"seed": 1, "commit": "abc"})
    first, second = read_jsonl(path)
    assert first["wall_clock_s"] == 1.5 and "commit" in first and first["written"]
    assert second["commit"] == "abc"
