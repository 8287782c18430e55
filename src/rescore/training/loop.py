"""The loop: collect a chunk with one policy, learn from it in one compiled call, and report.

Data flows one way: envs -> memory -> update -> state; evaluation, logs and checkpoints only read.
The memory is what the algorithm's `source` says: a replay that is sampled, or the chunk itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rescore.core import Algorithm, EnvError, NonFiniteError, RewardRule, Transition, UsageError
from rescore.envs.gym import Envs
from rescore.streams import Stream, generator
from rescore.training.config import Training
from rescore.training.programs import Programs, compile_programs, keep_compiled
from rescore.training.replay import GoalReplay, Replay, ReturnScale, StepsReplay
from rescore.training.rollout import Rollouts

CLONED_AT_ONCE = 100  # updates of behaviour cloning in one compiled call


@dataclass
class Tally:
    """What happened since the last row of metrics; part of a checkpoint, so rows are exact."""

    metrics: dict[str, list[float]] = field(default_factory=dict)  # totals per seed
    counts: dict[str, int] = field(default_factory=dict)  # of the updates in each total
    # Of episodes: index of the seed, return, length.
    returns: list[tuple[int, float, int]] = field(default_factory=list)


@dataclass
class Run:
    """Everything that changes while training; a checkpoint holds all of it."""

    algo: Algorithm
    training: Training
    envs: Envs
    programs: Programs
    leaves: list  # of the algorithm's state [S]
    memory: Replay | Rollouts
    obs: np.ndarray  # [S, N, obs_dim], what to act on next
    env_steps: int = 0  # per seed
    updates: int = 0
    iteration: int = 0  # vector steps
    episode_return: np.ndarray = field(init=False)  # [S, N], so far
    episode_length: np.ndarray = field(init=False)
    tally: Tally = field(default_factory=Tally)
    waiting: list = field(default_factory=list)  # sums of metrics still on the device
    best_return: float | None = None  # highest mean of an evaluation, and when it was
    best_at: int = 0
    owes_evaluation: bool = False  # it was stopped amid one
    compiling: int = 2  # chunks that still compile something: the update, then the acting after it
    env_seconds: float = 0.0
    learn_seconds: float = 0.0  # without the time of compiling

    def __post_init__(self):
        self.episode_return = np.zeros(self.obs.shape[:2])
        self.episode_length = np.zeros(self.obs.shape[:2], np.int64)

    @property
    def state(self) -> Any:
        """The algorithm's state [S], put together of its leaves."""
        return jax.tree.unflatten(self.programs.layout, self.leaves)

    @state.setter
    def state(self, state: Any) -> None:
        self.leaves = self.programs.layout.flatten_up_to(state)

    @property
    def warmup(self) -> int:
        """Steps before learning: none for a policy that must have made its steps itself."""
        return self.training.warmup if self.algo.source == "replay" else 0


def start(
    algo: Algorithm,
    training: Training,
    envs: Envs,
    leaves: Callable[[Programs], list] = lambda programs: programs.init(),
    demos: np.ndarray | None = None,
) -> Run:
    """A run at its first step, with new parameters or those that `leaves` gives."""
    # On the CPU a program otherwise runs in another thread, while this one waits for it: waking
    # both costs more than a small policy's action. Without effect once JAX has started.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_compiled()
    programs = compile_programs(algo, envs.spec, envs.seeds)
    memory: Replay | Rollouts = Rollouts(training.chunk)
    if algo.source == "replay":
        memory = make_replay(algo, training, envs, demos)
    return Run(algo, training, envs, programs, leaves(programs), memory, envs.reset())


def make_replay(
    algo: Algorithm, training: Training, envs: Envs, demos: np.ndarray | None
) -> Replay:
    """An empty replay; with hindsight it knows the task's goals."""
    rule: RewardRule = getattr(algo, "reward_rule", RewardRule())
    size = (len(envs.seeds), envs.num_envs)
    scale = ReturnScale(*size, rule.gamma) if rule.scaled else None
    sizes = (envs.seeds, training.replay_capacity, envs.spec, algo.keeps_particles)
    given = (*sizes, demos, training.demo_share, scale)
    if rule.n_step > 1:
        lanes = envs.num_envs
        return StepsReplay(*given, n_step=rule.n_step, gamma=rule.gamma, num_envs=lanes)
    if not training.hindsight:
        return Replay(*given)
    if envs.goals is None:
        raise UsageError(
            f"hindsight needs a goal-conditioned task, with achieved_goal, desired_goal and "
            f"compute_reward as in gymnasium-robotics: {envs.env_id} is none"
        )
    return GoalReplay(*given, goals=envs.goals, share=training.hindsight, num_envs=envs.num_envs)


def demand_enough(run: Run, steps: int) -> None:
    """Refuse a number of steps that would end before learning begins."""
    total = run.env_steps + steps
    if total < (run.warmup + run.training.stride if run.algo.source == "replay" else 1):
        raise UsageError(
            f"{total:,} steps are not enough: {run.warmup:,} of them are random warm-up; "
            f"ask for more --steps or a smaller --warmup"
        )


def begin_episodes(run: Run) -> None:
    """New episodes in every environment, from other seeds than at the start."""
    run.obs = run.envs.reset(epoch=run.iteration)
    run.episode_return[:] = run.episode_length[:] = 0
    run.memory.interrupt()


