"""`rescore eval`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from rescore.cli.runs import FINAL_EPISODES, load, result_row
from rescore.core import UsageError
from rescore.files.run_record import append_result


@dataclass(frozen=True)
class Eval:
    """Evaluate a trained run without exploration. The last line is one JSON object."""

    run: Positional[Path]  # folder of a run or of a saved agent
    episodes: int = FINAL_EPISODES  # episodes per seed
    seed: int | None = None  # first seed of the episodes; default those of training's evaluations
    best: bool = False  # the best evaluation's policy instead of the newest
    trust_env: bool = False  # import the module that the run names as package:Env-v0
    record: Path | None = None  # append the run and this evaluation as one JSON line to this file

    def execute(self) -> int:
        if self.episodes < 1:
            raise UsageError(f"--episodes must be at least 1, not {self.episodes}")
        with load(self.run, self.best, self.trust_env) as agent:
            if self.record and agent.folder is None:
                raise UsageError(f"{self.run} is a saved agent, not a run: it has no row to record")
            result = agent.evaluate(self.episodes, seed=self.seed)
            for s, seed in enumerate(agent.seeds):
                returns, told = result.returns[s], ""
                if result.successes is not None and np.isfinite(result.successes[s]).any():
                    told = f", success {100 * np.nanmean(result.successes[s]):.0f} %"
                print(f"seed {seed}: {returns.mean():,.1f} ± {returns.std():,.1f}{told}")
            if self.record:
                append_result(self.record, result_row(agent, result))
            print(json.dumps(result.summary()))
        return 0
