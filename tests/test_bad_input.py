"""Each mistake at the command line: one line that says what to do, exit code 2, nothing lost."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rescore import DPMD, Agent, Training, UsageError, cli
from rescore.files.json import read_json
from rescore.training import checkpoint
from tests.small import TINY_NETS, TINY_TRAINING, as_flags

TINY = as_flags(TINY_NETS | TINY_TRAINING | {"eval_every": 0})
PROBE = "rescore/Probe1-v0"


class Task(gymnasium.Env):
    """One number in, one number out, ends at once; subclasses spoil one thing each."""

    observation_space: spaces.Space = spaces.Box(-1, 1, (1,), np.float32)
    action_space: spaces.Space = spaces.Box(-1, 1, (1,), np.float32)
    spoiled_at = 10**9  # step of its whole life
    bad_obs, bad_reward = 0.0, 0.0

    def __init__(self) -> None:
        self.life = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.life += 1
        spoiled = self.life > self.spoiled_at
        obs = np.full(1, self.bad_obs if spoiled else 0.0, np.float32)
        return obs, self.bad_reward if spoiled else 1.0, True, False, {}


class Unbounded(Task):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Image(Task):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class NoSize(Task):
    observation_space = spaces.Sequence(spaces.Box(-1, 1, (1,), np.float32))


class NanObs(Task):
    spoiled_at, bad_obs = 72, np.nan


class InfReward(Task):
    spoiled_at, bad_reward = 72, np.inf


class HugeReward(Task):
    """Finite, but its square is not."""

    spoiled_at, bad_reward = 72, 1e30


class EarlyNan(Task):
    spoiled_at, bad_obs = 12, np.nan


for task in (Unbounded, Image, NoSize, NanObs, InfReward, HugeReward, EarlyNan):
    gymnasium.register(f"bad/{task.__name__}-v0", entry_point=task)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch) -> Path:
    """Every command of this file runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(command.split())
    return stop.value.code or 0


