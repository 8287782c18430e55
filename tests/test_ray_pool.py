"""The matrix on a real Ray runtime of several nodes on this machine, one of which is killed."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rescore import UsageError
from rescore.bench.matrix import CellFolder
from rescore.bench.plan import Cell
from rescore.bench.ray_pool import connect, work
from rescore.bench.rows import find_rows
from rescore.files.json import read_json
from rescore.training.checkpoint import stored
from tests.small import wait_for

ray = pytest.importorskip("ray", reason="needs the extra [ray]")

# Trains in earnest, but next to nothing.
TINY = [("hidden", [8, 8]), ("warmup", 100), ("batch_size", 16), ("replay_capacity", 5_000)]
TINY += [("eval_episodes", 2), ("checkpoint_every", 250), ("eval_every", 500), ("log_every", 250)]
SETTINGS = [f"{name}={str(value).replace(' ', '')}" for name, value in TINY]
STEPS = 8_000


def command(out: Path, seeds: int, steps: int, *more: str) -> list[str]:
    words = ["bench", "run", "--algos", "sac", "--tasks", "rescore/Probe1-v0", "--out", str(out)]
    words += ["--seeds", str(seeds), "--steps", str(steps), "--set", *SETTINGS, *more]
    return [sys.executable, "-m", "rescore", *words]


def test_no_cluster_is_one_line():
    with pytest.raises(UsageError, match="ray start --head"):
        connect("127.0.0.1:1", 1)


def test_a_task_brings_its_cell_to_the_end(tmp_path, monkeypatch):
    """What runs on a node, without Ray: training in this process, printing into the log."""
    monkeypatch.setattr(sys, "argv", ["rescore"])
    cell = Cell("rescore/Probe1-v0", "sac", (0,), 600, settings=tuple(TINY))
    outcome, rows, log = work(str(tmp_path), cell, 1, False)
    folder = CellFolder(tmp_path, cell)
    assert outcome.state == "finished" and not log, folder.log_tail()
    assert [step for step, *_ in rows[0]["evaluations"]] == [500, 600]
    assert "final return" in folder.log.read_text() and folder.rows.exists()
    again, same, _ = work(str(tmp_path), cell, 1, False)
    assert again.state == "finished" and same == rows


@pytest.mark.slow
def test_a_node_dies_and_its_cell_goes_on_elsewhere(tmp_path):
    from ray.cluster_utils import Cluster

    out = tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        words = command(out, 3, STEPS, "--ray", cluster.address)
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
            # Both nodes are at work, and both cells have something to go on from.
            wait_for(lambda: sum(bool(stored(run)) for run in out.rglob("run")) >= 2, seconds=300)
            before = {run.parent.name: stored(run)[0].name for run in out.rglob("run")}
            cluster.remove_node(nodes[0], allow_graceful=False)
            said = process.communicate(timeout=600)[0]
        assert process.returncode == 0, said
    finally:
        cluster.shutdown()
    rows = find_rows(out)
    assert [row.seed for row in rows] == [0, 1, 2] and before.keys() <= {"s0", "s1", "s2"}
    assert sorted(row.resumes for row in rows) == [0, 0, 1], said
    expected = [*range(500, STEPS + 1, 500)]
    assert all([step for step, *_ in row.evaluations] == expected for row in rows)


@pytest.mark.slow
def test_ctrl_c_lets_the_tasks_save(tmp_path):
    out = tmp_path / "out"
    words = command(out, 1, 1_000_000, "--ray", "local")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: any(stored(run) for run in out.rglob("run")), seconds=300)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=300)[0]
    (about,) = out.rglob("run.json")
    assert process.returncode == 130 and "go on with:" in said
    assert read_json(about)["status"] == "stopped" and "1 stopped" in said


LOCAL = "import sys; from rescore.bench.ray_pool import connect; connect('local', 1); print('up')"
LOCAL += "; sys.stdout.flush(); sys.stdin.read()"


@pytest.mark.slow
def test_a_runtime_of_this_machine_listens_on_loopback_only():
    words = [sys.executable, "-c", LOCAL]
    others = {*Path("/proc").glob("[0-9]*")}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        heard = listening([p for p in Path("/proc").glob("[0-9]*") if p not in others])
        process.stdin.close()
    assert len(heard) > 3 and set(heard) <= {"127.0.0.1", "::1"}, heard


def listening(processes: list[Path]) -> list[str]:
    """Addresses at which processes accept connections."""
    own = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it may have ended
            own |= {os.readlink(fd) for fd in (process / "fd").iterdir()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                raw = bytes.fromhex(fields[1].partition(":")[0])
                words = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]
                address = ipaddress.ip_address(b"".join(words))
                found.append(str(getattr(address, "ipv4_mapped", None) or address))
    return found


@pytest.mark.slow
def test_a_runtime_of_this_machine(tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        command(out, 2, 600, "--ray", "local", "--workers", "2"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row.seed for row in find_rows(out)] == [0, 1]
    assert "2 cells: 2 finished" in done.stdout
