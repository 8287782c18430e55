"""`rescore bench speed`: ratios and the command."""

from __future__ import annotations

import json
import signal
import time

import pytest

from rescore.algorithms import REGISTRY
from rescore.bench.speed import Case, best, best_ms, compare, comparison, tables
from rescore.bench.speed_worker import examine
from rescore.cli import main


def test_the_best_of_some_tries_is_not_faster_than_the_work():
    assert 5.0 <= best_ms(lambda: time.sleep(0.005), 0.05) < 50.0


def test_best_of_two_rounds():
    one = {"update_ms": 4.0, "steps_per_s": 9.0}
    two = {"update_ms": 5.0, "steps_per_s": 8.0}
    assert best(None, one) is one
    assert best(one, two) == best(two, one) == one


def test_ratios_and_tables_by_hand():
    found = {
        "dpmd default": {"iteration_ms": 10.0, "update_ms": 8.0},
        "dpmd released": {"iteration_ms": 600.0},
        "sac default": {"iteration_ms": 5.0, "update_ms": 4.0},
    }
    ratios = compare(found)
    assert ratios["dpmd released / dpmd default"] == 60.0
    assert ratios["dpmd default / sac default"] == 2.0
    text = tables(found, ratios)
    assert "| 60.00 " in text and "| dpmd released | 600 " in text


def test_cases_that_ratios_need_are_measured_once():
    labels = [case.label for case in comparison(("dpmd", "ppo"), ("default", "released"), "x", 1.0)]
    assert labels[:3] == ["dpmd default", "dpmd released", "ppo default"]
    assert len(labels) == len(set(labels)) and "dpmd default chunk=4" in labels
    assert len(comparison((), ("default",), "x", 1.0)) >= len(REGISTRY)


@pytest.mark.slow
def test_a_learner_from_rollouts_is_held_against_its_environments():
    settings = {"hidden": (8, 8), "critic_hidden": (8, 8)}
    figures = examine(Case("ppo", settings=settings, env="Pendulum-v1", seconds=0.01))
    assert "update_ms" not in figures and figures["iteration_ms"] > 5 * figures["env_step_ms"]
    share = compare({"ppo default": figures})["ppo default / environments alone"]
    assert share == pytest.approx(5e-3 * figures["steps_per_s"] * figures["env_step_ms"] / 5)


@pytest.mark.parametrize(
    "words", [["--algos", "pppo"], ["--seconds", "0"], ["--algos", "dpmd", "--presets", "nothing"]]
)
def test_bad_input_is_one_line(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "speed", *words])
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_survives_a_signal(number, monkeypatch, tmp_path):
    calls = []

    def measure(case):
        calls.append(case)
        if len(calls) == 2:
            signal.raise_signal(number)
        return {"iteration_ms": 1.0, "update_ms": 1.0}

    monkeypatch.setattr("rescore.cli.speed.measure", measure)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as stopped:
            main(["bench", "speed", "--algos", "td3", "sac", "--record", str(tmp_path / "rows")])
    finally:
        signal.signal(signal.SIGINT, before)
    row = json.loads((tmp_path / "rows").read_text())
    assert stopped.value.code == 130 and row["status"] == "cut short"
    assert list(row["figures"]["cases"]) == ["td3 default"]
    assert signal.getsignal(signal.SIGTERM) != signal.default_int_handler


@pytest.mark.slow
def test_the_command(capsys, tmp_path):
    row = tmp_path / "speed.jsonl"
    words = ["--algos", "td3", "--seconds", "0.05", "--json", "--env", "Pendulum-v1"]
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "speed", *words, "--record", str(row)])
    printed = json.loads(capsys.readouterr().out)
    assert printed["cases"]["td3 default"]["update_ms"] > 0
    assert json.loads(row.read_text())["figures"]["cases"] == printed["cases"]
