# Written by `make golden` from the table in __init__.py.

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
from rescore.envs.build import make as make
from rescore.models.learned import Anneal as Anneal
from rescore.training.config import Training as Training

__version__: str
