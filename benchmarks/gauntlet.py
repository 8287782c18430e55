"""`make gauntlet`: break a run in every way we know, and count what the promises did not survive.

    python -m benchmarks.gauntlet --kills 40 --mutations 120 --seed 0

Runs of several algorithms are killed, signalled, started twice and put on a full disk, and must end
with the bits of a run that nothing disturbed; their files are flipped, cut, zeroed, deleted and
forged, and must be refused or passed over in one line. Nothing leaves this machine: no network,
one temporary folder.

Processes are forks of one that has imported everything but started nothing, and share a cache of
compiled programs. What resumes a broken run is the next victim. A fault counts if it struck: a kill
of a process that had just ended does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401  imported here, so that forks need not
import numpy as np

from rescore import Agent, cli
from rescore.bench.rows import read_rows
from rescore.cli import resume, train  # noqa: F401  imported here, so that forks need not
from rescore.core import UsageError
from rescore.files import logs
from rescore.files.json import read_json, read_jsonl
from rescore.files.logs import read_eval
from rescore.files.machine import cpu_model
from rescore.files.run_record import append_result
from rescore.training import checkpoint
from rescore.training.session import Journal

COMMON = "--num-envs 1 --log-every 20 --eval-every 40 --eval-episodes 1 --checkpoint-every 20"
REPLAY = f"--chunk 5 --utd 1 --warmup 40 --batch-size 16 --replay-capacity 100 {COMMON}"
DIFFUSION = "--T 3 --act-candidates 1"
RUNS = {
    "sac": f"train sac InvertedPendulum-v4 --hidden 8 8 {REPLAY}",
    "dpmd": f"train dpmd rescore/Probe5-v0 --hidden 8 8 {DIFFUSION} {REPLAY}",
    "ppo": f"train ppo InvertedPendulum-v4 --hidden 8 8 --chunk 20 {COMMON} --minibatches 2",
}
STEPS = 120
CHAIN = {"kill": 8, "call": 8, "signal": 20, "two": 1, "disk": 1}  # that one run suffers at most
CALLS = 50  # of those that write, in a third of such a run
PROMPT = 40  # steps after a signal at most: to the end of a chunk, from a checkpoint that we saw
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
        self.seconds: dict[str, float] = {}  # of a processor, for a run
        self.patient: tuple[int, Path, socket.socket] | None = None  # who is sent signals

    def check(self, promise: str, fault: str, test: Callable[[], Any]) -> None:
        self.tried[promise] += 1
        try:
            test()
        except Exception as error:
            self.failed[promise].append(f"{fault}: {type(error).__name__}: {error}"[:4000])

    def table(self) -> str:
        lines = ["| promise | tried | failed |", "|---|---|---|"]
        lines += [
            f"| {PROMISES[name]} | {self.tried[name]:,} | {len(self.failed[name])} |"
            for name in PROMISES
        ]
        total, bad = sum(self.tried.values()), sum(map(len, self.failed.values()))
        return "\n".join([*lines, f"| all | {total:,} | {bad} |"])

    # Processes

    def start(self, work: str | Callable[[], int]) -> tuple[int, Path]:
        """A command or a function in a fork; its number and what it prints."""
        said = self.folder / f"said-{time.monotonic_ns()}"
        if pid := os.fork():
            return pid, said
        with contextlib.suppress(BaseException):
            os.chdir(self.folder)
            fd = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(fd, 1), os.dup2(fd, 2)
            sys.stdout = sys.stderr = open(fd, "w", closefd=False)  # noqa: SIM115
            sys.argv = ["rescore"]
            code = 1
            try:
                code = exit_code(work) if isinstance(work, str) else work()
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
            raise AssertionError(text[max(text.index("Traceback") - 300, 0) :][:3000])
        return code, text

    def command(self, work: str | Callable[[], int]) -> tuple[int, str]:
        return self.finish(*self.start(work))

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
        """Unbroken runs, what such a run costs once its programs are compiled, and half a run."""
        for name in self.names:
            for attempt in ("cold", name):
                before = os.times().children_user + os.times().children_system
                code, text = self.command(self.next_words(name, self.folder / attempt))
                assert code == 0, text
                after = os.times().children_user + os.times().children_system
                self.seconds[name] = after - before
                shutil.rmtree(self.folder / "cold", ignore_errors=True)
            half = self.folder / f"half-{name}"
            pid, said = self.start(self.next_words(name, half))
            while steps_of(half) < STEPS // 2:
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            self.finish(pid, said)

    def chain(self, promise: str, most: int) -> int:
        """Break one run again and again, then compare it; returns how many faults struck."""
        name, run = self.rng.choice(self.names), self.folder / "broken"
        struck = [0]

        def test() -> None:
            try:
                for _ in range(most):
                    before = steps_of(run)
                    struck[0] += getattr(self, f"break_by_{promise}")(name, run)
                    assert steps_of(run) >= before, f"steps are lost: {steps_of(run)} < {before}"
                    if (run / "final.json").exists():
                        break
            finally:
                self.dismiss()
            self.complete(name, run)

        self.check(promise, f"{name}, chain of {most}", test)
        self.tried[promise] += struck[0] - 1
        shutil.rmtree(run, ignore_errors=True)
        return struck[0]

    def break_by_kill(self, name: str, run: Path) -> bool:
        pid, said = self.start(self.next_words(name, run))
        wait(pid, self.rng.uniform(0.2, 1) * self.seconds[name])
        os.kill(pid, signal.SIGKILL)
        return self.finish(pid, said)[0] == -signal.SIGKILL

    def break_by_call(self, name: str, run: Path) -> bool:
        after, half = self.rng.randrange(1, CALLS), self.rng.random() < 0.5
        words = self.next_words(name, run)

        def work() -> int:
            die_in_a_call(after, half)
            return exit_code(words)

        return self.command(work)[0] == -signal.SIGKILL

    def break_by_signal(self, name: str, run: Path) -> bool:
        """In a process that goes on with the run as often as it is told: JAX starts once."""
        if first := self.patient is None:
            ours, theirs = socket.socketpair()
            self.patient = (*self.start(lambda: self.obey(name, run, theirs, ours)), ours)
            theirs.close()
        pid, said, ours = self.patient
        number = self.rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        heard = said.stat().st_size if said.exists() else 0
        ours.send(b"g")
        assert ours.recv(1) == b"s", f"it did not start: {said.read_text()[-300:]}"
        wait(pid, self.rng.uniform(0, 1 if first else 0.1) * self.seconds[name])
        before = steps_of(run)
        os.kill(pid, number)
        answer = ours.recv(1)
        text = said.read_bytes()[heard:].decode()
        assert answer, f"it died of {number.name}: {text[-300:]}"
        (code,) = answer
        # Ctrl-C before the first step ends at once.
        if code not in ((0, 130) if number == signal.SIGINT else (0,)):
            raise AssertionError(f"exit code {code} after {number.name}: {text[-300:]}")
        stopped = code == 130 or "and saved; go on with" in text
        late = steps_of(run) > before + PROMPT
        assert (stopped or (run / "final.json").exists()) and not late, f"deaf to {number.name}"
        return stopped

    def obey(self, name: str, run: Path, ear: socket.socket, other: socket.socket) -> int:
        """Go on with a run at each word, and answer with the exit code."""
        other.close()
        inside, really = [False], cli.dispatch

        def dispatch(args: list[str]) -> int:
            inside[0] = bool(ear.send(b"s"))  # now that the command's own handlers stand
            try:
                return really(args)
            finally:
                inside[0] = False

        def as_usual(number: int, _frame: Any) -> None:
            if inside[0] and number == signal.SIGINT:
                raise KeyboardInterrupt

        cli.dispatch = dispatch
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, as_usual)
        while ear.recv(1):
            code = exit_code(self.next_words(name, run))
            sys.stdout.flush()
            ear.send(bytes([code]))
        return 0

    def dismiss(self) -> None:
        if self.patient is not None:
            pid, said, ours = self.patient
            self.patient = None
            ours.close()
            self.finish(pid, said)

    def break_by_two(self, name: str, run: Path) -> bool:
        shutil.copytree(self.folder / f"half-{name}", run)
        began = [self.start(f"resume {run} --quiet") for _ in range(2)]
        ends = [self.finish(*each) for each in began]
        for code, text in ends:
            told = "is being trained by" in text or "meanwhile: load it again" in text
            if code not in (0, 2) or (code == 2 and not told):
                raise AssertionError(f"exit code {code}: {text[-300:]}")
        return 2 in (code for code, _ in ends)

    def break_by_disk(self, name: str, run: Path) -> bool:
        size = self.rng.randrange(40, 400, 4)
        run.mkdir()
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
        return code == 2

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
                self.check(kind, name, lambda: test(run, said))  # noqa: B023
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
            Journal(run, agent.run, agent.config).end("finished")
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
            with contextlib.suppress(OSError):
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


def exit_code(words: str) -> int:
    """That of a command, in this process."""
    try:
        cli.main(words.split())
    except SystemExit as stop:
        return int(stop.code or 0)


def wait(pid: int, seconds: float) -> None:
    """Until a process has computed for so long, whatever the machine's load, or has ended."""
    end, latest = computed(pid) + seconds, time.monotonic() + 60
    while computed(pid) < end and time.monotonic() < latest:
        time.sleep(0.005)


