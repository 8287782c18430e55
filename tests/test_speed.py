"""`rescore bench speed`: counts of work, ratios and the command."""

from __future__ import annotations

import json
import signal

import jax
import jax.numpy as jnp
import pytest

from rescore.algorithms import REGISTRY, find
from rescore.bench.bare import bare_sac_ms
from rescore.bench.speed import Case, comparison, scaling
from rescore.bench.speed_tables import best, compare, tables
from rescore.bench.speed_worker import examine, products
from rescore.cli import main
from rescore.training.config import configure


def test_products_are_counted_through_loops_and_branches():
    def work(x, w):
        def step(x, _):
            return jnp.tanh(x @ w), None

        x, _ = jax.lax.scan(step, x, None, length=5)
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x, x)

    x, w = jnp.ones((3, 4)), jnp.ones((4, 4))
    # 2 x 3 x 4 x 4 operations each: five in the loop, one in one of two branches.
    assert products(jax.make_jaxpr(jax.jit(work))(x, w).jaxpr) == 96 * 5 + 96 / 2


def test_best_of_two_rounds():
    one = {"update_ms": 4.0, "steps_per_s": 9.0, "peak_gflops": 100.0, "share_of_peak": 0.5}
    two = {"update_ms": 5.0, "steps_per_s": 8.0, "peak_gflops": 200.0, "share_of_peak": 0.2}
    expected = {"update_ms": 4.0, "steps_per_s": 9.0, "peak_gflops": 200.0, "share_of_peak": 0.25}
    assert best(None, one) is one
    assert best(one, two) == best(two, one) == expected


def test_ratios_and_tables_by_hand():
    found = {
        "dpmd default": {"iteration_ms": 10.0, "update_ms": 8.0},
        "dpmd released": {"iteration_ms": 600.0},
        "sac default": {"iteration_ms": 5.0, "update_ms": 4.0},
        "bare default": {"update_ms": 3.2},
    }
    ratios = compare(found)
    assert ratios["dpmd released / dpmd default"] == 60.0
    assert ratios["sac default / bare update"] == 1.25
    assert ratios["dpmd default / sac default"] == 2.0
    scaling = {"dpmd": {"batch size": {64: {"update_ms": 2.0}, 256: {"update_ms": 5.0}}}}
    text = tables({"cases": found, "ratios": ratios, "scaling": scaling})
    assert "| 60.00 " in text and "| 2.50  |" in text


def test_cases_that_ratios_need_are_measured_once():
    labels = [case.label for case in comparison(("dpmd", "ppo"), ("default", "released"), "x", 1.0)]
    assert labels[:3] == ["dpmd default", "dpmd released", "ppo default"]
    assert len(labels) == len(set(labels)) and "dpmd released JAX alone" in labels
    assert len(comparison((), ("default",), "x", 1.0)) >= len(REGISTRY)


@pytest.mark.slow
def test_a_learner_from_rollouts_is_held_against_its_environments():
    settings = {"hidden": (8, 8), "critic_hidden": (8, 8)}
    figures = examine(Case("ppo", settings=settings, env="Pendulum-v1", seconds=0.01))
    assert "update_ms" not in figures and figures["iteration_ms"] > 5 * figures["env_step_ms"]
    share = compare({"ppo default": figures})["ppo default / environments alone"]
    assert share == pytest.approx(5e-3 * figures["steps_per_s"] * figures["env_step_ms"] / 5)


@pytest.mark.usefixtures("quick")
def test_update_alone_and_the_bare_update():
    settings = {"hidden": (8, 8), "T": 2, "target_candidates": 1}
    figures = examine(Case("dpmd", settings=settings, batch_size=4, obs_dim=3, seconds=0.01))
    assert figures["update_ms"] > 0
    assert bare_sac_ms(0.01)["update_ms"] > 0


@pytest.mark.parametrize("name", [name for name in REGISTRY if find(name).source == "replay"])
def test_scaling_changes_only_what_an_algorithm_has(name):
    cases = [case for _, _, case in scaling(name, 1.0)]
    assert len(cases) >= 9
    for case in cases:
        configure(name, "default", case.settings, {})


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
    assert printed["cases"]["td3 default"]["share_of_peak"] > 0
    assert json.loads(row.read_text())["figures"]["cases"] == printed["cases"]
