"""iDEM as a policy: denoising energy matching (Akhound-Sadegh et al. 2024) towards exp(Q / lam).

It estimates the same score as SDAC's reverse samples do, but averages grad Q / lam at the draws
instead of their noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.diffusion_actor import DiffusionActorCritic, SoftState
from rescore.core import Spec, Transition, Update, check_positive
from rescore.diffusion.matching import weight_metrics
from rescore.diffusion.reverse import dem_target
from rescore.models.learned import Anneal, Learned


@dataclass(frozen=True)
class IDEM(DiffusionActorCritic):
    """Noised replay actions, K reverse samples each, and the gradients of Q there."""

    reverse_draws: int = 8  # K: draws of phi_{0|t} for each a_t
    lam: Anneal = Anneal(0.2, 0.2)  # temperature, in units of the scaled return

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "reverse_draws")

    def init(self, key: Array, spec: Spec) -> SoftState:
        return SoftState(*self.init_state(key, spec), self.lam.create())

    def update(self, state: SoftState, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_t, k_noise, k_reverse = jax.random.split(key, 4)
        lam = jnp.exp(state.log_lam.params)

        # Policy evaluation.
        a_next = self.choose_action(state, batch.next_obs, k_next)
        critic, metrics = self.fit_critic(state.nets, batch, a_next)

        # Energy matching: gradients of Q / lam at reverse samples of the noised action.
        def improve() -> tuple[Learned, dict]:
            t, _, a_t = self.noised(batch.action, k_t, k_noise)
            policy_critic = self.policy_critic(state.nets, critic)
            energy = lambda a_0: self.q_values(policy_critic, batch.obs, a_0) / lam  # noqa: E731
            draws = self.reverse_draws
            target, weight = dem_target(self.noise_schedule, energy, a_t, t, k_reverse, draws)
            actor, loss = self.regress(state.nets.actor, batch.obs, a_t, t, target, 1.0)
            return actor, loss | weight_metrics(weight)

        actor, measured = self.delayed(step, improve, state.nets.actor)
        new = state._replace(log_lam=self.lam.step(state.log_lam, step))
        return self.finish(new, actor, critic, metrics | measured | {"lam": lam}, step)
