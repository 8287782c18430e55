"""What `train` and `resume` share: learn, then show what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from rescore.agent import Agent
from rescore.cli.folders import program
from rescore.cli.render import record_video
from rescore.cli.runs import FINAL_EPISODES, result_row
from rescore.core import NonFiniteError, UsageError
from rescore.envs.task import Task
from rescore.files.json import plain, read_jsonl, write_json
from rescore.files.machine import version_of
from rescore.files.run_record import append_result
from rescore.show.curves import learning_curve
from rescore.training.checkpoint import stored
from rescore.training.replay import Replay
from rescore.training.signals import Stopped

FINAL = "final.json"


def work(
    agent: Agent,
    steps: int,
    until: float | None,
    video: bool,
    quiet: bool,
    record: Path | None,
) -> int:
    """Learn, then show what was learned; stopped early, say how to go on."""
    assert agent.folder is not None, "its command chose one"
    folder, again = agent.folder, f"{program()} resume {agent.folder}"
    again += "" if until is None else f" --until {until:g}"
    again += " --trust-env" if Task.of(agent.env).imports() else ""
    try:
        agent.learn(steps, until=until, progress=not quiet, header=banner(agent))
        result = agent.evaluate(FINAL_EPISODES)
    except Stopped:
        print(f"stopped at {agent.run.env_steps:,} steps and saved; go on with:\n  {again}")
        if record:
            append_result(record, result_row(agent, None))
        return 0
    except NonFiniteError as error:
        kept = f"the last good checkpoint is kept: {again}"
        kept = kept if stored(folder) else "there was no checkpoint yet"
        raise NonFiniteError(f"{error}; {kept}") from None
    lines = [f"learning curve  {learning_curve({agent.name: [folder]}, folder / 'curve.png')}"]
    if video:
        try:
            filmed = record_video(agent, folder / "video.mp4")
        except UsageError as error:  # a machine that cannot render must not fail a run
            filmed = f"none: {error}"
        lines.append(f"video           {filmed}")
    if record:
        row = result_row(agent, result)
        if not holds(record, row):
            append_result(record, row)
        lines.append(f"result          appended to {record}")
    # Last: a run that was killed on the way here does it all again.
    write_json(folder / FINAL, {**result.summary(), "env_steps": agent.run.env_steps})
    told = "" if result.success is None else f", success {100 * result.success:.0f} %"
    spread = f"{result.mean:,.1f} ± {result.std:,.1f}{told}"
    print(f"\nfinal return    {spread} over {result.episodes} episodes")
    print(f"run             {folder}")
    print("\n".join(lines))
    print("\nnext:")
    print(f"  {program()} eval {folder} --episodes 100 --seed 1")
    print(f"  {program()} resume {folder} --steps {2 * agent.run.env_steps}")
    print(f"  {program()} train {agent.name} HalfCheetah-v4 --steps 200000")
    agent.close()
    return 0


def holds(record: Path, row: dict[str, Any]) -> bool:
    """Whether a row of the same run and step is there: its process was killed just after it."""
    same = ("started", "env_steps", "status", "config")
    mine = {name: plain(row[name]) for name in same}
    rows = read_jsonl(record) if record.exists() else []
    return any(mine == {name: other.get(name) for name in same} for other in rows)


def banner(agent: Agent) -> list[str]:
    """Head of the progress display: what runs, on what, and what to know about it."""
    run, t = agent.run, agent.training
    envs = run.envs
    parameters = sum(x.size for x in run.leaves) / len(agent.seeds)
    if isinstance(run.memory, Replay):
        gigabytes = run.memory.rows.nbytes / 1e9
        learns = f"{t.utd:g} updates per step", f"replay up to {gigabytes:.2f} GB"
    else:
        learns = "learning once per rollout", f"rollouts of {t.stride:,} steps"
    versions = ", ".join(f"{k} {v}" for k, v in envs.versions.items())
    return [
        f"rescore {version_of('rescore')}  {agent.name} ({agent.preset})  {envs.env_id}  "
        f"seeds {', '.join(map(str, agent.seeds))}",
        f"jax {jax.__version__} {jax.default_backend()}, {versions}; run {agent.folder}",
        f"{t.num_envs} env(s), {learns[0]}, {parameters / 1e6:.2f} M numbers of state, {learns[1]}",
        *(f"note: {notice}" for notice in envs.notices),
    ]
