"""The matrix: plans, states of cells, locks, and going on after every kind of end."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rescore import UsageError, cli
from rescore.bench import local
from rescore.bench.matrix import CellFolder, open_matrix, read_plan
from rescore.bench.plan import Cell, Plan, cells, flags, plan
from rescore.bench.rows import find_rows, read_rows
from rescore.bench.suites import SUITES, make_suite
from rescore.bench.watch import Board, glance
from rescore.files.json import read_json
from rescore.files.locks import Lock, holder
from rescore.training import checkpoint
from rescore.training.config import configure, recorded
from tests.small import rescore_command, wait_for

FAKE = [sys.executable, str(Path(__file__).parent / "fake_worker.py")]
PROBE = "rescore/Probe1-v0"
STUDIES = sorted(map(str, (Path(__file__).parents[1] / "benchmarks" / "suites").glob("*.json")))
# The runner as a program of its own, so that it can be killed; its workers train nothing.
RUNNER = (
    f"import sys; from rescore import cli; from rescore.bench import local; local.PROGRAM = {FAKE}"
)
# As from a terminal, whoever runs the tests: `nohup` has hangups ignored.
RUNNER += "; import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
RUNNER += "; cli.main(sys.argv[1:])"
MATRIX = "bench run --suite small --algos dpmd sac --seeds 2 --steps 10000 --workers 2"


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(local, "PROGRAM", FAKE)


def folders(out: Path, seeds: int = 2, group: int = 1) -> list[CellFolder]:
    made = plan("small", ("dpmd", "sac"), seeds=seeds, steps=10_000, group=group)
    return [CellFolder(out, cell) for cell in cells(made)]


def starts(folder: CellFolder) -> list[str]:
    return (folder.path / "starts.txt").read_text().splitlines()


# Plans


def test_suites_have_the_papers_tasks_and_budgets():
    mujoco = SUITES["mujoco"].tasks
    assert len(mujoco) == 10 and mujoco["Humanoid-v4"] == 5_000_000
    assert sum(mujoco.values()) == 14_000_000 and "Pusher-v5" in mujoco
    assert all(env.endswith("-v5") for env in SUITES["mujoco-v5"].tasks)


@pytest.mark.parametrize("suite", [*SUITES, *STUDIES])
def test_every_cell_of_every_suite_can_be_configured(suite):
    made = cells(plan(suite, seeds=1))
    for cell in {cell.label: cell for cell in made}.values():
        cell.check()
    assert len({cell.name for cell in made}) == len(made)


@pytest.mark.parametrize("suite", ["small", *STUDIES])
def test_the_command_line_takes_what_a_suite_sets(suite):
    """All settings of a suite together, whatever their types."""
    made = cells(plan(suite, seeds=1))
    every = {name: value for cell in made for name, value in cell.settings}
    cell = dataclasses.replace(made[0], settings=tuple(every.items()))
    form, args, called = cli.form_of("train", cell.train("somewhere")[1:])
    cli.parse(form, args, called)


def study(tmp_path: Path, **changes) -> str:
    """The path of a suite's file; None takes a key away."""
    content = {"about": "a study", "tasks": {"Hopper-v4": 9_000}, "algorithms": ["dpmd"]}
    content |= {"variants": {"T=5": {"T": 5}, "as in the paper": {"preset": "paper"}}, **changes}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return str(path)


def test_a_study_is_a_file(tmp_path):
    path = study(tmp_path, tasks=["Hopper-v4", "Ant-v5"], steps=70_000, seeds=2, evaluations=7)
    made = plan(path)
    assert made.suite.name == "mine" and made.seeds == {"dpmd": 2}
    assert made.tasks == ("Hopper-v4", "Ant-v5")
    first, *_, last = cells(made)
    assert (first.variant, first.preset, dict(first.settings)["T"]) == ("T=5", "default", 5)
    assert (last.variant, last.preset, last.env) == ("as in the paper", "paper", "Ant-v5")
    assert dict(last.settings) == {"eval_every": 10_000, "checkpoint_every": 10_000}
    assert plan(path, seeds=1, preset="paper").preset == "paper"


