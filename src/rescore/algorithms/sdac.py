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

from rescore import streams
from rescore.algorithms.actor_critic import Nets
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from rescore.core import Spec, Transition, Update, UsageError, check_positive
from rescore.diffusion.kernels import perturb, signal_and_noise
from rescore.diffusion.likelihood import log_likelihood
from rescore.diffusion.matching import weight_metrics
from rescore.diffusion.reverse import mean_noise, mixed_samples, reverse_samples
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned


class State(NamedTuple):
    nets: Nets
    log_lam: Learned  # the temperature
    log_noise: Learned  # std of the exploration noise
    measured: dict[str, Array]  # by the last policy step


Proposal = Literal["perturbed_target", "perturbed_replay", "perturbed_policy", "policy", "uniform"]


@dataclass(frozen=True)
class SDAC(DiffusionActorCritic):
    """Algorithm 2; any proposal h_t, and K reverse samples that stay inside the box."""

    # h_t: noised actions of the Bellman target, of replay or of pi_old; pi_old's own; or uniform.
    proposal: Proposal = "perturbed_target"
    reverse_draws: int = 8  # K: draws of a_0 for each a_t, from phi_{0|t} truncated to the box
    near_draws: int = 4  # of these, draws around the proposal's action within the noise's reach
    T: int = 3  # diffusion steps
    judges: int | None = 1  # critics whose minimum compares actions of one state; none: all
    lam: Relaxation = Relaxation(0.2, 0.2)  # temperature, in units of the scaled return
    # Entropy in the Bellman target: that of the added noise, or of the policy by its likelihood.
    entropy: Literal["none", "noise", "likelihood"] = "none"
    likelihood_draws: int = 2  # noise draws per time of the likelihood's estimate

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "reverse_draws", "likelihood_draws")
        if not 0 <= self.near_draws <= self.reverse_draws:
            raise UsageError("near_draws are some of the reverse_draws: 0 to all of them")

    def init(self, key: Array, spec: Spec) -> State:
        nets, log_noise, measured = self.init_state(key, spec, "policy_loss", "ess", "weight_kl")
        return State(nets, self.lam.create(), log_noise, measured)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_entropy, k_t, k_propose, k_reverse = jax.random.split(key, 5)
        nets, lam = state.nets, jnp.exp(state.log_lam.params)
        std = jnp.exp(state.log_noise.params)

        # Soft policy evaluation (lines 6-7).
        a_next = self.choice(state, batch.next_obs, k_next, self.target_candidates)
        bonus = lam * self.entropy_at(state, batch.next_obs, a_next, k_entropy)
        critic, metrics = self.evaluate(nets, batch, a_next, bonus)

        # Score matching at a_t ~ h_t towards exp(Q / lam) (lines 9-10).
        def improve() -> tuple[Learned, dict]:
            t = self.random_times(k_t, batch.reward.shape)
            obs, action, a_t = self.propose(state, batch, a_next, t, k_propose)
            where = (self.noise_schedule, a_t, t, k_reverse, self.reverse_draws)
            if self.near_draws:
                a_0, noise, log_phi = mixed_samples(*where, self.near_draws, action, std)
            else:
                (a_0, noise), log_phi = reverse_samples(*where), 0.0
            q = self.compare(critic, obs, a_0)
            target, weight = mean_noise(q / lam + log_phi, noise)
            actor, measured = self.regress(nets.actor, obs, a_t, t, target, 1.0)
            return actor, {**measured, **weight_metrics(weight)}

        actor, measured = self.delayed(state, step, improve)
        state = state._replace(log_lam=self.lam.advance(state.log_lam, step))  # line 11
        return self.finish(state, actor, critic, measured, metrics | {"lam": lam}, step)

    def propose(
        self, state: State, batch: Transition, a_next: Array, t: Array, key: Array
    ) -> tuple[Array, Array, Array]:
        """States, an action at each, and a_t ~ h_t: any law that covers perturbed actions."""
        k_action, k_noise = jax.random.split(key)
        obs, action = batch.obs, batch.action
        if self.proposal == "perturbed_target":  # s where s' is terminal, whose action is nobody's
            ended = batch.terminated[:, None] > 0
            obs = jnp.where(ended, batch.obs, batch.next_obs)
            action = jnp.where(ended, batch.action, a_next)
        if self.proposal in ("perturbed_policy", "policy"):
            action = self.choice(state, obs, k_action, self.target_candidates)
        if self.proposal == "policy":
            return obs, action, action
        if self.proposal == "uniform":
            signal, std = signal_and_noise(self.noise_schedule, t)
            a_t = 2.0 * streams.uniform(k_noise, action.shape) - 1.0
            return obs, action, (signal + 2.0 * std) * a_t
        noise = streams.normal(k_noise, action.shape)
        return obs, action, perturb(self.noise_schedule, action, t, noise)

    def entropy_at(self, state: State, obs: Array, action: Array, key: Array) -> Array | float:
        """An estimate of -log pi(action | obs). [B]"""
        if self.entropy == "noise":  # of the added Gaussian: in expectation a constant
            per_dim = state.log_noise.params + 0.5 * math.log(2 * math.pi * math.e)
            return action.shape[-1] * per_dim
        if self.entropy == "likelihood":
            eps, draws = state.nets.actor.params.at(obs[None]), self.likelihood_draws
            return -log_likelihood(self.noise_schedule, eps, action, key, draws)
        return 0.0
