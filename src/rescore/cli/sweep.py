"""`rescore sweep`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from rescore.bench.matrix import INTERRUPTED
from rescore.bench.sweep import (
    Choice,
    Search,
    check_words,
    chosen_flags,
    draw,
    find_optuna,
    summary,
)
from rescore.cli.folders import program
from rescore.cli.parsing import parse
from rescore.cli.train import form
from rescore.core import UsageError
from rescore.envs.build import make, valid_seeds
from rescore.envs.task import Task, keywords

SPACE = ("actor-lr=1e-4:3e-3:log", "gamma=0.98:0.998")


@dataclass(frozen=True)
class Sweep:
    """Search for good settings with Optuna (extra `sweep`).

    It proposes settings by TPE and stops trials that are below the median of the others.

    Every trial is a run of its own in OUT. Stop it with Ctrl-C or in any other way, and repeat the
    command to go on; more --trials continue it. The last line is one JSON object.

    A choice is a flag of `rescore train` with a range or values: --space actor-lr=1e-4:3e-3:log
    gamma=0.98:0.998 policy-delay=1,2,3
    """

    algo: Annotated[Positional[str], arg(metavar="ALGO")]  # algorithm, see `rescore list`
    env: Annotated[Positional[str], arg(metavar="ENV")]  # Gymnasium id
    steps: int = 50_000  # environment steps of a trial
    trials: int = 20  # that end, pruned and failed ones included
    space: Annotated[tuple[str, ...], arg(metavar="NAME=...")] = SPACE  # what to choose from
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()  # the same in all trials
    seeds: tuple[int, ...] = (0,)  # of each trial; its value is the mean over them
    out: Path | None = None  # folder of the search; default runs/sweep/ENV-ALGO
    workers: int = 1  # trials at a time
    threads: int = 1  # of each trial
    prune: bool = True  # end a trial below the median of the others at the same step
    seed: int = 0  # of the proposals

    def execute(self) -> int:
        if min(self.steps, self.trials, self.workers, self.threads) < 1:
            raise UsageError("--steps, --trials, --workers and --threads must be at least 1")
        valid_seeds((self.seed,))
        valid_seeds(self.seeds)
        find_optuna()
        words = ["train", self.algo, self.env, "--steps", str(self.steps), "--seeds"]
        words += [*map(str, self.seeds), "--eval-every", str(max(1, self.steps // 10))]
        words += chosen_flags(keywords(self.set, "--set"))
        space = tuple(Choice.read(text) for text in self.space)
        names = [choice.name for choice in space]
        if not names or len(set(names)) < len(names):
            raise UsageError("--space takes one or more choices, each of another flag")
        check_words(words, space, filled)
        run = filled(words).run  # a task that cannot be built is refused before the first trial
        make(Task(run.env, keywords(run.env_kwargs, "--env-kwargs"), run.wrappers), (0,)).close()
        out = self.out or Path("runs") / "sweep" / f"{self.env.replace(':', '-')}-{self.algo}"
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out} is a file: choose another folder (--out)")
        sizes = (self.trials, self.steps, self.workers, self.threads, self.prune, self.seed)
        search = Search(out, tuple(words), space, *sizes)
        done = search.run()
        study = search.study()
        told = summary(study)
        print(f"figure  {draw(study, out / 'sweep.png')}")
        if "params" in told:
            again = " ".join([*words, *chosen_flags(told["params"])])
            print(f"best    {told['best']:,.1f} by trial {told['trial']}; train it with")
            print(f"  {program()} {again}")
        if not done:
            print("interrupted: repeat the command to go on")
        print(json.dumps(told))
        return 0 if done else INTERRUPTED


def filled(words: list[str]) -> Any:
    """The form of `rescore train` with these words in it."""
    return parse(form(words[1:]), words[1:], "rescore train")