def test_an_algorithm_of_a_study_may_have_seeds_steps_and_settings_of_its_own(tmp_path):
    own = {"dpmd": {"seeds": 2}, "sac": {"preset": "crossq", "gamma": 0.9}}
    own["ppo"] = {"steps": 20_000}
    path = study(tmp_path, algorithms=own, settings={"gamma": 0.8}, variants={"": {}})
    made = cells(plan(path))
    assert [(c.algorithm, c.seeds, c.steps) for c in made] == [
        *(("dpmd", (0,), 9_000), ("sac", (0,), 9_000), ("ppo", (0,), 20_000)),
        ("dpmd", (1,), 9_000),
    ]
    dpmd, sac, *_ = made
    assert (dpmd.preset, dict(dpmd.settings)["gamma"]) == ("default", 0.8)
    assert (sac.preset, dict(sac.settings)["gamma"]) == ("crossq", 0.9)
    # What the command line asks for holds for all; the folder keeps what it was begun with.
    assert {(c.seeds, c.steps) for c in cells(plan(path, seeds=1, steps=8_000))} == {((0,), 8_000)}
    open_matrix(tmp_path / "out", plan(path))
    grown = open_matrix(tmp_path / "out", plan(path, ("ppo",), seeds=3))
    assert grown.seeds == {"dpmd": 2, "sac": 1, "ppo": 3} and read_plan(tmp_path / "out") == grown


def test_a_number_of_seeds_is_that_of_every_algorithm(tmp_path):
    """Plans of before had one number."""
    made = open_matrix(tmp_path, plan("small", ("dpmd", "sac"), seeds=2))
    content = json.loads((tmp_path / "matrix.json").read_text())
    (tmp_path / "matrix.json").write_text(json.dumps({**content, "seeds": 2}))
    assert read_plan(tmp_path) == made


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variant": {}}, "unknown key of a suite 'variant': did you mean 'variants'"),
        ({"algorithms": ["dpmt"]}, "did you mean 'dpmd'"),
        ({"algorithms": {"dpmd": 3}}, "'dpmd' of 'algorithms' must be a JSON object, not int"),
        ({"algorithms": {"dpmd": {"steps": 0}}}, "'steps' needs a whole number above 0"),
        ({"algorithms": {"dpmd": {"preset": "papper"}}}, "did you mean 'paper'"),
        ({"tasks": {"Hoper-v4": 9_000}}, "did you mean 'Hopper-v4'"),
        ({"tasks": ["Hopper-v4"]}, "'Hopper-v4' needs a whole number"),
        ({"tasks": None}, "a suite needs 'tasks'"),
        ({"about": None}, "a suite needs 'about'"),
        ({"variants": {"x": 3}}, "'x' of 'variants' must be a JSON object, not int"),
        ({"variants": {"x": {"preset": "papper"}}}, "did you mean 'paper'"),
        ({"seeds": 0}, "'seeds' needs a whole number above 0"),
        ({"settings": {"hiden": 3}}, "hiden is no setting of dpmd T=5: did you mean 'hidden'"),
    ],
)
def test_a_wrong_study_is_one_line(tmp_path, capsys, changes, said):
    path = study(tmp_path, **changes)
    assert rescore_command(f"bench run --suite {path} --out {tmp_path / 'out'}") == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_folder_holds_its_study_which_may_grow(tmp_path):
    """The rows stay readable without the file, and whatever becomes of it."""
    out = tmp_path / "out"
    held = open_matrix(out, plan(study(tmp_path)))
    assert read_plan(out) == held and held.labels == ["dpmd T=5", "dpmd as in the paper"]
    more = {"T=5": {"T": 5}, "T=7": {"T": 7}}
    grown = open_matrix(out, plan(study(tmp_path, variants=more)))
    assert list(grown.suite.variants) == ["T=5", "as in the paper", "T=7"]
    for changes in ({"variants": {"T=5": {"T": 6}}}, {"evaluations": 3}):
        with pytest.raises(UsageError, match="was begun with"):
            open_matrix(out, plan(study(tmp_path, **changes)))
    with pytest.raises(UsageError, match=r"9000 for Hopper-v4/.*, not 8000"):
        open_matrix(out, plan(study(tmp_path, tasks={"Hopper-v4": 8_000})))


