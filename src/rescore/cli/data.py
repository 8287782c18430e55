"""`rescore data export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from rescore.cli.runs import load
from rescore.core import UsageError
from rescore.envs.build import make
from rescore.streams import Stream
from rescore.training.demos import record_episodes, write_npz
from rescore.training.replay import Replay, unpack


@dataclass(frozen=True)
class Export:
    """Write transitions as an npz file: what `rescore train ... --demos FILE` starts from.

    They are those of the run's replay, or with --episodes those of its policy acting anew.
    """

    run: Positional[Path]  # folder of a run or of a saved agent
    out: Path = Path("demos.npz")  # file to write
    episodes: int = 0  # episodes of the trained policy, without exploration; 0: the replay
    last: int | None = None  # of the replay, only the newest so many transitions
    best: bool = False  # the best evaluation's policy instead of the newest
    trust_env: bool = False  # import the module that the run names as package:Env-v0
    member: int = 0  # which of several seeds, counted from 0

    def execute(self) -> int:
        if self.episodes < 0 or (self.last is not None and self.last < 1):
            raise UsageError("--episodes and --last are numbers from 1 upwards")
        with load(self.run, self.best, self.trust_env) as agent:
            run, policy = agent.run, agent.policy(self.member)
            if self.episodes:
                seed = (agent.seeds[self.member],)
                act = lambda obs, _: policy.act(obs[0], True)[None]  # noqa: E731
                with make(agent.env, seed, self.episodes, stream=Stream.EVALUATE) as envs:
                    seen = record_episodes(act, envs)
            else:
                if not isinstance(run.memory, Replay) or not run.memory.size:
                    raise UsageError(
                        f"{self.run} holds no replay: ask for --episodes of its policy instead"
                    )
                # Oldest first, whatever place the ring has come to.
                newest = np.arange(run.memory.added - run.memory.size, run.memory.added)
                place = newest[-(self.last or 0) :] % run.memory.capacity
                seen = unpack(run.memory.rows[self.member, place], run.envs.spec)
            write_npz(self.out, seen, run.envs)
        print(f"{self.out}  {len(seen.reward):,} transitions, mean reward {seen.reward.mean():.3f}")
        return 0
