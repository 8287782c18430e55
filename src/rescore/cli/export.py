"""`rescore export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from rescore.cli.runs import load


@dataclass(frozen=True)
class Export:
    """Write a trained policy as one file that maps observation and noise to action.

    Best of N and the statistics of observations are inside; it is checked against `predict`.
    """

    run: Positional[Path]  # folder of a run or of a saved agent
    format: Literal["onnx", "jax"] = "onnx"  # onnx runs without this library, jax by `jax.export`
    out: Path | None = None  # file to write; default RUN/policy.onnx or RUN/policy.jax
    best: bool = False  # the best evaluation's policy instead of the newest
    trust_env: bool = False  # import the module that the run names as package:Env-v0
    member: int = 0  # which of several seeds, counted from 0

    def execute(self) -> int:
        with load(self.run, self.best, self.trust_env) as agent:
            path = self.out or self.run / f"policy.{self.format}"
            made = agent.export(path, self.format, member=self.member)
        print(f"{made.path}  {made.bytes / 1e3:,.0f} kB")
        print(f"inputs: observation [{agent.run.envs.spec.obs_dim}], noise [{made.noise_dim}]")
        print(f"largest difference to predict: {made.difference:.1e} half widths of the action box")
        if made.beyond:
            cause = "two best candidates, or rounding in the first denoising steps"
            print(f"note: {made.beyond} of 1,000 observations differ by more than 1e-5: {cause}")
        print(f"{made.ms:.3f} ms per action, predict {made.predict_ms:.3f} ms")
        return 0
