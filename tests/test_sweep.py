"""The search for settings: what a choice means, and trials that end, fall behind, fail or stop."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("optuna")

from rescore.bench import sweep
from rescore.bench.sweep import Choice, Search, chosen_flags, draw, importances, summary
from rescore.core import UsageError
from tests.small import rescore_command

HEADER = "env_steps,seed,episode,env_seed,return,length,success\n"


def test_a_choice_is_a_range_or_values():
    assert Choice.read("actor_lr=1e-4:1e-2:log") == Choice("actor-lr", 1e-4, 1e-2, True)
    assert Choice.read("--gamma=0.9:0.99") == Choice("gamma", 0.9, 0.99)
    assert Choice.read("policy-delay=1,2").values == (1, 2)
    assert Choice.read("critic.norm=none,batch").values == ("none", "batch")
    for bad in ("gamma", "gamma=", "=1:2", "gamma=2:1", "lr=0:1:log", "lr=a:b", "lr=1:2:lin"):
        with pytest.raises(UsageError, match="no choice"):
            Choice.read(bad)
    assert chosen_flags({"actor-lr": 0.00123456, "save-replay": False, "T": 3}) == [
        "--actor-lr", "0.001235", "--no-save-replay", "--T", "3",
    ]  # fmt: skip


class Trainer:
    """Stands for a process of `rescore train`: its return is what the flag --x asks for."""

    begun: ClassVar[list[list[str]]] = []
    stop_all = False

    def __init__(self, words, **more):
        words = words[3:]  # after python -m rescore
        assert more["pass_fds"], "a worker holds the lock of its search"
        Trainer.begun.append(words)
        self.returncode, self.polls, self.ended = None, 0, False
        self.folder = Path(words[1] if words[0] == "resume" else words[words.index("--out") + 1])
        old = self.folder / "x"
        self.x = float(old.read_text() if old.exists() else words[words.index("--x") + 1])
        (self.folder / "checkpoints" / "step_000000010").mkdir(parents=True, exist_ok=True)
        old.write_text(str(self.x))

    def poll(self):
        self.polls += 1
        rows = [f"{10 * k},0,0,5,{self.x * k},7,\n" for k in range(1, self.polls + 1)]
        (self.folder / "eval.csv").write_text(HEADER + "".join(rows))
        if self.polls < 4 or Trainer.stop_all:
            return None
        if self.x < 0:
            self.returncode = 1
        else:
            (self.folder / "final.json").write_text(json.dumps({"mean": 4 * self.x}))
            self.returncode = 0
        return self.returncode

    def terminate(self):
        self.ended = True

    def wait(self):
        assert self.ended


@pytest.fixture
def trained(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Trainer)
    monkeypatch.setattr(sweep, "POLL_S", 0.0)
    Trainer.begun, Trainer.stop_all = [], False


def search(out: Path, said: list[str], **more) -> Search:
    choices = {"space": (Choice("x", 0.0, 1.0),), "trials": 12, "steps": 40, "workers": 2}
    return Search(out, ("train", "sac", "Toy-v0"), say=said.append, **{**choices, **more})


def test_a_search_finds_the_better_half_and_ends_those_behind(tmp_path, trained):
    said: list[str] = []
    asked = search(tmp_path, said)
    assert asked.run()
    told = summary(asked.study())
    assert sum(told["trials"].values()) == 12 and told["trials"]["pruned"] >= 1
    assert told["best"] == pytest.approx(4 * told["params"]["x"], abs=1e-3)
    assert told["params"]["x"] > 0.7
    assert importances(asked.study()) == {"x": 1.0}
    assert any("behind at" in line for line in said)
    assert draw(asked.study(), tmp_path / "sweep.png").stat().st_size > 10_000
    assert asked.run() and len(Trainer.begun) == 12  # it is done, and knows it
    with pytest.raises(UsageError, match="another search"):
        search(tmp_path, said, space=(Choice("y", 0.0, 1.0),)).run()


def test_a_stopped_search_goes_on_with_its_trials(tmp_path, trained, monkeypatch):
    said: list[str] = []
    asked, Trainer.stop_all = search(tmp_path, said, trials=2), True
    polls = iter([False, False, True])
    monkeypatch.setattr(
        sweep, "interruptible", lambda: __import__("contextlib").nullcontext(lambda: next(polls))
    )
    assert not asked.run()
    assert summary(asked.study())["trials"] == {"running": 2}
    monkeypatch.undo()
    monkeypatch.setattr(subprocess, "Popen", Trainer)
    Trainer.stop_all = False
    assert asked.run()
    assert summary(asked.study())["trials"] == {"complete": 2}
    assert [words[0] for words in Trainer.begun] == ["train", "train", "resume", "resume"]
    # What is proposed from here on is new.
    assert search(tmp_path, said, trials=4).run()
    asked_for = [words[words.index("--x") + 1] for words in Trainer.begun if words[0] == "train"]
    assert len(asked_for) == len(set(asked_for)) == 4


def test_a_search_in_which_all_fail_says_why(tmp_path, trained):
    asked = search(tmp_path, [], space=(Choice("x", -2.0, -1.0),), workers=1)
    with pytest.raises(UsageError, match="3 trials in a row failed"):
        asked.run()
    assert len(Trainer.begun) == 3


@pytest.mark.parametrize(
    "words, said",
    [
        ("--space actr-lr=1e-4:1e-2", "did you mean '--actor-lr'"),
        ("--space gamma=0.9:1.5", "gamma must lie in"),
        ("--space gamma=2:1", "no choice"),
        ("--space gamma=.9:.99 gamma=.8:.9", "another flag"),
        ("--trials 0", "at least 1"),
        ("--workers 0", "at least 1"),
        ("--workers two", "--workers"),
        ("--threads 0", "at least 1"),
        ("--seed -1", "seeds must"),
        ("--seeds -1", "seeds must"),
        ("--set gamma=7", "gamma must lie in"),
        ("--set nonsense", "NAME=VALUE"),
    ],
)
def test_bad_searches_are_refused_before_they_start(words, said, tmp_path, capsys):
    out = tmp_path / "out"
    assert rescore_command("sweep sac rescore/Probe1-v0", words, "--out", out) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not out.exists()


def test_a_task_that_cannot_be_built_is_refused_before_the_first_trial(tmp_path, capsys):
    assert rescore_command("sweep sac NoSuchTask-v0 --out", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "NoSuchTask" in line and not (tmp_path / "out").exists()


def test_a_file_is_no_folder_for_a_search(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert rescore_command("sweep sac rescore/Probe1-v0 --out", tmp_path / "file") == 2
    assert "is a file: choose another folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