def computed(pid: int) -> float:
    """Seconds of a processor that a child of ours has taken; endless if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return float("inf") if fields[0] == "Z" else ticks / os.sysconf("SC_CLK_TCK")


def steps_of(run: Path) -> int:
    """Of its newest checkpoint."""
    return checkpoint.env_steps_of(checkpoint.stored(run)[0]) if checkpoint.stored(run) else 0


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
    parser.add_argument("--record", type=Path, help="append the result as one JSON line here")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gauntlet-") as folder:
        jax.config.update("jax_compilation_cache_dir", f"{folder}/cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        gauntlet = Gauntlet(Path(folder).resolve(), options.seed, options.algorithms)
        gauntlet.references()
        gauntlet.mutate(options.mutations)
        rare = ["two", "disk"] if can_mount(gauntlet.folder / "probe") else ["two"]
        ways = [way for each in rare for way in ("kill", "signal", "call", "signal", each)]
        left, chains = options.kills, 0
        while left > 0 and time.monotonic() - began < 60 * options.minutes:
            way = ways[chains % len(ways)]
            left -= gauntlet.chain(way, min(left, CHAIN[way]))
            chains += 1
            print(f"{way}: {left} left", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(gauntlet.table())
    print(f"\nseed {options.seed}, {seconds:,.0f} s", end="")
    print(f"; {left} faults were not reached in time" if left > 0 else "")
    bad = [f"{name}: {line}" for name, lines in gauntlet.failed.items() for line in lines]
    print("\n".join(bad))
    if options.record:
        row = {"seed": options.seed, "algorithms": options.algorithms, "seconds": round(seconds)}
        row |= {"cpu": cpu_model(), "tried": gauntlet.tried, "failed": gauntlet.failed}
        append_result(options.record, {**row, "not_reached": max(left, 0), "promises": PROMISES})
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
