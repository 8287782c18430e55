"""`rescore train`: its flags are the fields of the algorithm and of its training."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from rescore.agent import Agent
from rescore.algorithms import REGISTRY, find
from rescore.cli.config import read_config
from rescore.cli.folders import default_folder
from rescore.cli.work import work
from rescore.core import Algorithm, UsageError, did_you_mean
from rescore.envs.task import keywords
from rescore.training.config import Training, configure, recorded


@dataclass(frozen=True)
class Train:
    """Train an algorithm on a Gymnasium environment with continuous actions.

    Writes metrics, evaluations and checkpoints to a folder of its own, then evaluates the policy
    and draws its learning curve. Ctrl-C saves and prints how to go on.
    """

    algo: Annotated[Positional[str], arg(metavar="ALGO")]  # algorithm, see `rescore list`
    env: Annotated[Positional[str], arg(metavar="ENV")]  # Gymnasium id, such as HalfCheetah-v4
    steps: int = 200_000  # environment steps per seed
    seeds: tuple[int, ...] = (0,)  # trained in one program: in turn on a CPU, else side by side
    preset: str = "default"  # named settings, see `rescore list`; other flags override them
    out: Path | None = None  # folder of the run; default runs/ENV/ALGO/sSEEDS-TIME
    until: float | None = None  # stop once an evaluation's mean return reaches this
    video: bool = False  # record a video of the trained policy
    tensorboard: bool = False  # write TensorBoard events too
    track: tuple[Literal["wandb", "mlflow", "tensorboard"], ...] = ()  # send metrics there too
    quiet: bool = False  # no progress display
    record: Path | None = None  # append the result as one JSON line to this file
    env_kwargs: tuple[str, ...] = ()  # keywords of the environment, such as continuous=true
    # Wrappers from the inside out, such as gymnasium.wrappers.FrameStackObservation:stack_size=4
    wrappers: tuple[str, ...] = ()
    config: Path | None = None  # settings as JSON or YAML, such as a run's config.json

    def execute(self, algorithm: Algorithm, training: Training) -> int:
        if type(algorithm) is not find(self.algo):  # a flag's value was taken for it
            raise UsageError(f"put {self.algo} before all flags: rescore train {self.algo} ...")
        agent = Agent(
            algorithm,
            self.env,
            seeds=self.seeds,
            training=training,
            tensorboard=self.tensorboard,
            track=self.track,
            env_kwargs=keywords(self.env_kwargs, "--env-kwargs"),
            wrappers=self.wrappers,
        )
        env_id = agent.run.envs.env_id
        agent.folder = self.out or default_folder(env_id, self.algo, self.seeds)
        agent.preset, agent.total = self.preset, self.steps
        return work(agent, self.steps, self.until, self.video, self.quiet, self.record)


def form(args: list[str]) -> type:
    """The flags of `train` depend on its algorithm; their defaults on its preset or a file."""
    words = [a for a in args if not a.startswith("-")]
    name = next((word for word in words if word in REGISTRY), None)  # flags may stand before it
    path, preset = flag_value(args, "--config"), flag_value(args, "--preset")
    file = {} if path is None else read_config(Path(path), args)
    if words and (name or file.get("algorithm")) is None and not {"-h", "--help"} & set(args):
        hint = did_you_mean(words[0], REGISTRY, "see `rescore list`")
        raise UsageError(f"unknown algorithm {words[0]!r}: {hint}")
    name = name or file.get("algorithm") or next(iter(REGISTRY))
    if file and (preset or file.get("algorithm", name) != name):
        raise UsageError(f"{path} says which algorithm and preset it is of: leave out others")
    given = file.get("hyperparameters") or {}
    given = recorded(name, given) if "env_by_id" in file else given  # the record of a run
    settings = (preset or file.get("preset") or "default", given, file.get("training") or {})
    algo, training = configure(name, *settings)
    flat = tyro.conf.arg(name="")  # --gamma, not --algorithm.gamma
    # Settings that may be None (DPMD's lam) are flags where the preset has them.
    kind: Any = tyro.conf.AvoidSubcommands[find(name)]  # type: ignore[misc]
    return dataclasses.make_dataclass(
        "TrainForm",
        [
            ("run", Annotated[Train, flat], *run_defaults(file, name)),
            ("algorithm", Annotated[kind, flat], dataclasses.field(default=algo)),
            ("training", Annotated[Training, flat], dataclasses.field(default=training)),
        ],
        namespace={
            "__doc__": Train.__doc__,
            "execute": lambda form: form.run.execute(form.algorithm, form.training),
        },
        frozen=True,
    )


def run_defaults(file: dict[str, Any], name: str) -> list[Any]:
    """What a file says about the run itself, as the default of its form."""
    if not file:
        return []
    kwargs = tuple(f"{k}={json.dumps(v)}" for k, v in (file.get("env_kwargs") or {}).items())
    given = {"env": file.get("env", tyro.MISSING), "steps": file.get("steps")}
    given |= {"seeds": tuple(file.get("seeds") or ()), "preset": file.get("preset")}
    given |= {"env_kwargs": kwargs, "wrappers": tuple(file.get("wrappers") or ())}
    return [dataclasses.field(default=Train(name, **{k: v for k, v in given.items() if v}))]


def flag_value(args: list[str], flag: str) -> str | None:
    """The value of a flag, before the real parser can run."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
