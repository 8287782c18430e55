"""The facade: learn, predict, save, load. The only mutable object a user meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from rescore.core import Algorithm, UsageError
from rescore.envs.build import is_env, make, valid_seeds
from rescore.envs.gym import Envs
from rescore.envs.task import Task
from rescore.export import Exported, export
from rescore.files.json import plain
from rescore.files.locks import Lock
from rescore.files.run_record import run_config
from rescore.show.progress import Progress, make_progress
from rescore.training import checkpoint
from rescore.training.callbacks import Callback
from rescore.training.config import Training, configure, training_for
from rescore.training.demos import read_demos
from rescore.training.evaluate import Evaluation, evaluate_run
from rescore.training.folders import claim_folder, restored
from rescore.training.loop import Run, demand_enough, start
from rescore.training.policy import Policy
from rescore.training.session import Journal, drive
from rescore.training.signals import Stopped, interruptible
from rescore.training.track import known_trackers


class Agent:
    """An algorithm on an environment, for one or several seeds.

    >>> agent = Agent("dpmd", "InvertedPendulum-v4")
    >>> agent.learn(20_000)
    >>> action, _ = agent.predict(obs, deterministic=True)
    >>> agent.save("my-agent"); agent = Agent.load("my-agent")

    `env` is a Gymnasium id, a function that makes an environment, an environment or a vector of
    them. Hyperparameters of the algorithm are keyword arguments; `training` holds those of
    `rescore.training.config.Training`. With a `folder`, learning leaves logs and checkpoints.
    `env_kwargs` and `wrappers` go to an id or a function: see `rescore.envs.task.Task`.
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
        track: Sequence[str] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        **hyperparameters: Any,
    ):
        self.seeds = valid_seeds(seeds)
        if isinstance(algo, str):
            self.algo, self.training = configure(algo, preset, hyperparameters, training or {})
        else:
            if hyperparameters:
                raise UsageError("give hyperparameters to the algorithm's own constructor")
            self.algo, self.training, preset = algo, training_for(algo, training or {}), "custom"
        self.name = type(self.algo).__name__.lower()
        self.preset, self._track = preset, known_trackers(track, tensorboard)
        self.env: Any = env
        if env_kwargs or wrappers:
            self.env = Task(env, dict(env_kwargs or {}), tuple(wrappers))
        self.eval_env: Any = None  # where to evaluate instead
        self.folder = None if folder is None else Path(folder)
        self.notes: list[str] = []  # what a load could not bring back exactly
        self.fallbacks: list[str] = []  # newer checkpoints that could not be read
        self._run: Run | None = None
        self._passed_over: set[str] | None = None  # checkpoints of a loaded run, newer than it
        self._claimed = False  # whether this agent has trained in its folder
        self._policies: dict[int, Policy] = {}
        self.status = "new"  # of the last `learn`: finished, solved, stopped, interrupted, failed
        self.total: int | None = None  # environment steps that the run was asked for

    # Learning

    @property
    def run(self) -> Run:
        """Everything that changes; made on first use."""
        if self._run is None:
            envs = self._make_envs()
            demos = read_demos(self.training.demos, envs, self.algo.keeps_particles)
            self._run = start(self.algo, self.training, envs, demos=demos)
        return self._run

    def _make_envs(self) -> Envs:
        if self.env is None:
            raise UsageError("this agent has no environment: pass env=... to Agent or load")
        t = self.training
        return make(self.env, self.seeds, t.num_envs, parallel=t.parallel_envs)

    @property
    def config(self) -> dict[str, Any]:
        """All that makes the run: what run.json, checkpoints and results hold."""
        task = Task.of(self.env)
        return {
            "algorithm": self.name,
            "preset": self.preset,
            # As it was given: a prefix "package:" says what to import.
            "env": task.base if isinstance(task.base, str) else self.run.envs.env_id,
            "env_by_id": task.is_data,  # else the id may not tell all of it
            "env_kwargs": plain(task.kwargs),
            "wrappers": [w if isinstance(w, str) else repr(w) for w in task.wrappers],
            "seeds": list(self.seeds),
            "steps": self.total,
            "hyperparameters": plain(self.algo),
            "training": plain(self.training),
        }

    def learn(
        self,
        steps: int,
        *,
        callback: Callback | None = None,
        until: float | None = None,
        evaluate: bool = True,
        eval_env: Any = None,
        progress: bool | Progress = False,
        header: Sequence[str] = (),
    ) -> Self:
        """Train for `steps` more environment steps per seed, or until an evaluation is `until`.

        `callback(event)` is told of reports, evaluations and saves, and ends the run by returning
        False. Evaluations use environments of their own, made for each of them, or `eval_env`;
        without them (`evaluate=False`, or an environment that was made already and no `eval_env`)
        it trains to the same bits. Ctrl-C ends after the current chunk, saves if there is a
        folder, and then raises.
        """
        demand_enough(self.run, steps)
        self.eval_env = self.eval_env if eval_env is None else eval_env
        evaluate = evaluate and not (is_env(self.env) and self.eval_env is None)
        if until is not None and not evaluate:
            raise UsageError(
                "until needs evaluations: an environment by id or as a function, or eval_env=..."
            )
        run = self.run
        total = run.env_steps + steps
        self.total = max(self.total or 0, total)
        shown = progress if not isinstance(progress, bool) else make_progress(quiet=not progress)
        with interruptible():  # from here on, or Ctrl-C could leave the folder claimed
            lock, self.status = self._claim_folder(), "failed"
            try:
                journal = Journal(self.folder, run, self.config, self._track)
                try:
                    shown.start([*header, *journal.notes], total, run.env_steps, run.warmup)
                    asked = self.evaluate if evaluate else None
                    self.status = drive(
                        run, total, journal, shown, callback, evaluate=asked, until=until
                    )
                finally:
                    shown.stop()
                    journal.end(self.status)
            finally:
                if lock is not None:
                    lock.release()
        if self.status == "interrupted":
            raise Stopped
        return self

    def _claim_folder(self) -> Lock | None:
        """The right to train in this run's folder, if it has one."""
        if self.folder is None:
            return None
        passed, again = self._passed_over, self._claimed
        lock = claim_folder(self.folder, self.run, self.config, passed, again)
        self._claimed = True
        return lock

    # Using

    def evaluate(self, episodes: int | None = None, *, seed: int | None = None) -> Evaluation:
        """Episodes of the policy without exploration, on environments and keys of their own.

        Every call starts from the same states; `seed` chooses others.
        """
        env = self.env if self.eval_env is None else self.eval_env
        if self.eval_env is None and is_env(self.env):
            raise UsageError(
                "evaluation needs environments of its own: pass a function as env, or eval_env"
            )
        seeds = self.seeds if seed is None else [seed + i for i in range(len(self.seeds))]
        return evaluate_run(self.run, env, seeds, episodes or self.training.eval_episodes)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        member: int = 0,
    ) -> tuple[np.ndarray, Any]:
        """The action for one observation or a batch of them, both as the environment knows them.

        Arguments are those of Stable-Baselines3; `state` comes back as it was, since no policy here
        has any. `deterministic` leaves out exploration noise and always uses the same random
        numbers; `member` chooses among several seeds.
        """
        envs = self.run.envs
        rows, batched = envs.rows(observation)
        action = envs.scaled(self.policy(member).act(rows, deterministic))
        return (action if batched else action[0]), state

    def policy(self, member: int = 0) -> Policy:
        """That of one seed."""
        if member not in self._policies:
            self._policies[member] = Policy(self.run, member)
        return self._policies[member]

    def export(self, path: str | Path, format: str = "onnx", *, member: int = 0) -> Exported:
        """The policy as one file, (observation, noise) -> action, checked against `predict`.

        `onnx` runs without this library and without JAX, `jax` is read by `jax.export`.
        """
        return export(self.run, self.policy(member), Path(path), format, member=member)

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
        algo: type | None = None,
        best: bool = False,
        tensorboard: bool = False,
        track: Sequence[str] = (),
        trust_env: bool = False,
    ) -> Self:
        """The agent of a saved folder or of a run's newest checkpoint; learning goes on from there.

        `env` is needed when the agent was trained on something that has no Gymnasium id, or on
        "package:Name-v0": no module that a file names is imported without `trust_env`. `algo` is
        the class of an algorithm of your own.
        """
        folder = checkpoint.whole(Path(folder))
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder: give a run or a saved agent")
        is_run = not (folder / checkpoint.MANIFEST).exists()
        told = known_trackers(track, tensorboard)  # here, or it would pass for a damaged checkpoint

        def use(source: Path) -> tuple[Self]:
            of_run = run_config(folder) if is_run else {}
            run, task, config, notes = restored(source, env, trust_env, of_run, algo)
            agent = cls(run.algo, task, seeds=config["seeds"], training=run.training, track=told)
            agent.preset, agent.total = config["preset"], config["steps"]
            agent._run, agent.notes = run, notes
            return (agent,)

        if is_run and not best:
            _, agent, complaints = checkpoint.load_newest(folder, use)
            # A best policy is older than the run's newest rows, which learning on would cut.
            agent.folder, later = folder, checkpoint.newer(folder, agent.run.env_steps)
            agent._passed_over = {path.name for path in later}
            agent.fallbacks = [f"{line}; the one before it is used" for line in complaints]
        else:
            source = checkpoint.whole(folder / "best") if is_run else folder
            (agent,) = checkpoint.attempt(use, source)
        return agent

    def close(self) -> None:
        """End all environments."""
        if self._run is not None:
            self._run.envs.close()

    def __repr__(self) -> str:
        steps = 0 if self._run is None else self._run.env_steps
        env = getattr(self.env, "base", self.env)
        env = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        return f"<Agent {self.name} on {env}, seeds {self.seeds}, {steps:,} steps>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Agent holds environments: use save and Agent.load instead of a copy")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluate(agent: Agent, episodes: int | None = None, *, seed: int | None = None) -> Evaluation:
    """Returns of `episodes` episodes per seed, without exploration; default `eval_episodes`."""
    return agent.evaluate(episodes, seed=seed)
