"""iDEM as a policy: denoising energy matching (Akhound-Sadegh et al. 2024) towards exp(Q / lam).

It estimates the score that SDAC does by the posterior mean of grad Q / lam, not of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.actor_critic import Nets
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from rescore.core import Spec, Transition, Update, check_positive
from rescore.diffusion.matching import weight_metrics
from rescore.diffusion.reverse import dem_target
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned


class State(NamedTuple):
    nets: Nets
    log_lam: Learned  # the temperature
    log_noise: Learned  # std of the exploration noise
    measured: dict[str, Array]  # by the last policy step


@dataclass(frozen=True)
class IDEM(DiffusionActorCritic):
    """Noised replay actions, K reverse samples each, and the gradients of Q there."""

    reverse_draws: int = 8  # K: draws of phi_{0|t} for each a_t
    lam: Relaxation = Relaxation(0.2, 0.2)  # temperature, in units of the scaled return

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "reverse_draws")

    def init(self, key: Array, spec: Spec) -> State:
        nets, log_noise, measured = self.init_state(key, spec, "policy_loss", "ess", "weight_kl")
        return State(nets, self.lam.create(), log_noise, measured)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_t, k_noise, k_reverse = jax.random.split(key, 4)
        nets, lam = state.nets, jnp.exp(state.log_lam.params)

        # Policy evaluation.
        a_next = self.choice(state, batch.next_obs, k_next, self.target_candidates)
        critic, metrics = self.evaluate(nets, batch, a_next)

        # Energy matching: gradients of Q / lam at reverse samples of the noised action.
        def improve() -> tuple[Learned, dict]:
            t, _, a_t = self.noised(batch.action, k_t, k_noise)
            energy = lambda a_0: self.compare(critic, batch.obs, a_0) / lam  # noqa: E731
            draws = self.reverse_draws
            target, weight = dem_target(self.noise_schedule, energy, a_t, t, k_reverse, draws)
            actor, measured = self.regress(nets.actor, batch.obs, a_t, t, target, 1.0)
            return actor, {**measured, **weight_metrics(weight)}

        actor, measured = self.delayed(state, step, improve)
        metrics["lam"] = lam
        state = state._replace(log_lam=self.lam.advance(state.log_lam, step))
        return self.finish(state, actor, critic, measured, metrics, step)
