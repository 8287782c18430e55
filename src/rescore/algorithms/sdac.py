"""Soft Diffusion Actor-Critic: Algorithm 2 of Ma et al. (ICML 2025).

Score matching towards exp(Q / lam) itself, by reverse sampling phi_{0|t}: eq. (loss_softmax).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.actor_critic import Nets
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from rescore.core import Spec, Transition, Update
from rescore.diffusion.kernels import perturb, signal_and_noise
from rescore.diffusion.likelihood import log_likelihood
from rescore.diffusion.matching import weight_metrics
from rescore.diffusion.reverse import rsm_target
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned


class State(NamedTuple):
    nets: Nets
    log_lam: Learned  # the temperature
    log_noise: Learned  # std of the exploration noise
    measured: dict[str, Array]  # by the last policy step


@dataclass(frozen=True)
class SDAC(DiffusionActorCritic):
    """Algorithm 2; any proposal h_t, and K reverse samples that stay inside the box."""

    # h_t: where a_t comes from.
    proposal: Literal["perturbed_replay", "perturbed_policy", "policy", "uniform"] = (
        "perturbed_replay"
    )
    reverse_draws: int = 16  # K: draws of phi_{0|t} for each a_t
    lam: Relaxation = Relaxation(0.2, 0.2)  # temperature, in units of the scaled return
    # Entropy in the Bellman target: that of the added noise, or of the policy by its likelihood.
    entropy: Literal["none", "noise", "likelihood"] = "none"
    likelihood_draws: int = 2  # noise draws per time of the likelihood's estimate

    def __post_init__(self):
        super().__post_init__()
        self.demand_positive("reverse_draws", "likelihood_draws")

    def init(self, key: Array, spec: Spec) -> State:
        nets, log_noise, measured = self.init_state(key, spec, "policy_loss", "ess", "weight_kl")
        return State(nets, self.lam.create(), log_noise, measured)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_entropy, k_t, k_propose, k_reverse = jax.random.split(key, 5)
        nets, lam = state.nets, jnp.exp(state.log_lam.params)

        # Soft policy evaluation (lines 6-7).
        a_next = self.choice(state, batch.next_obs, k_next, self.target_candidates)
        bonus = lam * self.entropy_at(state, batch.next_obs, a_next, k_entropy)
        critic, metrics = self.evaluate(nets, batch, a_next, bonus)

        # Score matching at a_t ~ h_t towards exp(Q / lam) (lines 9-10).
        def improve() -> tuple[Learned, dict]:
            t = self.random_times(k_t, batch.reward.shape)
            a_t = self.propose(state, batch, t, k_propose)
            energy = lambda a_0: critic.params.of_candidates(batch.obs, a_0) / lam  # noqa: E731
            draws = self.reverse_draws
            target, weight = rsm_target(self.noise_schedule, energy, a_t, t, k_reverse, draws)
            actor, measured = self.regress(nets.actor, batch.obs, a_t, t, target, 1.0)
            return actor, {**measured, **weight_metrics(weight)}

        actor, measured = self.delayed(state, step, improve)
        metrics["lam"] = lam
        state = state._replace(log_lam=self.lam.advance(state.log_lam, step))  # line 11
        return self.finish(state, actor, critic, measured, metrics, step)

    def propose(self, state: State, batch: Transition, t: Array, key: Array) -> Array:
        """a_t ~ h_t, which may be any law that covers the perturbed actions."""
        k_action, k_noise = jax.random.split(key)
        if self.proposal == "uniform":
            signal, std = signal_and_noise(self.noise_schedule, t)
            return (signal + 2.0 * std) * jax.random.uniform(k_noise, batch.action.shape, minval=-1)
        if self.proposal == "perturbed_replay":
            a_0 = batch.action
        else:
            a_0 = self.choice(state, batch.obs, k_action, self.target_candidates)
        if self.proposal == "policy":
            return a_0
        return perturb(self.noise_schedule, a_0, t, jax.random.normal(k_noise, a_0.shape))

    def entropy_at(self, state: State, obs: Array, action: Array, key: Array) -> Array | float:
        """An estimate of -log pi(action | obs). [B]"""
        if self.entropy == "noise":  # of the added Gaussian: in expectation a constant
            per_dim = state.log_noise.params + 0.5 * math.log(2 * math.pi * math.e)
            return action.shape[-1] * per_dim
        if self.entropy == "likelihood":
            eps, draws = state.nets.actor.params.at(obs[None]), self.likelihood_draws
            return -log_likelihood(self.noise_schedule, eps, action, key, draws)
        return 0.0