def advance(run: Run) -> None:
    """One chunk: `chunk` vector steps with the current policy, then their updates."""
    if not run.envs.in_step:  # an error cut the last one short
        begin_episodes(run)
    if run.updates < run.training.pretrain:
        return imitate(run)
    began = time.perf_counter()
    env_seconds = run.env_seconds
    for _ in range(run.training.chunk):
        collect(run)
    # `added` begins at 0 after a resume without replay, which must fill up again first.
    if min(run.env_steps, run.memory.added) >= run.warmup:
        learn(run)
        if run.compiling:
            run.compiling, began = run.compiling - 1, time.perf_counter()
            env_seconds = run.env_seconds
    run.learn_seconds += time.perf_counter() - began - (run.env_seconds - env_seconds)


def imitate(run: Run) -> None:
    """Some updates of behaviour cloning before the first step."""
    began = time.perf_counter()
    assert isinstance(run.memory, Replay), "training_for has looked"
    updates = min(run.training.pretrain - run.updates, CLONED_AT_ONCE)
    batches, _ = run.memory.sample(run.updates, updates, run.training.batch_size)
    step = np.int32(run.updates)
    run.leaves, sums, _ = run.programs.imitate(run.leaves, batches, step)
    run.waiting.append(sums)
    run.updates += updates
    run.learn_seconds += time.perf_counter() - began


def collect(run: Run) -> None:
    """One step of every environment into memory; random actions in a warm-up of a new policy."""
    envs, extras = run.envs, dict[str, Any]()
    if run.env_steps < run.warmup and not run.training.pretrain:
        shape = (envs.num_envs, envs.spec.act_dim)
        draws = [generator(s, Stream.WARMUP, run.iteration) for s in envs.seeds]
        action = np.stack([d.uniform(-1, 1, shape) for d in draws]).astype(np.float32)
    else:
        now = np.int32(run.iteration)
        chosen, extras = run.programs.act(run.leaves, run.obs, Stream.ACT, now, True)
        action = np.asarray(chosen)
    began = time.perf_counter()
    try:
        step = envs.step(action)
    except NonFiniteError as error:
        settle(run)  # a loss that blew up is the cause, and has a better name
        raise NonFiniteError(f"{error}, at environment step {run.env_steps}") from None
    except EnvError as error:
        raise EnvError(f"{error}, at environment step {run.env_steps}") from error.__cause__
    run.env_seconds += time.perf_counter() - began
    terminated = step.terminated.astype(np.float32)
    host: Any = run.obs, step.action, step.reward, terminated, step.next_obs
    run.memory.add(Transition(*host), step.truncated, extras)
    run.obs = step.obs
    run.iteration += 1
    run.env_steps += envs.num_envs
    note_episodes(run, step.reward, step.terminated | step.truncated)


def note_episodes(run: Run, reward: np.ndarray, ended: np.ndarray) -> None:
    run.episode_return += reward
    run.episode_length += 1
    for s, n in zip(*np.nonzero(ended)):
        finished = (int(s), float(run.episode_return[s, n]), int(run.episode_length[s, n]))
        run.tally.returns.append(finished)
        run.episode_return[s, n] = run.episode_length[s, n] = 0


def learn(run: Run) -> None:
    """The chunk's updates in one compiled call; nothing is fetched from the device."""
    memory = run.memory
    batches: Any
    if isinstance(memory, Replay):
        updates = round(run.training.updates)
        batches, index = memory.sample(run.updates, updates, run.training.batch_size)
    else:
        updates, batches = 1, memory.take()
    step = np.int32(run.updates)
    run.leaves, sums, edits = run.programs.update(run.leaves, batches, step)
    if edits is not None and isinstance(memory, Replay):
        memory.edit(index, np.asarray(edits))
    run.waiting.append(sums)
    run.updates += updates


def settle(run: Run) -> None:
    """Fetch waiting metrics into the tally; a value that is not finite stops the run here.

    A metric that was NaN counts as not measured, but the parameters that it spoiled do not pass.
    """
    tally, fetched, run.waiting = run.tally, jax.device_get(run.waiting), []
    for name, (totals, counts) in ((n, s) for sums in fetched for n, s in sums.items()):
        bad = np.flatnonzero(~np.isfinite(totals))
        if bad.size:
            raise NonFiniteError(
                f"{name} became {totals[bad[0]]} for seed {run.envs.seeds[bad[0]]}, within the "
                f"updates before number {run.updates} (environment step {run.env_steps})"
            )
        before = tally.metrics.get(name, [0.0] * len(totals))
        tally.metrics[name] = [a + float(b) for a, b in zip(before, totals)]
        tally.counts[name] = tally.counts.get(name, 0) + int(counts[0])  # seeds share the step
    if not bool(run.programs.finite(run.leaves)):
        raise NonFiniteError(f"the parameters stopped being finite before update {run.updates}")


def report(run: Run) -> list[dict[str, float]]:
    """One row of metrics per seed since the last report, and a fresh tally."""
    settle(run)
    tally, run.tally = run.tally, Tally()
    rows = []
    for s, seed in enumerate(run.envs.seeds):
        row: dict[str, float] = {"env_steps": run.env_steps, "seed": seed, "updates": run.updates}
        if own := [pair for index, *pair in tally.returns if index == s]:
            returns, lengths = (float(np.mean(values)) for values in zip(*own))
            row |= {"return": returns, "length": lengths, "episodes": len(own)}
        seen = {name: n for name, n in tally.counts.items() if n}
        row |= {name: tally.metrics[name][s] / n for name, n in seen.items()}
        rows.append(row)
    return rows
