"""What the command line can do; each class is a form of flags with one method, `execute`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from rescore.agent import Agent
from rescore.boltzmann.command import Toy as Toy
from rescore.cli import default_folder, new_folder, program
from rescore.core import NonFiniteError, UsageError
from rescore.training.checkpoint import stored
from rescore.training.config import Training
from rescore.training.evaluate import Evaluation
from rescore.training.record import (
    append_result,
    mark_resumed,
    read_json,
    version_of,
    write_json,
)
from rescore.training.session import Stopped

FINAL_EPISODES = 20


@dataclass(frozen=True)
class Train:
    """Train an algorithm on a Gymnasium environment with continuous actions.

    Writes metrics, evaluations and checkpoints to a folder of its own, then evaluates the policy
    and draws its learning curve. Ctrl-C saves and prints how to go on.
    """

    algo: Annotated[Positional[str], arg(metavar="ALGO")]  # algorithm, see `rescore list`
    env: Annotated[Positional[str], arg(metavar="ENV")]  # Gymnasium id, such as HalfCheetah-v4
    steps: int = 200_000  # environment steps per seed
    seeds: tuple[int, ...] = (0,)  # trained side by side in one program
    preset: str = "default"  # named settings, see `rescore list`; other flags override them
    out: Path | None = None  # folder of the run; default runs/ENV/ALGO/sSEEDS-TIME
    until: float | None = None  # stop once an evaluation's mean return reaches this
    video: bool = False  # film the trained policy
    tensorboard: bool = False  # write TensorBoard events too
    quiet: bool = False  # no progress display
    record: Path | None = None  # append the result as one JSON line to this file

    def execute(self, hyperparameters: Any, training: Training) -> int:
        agent = Agent(
            self.algo,
            self.env,
            preset=self.preset,
            seeds=self.seeds,
            training=training,
            tensorboard=self.tensorboard,
            **shallow(hyperparameters),
        )
        envs = agent.run.envs
        agent.demand_enough(self.steps)
        agent.folder = new_folder(self.out or default_folder(envs.env_id, self.algo, self.seeds))
        agent.total = self.steps
        return work(agent, self.steps, self.until, self.video, self.quiet, self.record)


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest readable checkpoint, bit for bit as if never stopped."""

    run: Positional[Path]  # folder of the run
    steps: int | None = None  # environment steps in all; default what the run was asked for
    until: float | None = None  # stop once an evaluation's mean return reaches this
    video: bool = False  # film the trained policy
    tensorboard: bool = False  # write TensorBoard events too
    quiet: bool = False  # no progress display
    record: Path | None = None  # append the result as one JSON line to this file

    def execute(self) -> int:
        agent = Agent.load(self.run, tensorboard=self.tensorboard)
        if agent.folder is None:
            raise UsageError(f"{self.run} is a saved agent, not a run: load it in Python")
        for note in (*agent.fallbacks, *agent.notes):
            print(f"note: {note}")
        done = agent.run.env_steps
        total = self.steps or agent.total or done
        if total <= done:
            raise UsageError(
                f"{self.run} has done its {done:,} steps: give --steps beyond that to extend it"
            )
        mark_resumed(self.run / "run.json", sys.argv, done)
        return work(agent, total - done, self.until, self.video, self.quiet, self.record)


@dataclass(frozen=True)
class Eval:
    """Evaluate a trained run without exploration. The last line is one JSON object."""

    run: Positional[Path]  # folder of a run or of a saved agent
    episodes: int = FINAL_EPISODES  # episodes per seed
    seed: int | None = None  # first seed of the episodes; default those of training's evaluations
    best: bool = False  # the best evaluation's policy instead of the newest
    record: Path | None = None  # append the run and this evaluation as one JSON line to this file

    def execute(self) -> int:
        if self.episodes < 1:
            raise UsageError(f"--episodes must be at least 1, not {self.episodes}")
        with loaded(self.run, self.best) as agent:
            if self.record and agent.folder is None:
                raise UsageError(f"{self.run} is a saved agent, not a run: it has no row to record")
            result = agent.evaluate(self.episodes, seed=self.seed)
            for s, seed in enumerate(agent.seeds):
                print(
                    f"seed {seed}: {result.returns[s].mean():,.1f} ± {result.returns[s].std():,.1f}"
                )
            if self.record:
                append_result(self.record, result_row(agent, result))
            print(json.dumps(result.summary()))
        return 0


@dataclass(frozen=True)
class Render:
    """Film a trained run as mp4."""

    run: Positional[Path]  # folder of a run or of a saved agent
    out: Path | None = None  # file to write; default RUN/video.mp4
    seconds: float = 10.0  # length of the film
    seed: int = 0  # start of the episode
    best: bool = False  # the best evaluation's policy instead of the newest

    def execute(self) -> int:
        with loaded(self.run, self.best) as agent:
            print(film(agent, self.out or self.run / "video.mp4", self.seconds, self.seed))
        return 0


