"""Reweighted score matching on its own: a diffusion sampler from a log-density alone."""

from rescore.boltzmann.recipe import Recipe as Recipe
from rescore.boltzmann.sampler import Sampler as Sampler
from rescore.boltzmann.targets import TARGETS as TARGETS
from rescore.boltzmann.targets import Target as Target
from rescore.boltzmann.train import UntrustedFit as UntrustedFit
from rescore.boltzmann.train import fit as fit
