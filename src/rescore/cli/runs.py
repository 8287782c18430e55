"""Trained runs: one to look at, and its row of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rescore.agent import Agent
from rescore.files.json import read_json
from rescore.files.logs import read_eval
from rescore.files.run_record import RUN
from rescore.training.evaluate import Evaluation

FINAL_EPISODES = 20


def load(run: Path, best: bool, trust_env: bool) -> Agent:
    """The agent of a run; notes that concern only its further training are left out."""
    agent = Agent.load(run, best=best, trust_env=trust_env)
    for note in agent.fallbacks:
        print(f"note: {note}")
    return agent


def result_row(agent: Agent, final: Evaluation | None) -> dict[str, Any]:
    """A finished or cut-short run as one row for results/."""
    folder, run = agent.folder, agent.run
    assert folder is not None, "a saved agent is no run"
    info = read_json(folder / RUN)
    curve: dict[int, list[float]] = {}
    for row in read_eval(folder):
        curve.setdefault(row.env_steps, []).append(row.return_)
    return {
        "commit": info["commit"],  # of the code that trained, not of the code that writes this
        "dirty": info["dirty"],
        "started": info["started"],
        "algorithm": agent.name,
        "preset": agent.preset,
        "env": run.envs.env_id,
        "seeds": list(agent.seeds),
        "status": "finished" if info["status"] == "finished" else "cut short",
        "env_steps": run.env_steps,
        "updates": run.updates,
        "final": final.summary() if final else None,
        "best": {"mean": run.best_return, "env_steps": run.best_at},
        "evaluations": [[step, sum(r) / len(r)] for step, r in sorted(curve.items())],
        "wall_clock_s": info["wall_clock_s"],
        "versions": info["env_versions"] | info["versions"],
        "cpu": info["cpu"],
        "config": agent.config,
    }
