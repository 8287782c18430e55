"""A run that goes on from its checkpoint with a setting changed."""

import pytest
from benchmarks.branch import branched, main, nested

from rescore import Agent, UsageError
from rescore.files.json import read_jsonl
from rescore.training import checkpoint
from tests.small import small

TRAINING = {"warmup": 20, "batch_size": 8, "eval_every": 20, "eval_episodes": 1, "chunk": 5}


def test_names_of_parts_are_nested():
    assert nested({"critic.lr": 1, "gamma": 2, "critic.steps": 3}) == {
        "critic": {"lr": 1, "steps": 3},
        "gamma": 2,
    }


def test_the_control_is_the_run_itself_and_a_change_is_not(tmp_path, capsys):
    run, record = tmp_path / "run", tmp_path / "branches.jsonl"
    with Agent(small("sac"), "Pendulum-v1", training=TRAINING, folder=run) as agent:
        agent.learn(60)
    (newest,) = checkpoint.stored(run)[:1]
    before = {path.name: path.read_bytes() for path in newest.iterdir()}
    words = [str(run), "--steps", "60", "--record", str(record)]
    main(words)
    main([*words, "--set", "gamma=0.5", "critic.lr=0.01"])
    assert "from 60 steps with nothing changed" in capsys.readouterr().out
    control, changed = read_jsonl(record)
    assert changed["changed"] == {"gamma": 0.5, "critic.lr": 0.01} and changed["from"] == 60
    own = changed["config"]["hyperparameters"]
    assert (own["gamma"], own["critic"]["lr"]) == (0.5, 0.01) and control["commit"]
    assert {path.name: path.read_bytes() for path in newest.iterdir()} == before
    with Agent.load(run) as whole:
        seen = []
        whole.learn(60, callback=lambda e: seen.append(e) if e.kind == "evaluation" else None)
    assert [mean for _, mean, _ in control["evaluations"]] == [e.values["mean"] for e in seen]
    assert [step for step, *_ in control["evaluations"]] == [80, 100, 120]
    assert control["evaluations"] != changed["evaluations"]


def test_what_cannot_be_branched_is_said(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match="no checkpoint to go on from"):
        branched(tmp_path / "run", {}, tmp_path)
