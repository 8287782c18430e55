"""The matrix: plans, states of cells, locks, and going on after every kind of end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rescore import UsageError, cli
from rescore.bench import local, suites
from rescore.bench.cells import Cell, flags
from rescore.bench.locks import Lock, holder
from rescore.bench.matrix import Place, open_matrix, read_plan
from rescore.bench.rows import find_rows, read_rows
from rescore.bench.suites import SUITES, cells, plan
from rescore.bench.watch import LiveBoard, PlainBoard, glance
from rescore.files.json import read_json
from tests.test_cli import rescore_command

FAKE = [sys.executable, str(Path(__file__).parent / "fake_worker.py")]
PROBE = "rescore/Probe1-v0"
# The runner as a program of its own, so that it can be killed; its workers train nothing.
RUNNER = (
    f"import sys; from rescore import cli; from rescore.bench import local; local.PROGRAM = {FAKE}"
)
RUNNER += "; cli.main(sys.argv[1:])"
MATRIX = "bench run --suite small --algos dpmd sac --seeds 2 --steps 10000 --workers 2"


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(local, "PROGRAM", FAKE)


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):  # a folder that is deleted while we look
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def places(out: Path, seeds: int = 2, group: int = 1) -> list[Place]:
    made = plan("small", ("dpmd", "sac"), seeds=seeds, steps=10_000, group=group)
    return [Place(out, cell) for cell in cells(made)]


def starts(place: Place) -> list[str]:
    return (place.folder / "starts.txt").read_text().splitlines()


# Plans


def test_suites_have_the_papers_tasks_and_budgets():
    mujoco = SUITES["mujoco"].tasks
    assert len(mujoco) == 10 and mujoco["Humanoid-v4"] == 5_000_000
    assert sum(mujoco.values()) == 14_000_000 and "Pusher-v5" in mujoco
    assert all(env.endswith("-v5") for env in SUITES["mujoco-v5"].tasks)
    assert [c.variant for c in cells(plan("steps", seeds=1))] == ["T=10", "T=20", "T=30"]
    assert [c.variant for c in cells(plan("schedules", seeds=1))] == ["linear", "cosine", "vp"]


@pytest.mark.parametrize("suite", SUITES)
def test_every_cell_of_every_suite_can_be_configured(suite):
    made = cells(plan(suite, seeds=1))
    for cell in {cell.label: cell for cell in made}.values():
        cell.check()
        if suite == "mujoco-v5":  # as mujoco, but for the names
            continue
        form, args, called = cli.form_of("train", cell.train("somewhere")[1:])
        cli.parse(form, args, called)
    assert len({cell.name for cell in made}) == len(made)


def test_cells_carry_the_comparison_setting():
    dpmd, ppo = cells(plan("mujoco", ("dpmd", "ppo"), ("Ant",), seeds=1))
    settings = dict(dpmd.settings)
    assert (settings["num_envs"], settings["utd"], settings["eval_every"]) == (5, 0.2, 50_000)
    assert "utd" not in dict(ppo.settings) and dpmd.name == "Ant-v4/dpmd/s0"
    (grouped,) = cells(plan("small", ("sac",), ("Reacher",), seeds=3, group=3))
    assert grouped.seeds == (0, 1, 2) and grouped.name == "Reacher-v4/sac/s0_1_2"


def test_variants_of_a_study_can_be_chosen(tmp_path, capsys):
    command = f"bench run --suite frontier --variants T=5 T=3 --tasks Hopper --out {tmp_path} --dry"
    assert rescore_command(command) == 0
    assert ": 2 cells: 2 missing" in capsys.readouterr().out
    first, second = (SUITES["frontier"].variants[name] for name in ("default", "T=5"))
    assert {k: v for k, v in second.items() if first[k] != v} == {"T": 5}


def test_tasks_without_version_are_different_tasks():
    made = suites.Plan("small", ("sac",), ("mine/Arm", "mine/Leg"), seeds=1)
    assert made.tasks == ("mine/Arm", "mine/Leg")
    assert plan("mujoco", ("sac",), ("Ant", "Ant-v4"), seeds=1).tasks == ("Ant-v4",)


def test_seeds_come_round_before_any_task_has_two():
    made = cells(plan("small", seeds=2))
    assert [cell.seeds for cell in made] == [(0,)] * 4 + [(1,)] * 4


def test_flags():
    assert flags("hidden", [8, 8]) == ["--hidden", "8", "8"]
    assert flags("save_replay", False) == ["--no-save-replay"]
    assert flags("noise", {"init": 0.2, "target": 0.1}) == [
        *("--noise.init", "0.2", "--noise.target", "0.1")
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bench run --suite mujocco", "did you mean 'mujoco'"),
        ("bench run --algos dpmt", "did you mean 'dpmd'"),
        ("bench run --suite mujoco --tasks Aunt", "did you mean"),
        ("bench run --steps 1.5", "whole number"),
        ("bench run --seeds 0", "--seeds must be at least 1"),
        ("bench run --seeds 3 --group 2", "groups of 2"),
        ("bench run --tasks Reacher-v4 Reacher-v5", "two versions of Reacher"),
        ("bench run --workers 0", "at least 1"),
        ("bench run --set T", "NAME=VALUE"),
        ("bench run --suite steps --variants T=11", "did you mean 'T=10'"),
        ("bench run --set TT=3", "TT is no setting of dpmd"),
        ("bench run --algos sac --set T=3", "T is no setting of sac"),
        ("bench run --steps 500", "random warm-up"),
        ("bench run --preset papper", "did you mean 'paper'"),
        (f"bench run --tasks {PROBE}", "say --steps"),
        ("bench runn", "did you mean 'run'"),
        ("bench run --outt x", "did you mean '--out'"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(command, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert rescore_command(command) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_teaches(capsys):
    assert rescore_command("bench run --help") == 0
    text = capsys.readouterr().out
    assert all(suite in text for suite in SUITES) and "--retry" in text and "Ctrl-C" in text
    assert rescore_command("bench") == 0
    assert "run" in capsys.readouterr().out


# A folder holds one plan


def test_a_plan_may_grow_but_not_change(tmp_path):
    out = tmp_path / "out"
    open_matrix(out, plan("small", ("dpmd",), seeds=1))
    assert "cells/" in (out / ".gitignore").read_text()
    grown = open_matrix(out, plan("small", ("sac",), seeds=3))
    assert grown.algorithms == ("dpmd", "sac") and grown.seeds == 3
    assert read_plan(out) == grown
    with pytest.raises(UsageError, match="was begun with steps None, not 9000"):
        open_matrix(out, plan("small", ("sac",), seeds=3, steps=9_000))
    with pytest.raises(UsageError, match="was begun with suite small"):
        open_matrix(out, plan("mujoco", ("sac",), seeds=3))
    assert read_plan(out) == grown


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(UsageError, match="holds something else"):
        open_matrix(tmp_path, plan("small", seeds=1))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_runner_left_can_be_opened(tmp_path):
    (tmp_path / ".gitignore").write_text("cells/\n")
    made = open_matrix(tmp_path, plan("small", seeds=1))
    assert read_plan(tmp_path) == made
    outer = tmp_path / "outer"  # a matrix may hold another one
    open_matrix(outer / "inner", made)
    assert open_matrix(outer, made) == made


def test_a_damaged_log_is_a_failed_cell(tmp_path):
    (place, *_) = places(tmp_path / "out")
    place.run.mkdir(parents=True)
    (place.run / "run.json").write_text('{"status": "finished"}')
    outcome = place.settle(0)
    assert outcome.state == "failed" and place.state().state == "failed"


def test_a_damaged_plan_is_named(tmp_path):
    (tmp_path / "matrix.json").write_text('{"suite": "small"}')
    with pytest.raises(UsageError, match=r"matrix\.json is damaged"):
        read_plan(tmp_path)


# Locks


def test_a_lock_is_taken_once_and_told(tmp_path):
    path = tmp_path / "cell" / "lock"
    assert holder(path) is None
    lock = Lock.take(path)
    assert Lock.take(path) is None
    assert f"process {os.getpid()} on " in holder(path)
    lock.release()
    assert holder(path) is None
    Lock.take(path).release()


def test_a_killed_holder_leaves_a_free_lock(tmp_path):
    path = tmp_path / "lock"
    code = "import sys, time; from pathlib import Path; from rescore.bench.locks import Lock\n"
    code += "lock = Lock.take(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert f"process {process.pid}" in holder(path) and Lock.take(path) is None
        process.kill()
        process.wait()
    assert json.loads(path.read_text())["pid"] == process.pid  # stale, and seen to be
    assert holder(path) is None
    Lock.take(path).release()


# States


def test_states_of_a_cell(tmp_path):
    place = places(tmp_path)[0]
    assert place.state().state == "missing"
    lock = Lock.take(place.lock)
    assert place.state().state == "running"
    lock.release()
    place.run.mkdir()
    (place.run / "run.json").write_text("{}")
    assert place.next_command()[0] == "train" and not place.run.exists()  # nothing to go on from
    (place.run / "checkpoints" / "step_000004000").mkdir(parents=True)
    assert place.state() == ("stopped", "at 4,000 steps")
    assert place.next_command() == ["resume", str(place.run)]
    place.log.write_text("one\ntwo\n")
    assert place.settle(2).state == "failed"
    assert place.state() == ("failed", "exit code 2")
    assert read_json(place.failure)["log"] == ["one", "two"]
    assert place.next_command()[0] == "resume" and place.state().state == "stopped"


def test_a_whole_matrix_then_nothing_to_do(tmp_path, fake, capsys):
    out = tmp_path / "out"
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert "8 cells: 8 finished" in capsys.readouterr().out
    rows = find_rows(out)
    assert len(rows) == 8 and {row.seed for row in rows} == {0, 1}
    assert rows[0].curve.tolist()[-1] == [10_000, 10_000 + rows[0].seed]
    assert rows[0].update_ms == 2.0 and rows[0].episodes == 2
    assert not list(out.rglob("checkpoints")) and all(len(starts(p)) == 1 for p in places(out))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
    assert rescore_command(f"{MATRIX} --out {out} --dry") == 0


def test_a_group_of_seeds_is_one_cell_and_several_rows(tmp_path, fake):
    assert rescore_command(f"{MATRIX} --group 2 --tasks Reacher --out {tmp_path / 'out'}") == 0
    files = sorted((tmp_path / "out" / "rows").rglob("*.jsonl"))
    assert [len(read_rows(file)) for file in files] == [2, 2]
    first, second = read_rows(files[0])
    assert (first.seed, second.seed) == (0, 1) and second.curve[-1, 1] == 10_001


def test_failed_cells_are_shown_and_retried_on_request(tmp_path, fake, monkeypatch, capsys):
    command = f"bench run --algos sac --tasks Reacher --steps 10000 --out {tmp_path / 'out'}"
    monkeypatch.setenv("FAKE_FAIL", "1")
    assert rescore_command(command) == 1
    said = capsys.readouterr().out
    assert "loss became nan" in said and "--retry" in said and "exit code 2" in said
    (place,) = (p for p in places(tmp_path / "out", seeds=1) if "Reacher-v4/sac" in p.cell.name)
    monkeypatch.delenv("FAKE_FAIL")
    assert rescore_command(command) == 1 and len(starts(place)) == 1
    assert rescore_command(f"{command} --retry") == 0
    assert starts(place) == ["train 0", "resume 5000"] and not place.failure.exists()


def test_a_finished_run_without_its_row_is_not_repeated(tmp_path, fake):
    """The runner was killed after the training's end and before it wrote the row."""
    out = tmp_path / "out"
    assert rescore_command(f"{MATRIX} --keep-checkpoints --out {out}") == 0
    first, second, *_ = places(out)
    first.rows.unlink()
    second.rows.unlink()
    info = read_json(second.run / "run.json")  # killed even before its last mark
    (second.run / "run.json").write_text(json.dumps({**info, "status": "running"}))
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert len(find_rows(out)) == 8
    assert starts(first) == ["train 0"] and starts(second) == ["train 0"]