def test_cells_carry_the_comparison_setting():
    dpmd, ppo = cells(plan("mujoco", ("dpmd", "ppo"), ("Ant",), seeds=1))
    settings = dict(dpmd.settings)
    assert (settings["num_envs"], settings["utd"], settings["eval_every"]) == (5, 0.2, 50_000)
    assert "utd" not in dict(ppo.settings) and dpmd.name == "Ant-v4/dpmd/s0"
    (grouped,) = cells(plan("small", ("sac",), ("Reacher",), seeds=3, group=3))
    assert grouped.seeds == (0, 1, 2) and grouped.name == "Reacher-v4/sac/s0_1_2"


def test_variants_of_a_study_can_be_chosen(tmp_path, capsys):
    (steps,) = (path for path in STUDIES if path.endswith("steps.json"))
    command = f"bench run --suite {steps} --variants T=10 T=30 --seeds 1 --out {tmp_path} --dry"
    assert rescore_command(command) == 0
    assert ": 2 cells: 2 missing" in capsys.readouterr().out
    first, _, third, *_ = (dict(cell.settings) for cell in cells(plan(steps, seeds=1)))
    assert len(first) > 6 and {k for k, v in third.items() if first[k] != v} == {"T"}


def test_tasks_without_version_are_different_tasks():
    made = Plan(SUITES["small"], ("sac",), ("mine/Arm", "mine/Leg"), seeds={"sac": 1})
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
        ("bench run --suite work", "or give the .json file"),
        ("bench run --suite nothing.json", "nothing.json does not exist"),
        ("bench run --variants T=11", "unknown variant"),
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
    assert grown.seeds == {"dpmd": 1, "sac": 3}
    assert read_plan(out) == grown
    with pytest.raises(UsageError, match="steps 6000 for InvertedPendulum-v4/dpmd/s0, not 9000"):
        open_matrix(out, plan("small", ("sac",), seeds=3, steps=9_000))
    with pytest.raises(UsageError, match="was begun with suite small"):
        open_matrix(out, plan("mujoco", ("sac",), seeds=3))
    assert read_plan(out) == grown


@pytest.mark.parametrize("owes", [True, False])
def test_a_cell_that_was_stopped_amid_its_last_evaluation_is_not_done(tmp_path, owes):
    (folder, *_) = folders(tmp_path, seeds=1)
    meta = {"env_steps": folder.cell.steps, "owes_evaluation": owes}
    checkpoint.save(folder.run / "checkpoints" / checkpoint.step_name(folder.cell.steps), {}, meta)
    assert folder.reached_its_end != owes


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/b", "", 3])
def test_a_name_that_would_lead_elsewhere_is_refused(tmp_path, name):
    open_matrix(tmp_path, plan(study(tmp_path.parent, seeds=1)))
    content = json.loads((tmp_path / "matrix.json").read_text())
    content["suite"]["name"] = name
    (tmp_path / "matrix.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is no name of a suite"):
        read_plan(tmp_path)


