"""The command line, from train to list; what it refuses is in test_bad_input.py."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

import rescore
from rescore import DPMD, Training, cli
from rescore.cli.folders import default_folder
from rescore.files.json import read_json, read_jsonl
from rescore.files.logs import read_eval, read_metrics
from rescore.files.machine import PACKAGES
from rescore.models.learned import Anneal
from rescore.training import checkpoint
from tests.small import TINY, rescore_command

PROBE = "rescore/Probe1-v0"  # its return is always 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of 100 steps, recorded and with events."""
    out = tmp_path_factory.mktemp("cli") / "run"
    argv, sys.argv = sys.argv, ["rescore", "train", "dpmd", PROBE]
    try:
        code = rescore_command(
            f"train dpmd {PROBE} --steps 100 --no-video --tensorboard {TINY}",
            f"--out {out} --record {out.parent / 'results' / 'runs.jsonl'}",
        )
    finally:
        sys.argv = argv
    assert code == 0
    return out


def test_run_json_tells_how_to_do_it_again(trained):
    info = read_json(trained / "run.json")
    assert info["status"] == "finished"
    assert info["wall_clock_s"] > 0 and info["started"] <= info["ended"]
    assert info["argv"] == ["rescore", "train", "dpmd", PROBE]
    assert info["seeds"] == [0] and {"commit", "dirty"} <= info.keys()
    assert info["versions"].keys() == set(PACKAGES) and info["versions"]["jax"]
    assert info["env_versions"]["mujoco"] and info["rescore"] == rescore.__version__
    config = info["config"]
    assert config["env"] == PROBE and config["steps"] == 100
    assert config["hyperparameters"]["hidden"] == [8, 8]
    assert config["training"]["warmup"] == 40


def test_tables_hold_every_step_that_was_asked_for(trained):
    metrics, episodes = read_metrics(trained), read_eval(trained)
    assert [(row["env_steps"], row["seed"]) for row in metrics] == [
        (step, 0) for step in (20, 40, 60, 80, 100)
    ]
    assert all(row["return"] == 1.0 for row in metrics)
    # Updates begin with the chunk that ends the warm-up.
    assert [row["updates"] for row in metrics] == [0, 5, 25, 45, 65]
    assert "critic_loss" in metrics[-1] and "critic_loss" not in metrics[0]
    assert metrics[-1]["steps_per_s"] > 0 and metrics[-1]["update_ms"] > 0
    assert [(row.env_steps, row.seed, row.episode) for row in episodes] == [
        (step, 0, episode) for step in (50, 100) for episode in (0, 1)
    ]
    assert len({row.env_seed for row in episodes}) == 2
    assert {(row.return_, row.length) for row in episodes} == {(1.0, 1)}


