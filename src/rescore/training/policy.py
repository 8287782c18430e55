"""The policy of one seed of a run, compiled once."""

from __future__ import annotations

import numpy as np

from rescore.core import UsageError
from rescore.streams import Stream
from rescore.training.loop import Run
from rescore.training.programs import compile_programs


class Policy:
    """Acts by what the run has learned so far."""

    def __init__(self, run: Run, member: int):
        seeds = run.envs.seeds
        if not 0 <= member < len(seeds):
            raise UsageError(f"member must be 0 to {len(seeds) - 1}, not {member}")
        self._run, self._member, self._calls = run, member, 0
        self._programs = compile_programs(run.algo, run.envs.spec, (seeds[member],))
        self.layout = self._programs.layout
        self._seen: list | None = None  # leaves of all seeds, of which ours are a slice
        self._leaves: list = []

    def leaves(self) -> list:
        """Of this seed's state, with an axis of one seed."""
        if self._seen is not self._run.leaves:
            self._seen = self._run.leaves
            self._leaves = [x[self._member : self._member + 1] for x in self._seen]
        return self._leaves

    def act(self, rows: np.ndarray, deterministic: bool) -> np.ndarray:
        """Rows [B, obs_dim] -> actions [B, act_dim] in [-1, 1], with new random numbers at each
        call, or always the same ones if deterministic."""
        self._calls += not deterministic
        step = np.int32(0 if deterministic else self._calls)
        asked = (rows[None], Stream.PREDICT, step, not deterministic)
        return np.asarray(self._programs.act(self.leaves(), *asked).action)[0]