def content(folder: Path) -> dict[str, bytes | None]:
    """All of a folder: names, and bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refused(command: str, capsys) -> str:
    """The one line with which a command is refused."""
    before = content(Path.cwd())
    capsys.readouterr()
    code = run(command)
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert code == 2, output
    assert len(lines) == 1 and lines[0].startswith("rescore: "), output.err
    assert "Traceback" not in output.out + output.err
    assert "---" not in lines[0] and "  " not in lines[0]  # nothing left of a box
    assert content(Path.cwd()) == before
    return lines[0].removeprefix("rescore: ")


COMMANDS = {
    # Environments
    "train dpmd Hoper-v4": "'Hoper-v4': did you mean 'Hopper-v",
    "train dpmd Hopper": "say which version, Hopper-v4 or Hopper-v5",
    "train dpmd nowhere:Task-v0": "No module named 'nowhere'",
    "train dpmd CartPole-v1": "Discrete actions.*use a task with a Box",
    "train dpmd bad/Unbounded-v0": "unbounded actions.*Bounded",
    "train dpmd bad/Image-v0": r"image observations \(8, 8, 3\).*state observations",
    "train dpmd bad/NoSize-v0": "Sequence observations of no fixed size",
    "train dpmd Pusher-v4": "Pusher-v4 needs mujoco<3.*use Pusher-v5",
    # Names
    "trian dpmd Hopper-v4": "unknown command 'trian': did you mean 'train'",
    "train dpdm Hopper-v4": "unknown algorithm 'dpdm': did you mean 'dpmd'",
    "train --steps 9 dpdm Hopper-v4": "unknown algorithm",
    "train --out sac dpmd Hopper-v4": "put dpmd before all flags",
    "train nothing Hopper-v4": "unknown algorithm 'nothing'",
    "train dpmd Hopper-v4 --preset defualt": "preset.*'defualt'.*did you mean 'default'",
    "train dpmd Hopper-v4 --preset=zzz": "preset.*'zzz'.*default",
    "train dpmd Hopper-v4 --gama 0.9": "'--gama'.*did you mean '--gamma'",
    "train dpmd Hopper-v4 --batchsize 9": "'--batchsize'.*did you mean '--batch-size'",
    "train dpmd Hopper-v4 --zzzzzz": "'--zzzzzz'.*see --help",
    "train dpmd Hopper-v4 surplus": "unknown argument 'surplus'",
    "eval run --episode 5": "'--episode'.*did you mean '--episodes'",
    # Values
    "train dpmd": "Missing.*Gymnasium id",
    "train": "Missing.*algorithm",
    "eval": "Missing.*folder of a run",
    "resume": "Missing.*folder of the run",
    "train dpmd Hopper-v4 --steps many": "--steps.*'many'",
    "train dpmd Hopper-v4 --steps": "--steps",
    "train dpmd Hopper-v4 --activation sine": "'sine'.*mish",
    "train dpmd Hopper-v4 --gamma 3": r"gamma must lie in \[0, 1\)",
    "train dpmd Hopper-v4 --T 0": "T must be positive and finite, not 0",
    "train dpmd Hopper-v4 --noise.init -1": "noise: .* needs positive.* init",
    "train dpmd Hopper-v4 --hidden": "hidden must name at least one width",
    "train dpmd Hopper-v4 --critic.lr -1": "lr must be positive",
    "train dpmd Hopper-v4 --num-envs 0": "num_envs must be at least 1",
    "train dpmd Hopper-v4 --warmup -5": "warmup must not be negative",
    "train dpmd Hopper-v4 --chunk 1 --num-envs 3 --utd 0.5": r"1 x 3 x 0.5 = 1.5",
    "train dpmd Hopper-v4 --utd inf": "utd",
    "train dpmd Hopper-v4 --utd nan": "utd",
    "train dpmd Hopper-v4 --seeds 0 x": "--seeds",
    "train dpmd Hopper-v4 --seeds -1": "seeds must",
    "train dpmd Hopper-v4 --seeds 4294967296": "seeds must",
    "train dpmd Hopper-v4 --seeds": "seeds must",
    f"train dpmd {PROBE} {TINY} --replay-capacity 1000000000000000": "capacity must be at most",
    f"train dpmd {PROBE} {TINY} --steps 44": "44 steps are not enough: 40 .* smaller --warmup",
    f"train dpmd {PROBE} {TINY} --steps -7": "-7 steps are not enough",
    # Folders
    "resume nowhere": "nowhere is not a folder",
    "eval nowhere": "nowhere is not a folder",
    "render nowhere": "nowhere is not a folder",
    "eval nowhere --episodes -1": "--episodes must be at least 1, not -1",
    # Videos, files of policies, data
    "render nowhere --seconds 0": "--seconds are above 0",
    "render nowhere --seconds nan": "--seconds are above 0",
    "render nowhere --seconds inf": "--seconds are above 0",
    "render nowhere --seed -1": "--seed from 0 upwards",
    "export nowhere --format tflite": "'tflite'.*onnx",
    "export nowhere --member x": "--member.*'x'",
    "data imprt nowhere": "unknown command 'imprt'",
    "data export": "Missing.*folder of a run",
    "data export nowhere": "nowhere is not a folder",
    "data export nowhere --episodes -1": "--episodes and --last are numbers from 1",
    "data export nowhere --last 0": "--episodes and --last are numbers from 1",
    f"train dpmd {PROBE} {TINY} --demos nowhere.npz": "nowhere.npz does not exist.*data export",
    f"train dpmd {PROBE} {TINY} --demo-share 2": r"demo_share must lie in \[0, 1\], not 2",
    f"train dpmd {PROBE} {TINY} --hindsight 1.5": r"hindsight must lie in \[0, 1\], not 1.5",
    f"train dpmd {PROBE} {TINY} --hindsight 0.5": "hindsight needs a goal-conditioned task",
    f"train dpmd {PROBE} {TINY} --pretrain -1": "pretrain must not be negative",
    f"train dpmd {PROBE} {TINY} --pretrain 5": "pretrain clones demonstrations",
    f"train sac {PROBE} --pretrain 5 --demos x.npz": "SAC cannot clone demonstrations",
    f"train ppo {PROBE} --demos x.npz": "demos is a setting of replay",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_one_line_says_what_to_do(command, capsys):
    assert re.search(COMMANDS[command], refused(command, capsys))


def test_boxes_of_the_parser_become_one_line():
    drawn = "╭─ Parsing error ──╮\n│ no number: 'x'.  │\n│ ──────────────── │\n│ For full helptext "
    plain = " Parsing error \n --------------- \n no number: 'x'.  \n ------- \n For full helptext "
    assert cli.parsing.complaint(drawn) == cli.parsing.complaint(plain) == "no number: 'x'"


def test_no_number_ends_in_a_traceback():
    """What a numeric flag may hold is accepted, or refused by the line that the user will see."""
    for form in (DPMD(), DPMD().noise, Training()):
        for field in dataclasses.fields(form):
            kind = type(getattr(form, field.name))
            whole, real = (-1, 0), (-1.0, 0.0, math.nan, math.inf)
            values = {int: whole, float: real, type(None): real}.get(kind, ())
            for value in values:
                with contextlib.suppress(UsageError):
                    dataclasses.replace(form, **{field.name: value})


@pytest.fixture(scope="module")
def master(tmp_path_factory) -> Path:
    """A finished run with two checkpoints, of 50 and 100 steps. Tests use copies."""
    out = tmp_path_factory.mktemp("master") / "run"
    assert run(f"train dpmd {PROBE} {TINY} --steps 100 --quiet --out {out}") == 0
    return out


@pytest.fixture
def trained(master, workplace) -> Path:
    """A copy of it, named `run` in the current folder."""
    shutil.copytree(master, workplace / "run")
    return Path("run")


def test_out_is_never_written_over(trained, capsys):
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("years of work")
    Path("file").write_text("x")
    reasons = {
        trained: "run holds another run: choose another folder .--out., .*`rescore resume run`",
        "mine": "mine is not empty: choose another folder .--out.",
        "file": "file is a file: choose another folder .--out.",
        "file/below": "cannot make file/below: Not a directory; choose another folder .--out.",
    }
    for out, reason in reasons.items():
        said = refused(f"train dpmd {PROBE} {TINY} --steps 100 --out {out}", capsys)
        assert re.search(reason, said)


@pytest.mark.parametrize("command", ["resume", "eval", "render"])
def test_what_is_no_run_is_not_loaded(command, capsys):
    Path("mine").mkdir()
    assert "mine holds no checkpoint" in refused(f"{command} mine", capsys)
    Path("mine/thesis.tex").write_text("years of work")
    assert "mine holds no checkpoint" in refused(f"{command} mine", capsys)
    Path("mine/checkpoints/step_000000010").mkdir(parents=True)
    said = refused(f"{command} mine", capsys)
    assert "step_000000010 is no rescore checkpoint: it has no checkpoint.json" in said
    Path("file").write_text("x")
    assert "file is not a folder" in refused(f"{command} file", capsys)


def test_a_saved_agent_is_not_resumed_but_can_be_evaluated(trained, capsys):
    with Agent.load(trained) as agent:
        agent.save("saved")
    assert "saved is a saved agent, not a run" in refused("resume saved", capsys)
    assert run("eval saved --episodes 2") == 0


def truncate(folder: Path) -> None:
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def edit(**values: object):
    def change(folder: Path) -> None:
        path = folder / "checkpoint.json"
        sign(path, json.loads(path.read_text()) | values)

    return change


def sign(path: Path, manifest: dict) -> None:
    """Write it with a valid checksum, as one who means it would."""
    path.write_text(json.dumps({**manifest, "sha256": checkpoint.signature(manifest)}))


def reconfigure(part: str, **values: object):
    def change(folder: Path) -> None:
        path = folder / "checkpoint.json"
        manifest = json.loads(path.read_text())
        config = manifest["config"]
        (config[part] if part else config).update(values)
        sign(path, manifest)

    return change


DAMAGES = {
    "truncated": (truncate, "state.safetensors is damaged: its checksum"),
    "lost": (lambda c: (c / "replay.safetensors").unlink(), "replay.safetensors is missing"),
    "not JSON": (lambda c: (c / "checkpoint.json").write_text("{"), "checkpoint.json is damaged"),
    "foreign": (edit(format="other"), "checkpoint.json was not written by rescore"),
    "newer": (edit(version=99), "was written by another version of rescore (layout 99, "),
    "escaping": (edit(files={"../state.safetensors": "0"}), "its list of files makes no sense"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(trained, capsys, kind):
    spoil, reason = DAMAGES[kind]
    newest, older = checkpoint.stored(trained)
    spoil(newest)
    if kind == "truncated":  # once is enough for what takes seconds
        assert run("resume run --quiet --record results.jsonl") == 0
        notes = [s for s in capsys.readouterr().out.splitlines() if s.startswith("note: ")]
        assert len(notes) == 1 and reason in notes[0] and "the one before it is used" in notes[0]
        assert read_json("run/run.json")["resumes"][0]["env_steps"] == 50
        assert read_json("run/final.json")["env_steps"] == 100
        spoil(newest)
    spoil(older)
    said = refused("resume run --steps 200", capsys)
    assert str(older) in said and str(newest) in said and reason in said
    assert reason in refused("eval run", capsys)


MISFITS = {
    "unknown hyperparameter": (reconfigure("hyperparameters", gama=1), "'gama'"),
    "impossible hyperparameter": (reconfigure("hyperparameters", T=0), "T must be positive"),
    "other networks": (reconfigure("hyperparameters", hidden=[9, 9]), "this configuration needs"),
    "unknown algorithm": (reconfigure("", algorithm="sac2"), "none of ours"),
    "unknown setting": (reconfigure("training", speed=9), "'speed'"),
    "no config": (edit(config=None), "is damaged"),
    "no seeds": (reconfigure("", seeds=None), "step_000000100"),
    "no counters": (edit(tally={"rubbish": 1}), "is damaged"),
    "no groups": (edit(files={}), "is damaged"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_named_and_the_one_before_it_used(trained, capsys, kind):
    spoil, reason = MISFITS[kind]
    newest, older = checkpoint.stored(trained)
    spoil(newest)
    assert run("eval run --episodes 1") == 0
    note = capsys.readouterr().out.splitlines()[0]
    assert reason in note and newest.name in note and "the one before it is used" in note
    spoil(older)
    assert reason in refused("eval run", capsys)


SPOILED = {
    "NanObs": r"bad/NanObs-v0: observation is not finite in environment 0 of seed 0.*step 72\b",
    "InfReward": r"bad/InfReward-v0: reward is not finite in environment 0 of seed 0.*step 72\b",
    "HugeReward": r"critic_loss became inf for seed 0.*environment step 80\b",
}


@pytest.mark.parametrize("task", SPOILED)
def test_what_is_not_finite_stops_the_run_and_keeps_the_checkpoint(task, capsys):
    command = f"train dpmd bad/{task}-v0 {TINY} --steps 200 --quiet --out run"
    assert run(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("rescore: " + SPOILED[task], line)
    assert line.endswith("rescore resume run")
    assert read_json("run/run.json")["status"] == "failed"
    with Agent.load("run") as agent:
        assert agent.run.env_steps == 50 and not agent.notes
        action, _ = agent.predict(np.zeros(1, np.float32))
        assert np.isfinite(action).all()


def test_not_finite_before_the_first_checkpoint(capsys):
    assert run(f"train dpmd bad/EarlyNan-v0 {TINY} --steps 200 --quiet --out run") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "environment step 12" in line and "no checkpoint yet" in line


def test_not_finite_in_evaluation_names_the_step(capsys, monkeypatch):
    from rescore.core import NonFiniteError

    def evaluate(*_args: object, **_kwargs: object) -> None:
        raise NonFiniteError("bad: observation is not finite in environment 1 of seed 0")

    monkeypatch.setattr(Agent, "evaluate", evaluate)
    command = f"train dpmd {PROBE} {TINY} --eval-every 60 --steps 200 --quiet --out run"
    assert run(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "environment 1 of seed 0, evaluating at environment step 60" in line
    assert checkpoint.load_newest(Path("run"))[2]["env_steps"] == 50
