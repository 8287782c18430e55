"""`make gauntlet`: break a run in every way we know, and count what the promises did not survive.

    python -m benchmarks.gauntlet --kills 40 --mutations 120 --seed 0

Runs of several algorithms are killed, signalled, started twice and put on a full disk, and must end
with the bits of a run that nothing disturbed; their files are flipped, cut, zeroed, deleted and
forged, and must be refused or passed over in one line. Nothing leaves this machine: no network,
one temporary folder. Processes are forks of one that has imported everything but started nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rescore import Agent, cli
from rescore.bench.rows import read_rows
from rescore.cli import resume, train  # noqa: F401  imported here, so that forks need not
from rescore.core import UsageError
from rescore.files import logs
from rescore.files.json import read_json, read_jsonl
from rescore.files.logs import read_eval
from rescore.training import checkpoint
from rescore.training.session import Journal

COMMON = "--num-envs 1 --log-every 20 --eval-every 40 --eval-episodes 1 --checkpoint-every 20"
REPLAY = f"--chunk 5 --utd 1 --warmup 40 --batch-size 16 --replay-capacity 100 {COMMON}"
DIFFUSION = "--T 3 --act-candidates 1 --target-candidates 1 --eval-candidates 2"
RUNS = {
    "sac": f"train sac InvertedPendulum-v4 --hidden 8 8 {REPLAY}",
    "dpmd": f"train dpmd rescore/Probe5-v0 --hidden 8 8 {DIFFUSION} {REPLAY}",
    "ppo": f"train ppo InvertedPendulum-v4 --hidden 8 8 --chunk 20 {COMMON} --minibatches 2",
}
STEPS = 120
CLOCK = {"seconds", "steps_per_s", "env_ms", "update_ms", "eta_s"}
PROMISES = {
    "kill": "killed at any moment, a resumed run has the bits of an unbroken one",
    "call": "killed in a system call, the same",
    "signal": "SIGTERM, SIGINT and SIGHUP save, and the same",
    "two": "of two processes on one run, one is told, and the same",
    "disk": "a full disk is one line, and the same",
    "checkpoint": "a damaged checkpoint is passed over aloud for the one before",
    "forged": "a forged checkpoint is refused in one line, and nothing of it is executed",
    "log": "a damaged log or record costs a line, not the run",
    "row": "a damaged row of results is refused in one line",
}


class Gauntlet:
    """The table, and the folder in which everything happens."""

    def __init__(self, folder: Path, seed: int, names: list[str]):
        self.names = names
        self.folder, self.rng = folder, random.Random(seed)
        self.tried = dict.fromkeys(PROMISES, 0)
        self.failed: dict[str, list[str]] = {name: [] for name in PROMISES}
        self.seconds: dict[str, float] = {}

    def check(self, promise: str, fault: str, test: Callable[[], Any]) -> None:
        self.tried[promise] += 1
        try:
            test()
        except Exception as error:
            self.failed[promise].append(f"{fault}: {type(error).__name__}: {error}"[:500])

    def table(self) -> str:
        lines = ["| promise | tried | failed |", "|---|---|---|"]
        lines += [
            f"| {PROMISES[name]} | {self.tried[name]:,} | {len(self.failed[name])} |"
            for name in PROMISES
        ]
        total, bad = sum(self.tried.values()), sum(map(len, self.failed.values()))
        return "\n".join([*lines, f"| all | {total:,} | {bad} |"])

    # Processes

    def start(self, words: str, before: Callable[[], None] = lambda: None) -> tuple[int, Path]:
        """A command in a fork, after `before`; its number and what it prints."""
        said = self.folder / f"said-{time.monotonic_ns()}"
        if pid := os.fork():
            return pid, said
        with contextlib.suppress(BaseException):
            os.chdir(self.folder)
            fd = os.open(said, os.O_CREAT | os.O_WRONLY)
            os.dup2(fd, 1), os.dup2(fd, 2)
            sys.stdout = sys.stderr = open(fd, "w", closefd=False)  # noqa: SIM115
            sys.argv = ["rescore"]
            code = 1
            try:
                before()
                cli.main(words.split())
            except SystemExit as stop:
                code = int(stop.code or 0)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        os._exit(99)

    def finish(self, pid: int, said: Path) -> tuple[int, str]:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text = said.read_text() if said.exists() else ""
        said.unlink(missing_ok=True)
        if "Traceback" in text:
            raise AssertionError(f"a traceback: {text[-300:]}")
        return code, text

    def command(self, words: str, before: Callable[[], None] = lambda: None) -> tuple[int, str]:
        return self.finish(*self.start(words, before))

    def next_words(self, name: str, run: Path) -> str:
        """What a user would type now."""
        if checkpoint.stored(run):
            return f"resume {run} --quiet"
        shutil.rmtree(run, ignore_errors=True)
        return f"{RUNS[name]} --steps {STEPS} --quiet --out {run}"

    def complete(self, name: str, run: Path) -> None:
        """Go on until the command says that all is done, and compare with the unbroken run."""
        for _ in range(5):
            code, text = self.command(self.next_words(name, run))
            if code == 0 and (run / "final.json").exists():
                break
        else:
            raise AssertionError(f"it cannot be completed: {text[-300:]}")
        differ(run, self.folder / name)

    def references(self) -> None:
        for name in self.names:
            for attempt in ("cold", name):  # the second finds its programs compiled
                began = time.monotonic()
                code, text = self.command(self.next_words(name, self.folder / attempt))
                assert code == 0, text
                self.seconds[name] = time.monotonic() - began
                shutil.rmtree(self.folder / "cold", ignore_errors=True)

    def chain(self, promise: str, faults: int) -> None:
        """One run with several interruptions, each of which counts; then it is compared."""
        name, run = self.rng.choice(self.names), self.folder / "broken"
        done = [0]

        def test() -> None:
            while done[0] < faults:
                done[0] += 1
                getattr(self, f"break_by_{promise}")(name, run)
            self.complete(name, run)

        self.check(promise, f"{name}, chain of {faults}", test)
        self.tried[promise] += done[0] - 1
        shutil.rmtree(run, ignore_errors=True)

    def break_by_kill(self, name: str, run: Path) -> None:
        pid, said = self.start(self.next_words(name, run))
        time.sleep(self.rng.uniform(0.3, 1) * self.seconds[name])
        os.kill(pid, signal.SIGKILL)
        self.finish(pid, said)

    def break_by_call(self, name: str, run: Path) -> None:
        after, half = self.rng.randrange(1, 150), self.rng.random() < 0.5
        self.command(self.next_words(name, run), lambda: die_in_a_call(after, half))

    def break_by_signal(self, name: str, run: Path) -> None:
        number = self.rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        pid, said = self.start(self.next_words(name, run))
        time.sleep(self.rng.uniform(0.2, 1) * self.seconds[name])
        os.kill(pid, number)
        code, text = self.finish(pid, said)
        # Ctrl-C before the first step ends at once; a signal before `main` acts as usual.
        if code not in (0, 130, -number):
            raise AssertionError(f"exit code {code} after {number.name}: {text[-300:]}")

    def break_by_two(self, name: str, run: Path) -> None:
        if not checkpoint.stored(run):
            self.command(self.next_words(name, run), lambda: die_in_a_call(90, False))
        words = [f"resume {run} --quiet"] * 2 if checkpoint.stored(run) else []
        ends = [self.finish(*started) for started in [self.start(each) for each in words]]
        for code, text in ends:
            told = "is being trained by" in text or "meanwhile: load it again" in text
            if code not in (0, 2) or (code == 2 and not told):
                raise AssertionError(f"exit code {code}: {text[-300:]}")

    def break_by_disk(self, name: str, run: Path) -> None:
        size = self.rng.randrange(40, 400, 4)
        run.mkdir(exist_ok=True)
        os.system(f"mount -t tmpfs -o size={size}k none {run}")
        try:
            words = f"{RUNS[name]} --steps {STEPS} --quiet --out {run}/run"
            code, text = self.command(words)
            if code not in (0, 2) or text.count("\n") > 20:
                raise AssertionError(f"exit code {code}: {text[-300:]}")
            about = run / "run" / "run.json"
            if code == 2 and about.exists() and about.read_text().count('"running"'):
                raise AssertionError("run.json says that it is running")
            shutil.copytree(run / "run", self.folder / "copied", dirs_exist_ok=True)
        finally:
            os.system(f"umount {run}")
            run.rmdir()
        if (self.folder / "copied").exists():
            os.rename(self.folder / "copied", run)

    # Files, all in one fork: loading needs no process of its own

    def mutate(self, faults: int) -> None:
        if pid := os.fork():
            os.waitpid(pid, 0)
            found = self.folder / "mutations.json"
            tried, failed = read_json(found) if found.exists() else ({"checkpoint": 1}, {})
            if not found.exists():
                failed = {"checkpoint": ["the process that loads died"]}
            for name, count in tried.items():
                self.tried[name] += count
            for name, lines in failed.items():
                self.failed[name] += lines
            return
        try:
            os.chdir(self.folder)
            sys.path.insert(0, str(self.folder))
            (self.folder / "payload.py").write_text("open('executed', 'w').close()\n")
            self.tried = dict.fromkeys(PROMISES, 0)
            kinds = ["checkpoint"] * 5 + ["forged"] * 3 + ["log"] * 3 + ["row"]
            for _ in range(faults):
                kind, name = self.rng.choice(kinds), self.rng.choice(self.names)
                run = Path(shutil.copytree(self.folder / name, self.folder / "mutant"))
                said: list[str] = []
                test = getattr(self, f"mutate_{kind}")
                self.check(kind, f"{name}, {said}", lambda: test(run, said))  # noqa: B023
                if self.failed[kind] and said:
                    self.failed[kind][-1] += f" {said}"
                shutil.rmtree(run)
            (self.folder / "mutations.json").write_text(json.dumps([self.tried, self.failed]))
        except BaseException:
            traceback.print_exc()
        os._exit(0)

    def damage(self, path: Path, said: list[str]) -> None:
        """One accident of a file."""
        blob = bytearray(path.read_bytes())
        at = self.rng.randrange(max(len(blob), 1))
        kind = self.rng.choice(["flip", "cut", "zero", "delete", "insert", "empty"])
        said += [path.name, kind, str(at)]
        if kind == "delete":
            path.unlink()
            return
        if kind == "flip" and blob:
            blob[at] ^= 1 << self.rng.randrange(8)
        elif kind == "zero":
            blob[at : at + 512] = bytes(len(blob[at : at + 512]))
        elif kind == "insert":
            blob[at:at] = self.rng.randbytes(self.rng.randrange(1, 64))
        path.write_bytes({"cut": blob[:at], "empty": b""}.get(kind, blob))

    def mutate_checkpoint(self, run: Path, said: list[str]) -> None:
        newest, older = checkpoint.stored(run)[:2]
        self.damage(self.rng.choice(sorted(newest.iterdir())), said)
        with Agent.load(run) as agent:
            aloud = bool(agent.fallbacks)
            arrays, _ = checkpoint.load(older if aloud else newest)
            compare(checkpoint.named_leaves(agent.run.state), arrays["state"])
            assert agent.run.env_steps == checkpoint.env_steps_of(older if aloud else newest)
            assert not agent.notes, agent.notes

    def mutate_forged(self, run: Path, said: list[str]) -> None:
        """Any value of the manifest becomes another, with a valid checksum; both checkpoints."""
        values = [-1, 2**62, 1e300, "payload:Env-v0", "", None, [], {}, [[[]]], True, "../.."]
        for folder in checkpoint.stored(run):
            manifest = checkpoint.read_manifest(folder)
            place: Any = manifest
            while True:
                key = self.rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
                inside = place[key]
                if not (isinstance(inside, dict | list) and inside) or self.rng.random() < 0.15:
                    break
                place = inside
            value = self.rng.choice(values)
            if self.rng.random() < 0.2:
                place, key, value = manifest["config"], "env", "payload:Env-v0"
            place[key] = value
            said += [str(key), repr(value)]
            manifest["sha256"] = checkpoint.signature(manifest)
            (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
        if self.rng.random() < 0.3:
            (run / "run.json").unlink()
        with contextlib.suppress(UsageError), Agent.load(run) as agent:
            agent.run.envs.step(np.zeros((1, 1, agent.run.envs.spec.act_dim), np.float32))
        assert not Path("executed").exists(), "executed"

    def mutate_log(self, run: Path, said: list[str]) -> None:
        self.damage(run / self.rng.choice(["metrics.jsonl", "eval.csv", "run.json"]), said)
        with Agent.load(run) as agent:
            lock = agent._claim_folder()
            journal = Journal(run, agent.config)
            journal.truncate(agent.run)
            journal.end("finished")
            assert lock is not None
            lock.release()
        read_eval(run), read_jsonl(run / "metrics.jsonl")
        assert read_json(run / "run.json")["status"] == "finished"

    def mutate_row(self, run: Path, said: list[str]) -> None:
        row = {"algorithm": "dpmd", "env": "Hopper-v4", "seed": 0, "steps": 10, "group": [0]}
        row |= {"evaluations": [[10, 1.0, 0.5]], "versions": {"mujoco": "3"}, "wall_clock_s": 1.0}
        row |= {"env_steps": 10, "updates": 5, "variant": ""}
        row[self.rng.choice(list(row))] = self.rng.choice([None, "x", [], {}, [[1]], -1, 1e999])
        path = run / "row.jsonl"
        path.write_text(json.dumps(row) + "\n")
        if self.rng.random() < 0.5:
            self.damage(path, said)
        with contextlib.suppress(UsageError, FileNotFoundError):
            for each in read_rows(path):
                assert each.label and len(each.curve)


def die_in_a_call(after: int, half: bool) -> None:
    """In this process: SIGKILL at a call that writes, before or after it, or amid a line."""
    calls = [0]

    def deadly(really: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] != after:
                return really(*args, **kwargs)
            if not half:
                really(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        return call

    def torn(file: Any, data: bytes, really: Callable = logs.write_all) -> None:
        calls[0] += 1
        if calls[0] == after:
            really(file, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        really(file, data)

    for name in ("rename", "replace", "fsync", "mkdir", "unlink", "rmdir", "ftruncate"):
        setattr(os, name, deadly(getattr(os, name)))
    logs.write_all = torn


def compare(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.tobytes() == theirs[name].tobytes(), f"{name} differs in silence"


def differ(run: Path, whole: Path) -> None:
    """Raise unless two runs have the same bits: checkpoints, logs and best policy."""
    ours, theirs = (checkpoint.load_newest(folder) for folder in (run, whole))
    assert ours[0].name == theirs[0].name, f"{ours[0].name} is not {theirs[0].name}"
    for group in theirs[1]:
        compare(ours[1][group], theirs[1][group])
    assert ours[2] == theirs[2], "the manifests differ"
    rows = [
        [{k: v for k, v in row.items() if k not in CLOCK} for row in read_jsonl(at / logs.METRICS)]
        for at in (run, whole)
    ]
    assert rows[0] == rows[1], "metrics.jsonl differs"
    assert (run / logs.EVAL).read_bytes() == (whole / logs.EVAL).read_bytes(), "eval.csv differs"
    hidden = [p.name for p in run.rglob(".*")]
    assert not hidden, f"left behind: {hidden}"


def can_mount(folder: Path) -> bool:
    """Whether a small file system in memory is permitted here."""
    folder.mkdir()
    mounted = not os.system(f"mount -t tmpfs -o size=64k none {folder} 2> /dev/null")
    if mounted:
        os.system(f"umount {folder}")
    return mounted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=40, help="kills, signals, doubles, full disks")
    parser.add_argument("--mutations", type=int, default=120)
    parser.add_argument("--algorithms", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="end after so long, and say so"
    )
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gauntlet-") as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/cache")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        gauntlet = Gauntlet(Path(folder).resolve(), options.seed, options.algorithms)
        gauntlet.references()
        gauntlet.mutate(options.mutations)
        ways = ["kill", "call", "signal", "kill", "call", "signal", "two"]
        if can_mount(gauntlet.folder / "probe"):
            ways.append("disk")
        left = options.kills
        while left > 0 and time.monotonic() - began < 60 * options.minutes:
            way = ways[(options.kills - left) % len(ways)]
            faults = min(left, 1 if way in ("two", "disk") else gauntlet.rng.randrange(1, 6))
            gauntlet.chain(way, faults)
            left -= faults
    print(gauntlet.table())
    print(f"\nseed {options.seed}, {time.monotonic() - began:,.0f} s", end="")
    print(f"; {left} faults were not reached in time" if left > 0 else "")
    bad = [f"{name}: {line}" for name, lines in gauntlet.failed.items() for line in lines]
    print("\n".join(bad))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
