"""The tables in the documents are what the recorded rows say."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import jax
import pytest

from rescore.algorithms import find
from rescore.bench.report import write_report
from rescore.cli.report import Report

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("work", None)


def test_tables_are_what_was_recorded(tables):
    for name, table in tables.TABLES.items():
        assert tables.shown(name) == table.make(), name


@pytest.mark.parametrize("algo", ["dpmd", "sdac"])
def test_the_marked_variant_is_the_default(tables, algo):
    variant = tables.work.settings(algo, tables.work.DEFAULT[algo])
    default = find(algo)()
    assert {name: getattr(default, name) for name in variant} == variant


@pytest.mark.usefixtures("quick")
def test_the_bandit_study_still_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bandit = importlib.import_module("bandit")
    monkeypatch.setattr(bandit, "SAMPLES", 16)
    with jax.numpy_rank_promotion("allow"):
        for name, settings in dict(bandit.METHODS.values()).items():  # one of each algorithm
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
