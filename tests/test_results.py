"""The tables in the documents are what the recorded rows say."""

import importlib
import importlib.util
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import jax
import pytest

from rescore.bench.report import write_report
from rescore.cli.report import Report
from rescore.files.json import plain
from rescore.training.config import configure

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_what_was_recorded(tables):
    for name, table in tables.TABLES.items():
        assert tables.shown(name) == table.make(), name


def recorded(algorithm, env, seeds, evaluations, preset="default", written="1", **settings):
    """A row as `rescore train --record` appends it, of what the tables read."""
    algo, training = configure(algorithm, preset, settings, {})
    config = plain({"hyperparameters": asdict(algo), "training": asdict(training)})
    row = {"algorithm": algorithm, "preset": preset, "env": env, "seeds": seeds, "config": config}
    row |= {"env_steps": 200_000, "updates": 190_000, "wall_clock_s": 400.0, "commit": "0123456789"}
    row |= {"cpu": {"model": "some core"}, "status": "finished"}
    return row | {"written": written, "evaluations": evaluations}


def test_the_table_of_returns_says_what_its_rows_say(tables, tmp_path, monkeypatch):
    assert tables.returns(tmp_path).splitlines()[-1] == "| no runs recorded yet |"
    both = [[90_000, 9.0], [100_000, 1000.0], [200_000, 3000.0]]
    rows = [
        recorded("sac", "Ant-v4", [0], both),
        recorded("sac", "Ant-v4", [1, 2], [[100_000, 2500.0]]),  # mean over its seeds
        recorded("sac", "Ant-v4", [3], both, gamma=0.9),  # not what the command trains
        recorded("sac", "Ant-v4", [0, 1], both, preset="crossq"),
        recorded("td3", "Reacher-v4", [0], [[100_000, -4.06]], written="2"),
        recorded("td3", "Reacher-v4", [0], [[100_000, -9.0]], written="1"),  # older
        *(recorded("td3", "Ant-v4", [i], [[100_000, 100.0 * i]]) for i in (1, 2, 6)),
        recorded("sac", "Ant-v4", [5], both, preset="crossq"),
    ]
    stopped = recorded("td3", "Reacher-v4", [0], [[100_000, -7.0]], written="3")
    rows.insert(2, stopped | {"status": "cut short"})  # newer, but it did not get to its end
    del rows[-1]["config"]["hyperparameters"]["averaging"]  # older than a setting that is on now
    files = {"a.jsonl": rows[:2], "b.jsonl": rows[2:]}
    for name, content in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    published = {"CrossQ": {"Ant-v4": [1234, 5678]}, "best": {"Ant-v4": [2000, 6000]}}
    published["systems"] = {"Ant-v4": ["DR.Q", "FlashSAC"]}
    monkeypatch.setattr(tables, "PUBLISHED", published)
    head, _, *lines = tables.returns(tmp_path).splitlines()
    assert head == (
        "|  | steps | `sac` crossq | `sac` default | `td3` default "
        "| CrossQ, published | best published |"
    )
    assert lines == [
        "| `Ant-v4` | 100k | 1,000 (2) | 2,000 (3) | 300 ± 265 (3) | 1,234 | 2,000 DR.Q |",
        "|  | 200k | 3,000 (2) | 3,000 (1) | – | 5,678 | 6,000 FlashSAC |",
        "| `Reacher-v4` | 100k | – | – | -4.1 (1) | – | – |",
        "|  | 200k | – | – | – | – | – |",
    ]
    head, _, _, sac, *_ = tables.work(tmp_path).splitlines()
    assert head.startswith("|  | return at 100k (seeds) | return at 200k (seeds) |")
    assert "updates per step | ms per step | processor | commit |" in head
    # 400 s for one seed and 400 s for two together, 200,000 steps each: 4 ms / 3 seeds.
    cells = "2,000 (3) | 3,000 (1) | 0.95 | 1.3 | some core | `0123456` |"
    assert sac == f"| `sac` default, `Ant-v4` | {cells}"


@pytest.mark.parametrize("name", ["sdac", pytest.param("dpmd", marks=pytest.mark.slow)])
def test_the_bandit_study_still_runs(monkeypatch, name):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bandit = importlib.import_module("bandit")
    monkeypatch.setattr(bandit, "SAMPLES", 16)
    with jax.numpy_rank_promotion("allow"):
        settings = dict(bandit.METHODS.values())[name]
        assert bandit.learn(name, settings, 2, 2, 0).shape == (16, 2)
    sys.modules.pop("bandit")


def test_cells_say_what_happened(tables):
    row = {"status": "finished", "env_steps": 6000, "wall_clock_s": 61.0, "final": {"mean": -170.2}}
    row |= {"evaluations": [[1000, -900.0], [2000, -240.0], [3000, -300.0]]}
    assert tables.cell(row, -250.0) == "2,000: -170 (1 min)"
    assert tables.cell(row, -200.0) == "not solved: -170 (1 min)"
    assert tables.cell(None, None) == "missing"
    cut = {"status": "cut short", "env_steps": 32_000, "wall_clock_s": 600.0, "final": None}
    cut |= {"evaluations": [[10_000, 5.0], [30_000, 1234.5]], "best": {"mean": 1234.5}}
    assert tables.cell(cut, None) == "1,234 at 30,000, cut short at 32,000 (10 min)"
    longer = {"status": "finished", "env_steps": 200_000, "wall_clock_s": 6000.0, "final": {}}
    longer |= {"evaluations": [[100_000, 5838.0], [200_000, 6920.0]]}
    assert tables.cell(longer, None) == "5,838 (50 min)"


def test_the_report_is_what_the_rows_say(tmp_path):
    """But for links, whose way to the rows depends on where the report stands."""
    rows = ROOT / "results" / "mujoco" / "200k"
    write_report([rows], tmp_path / "report", Report.title, figures=False)
    made, kept = (
        re.sub(r"\]\([^)]*\)", "]", (folder / "report.md").read_text())
        for folder in (tmp_path / "report", ROOT / "docs" / "report")
    )
    assert made == kept


def test_levers_name_what_was_changed_and_leave_out_what_knows_too_little(tables, tmp_path):
    curve = [[20_000, 10.0], [100_000, 30.0], [120_000, 99.0]]
    rows = [
        recorded("sac", "Ant-v4", [1], curve) | {"status": "finished"},
        recorded("sac", "Ant-v4", [0], curve[:1], gamma=0.5) | {"status": "cut short"},
        recorded("sac", "Ant-v4", [7], curve) | {"status": "finished"},
    ]
    del rows[-1]["config"]["hyperparameters"]["critic"]["norm"]
    del rows[0]["config"]["hyperparameters"]["critic"]["improve_reduce"]  # off, before there was it
    (tmp_path / "sac.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = tables.levers(tmp_path).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [line[1:3] for line in cells] == [["as it is", "1"], ["`gamma` 0.5", "0"]]
    assert cells[0][3:10] == ["10", "", "", "", "30", "", "20"]  # the mean is of steps to 100,000
    assert cells[1][3:10] == ["10", "", "", "", "", "", ""]