def test_a_cut_off_row_is_named_and_nothing_overwritten(tmp_path, fake, capsys):
    out = tmp_path / "out"
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    path = places(out)[0].rows
    path.write_bytes(path.read_bytes()[:-40])
    cut = path.read_bytes()
    assert rescore_command(f"{MATRIX} --out {out}") == 2
    assert "is cut off" in capsys.readouterr().err and path.read_bytes() == cut


# Ends of every kind


def runner(out: Path, *more: str) -> subprocess.Popen:
    """The command as a process; its workers wait at 30 % of their steps for the file `gate`."""
    words = [*MATRIX.split(), "--out", str(out), *more]
    env = {**os.environ, "FAKE_GATE": str(out.parent / "gate")}
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, *words], env=env, stdout=subprocess.PIPE, text=True
    )


def waiting_at_the_gate(out: Path) -> list[Place]:
    """Places whose workers have saved at 30 % and are alive."""
    begun = [p for p in places(out) if (p.run / "checkpoints" / "step_000003000").exists()]
    return [place for place in begun if holder(place.lock)]


def kill_worker(place: Place) -> None:
    os.kill(json.loads(place.lock.read_text())["pid"], signal.SIGKILL)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, fake):
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "go on with:" in said and "bench run" in said
    stopped = [place for place in places(out) if place.state().state == "stopped"]
    assert len(stopped) == 2 and not any(holder(place.lock) for place in places(out))
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert all(starts(place) == ["train 0", "resume 4000"] for place in stopped)
    assert len(find_rows(out)) == 8


