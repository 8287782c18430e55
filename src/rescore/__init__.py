"""rescore: online reinforcement learning with diffusion policies, by reweighted score matching."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rescore.algorithms import REGISTRY

__version__ = "0.1.0"

# Public name -> module that defines it. Imported on first use, so that `import rescore` is quick.
_HOME = {
    "Agent": "rescore.agent",
    "evaluate": "rescore.agent",
    "make": "rescore.envs",
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

if TYPE_CHECKING:
    from rescore.agent import Agent as Agent
    from rescore.agent import evaluate as evaluate
    from rescore.algorithms.dacer import DACER as DACER
    from rescore.algorithms.dipo import DIPO as DIPO
    from rescore.algorithms.dpmd import DPMD as DPMD
    from rescore.algorithms.dppo import DPPO as DPPO
    from rescore.algorithms.idem import IDEM as IDEM
    from rescore.algorithms.ppo import PPO as PPO
    from rescore.algorithms.qsm import QSM as QSM
    from rescore.algorithms.qvpo import QVPO as QVPO
    from rescore.algorithms.sac import SAC as SAC
    from rescore.algorithms.sdac import SDAC as SDAC
    from rescore.algorithms.td3 import TD3 as TD3
    from rescore.core import NonFiniteError as NonFiniteError
    from rescore.core import Spec as Spec
    from rescore.core import Transition as Transition
    from rescore.core import UsageError as UsageError
    from rescore.diffusion.matching import score_matching as score_matching
    from rescore.diffusion.process import perturb as perturb
    from rescore.diffusion.process import unperturb as unperturb
    from rescore.diffusion.samplers import best_of as best_of
    from rescore.diffusion.samplers import ddpm as ddpm
    from rescore.diffusion.schedules import NoiseSchedule as NoiseSchedule
    from rescore.diffusion.schedules import cosine as cosine
    from rescore.diffusion.schedules import linear as linear
    from rescore.diffusion.schedules import vp as vp
    from rescore.envs import make as make
    from rescore.models.learned import Anneal as Anneal
    from rescore.training.config import Training as Training


def __getattr__(name: str) -> Any:
    if name == "boltzmann":  # a room of its own: `rescore.boltzmann.fit`
        return import_module("rescore.boltzmann")
    if name not in _HOME:
        raise AttributeError(f"module 'rescore' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
