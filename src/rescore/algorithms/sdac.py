"""Soft Diffusion Actor-Critic: Algorithm 2 of Ma et al. (ICML 2025).

`update` below is the paper's (posterior=None): score matching towards exp(Q / lam) itself by
reverse sampling phi_{0|t}, eq. (loss_softmax). The default has the same aim and learns the
posteriors: `PosteriorActorCritic.update_posteriors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.algorithms.diffusion_actor import SoftState
from rescore.algorithms.posterior_actor import PosteriorActorCritic
from rescore.core import Spec, Transition, Update, UsageError, check_positive
from rescore.diffusion.matching import weight_metrics
from rescore.diffusion.process import perturb, signal_and_noise
from rescore.diffusion.reverse import rsm_target
from rescore.models.learned import Anneal, Learned


@dataclass(frozen=True)
class SDAC(PosteriorActorCritic):
    """Algorithm 2. The default learns the posteriors of exp(Q / lam) by the gradient of Q, with lam
    tuned to an entropy; `paper` estimates them by K reverse samples that stay inside the box."""

    # Only used with posterior=None, that is by `paper` and `released`.
    # h_t: the Bellman target's action or one of pi_old at s, noised to level t; or uniform.
    proposal: Literal["perturbed_target", "perturbed_policy", "uniform"] = "perturbed_target"
    reverse_draws: int = 8  # K: draws of a_0 for each a_t, from phi_{0|t} truncated to the box
    lam: Anneal = Anneal(0.2, 0.2)  # temperature, in units of the scaled return
    entropy: Literal["none", "noise"] = "none"  # in the Bellman target: that of the added noise

    without_posteriors = (
        *PosteriorActorCritic.without_posteriors,
        *("proposal", "reverse_draws", "lam", "entropy"),
    )

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "reverse_draws")
        if self.entropy == "noise" and self.noise_in == "none":
            raise UsageError("entropy noise is that of added noise: choose noise_in, too")

    def init(self, key: Array, spec: Spec) -> SoftState:
        if self.posterior is not None:
            return self.init_soft(key, spec)
        return SoftState(*self.init_state(key, spec), self.lam.create())

    def update(self, state: SoftState, batch: Transition, key: Array, step: Array) -> Update:
        if self.posterior is not None:
            return self.update_posteriors(state, batch, key, step)
        k_next, _, k_t, k_propose, k_reverse = jax.random.split(key, 5)
        lam = jnp.exp(state.log_lam.params)

        # Soft policy evaluation (lines 6-7).
        a_next = self.choose_action(state, batch.next_obs, k_next)
        bonus = 0.0
        if self.entropy == "noise":  # that of the added Gaussian, the same for every action
            per_dim = state.log_noise.params + 0.5 * math.log(2 * math.pi * math.e)
            bonus = lam * (a_next.shape[-1] * per_dim)
        critic, metrics = self.fit_critic(state.nets, batch, a_next, bonus)

        # Score matching at a_t ~ h_t (line 9) towards exp(Q / lam) (lines 10-11).
        def improve() -> tuple[Learned, dict]:
            t = self.random_times(k_t, batch.reward.shape)
            obs, a_t = self.propose(state, batch, a_next, t, k_propose)
            policy_critic = self.policy_critic(state.nets, critic)
            value = lambda a_0: self.q_values(policy_critic, obs, a_0) / lam  # noqa: E731
            draws = self.reverse_draws
            target, weight = rsm_target(self.noise_schedule, value, a_t, t, k_reverse, draws)
            actor, loss = self.regress(state.nets.actor, obs, a_t, t, target, 1.0)
            return actor, loss | weight_metrics(weight)

        actor, measured = self.delayed(step, improve, state.nets.actor)
        new = state._replace(log_lam=self.lam.step(state.log_lam, step))  # line 12
        return self.finish(new, actor, critic, metrics | measured | {"lam": lam}, step)

    def propose(
        self, state: SoftState, batch: Transition, a_next: Array, t: Array, key: Array
    ) -> tuple[Array, Array]:
        """States, and a_t ~ h_t at each: any law that covers perturbed actions."""
        k_action, k_noise = jax.random.split(key)
        obs, action = batch.obs, batch.action
        if self.proposal == "perturbed_target":  # a terminal s' has no next action: (s, a) instead
            ended = batch.terminated[:, None] > 0
            obs = jnp.where(ended, batch.obs, batch.next_obs)
            action = jnp.where(ended, batch.action, a_next)
        if self.proposal == "perturbed_policy":
            action = self.choose_action(state, obs, k_action)
        if self.proposal == "uniform":
            signal, std = signal_and_noise(self.noise_schedule, t)
            a_t = 2.0 * streams.uniform(k_noise, action.shape) - 1.0
            return obs, (signal + 2.0 * std) * a_t
        noise = streams.normal(k_noise, action.shape)
        return obs, perturb(self.noise_schedule, action, t, noise)