def test_a_closed_terminal_leaves_no_worker_behind(tmp_path, fake):
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        process.wait(timeout=120)
    stopped = [place for place in places(out) if place.state().state == "stopped"]
    assert len(stopped) == 2 and not any(holder(place.lock) for place in places(out))


def test_kill_9_of_the_runner_neither_loses_nor_repeats(tmp_path, fake, capsys):
    """Its workers go on, and their cells are left alone until they have ended."""
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.kill()
        process.wait()
    orphans = waiting_at_the_gate(out)
    assert len(orphans) == 2
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert "8 cells: 6 finished, 2 running" in capsys.readouterr().out
    (tmp_path / "gate").touch()
    wait_for(lambda: not any(holder(place.lock) for place in orphans))
    assert len(find_rows(out)) == 6  # the two are trained, and nobody has written their rows
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert len(find_rows(out)) == 8 and all(starts(p) == ["train 0"] for p in places(out))


def test_kill_9_of_everything_is_resumed(tmp_path, fake):
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.kill()
        process.wait()
    killed = waiting_at_the_gate(out)
    for place in killed:
        kill_worker(place)
    wait_for(lambda: not any(holder(place.lock) for place in killed))
    assert all(place.state() == ("stopped", "at 3,000 steps") for place in killed)
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert len(find_rows(out)) == 8
    assert all(starts(place) == ["train 0", "resume 3000"] for place in killed)


