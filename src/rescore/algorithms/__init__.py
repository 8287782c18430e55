"""The registry: every algorithm by name. A new one is a file here and a line below."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rescore.core import known

# name -> (module, class, what it is); modules are imported when asked for.
REGISTRY = {
    "dpmd": (
        "rescore.algorithms.dpmd",
        "DPMD",
        "Diffusion Policy Mirror Descent (Algorithm 1)",
    ),
    "sdac": ("rescore.algorithms.sdac", "SDAC", "Soft Diffusion Actor-Critic (Algorithm 2)"),
    "qsm": ("rescore.algorithms.qsm", "QSM", "Q-Score Matching"),
    "qvpo": ("rescore.algorithms.qvpo", "QVPO", "Q-weighted Variational Policy Optimization"),
    "dacer": ("rescore.algorithms.dacer", "DACER", "policy gradient through the denoising chain"),
    "dipo": ("rescore.algorithms.dipo", "DIPO", "imitation of replayed actions that climb Q"),
    "idem": ("rescore.algorithms.idem", "IDEM", "Iterated Denoising Energy Matching as a policy"),
    "sac": ("rescore.algorithms.sac", "SAC", "Soft Actor-Critic"),
    "td3": ("rescore.algorithms.td3", "TD3", "Twin Delayed Deep Deterministic policy gradient"),
    "dppo": ("rescore.algorithms.dppo", "DPPO", "Diffusion Policy Policy Optimization, on-policy"),
    "ppo": ("rescore.algorithms.ppo", "PPO", "Proximal Policy Optimization, on-policy"),
}


def find(name: str) -> type[Any]:
    """The class of an algorithm."""
    module, cls, _ = REGISTRY[known(name, REGISTRY, "algorithm")]
    return getattr(import_module(module), cls)


def presets_of(name: str) -> dict[str, Any]:
    """The presets of an algorithm by name."""
    from rescore.algorithms.presets import PRESETS

    return PRESETS[known(name, REGISTRY, "algorithm")]
