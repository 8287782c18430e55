"""The host boundary: Gymnasium tasks in, `[S, N]` arrays out. No JAX; gym only in `make`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rescore.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium
    from gymnasium.vector import VectorEnv

    from rescore.envs.gym import Envs, EnvStep

__all__ = ["EnvStep", "Envs", "make"]


def make(
    env: str | gymnasium.Env | VectorEnv | Callable[[], gymnasium.Env],
    seeds: Sequence[int] = (0,),
    num_envs: int = 1,
    *,
    parallel: bool = False,
    stream: Stream = Stream.ENV,
) -> Envs:
    """`num_envs` environments for each seed, or a `UsageError` that says what to do instead.

    `env` is a Gymnasium id, a function (or class) without arguments that builds one environment,
    one environment (only for one seed and one lane), or a vector of `len(seeds) * num_envs`.
    `parallel` gives each lane a spawned process; a script that asks for it needs the usual
    `if __name__ == "__main__":` guard.
    """
    from rescore.envs import build

    return build.make(env, seeds, num_envs, parallel=parallel, stream=stream)


def __getattr__(name: str) -> Any:
    if name in ("EnvStep", "Envs"):
        from rescore.envs import gym

        return getattr(gym, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