def test_a_killed_worker_is_resumed_at_once(tmp_path):
    out = tmp_path / "out"
    with runner(out, "--algos", "sac", "--tasks", "Reacher", "--seeds", "1") as process:
        wait_for(lambda: waiting_at_the_gate(out))
        (place,) = waiting_at_the_gate(out)
        kill_worker(place)
        (tmp_path / "gate").touch()
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "restarting" in said and "by signal 9" in said
    assert starts(place) == ["train 0", "resume 3000"]
    assert [step for step, *_ in find_rows(out)[0].evaluations] == list(range(1_000, 10_001, 1_000))


def test_a_worker_that_is_always_killed_has_failed(tmp_path):
    out = tmp_path / "out"
    with runner(out, "--algos", "sac", "--tasks", "Reacher", "--seeds", "1") as process:
        for attempt in range(local.RESTARTS + 1):
            wait_for(
                lambda n=attempt: [len(starts(p)) > n for p in waiting_at_the_gate(out)] == [True]
            )
            kill_worker(waiting_at_the_gate(out)[0])
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "stopped by signal 9, 3 times" in said


def test_two_runners_share_a_folder(tmp_path):
    out = tmp_path / "out"
    (tmp_path / "gate").touch()
    with runner(out) as first:
        wait_for((out / "matrix.json").exists)
        with runner(out) as second:
            assert second.wait(timeout=300) == 0 and first.wait(timeout=300) == 0
    assert len(find_rows(out)) == 8 and all(starts(p) == ["train 0"] for p in places(out))


# What is shown


def test_boards(tmp_path):
    place = Place(tmp_path, Cell("Ant-v4", "dpmd", (0,), 1_000))
    assert glance(place) == (0, None, None)
    place.run.mkdir(parents=True)
    (place.run / "metrics.jsonl").write_text('{"env_steps": 400, "eta_s": 65.0, "return": 3}\n{"to')
    (place.run / "eval.csv").write_text(
        "env_steps,seed,episode,env_seed,return,length\n300,0,0,1,10.0,5\n300,0,1,1,20.0,5\n"
    )
    assert glance(place) == (400, 15.0, 65.0)
    now = [0.0]
    stream = io.StringIO()
    board = PlainBoard(stream, clock=lambda: now[0])
    board.start(3, 1)
    now[0] = 120.0
    board.settled(place, place.fail("exit code 2"))
    board.refresh([place], 1)
    text = stream.getvalue()
    assert "failed  Ant-v4/dpmd/s0 (exit code 2)" in text
    assert "1 of 3 cells finished, 1 running, 1 waiting, 1 failed, 2 m 00 s so far" in text
    assert "40 % 400/1k  15  1 m 05 s" in text

    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    live = LiveBoard(console, clock=lambda: now[0])
    live.start(3, 1)
    live.refresh([place], 0)
    live.stop()
    drawn = console.file.getvalue()
    assert "Ant-v4/dpmd/s0" in drawn and "1 m 05 s" in drawn and "1 of 3 cells finished" in drawn