def test_files_of_a_run(trained):
    assert (trained / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    final = read_json(trained / "final.json")
    assert final == {"env": PROBE, "episodes": 20, "mean": 1.0, "std": 0.0, "env_steps": 100}
    assert [p.name for p in checkpoint.stored(trained)] == ["step_000000100", "step_000000050"]
    for folder in (*checkpoint.stored(trained), trained / "best"):
        arrays, manifest = checkpoint.load(folder)
        assert manifest["config"]["algorithm"] == "dpmd" and arrays["state"]
    assert list((trained / "tb").glob("events.*"))
    assert not (trained / "video.mp4").exists()
    assert {path.name for path in trained.iterdir()} == {
        *("run.json", "config.json", "metrics.jsonl", "eval.csv", "final.json", "curve.png"),
        *("best", "checkpoints", "tb", "lock"),
    }


def test_record_is_one_row_with_raw_results(trained):
    (row,) = read_jsonl(trained.parent / "results" / "runs.jsonl")
    assert row["algorithm"] == "dpmd" and row["status"] == "finished" and "commit" in row
    assert row["evaluations"] == [[50, 1.0], [100, 1.0]]
    assert row["final"]["mean"] == 1.0 and row["updates"] == 65 and row["wall_clock_s"] > 0
    assert row["config"] == read_json(trained / "run.json")["config"]


@pytest.mark.parametrize("flags", ["", "--best", "--seed 5"])
def test_eval_ends_with_one_json_object(trained, capsys, flags):
    assert rescore_command(f"eval {trained} --episodes 2 {flags}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {"env": PROBE, "episodes": 2, "mean": 1.0, "std": 0.0}
    assert lines[:-1] == ["seed 0: 1.0 ± 0.0"]


def test_resume_extends_a_run_that_is_done(trained, tmp_path, capsys):
    import shutil

    run = Path(shutil.copytree(trained, tmp_path / "run"))
    rows = read_metrics(run)
    assert rescore_command(f"resume {run}") == 0  # there is nothing left to do
    said = capsys.readouterr().out
    assert said.startswith(f"{run} has done its 100 steps") and "--steps" in said
    assert read_json(run / "run.json")["status"] == "finished"

    assert rescore_command(f"resume {run} --steps 130 --quiet") == 0
    info = read_json(run / "run.json")
    assert info["status"] == "finished" and len(info["resumes"]) == 1
    assert info["resumes"][0]["env_steps"] == 100
    assert checkpoint.stored(run)[0].name == "step_000000130"
    assert read_metrics(run)[: len(rows)] == rows
    assert [row["env_steps"] for row in read_metrics(run)[len(rows) :]] == [120, 130]
    assert read_json(run / "final.json")["env_steps"] == 130


def test_until_stops_at_the_first_evaluation_that_is_good_enough(tmp_path, capsys):
    out = tmp_path / "run"
    command = f"train --steps 10000 {TINY} --until 1 --out={out} dpmd {PROBE}"
    assert rescore_command(command) == 0
    info = read_json(out / "run.json")
    assert info["status"] == "finished"
    assert read_json(out / "final.json")["env_steps"] == 50
    assert [p.name for p in checkpoint.stored(out)] == ["step_000000050"]
    printed = capsys.readouterr().out
    assert "final return    1.0 ± 0.0 over 20 episodes" in printed and str(out) in printed
    # The next three commands worth trying.
    assert len(re.findall(r"^  .*rescore (eval|resume|train) ", printed, re.MULTILINE)) == 3


def test_default_folder_is_named_after_what_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = default_folder("rescore/Probe1-v0", "dpmd", (0, 1))
    assert folder.parent == Path("runs/rescore_Probe1-v0/dpmd")
    assert re.fullmatch(r"s0_1-\d{8}-\d{6}", folder.name)
    assert not list(tmp_path.iterdir())


def test_every_setting_is_a_flag(capsys):
    assert rescore_command("train dpmd --help") == 0
    text = capsys.readouterr().out
    flags = set(re.findall(r"--[\w.-]+", text))
    for form in (DPMD, Training):
        for field in dataclasses.fields(form):
            if field.default is None and field.name == "lam":  # settings that the preset leaves out
                assert "--lam.init" not in flags
                continue
            inner = dataclasses.fields(field.default) if is_nested(field) else [None]
            for part in inner:
                name = field.name if part is None else f"{field.name}.{part.name}"
                assert "--" + name.replace("_", "-") in flags, name
    for name in ("steps", "seeds", "preset", "out", "until", "video", "tensorboard", "record"):
        assert f"--{name}" in flags


def is_nested(field: dataclasses.Field) -> bool:
    return dataclasses.is_dataclass(field.default)


def test_presets_change_the_defaults_and_flags_override_them(monkeypatch):
    from rescore.cli.train import Train
    from rescore.training.config import presets_of

    seen = []
    monkeypatch.setattr(
        Train, "execute", lambda self, algo, training: seen.append((algo, training)) or 0
    )
    for name, preset in presets_of("dpmd").items():
        assert rescore_command(f"train dpmd {PROBE} --preset {name} --T 7") == 0
        algo, training = seen.pop()
        assert algo.T == 7
        for config, values in ((algo, preset.algorithm), (training, preset.training)):
            kept = json.loads(json.dumps(dataclasses.asdict(config)))
            asked = json.loads(json.dumps(values, default=dataclasses.asdict))
            for key, value in asked.items():
                if isinstance(value, dict):
                    assert value.items() <= kept[key].items()
                elif key != "T":
                    assert kept[key] == value


def test_settings_that_may_be_none_have_flags_where_the_preset_has_them(monkeypatch):
    """DPMD's lam is none by default; `paper` has it."""
    from rescore.cli.train import Train

    seen = []
    monkeypatch.setattr(Train, "execute", lambda self, algo, training: seen.append(algo.lam) or 0)
    for words in ("", "--preset paper --lam.init 3"):
        assert rescore_command(f"train dpmd {PROBE} {words}") == 0
    assert seen == [None, Anneal(3.0, 0.9838)]


def test_list_names_algorithms_presets_and_tasks(capsys):
    from rescore.training.config import presets_of

    assert rescore_command("list") == 0
    text = capsys.readouterr().out
    for word in ("dpmd", "HalfCheetah-v4", *(f"--preset {name}" for name in presets_of("dpmd"))):
        assert word in text


def test_doctor_looks_at_this_machine(capsys):
    assert rescore_command("doctor") in (0, 1)
    text = capsys.readouterr().out
    assert re.search(r"^(ok|!!)  mujoco +\d", text, re.MULTILINE) and "jax devices" in text


@pytest.mark.parametrize("words", ["--help", "-h", "help", ""])
def test_help_names_all_commands(capsys, words):
    assert rescore_command(words) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in cli.COMMANDS)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_explains_itself(capsys, command):
    assert rescore_command(f"{command} --help") == 0
    assert f"usage: rescore {command}" in capsys.readouterr().out


def test_version(capsys):
    assert rescore_command("--version") == 0
    assert capsys.readouterr().out == f"rescore {rescore.__version__}\n"


def test_toy(tmp_path, capsys):
    """A study of cheap methods: metrics, table, figure and one recorded line per method."""
    record, out = tmp_path / "toys.jsonl", tmp_path / "toy"
    code = rescore_command(
        f"toy two-moons --method exact langevin --samples 300 --quiet --out {out}",
        f"--record {record} --seed 3",
    )
    assert code == 0
    methods = read_json(out / "metrics.json")["methods"]
    assert methods.keys() == {"exact", "langevin"}
    assert methods["langevin"]["gradient"] == 20 * 300
    assert 0.4 < methods["exact"]["mode_weights"][0] < 0.6
    table = (out / "table.md").read_text()
    assert table in capsys.readouterr().out and table.count("\n") == 4
    assert (out / "samples.png").read_bytes()[:4] == b"\x89PNG"
    rows = read_jsonl(record)
    assert [row["method"] for row in rows] == ["exact", "langevin"]
    assert all(row["config"]["seed"] == 3 and "commit" in row for row in rows)


@pytest.mark.parametrize(
    "wrong", ["toy three-moons", "toy gmm --method gan", "toy gmm --samples 5"]
)
def test_toy_refuses(wrong, capsys):
    assert rescore_command(wrong) == 2
    assert capsys.readouterr().err.count("\n") == 1
