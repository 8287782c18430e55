"""The loop: collect a chunk with one policy, learn from it in one compiled call, and report.

Data flows one way: envs -> memory -> update -> state; evaluation, logs and checkpoints only read.
The memory is what the algorithm's `source` says: a replay that is sampled, or the chunk itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rescore.algorithms.normalised import prepared
from rescore.core import Act, Algorithm, EnvError, NonFiniteError, Spec, Transition, UsageError
from rescore.envs.gym import Envs
from rescore.streams import Stream, generator, key
from rescore.training.config import Training
from rescore.training.replay import GoalReplay, Replay, unpack
from rescore.training.rollout import Rollouts

CLONED_AT_ONCE = 100  # updates of behaviour cloning in one compiled call


class Sum(NamedTuple):
    """Of a metric over the updates that measured it; a delayed policy step is not in all."""

    total: jax.Array  # [S]
    updates: jax.Array  # [S]


class Programs(NamedTuple):
    """The compiled functions of an algorithm, each over a leading axis of seeds.

    They take and give the leaves of a state: finding them in nested modules, and putting these
    together again, would take longer than a small policy's action.
    """

    shapes: Any  # a state of shapes and types instead of arrays [S]
    layout: Any  # of a state: jax.tree.unflatten(layout, leaves)
    init: Callable  # () -> leaves [S]
    act: Callable  # (leaves, obs [S, N, obs_dim], stream, step, explore) -> Act [S, N, ...]
    update: Callable  # (leaves, batches [K, S, ...], step) -> leaves, Sums, edits
    imitate: Callable  # the same by behaviour cloning, where the algorithm can
    finite: Callable  # leaves -> bool


def each_seed(function: Callable) -> Callable:
    """The function over a leading axis of seeds.

    One after the other on a CPU, where products of single matrices are faster than batched ones
    (1.2 to 1.5 times, one seed included), so that a seed's numbers do not depend on the others.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *args: jax.lax.map(lambda row: function(*row), args)


def compile_programs(algo: Algorithm, spec: Spec, seeds: tuple[int, ...]) -> Programs:
    """jit, vmap, scan and donation live here; algorithms stay plain functions.

    Seeds are an argument of the compiled programs, so that all seeds share one compilation.
    """
    algo = prepared(algo)

    def keys(seeds: jax.Array, stream: Stream, step: Any) -> jax.Array:
        return jax.vmap(lambda seed: key(seed, stream, step))(seeds)

    def init(seeds: jax.Array) -> Any:
        return jax.vmap(lambda k: algo.init(k, spec))(keys(seeds, Stream.INIT, 0))

    def act(
        seeds: jax.Array, leaves: list, obs: jax.Array, stream: Stream, step: Any, explore: bool
    ) -> Act:
        one = each_seed(lambda s, o, k: algo.act(s, o, k, explore))
        return one(jax.tree.unflatten(layout, leaves), obs, keys(seeds, stream, step))

    def update(seeds: jax.Array, leaves: list, batches: Any, step: jax.Array, how: str = "update"):
        def one(carry: tuple, batch: Any):
            state, step = carry
            if algo.source == "replay":
                batch = unpack(batch, spec, algo.keeps_particles)
            one_seed = each_seed(lambda s, b, k: getattr(algo, how)(s, b, k, step))
            new = one_seed(state, batch, keys(seeds, Stream.UPDATE, step))
            return (new.state, step + 1), (new.metrics, new.edits)

        start = jax.tree.unflatten(layout, leaves), step
        (state, _), (metrics, edits) = jax.lax.scan(one, start, batches)
        sums = {k: Sum(jnp.nansum(m, 0), jnp.sum(~jnp.isnan(m), 0)) for k, m in metrics.items()}
        return jax.tree.leaves(state), sums, edits

    def finite(leaves: list) -> jax.Array:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))

    # Under jit, so that target networks own their buffers and donation is legal. It runs once:
    # compiling it quickly matters more than its speed.
    quick = {"xla_backend_optimization_level": 0}
    seed_array = jnp.asarray(seeds, jnp.uint32)
    shapes = jax.eval_shape(init, seed_array)
    layout = jax.tree.structure(shapes)
    first = jax.jit(lambda seeds: jax.tree.leaves(init(seeds)), compiler_options=quick)
    return Programs(
        shapes=shapes,
        layout=layout,
        init=partial(first, seed_array),
        act=partial(jax.jit(act, static_argnums=(3, 5)), seed_array),
        update=partial(jax.jit(update, donate_argnums=1), seed_array),
        imitate=partial(jax.jit(partial(update, how="imitate"), donate_argnums=1), seed_array),
        finite=jax.jit(finite),
    )


@dataclass
class Tally:
    """What happened since the last row of metrics; part of a checkpoint, so rows are exact."""

    metrics: dict[str, list[float]] = field(default_factory=dict)  # totals per seed
    counts: dict[str, int] = field(default_factory=dict)  # of the updates in each total
    returns: list[tuple[int, float, int]] = field(
        default_factory=list
    )  # seed index, return, length


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

    def is_done(self, total: int) -> bool:
        """Whether nothing is left of so many environment steps."""
        return self.env_steps >= total and not self.owes_evaluation

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
    programs = compile_programs(algo, envs.spec, envs.seeds)
    memory: Replay | Rollouts = Rollouts(training.chunk)
    if algo.source == "replay":
        memory = make_replay(algo, training, envs, demos)
    return Run(algo, training, envs, programs, leaves(programs), memory, envs.reset())


def make_replay(
    algo: Algorithm, training: Training, envs: Envs, demos: np.ndarray | None
) -> Replay:
    """An empty replay; with hindsight it knows the task's goals."""
    sizes = (envs.seeds, training.replay_capacity, envs.spec, algo.keeps_particles)
    given = (*sizes, demos, training.demo_share)
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
    total, stride = run.env_steps + steps, run.training.stride
    if total < (run.warmup + stride if run.algo.source == "replay" else 1):
        raise UsageError(
            f"{total:,} steps are not enough: {run.warmup:,} of them are random warm-up; "
            f"ask for more --steps or a smaller --warmup"
        )


def advance(run: Run) -> None:
    """One chunk: `chunk` vector steps with the current policy, then their updates."""
    if run.updates < run.training.pretrain:
        return imitate(run)
    began = time.perf_counter()
    env_seconds = run.env_seconds
    for _ in range(run.training.chunk):
        collect(run)
    # The size matters after a resume without replay, which must fill up again first.
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
        draws = (
            generator(s, Stream.WARMUP, run.iteration).uniform(-1, 1, shape) for s in envs.seeds
        )
        action = np.stack(list(draws)).astype(np.float32)
    else:
        now = np.int32(run.iteration)
        action, extras = run.programs.act(run.leaves, run.obs, Stream.ACT, now, True)
        action = np.asarray(action)
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
    host: list[Any] = [run.obs, step.action, step.reward, terminated, step.next_obs]
    seen = Transition(*host)
    run.memory.add(seen, step.truncated, extras)
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
    tally, fetched = run.tally, jax.device_get(run.waiting)
    run.waiting.clear()
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
        if own := [r for index, r, _ in tally.returns if index == s]:
            lengths = [n for index, _, n in tally.returns if index == s]
            row |= {"return": float(np.mean(own)), "length": float(np.mean(lengths))}
            row["episodes"] = len(own)
        seen = {name: n for name, n in tally.counts.items() if n}
        row |= {name: tally.metrics[name][s] / n for name, n in seen.items()}
        rows.append(row)
    return rows
