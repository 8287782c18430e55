"""The facade: learn, predict, save, load. The only mutable object a user meets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from rescore.algorithms import REGISTRY, find
from rescore.core import Algorithm, UsageError
from rescore.envs import make
from rescore.envs.gym import Envs
from rescore.files.json import plain, write_json
from rescore.files.locks import Lock
from rescore.files.run_record import (
    RUN,
    claim,
    describe,
    mark_resumed,
    new_folder,
    readable,
    run_config,
)
from rescore.show.progress import Progress, make_progress
from rescore.streams import Stream
from rescore.training import checkpoint
from rescore.training.config import Training, configure, from_plain, training_for
from rescore.training.evaluate import Evaluation, run_episodes
from rescore.training.loop import Run, compile_programs, start
from rescore.training.session import Journal, drive
from rescore.training.signals import Stopped


class Agent:
    """An algorithm on an environment, for one or several seeds.

    >>> agent = Agent("dpmd", "InvertedPendulum-v4")
    >>> agent.learn(20_000)
    >>> action, _ = agent.predict(obs, deterministic=True)
    >>> agent.save("my-agent"); agent = Agent.load("my-agent")

    `env` is a Gymnasium id, a function that makes an environment, an environment or a vector of
    them. Hyperparameters of the algorithm are keyword arguments; `training` holds those of
    `rescore.training.config.Training`. With a `folder`, learning leaves logs and checkpoints.
    """

    def __init__(
        self,
        algo: str | Algorithm = "dpmd",
        env: Any = None,
        *,
        preset: str = "default",
        seeds: int | Sequence[int] = 0,
        training: dict[str, Any] | Training | None = None,
        folder: str | Path | None = None,
        tensorboard: bool = False,
        **hyperparameters: Any,
    ):
        self.seeds = tuple(int(s) for s in np.atleast_1d(seeds))
        if not all(0 <= seed < 2**32 for seed in self.seeds):
            raise UsageError(f"seeds must lie between 0 and {2**32 - 1}, not {self.seeds}")
        if len(set(self.seeds)) < len(self.seeds):
            raise UsageError(f"seeds must differ from each other, not {self.seeds}")
        if isinstance(algo, str):
            self.algo, self.training = configure(algo, preset, hyperparameters, training or {})
        else:
            if hyperparameters:
                raise UsageError("give hyperparameters to the algorithm's own constructor")
            self.algo, self.training, preset = algo, training_for(algo, training or {}), "custom"
        self.name = type(self.algo).__name__.lower()
        self.preset, self.env, self._tensorboard = preset, env, tensorboard
        self.folder = None if folder is None else Path(folder)
        self.notes: list[str] = []  # what a load could not bring back exactly
        self.fallbacks: list[str] = []  # newer checkpoints that could not be read
        self._run: Run | None = None
        self._eval_envs: dict[int, Envs] = {}
        self._member: tuple[Any, Any, Any, int] | None = None  # leaves, the member's, act, which
        self._predicted = 0
        self._passed_over: set[str] | None = None  # checkpoints of a loaded run, newer than it
        self._claimed = False  # whether this agent has trained in its folder
        self.total: int | None = None  # environment steps that the run was asked for

    # Learning

    @property
    def run(self) -> Run:
        """Everything that changes; made on first use."""
        if self._run is None:
            self._run = start(self.algo, self.training, self._make_envs())
        return self._run

    def _make_envs(self) -> Envs:
        if self.env is None:
            raise UsageError("this agent has no environment: pass env=... to Agent or load")
        t = self.training
        return make(self.env, self.seeds, t.num_envs, parallel=t.parallel_envs)

    @property
    def config(self) -> dict[str, Any]:
        """All that makes the run: what run.json, checkpoints and results hold."""
        return {
            "algorithm": self.name,
            "preset": self.preset,
            # As it was given: a prefix "package:" says what to import.
            "env": self.env if isinstance(self.env, str) else self.run.envs.env_id,
            "env_by_id": isinstance(self.env, str),  # else the id may not tell all of it
            "seeds": list(self.seeds),
            "steps": self.total,
            "hyperparameters": plain(self.algo),
            "training": plain(self.training),
        }

    def learn(
        self,
        steps: int,
        *,
        until: float | None = None,
        evaluate: bool = True,
        progress: bool | Progress = False,
        header: Sequence[str] = (),
    ) -> Self:
        """Train for `steps` more environment steps per seed, or until an evaluation is `until`.

        `evaluate=False` trains to the same bits without evaluations; so does an environment that
        was made already. Ctrl-C ends after the current chunk, saves if there is a folder, and then
        raises.
        """
        self._demand_enough(steps)
        evaluate = evaluate and not is_env(self.env)
        if until is not None and not evaluate:
            raise UsageError("until needs evaluations, and an environment by id or as a function")
        run = self.run
        total = run.env_steps + steps
        self.total = max(self.total or 0, total)
        shown = progress if not isinstance(progress, bool) else make_progress(quiet=not progress)
        lock, status = self._claim_folder(), "failed"
        journal = Journal(self.folder, self.config, self._tensorboard)
        damaged = journal.truncate(run)
        shown.start([*header, *damaged], total, run.env_steps)
        try:
            status = drive(
                run,
                total,
                journal,
                shown,
                evaluate=self.evaluate if evaluate else None,
                until=until,
            )
        finally:
            shown.stop()
            journal.mark({"solved": "finished"}.get(status, status))
            journal.close()
            if lock is not None:
                lock.release()
        if status == "stopped":
            raise Stopped
        return self

    def _claim_folder(self) -> Lock | None:
        """A folder tells of one run and has one trainer: lock it, and describe this run in it."""
        if self.folder is None:
            return None
        folder, about, run = self.folder, self.folder / RUN, self.run
        if not self._claimed and self._passed_over is None:
            new_folder(folder)
        lock = claim(folder)
        after = {path.name for path in checkpoint.newer(folder, run.env_steps)}
        if after - (self._passed_over or set()):
            lock.release()
            raise UsageError(f"{folder} has gone on to {max(after)} meanwhile: load it again")
        if not readable(about):
            facts = (run.envs.versions, run.envs.notices, self.seeds)
            write_json(about, describe(sys.argv, self.config, *facts))
        elif not self._claimed:
            mark_resumed(about, sys.argv, run.env_steps)
        checkpoint.set_aside(folder, run.env_steps)
        checkpoint.prune(folder, self.training.keep_checkpoints)
        self._claimed = True
        return lock

    def _demand_enough(self, steps: int) -> None:
        """Refuse a number of steps that would end before learning begins."""
        total, warmup, stride = self.run.env_steps + steps, self.run.warmup, self.training.stride
        if total < (warmup + stride if self.algo.source == "replay" else 1):
            raise UsageError(
                f"{total:,} steps are not enough: {warmup:,} of them are random warm-up; "
                f"ask for more --steps or a smaller --warmup"
            )

    # Using

    def evaluate(self, episodes: int | None = None, *, seed: int | None = None) -> Evaluation:
        """Episodes of the policy without exploration, on environments and keys of their own.

        Every call starts from the same states; `seed` chooses others.
        """
        if is_env(self.env):
            raise UsageError("evaluation needs environments of its own: pass a function as env")
        episodes = episodes or self.training.eval_episodes
        leaves, act = self.run.leaves, self.run.programs.act
        if seed is None:
            if episodes not in self._eval_envs:
                self._eval_envs[episodes] = make(
                    self.env, self.seeds, episodes, stream=Stream.EVALUATE
                )
            return run_episodes(self._actor(leaves, act), self._eval_envs[episodes])
        seeds = [seed + i for i in range(len(self.seeds))]
        with make(self.env, seeds, episodes, stream=Stream.EVALUATE) as envs:
            return run_episodes(self._actor(leaves, act), envs)

    @staticmethod
    def _actor(leaves: list, act: Any) -> Any:
        return lambda o, t: np.asarray(act(leaves, o, Stream.EVALUATE, np.int32(t), False).action)

    def predict(
        self, obs: np.ndarray, deterministic: bool = False, *, member: int = 0
    ) -> tuple[np.ndarray, None]:
        """The action for one observation [obs_dim] or several [B, obs_dim], in the task's units.

        `deterministic` leaves out exploration noise and always uses the same random numbers;
        `member` chooses among several seeds.
        """
        run, obs = self.run, np.asarray(obs, np.float32)
        if obs.shape[-1:] != (run.envs.spec.obs_dim,) or obs.ndim > 2:
            raise UsageError(
                f"predict takes observations [{run.envs.spec.obs_dim}] or "
                f"[B, {run.envs.spec.obs_dim}], not {list(obs.shape)}"
            )
        if self._member is None or self._member[0] is not run.leaves or self._member[3] != member:
            one = [x[member : member + 1] for x in run.leaves]
            if self._member is None or self._member[3] != member:
                act = compile_programs(self.algo, run.envs.spec, (self.seeds[member],)).act
            else:
                act = self._member[2]
            self._member = (run.leaves, one, act, member)
        self._predicted += not deterministic
        step = np.int32(0 if deterministic else self._predicted)
        batch = np.atleast_2d(obs)[None]
        act = self._member[2](self._member[1], batch, Stream.PREDICT, step, not deterministic)
        mid, half = run.envs.action_scale
        action = (mid + half * np.asarray(act.action)[0]).astype(np.float32)
        return (action if obs.ndim == 2 else action[0]), None

    # Keeping

    def save(self, folder: str | Path) -> Path:
        """Write all of it, replay and environments included, as arrays and JSON."""
        arrays, meta = checkpoint.dump(self.run)
        return checkpoint.save(Path(folder), arrays, {**meta, "config": self.config})

    @classmethod
    def load(
        cls,
        folder: str | Path,
        env: Any = None,
        *,
        best: bool = False,
        tensorboard: bool = False,
        trust_env: bool = False,
    ) -> Self:
        """The agent of a saved folder or of a run's newest checkpoint; learning goes on from there.

        `env` is needed when the agent was trained on something that has no Gymnasium id, or on
        "package:Name-v0": no module that a file names is imported without `trust_env`.
        """
        folder = checkpoint.whole(Path(folder))
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder: give a run or a saved agent")
        is_run = not (folder / checkpoint.MANIFEST).exists()

        def use(source: Path) -> tuple[Self]:
            return (cls._restored(source, env, trust_env, run_config(folder) if is_run else {}),)

        if is_run and not best:
            _, agent, complaints = checkpoint.load_newest(folder, use)
            # A best policy is older than the run's newest rows, which learning on would cut.
            agent.folder, agent._tensorboard = folder, tensorboard
            later = checkpoint.newer(folder, agent.run.env_steps)
            agent._passed_over = {path.name for path in later}
            agent.fallbacks = [f"{line}; the one before it is used" for line in complaints]
        else:
            (agent,) = checkpoint.attempt(
                use, checkpoint.whole(folder / "best") if is_run else folder
            )
        return agent

    @classmethod
    def _restored(cls, source: Path, env: Any, trust_env: bool, of_run: dict[str, Any]) -> Self:
        """The agent of one checkpoint, which must be one `of_run` if that says anything."""
        arrays, manifest = checkpoint.load(source)
        config = manifest["config"]
        if config["algorithm"] not in REGISTRY:
            raise UsageError(f"{source} holds an algorithm that this rescore does not know")
        for name in ("algorithm", "seeds", *(("env",) if env is None else ())):
            if of_run.get(name, config[name]) != config[name]:
                raise UsageError(f"{source} has {name} {config[name]}, its run {of_run[name]}")
        if env is None and not config["env_by_id"]:
            raise checkpoint.Refusal(
                f"{source} was trained on an environment made in Python: load it with env=..."
            )
        if env is None and not trust_env:
            demand_installed(config["env"], source)
        agent = cls(
            from_plain(find(config["algorithm"]), config["hyperparameters"]),
            env if env is not None else config["env"],
            seeds=config["seeds"],
            training=from_plain(Training, config["training"]),
        )
        agent.preset, agent.total = config["preset"], config["steps"]
        agent._demand_sizes(arrays)
        try:
            envs = agent._make_envs()
        except UsageError as error:
            raise checkpoint.Refusal(f"{source}: {error}") from error
        try:
            leaves = partial(checkpoint.saved_leaves, arrays=arrays, source=source)
            agent._run = start(agent.algo, agent.training, envs, leaves)
            agent.notes = checkpoint.restore(agent._run, arrays, manifest)
        except BaseException:
            envs.close()
            raise
        return agent

    def _demand_sizes(self, arrays: checkpoint.Arrays) -> None:
        """Refuse settings that the arrays do not bear out, before environments are made."""
        first = [array.shape[:1] for array in arrays["state"].values()]
        lanes = [array.shape[:2] for array in arrays.get("loop", {}).values()]
        lane = (len(self.seeds), self.training.num_envs)
        if any(shape != lane[:1] for shape in first) or any(shape != lane for shape in lanes):
            raise UsageError(
                f"its arrays are not those of {lane[0]} seeds x {lane[1]} environments"
            )

    def close(self) -> None:
        """End all environments."""
        for envs in self._eval_envs.values():
            envs.close()
        if self._run is not None:
            self._run.envs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def demand_installed(env_id: Any, source: Path) -> None:
    """Refuse what is no plain Gymnasium id: a prefix "module:" would run that module."""
    if not isinstance(env_id, str) or ":" in env_id:
        raise checkpoint.Refusal(
            f"{source} names {env_id!r}, whose module would be imported: load it with env=..., or "
            f"with trust_env=True (--trust-env) if you trust this folder"
        )


def is_env(env: Any) -> bool:
    """True for an environment instance: it cannot be duplicated for evaluation."""
    from gymnasium import Env
    from gymnasium.vector import VectorEnv

    return isinstance(env, Env | VectorEnv)


def evaluate(agent: Agent, episodes: int = 20, *, seed: int | None = None) -> Evaluation:
    """Returns of `episodes` episodes per seed, without exploration."""
    return agent.evaluate(episodes, seed=seed)
