"""Reweighted score matching on its own: a diffusion sampler from a log-density alone."""

from rescore.boltzmann.energy import from_numpy as from_numpy
from rescore.boltzmann.recipe import Recipe as Recipe
from rescore.boltzmann.report import Report as Report
from rescore.boltzmann.sampler import Sampler as Sampler
from rescore.boltzmann.sampler import load as load
from rescore.boltzmann.targets import TARGETS as TARGETS
from rescore.boltzmann.targets import Target as Target
from rescore.boltzmann.train import UntrustedFit as UntrustedFit
from rescore.boltzmann.train import fit as fit