@dataclass(frozen=True)
class List:
    """Algorithms with their presets, and the tasks of the paper."""

    def execute(self) -> int:
        from rescore.algorithms import REGISTRY, presets_of

        print("algorithms and presets")
        for name, (_, _, what) in REGISTRY.items():
            print(f"  {name:<6} {what}")
            for preset, content in presets_of(name).items():
                print(f"         --preset {preset:<10} {content.source}")
        print("\ntasks (any other Gymnasium id with Box actions works too)")
        for task in TASKS:
            print(f"  {task}")
        return 0


@dataclass(frozen=True)
class Doctor:
    """Check versions, devices, rendering and physics; says what to do about each problem."""

    def execute(self) -> int:
        from rescore.doctor import diagnose, render

        checks = diagnose()
        print(render(checks))
        return 0 if all(check.ok for check in checks) else 1


NAMES = ("HalfCheetah", "Reacher", "Humanoid", "InvertedPendulum", "Ant", "Hopper", "Swimmer")
NAMES += ("Walker2d", "InvertedDoublePendulum")
TASKS = [*(f"{n}-v4 or {n}-v5" for n in NAMES), "Pusher-v5 (v4 needs mujoco < 3)", "Pendulum-v1"]


def loaded(run: Path, best: bool) -> Agent:
    """An agent to look at; what concerns only its further training is not said."""
    agent = Agent.load(run, best=best)
    for note in agent.fallbacks:
        print(f"note: {note}")
    return agent


def shallow(config: Any) -> dict[str, Any]:
    """Fields of a dataclass by name, nested ones left as they are."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


def work(
    agent: Agent,
    steps: int,
    until: float | None,
    video: bool,
    quiet: bool,
    record: Path | None,
) -> int:
    """Learn, then show what was learned; stopped early, say how to go on."""
    folder, again = agent.folder, f"{program()} resume {agent.folder}"
    again += "" if until is None else f" --until {until:g}"
    try:
        agent.learn(steps, until=until, progress=not quiet, header=banner(agent))
    except Stopped:
        print(f"stopped at {agent.run.env_steps:,} steps and saved; go on with:\n  {again}")
        if record:
            append_result(record, result_row(agent, None))
        return 0
    except NonFiniteError as error:
        kept = f"the last good checkpoint is kept: {again}"
        kept = kept if stored(folder) else "there was no checkpoint yet"
        raise NonFiniteError(f"{error}; {kept}") from None
    result = agent.evaluate(FINAL_EPISODES)
    write_json(folder / "final.json", {**result.summary(), "env_steps": agent.run.env_steps})
    from rescore.figures import learning_curve

    lines = [f"learning curve  {learning_curve(folder, folder / 'curve.png')}"]
    if video:
        lines.append(f"video           {film(agent, folder / 'video.mp4')}")
    if record:
        append_result(record, result_row(agent, result))
        lines.append(f"result          appended to {record}")
    print(
        f"\nfinal return    {result.mean:,.1f} ± {result.std:,.1f} over {result.episodes} episodes"
    )
    print(f"run             {folder}")
    print("\n".join(lines))
    print("\nnext:")
    print(f"  {program()} eval {folder} --episodes 100 --seed 1")
    print(f"  {program()} resume {folder} --steps {2 * agent.run.env_steps}")
    print(f"  {program()} train {agent.name} HalfCheetah-v4 --steps 200000")
    agent.close()
    return 0


def banner(agent: Agent) -> list[str]:
    """Head of the progress display: what runs, on what, and what to know about it."""
    import jax

    run, t = agent.run, agent.training
    envs = run.envs
    parameters = sum(x.size for x in run.leaves) / len(agent.seeds)
    if agent.algo.source == "replay":
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


def film(agent: Agent, path: Path, seconds: float = 10.0, seed: int = 0) -> str:
    """Record the policy; a machine that cannot render says so instead of failing the run."""
    from rescore.video import record

    mid, half = agent.run.envs.action_scale

    def policy(obs: Any) -> Any:
        action, _ = agent.predict(obs, deterministic=True)
        return (action - mid) / half

    try:
        info = record(agent.env, policy, path, seconds=seconds, seed=seed)
    except UsageError as error:
        return f"none: {error}"
    return f"{info.path} ({info.renderer})"


def result_row(agent: Agent, final: Evaluation | None) -> dict[str, Any]:
    """A finished or cut-short run as one row for results/."""
    from rescore.training.logs import read_eval

    info, run = read_json(agent.folder / "run.json"), agent.run
    curve: dict[int, list[float]] = {}
    for row in read_eval(agent.folder):
        curve.setdefault(row.env_steps, []).append(row.return_)
    return {
        "commit": info["commit"],  # of the code that trained, not of the code that writes this
        "dirty": info["dirty"],
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
