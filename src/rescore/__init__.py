"""rescore: online reinforcement learning with diffusion policies, by reweighted score matching."""

from importlib import import_module
from typing import Any

from rescore.algorithms import REGISTRY

__version__ = "0.1.0"

# Public name -> module that defines it. Imported on first use, so that `import rescore` is quick.
# Type checkers read the same names in __init__.pyi, which `make golden` writes.
_HOME = {
    "Agent": "rescore.agent",
    "evaluate": "rescore.agent",
    "make": "rescore.envs.build",
    "Spec": "rescore.core",
    "Transition": "rescore.core",
    "UsageError": "rescore.core",
    "NonFiniteError": "rescore.core",
    "Anneal": "rescore.models.learned",
    "Training": "rescore.training.config",
    "NoiseSchedule": "rescore.diffusion.schedules",
    "linear": "rescore.diffusion.schedules",
    "cosine": "rescore.diffusion.schedules",
    "vp": "rescore.diffusion.schedules",
    "perturb": "rescore.diffusion.process",
    "unperturb": "rescore.diffusion.process",
    "score_matching": "rescore.diffusion.matching",
    "ddpm": "rescore.diffusion.samplers",
    "best_of": "rescore.diffusion.samplers",
    **{algorithm: module for module, algorithm, _ in REGISTRY.values()},
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "boltzmann":  # a room of its own: `rescore.boltzmann.fit`
        return import_module("rescore.boltzmann")
    if name not in _HOME:
        raise AttributeError(f"module 'rescore' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