def test_switches_of_a_part_are_typed_as_the_command_line_takes_them():
    settings = (("critic", {"unit_weights": False, "target": True}), ("normalise_obs", False))
    cell = Cell("Hopper-v4", "sac", (0,), 20_000, "crossq", settings)
    form, args, called = cli.form_of("train", cell.train("somewhere")[1:])
    algo = cli.parse(form, args, called).algorithm
    assert algo.critic.target and not algo.critic.unit_weights and not algo.normalise_obs
    assert algo.critic.norm == "batch"


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
    (folder, *_) = folders(tmp_path / "out")
    folder.run.mkdir(parents=True)
    (folder.run / "run.json").write_text('{"status": "finished"}')
    outcome = folder.settle(0)
    assert outcome.state == "failed" and folder.state().state == "failed"


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
    code = "import sys, time; from pathlib import Path; from rescore.files.locks import Lock\n"
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
    folder = folders(tmp_path)[0]
    assert folder.state().state == "missing"
    lock = Lock.take(folder.lock)
    assert folder.state().state == "running"
    lock.release()
    folder.run.mkdir()
    (folder.run / "run.json").write_text("{}")
    assert folder.next_command()[0] == "train" and not folder.run.exists()  # nothing to go on from
    (folder.run / "checkpoints" / "step_000004000").mkdir(parents=True)
    assert folder.state() == ("stopped", "at 4,000 steps")
    assert folder.next_command() == ["resume", str(folder.run)]
    folder.log.write_text("one\ntwo\n")
    assert folder.settle(2).state == "failed"
    assert folder.state() == ("failed", "exit code 2")
    assert read_json(folder.failure)["log"] == ["one", "two"]
    assert folder.next_command()[0] == "resume" and folder.state().state == "stopped"


def test_a_whole_matrix_then_nothing_to_do(tmp_path, fake, capsys):
    out = tmp_path / "out"
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert "8 cells: 8 finished" in capsys.readouterr().out
    rows = find_rows(out)
    assert len(rows) == 8 and {row.seed for row in rows} == {0, 1}
    assert rows[0].curve.tolist()[-1] == [10_000, 10_000 + rows[0].seed]
    assert rows[0].update_ms == 2.0 and rows[0].episodes == 2
    assert not list(out.rglob("checkpoints")) and all(len(starts(p)) == 1 for p in folders(out))
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
    (folder,) = (p for p in folders(tmp_path / "out", seeds=1) if "Reacher-v4/sac" in p.cell.name)
    monkeypatch.delenv("FAKE_FAIL")
    assert rescore_command(command) == 1 and len(starts(folder)) == 1
    assert rescore_command(f"{command} --retry") == 0
    assert starts(folder) == ["train 0", "resume 5000"] and not folder.failure.exists()


def test_a_finished_run_without_its_row_is_not_repeated(tmp_path, fake):
    """The runner was killed after the training's end and before it wrote the row."""
    out = tmp_path / "out"
    assert rescore_command(f"{MATRIX} --keep-checkpoints --out {out}") == 0
    first, second, *_ = folders(out)
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
    path = folders(out)[0].rows
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


def waiting_at_the_gate(out: Path) -> list[CellFolder]:
    """Places whose workers have saved at 30 % and are alive."""
    begun = [p for p in folders(out) if (p.run / "checkpoints" / "step_000003000").exists()]
    return [folder for folder in begun if holder(folder.lock)]


def kill_worker(folder: CellFolder) -> None:
    os.kill(json.loads(folder.lock.read_text())["pid"], signal.SIGKILL)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, fake):
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "go on with:" in said and "bench run" in said
    stopped = [folder for folder in folders(out) if folder.state().state == "stopped"]
    assert len(stopped) == 2 and not any(holder(folder.lock) for folder in folders(out))
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert all(starts(folder) == ["train 0", "resume 4000"] for folder in stopped)
    assert len(find_rows(out)) == 8


def test_a_closed_terminal_leaves_no_worker_behind(tmp_path, fake):
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        process.wait(timeout=120)
    stopped = [folder for folder in folders(out) if folder.state().state == "stopped"]
    assert len(stopped) == 2 and not any(holder(folder.lock) for folder in folders(out))


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
    wait_for(lambda: not any(holder(folder.lock) for folder in orphans))
    assert len(find_rows(out)) == 6  # the two are trained, and their rows are not written yet
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert len(find_rows(out)) == 8 and all(starts(p) == ["train 0"] for p in folders(out))


def test_kill_9_of_everything_is_resumed(tmp_path, fake):
    out = tmp_path / "out"
    with runner(out) as process:
        wait_for(lambda: len(waiting_at_the_gate(out)) == 2)
        process.kill()
        process.wait()
    killed = waiting_at_the_gate(out)
    for folder in killed:
        kill_worker(folder)
    wait_for(lambda: not any(holder(folder.lock) for folder in killed))
    assert all(folder.state() == ("stopped", "at 3,000 steps") for folder in killed)
    assert rescore_command(f"{MATRIX} --out {out}") == 0
    assert len(find_rows(out)) == 8
    assert all(starts(folder) == ["train 0", "resume 3000"] for folder in killed)


