"""The host boundary: Gymnasium tasks in, `[S, N]` arrays out. No JAX; Gymnasium on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rescore.envs.build import make
    from rescore.envs.gym import Envs, EnvStep

__all__ = ["EnvStep", "Envs", "make"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rescore.envs import build, gym

    return build.make if name == "make" else getattr(gym, name)