def test_a_killed_worker_is_resumed_at_once(tmp_path):
    out = tmp_path / "out"
    with runner(out, "--algos", "sac", "--tasks", "Reacher", "--seeds", "1") as process:
        wait_for(lambda: waiting_at_the_gate(out))
        (folder,) = waiting_at_the_gate(out)
        kill_worker(folder)
        (tmp_path / "gate").touch()
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "restarting" in said and "by signal 9" in said
    assert starts(folder) == ["train 0", "resume 3000"]
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
    assert len(find_rows(out)) == 8 and all(starts(p) == ["train 0"] for p in folders(out))


# What is shown


def test_the_board(tmp_path):
    folder = CellFolder(tmp_path, Cell("Ant-v4", "dpmd", (0,), 1_000))
    assert glance(folder) == (0, None, None)
    folder.run.mkdir(parents=True)
    (folder.run / "metrics.jsonl").write_text(
        '{"env_steps": 400, "eta_s": 65.0, "return": 3}\n{"to'
    )
    (folder.run / "eval.csv").write_text(
        "env_steps,seed,episode,env_seed,return,length\n300,0,0,1,10.0,5\n300,0,1,1,20.0,5\n"
    )
    assert glance(folder) == (400, 15.0, 65.0)
    now = [0.0]
    stream = io.StringIO()
    board = Board(stream, clock=lambda: now[0])
    board.start(3, 1)
    now[0] = 120.0
    board.settled(folder, folder.fail("exit code 2"))
    board.refresh([folder], 1)
    text = stream.getvalue()
    assert "failed  Ant-v4/dpmd/s0 (exit code 2)" in text
    assert "1 of 3 cells finished, 1 running, 1 waiting, 1 failed, 2 m 00 s so far" in text
    assert "40 % 400/1k  15  1 m 05 s" in text


def test_a_mapping_changes_what_it_names_in_a_part():
    """What a study's file says of the critic leaves the rest of it as the preset has it."""
    whole = configure("sac", "crossq", {}, {})[0].critic
    changed = configure("sac", "crossq", {"critic": {"n_step": 3}}, {})[0].critic
    assert changed == dataclasses.replace(whole, n_step=3) != whole
    with pytest.raises(UsageError, match="n_step"):
        configure("sac", "crossq", {"critic": {"n_steps": 3}}, {})
    assert configure("dpmd", "paper", {"lam": {"target": 0.5}}, {})[0].lam.init == 5.0


def test_a_record_without_a_setting_had_it_off():
    """What a run's record does not say of its critic was not there yet."""
    today = configure("dpmd", "default", {}, {})[0].critic
    old = {"critic": {k: v for k, v in dataclasses.asdict(today).items() if k != "improve_reduce"}}
    assert configure("dpmd", "default", recorded("dpmd", old), {})[0].critic == dataclasses.replace(
        today, improve_reduce=None
    )
    assert configure("dpmd", "default", old, {})[0].critic == today


def test_parts_of_suite_variant_and_request_are_laid_over_each_other():
    about = {"about": "a", "tasks": {"Hopper-v4": 20_000}, "algorithms": ["sac"]}
    about |= {"settings": {"critic": {"lr": 0.002}}, "variants": {"a": {"critic": {"n_step": 3}}}}
    asked = (("critic", {"norm": "layer"}),)
    suite = make_suite({"name": "study", **about})
    (cell,) = cells(Plan(suite, ("sac",), ("Hopper-v4",), {"sac": 1}, settings=asked))
    assert dict(cell.settings)["critic"] == {"lr": 0.002, "n_step": 3, "norm": "layer"}
    words = cell.train("run")
    for name, value in (("lr", "0.002"), ("n_step", "3"), ("norm", "layer")):
        assert words[words.index(f"--critic.{name.replace('_', '-')}") + 1] == value
