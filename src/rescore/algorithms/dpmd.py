"""Diffusion Policy Mirror Descent: Algorithm 1 of Ma et al. (ICML 2025).

`update` below is the paper's (posterior=None): score matching on actions of pi_old, each weighted
by exp(Q / lam), eq. (loss_mirror_descent). The default takes the mirror step on the policy's
posteriors: `PosteriorActorCritic.update_posteriors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.actor_critic import Nets
from rescore.algorithms.diffusion_actor import SoftState
from rescore.algorithms.posterior_actor import PosteriorActorCritic
from rescore.core import Spec, Transition, Update, UsageError
from rescore.diffusion.matching import weight_metrics
from rescore.models.learned import Anneal, Learned
from rescore.models.normalise import Moments

MAX_Q = 3.0  # Q is clipped to +- this before the exponential: relax/algorithm/dpmd.py, released


class State(NamedTuple):
    nets: Nets
    log_noise: Learned  # std of the exploration noise
    log_lam: Learned | None  # the temperature; none: equal weights
    q: Moments  # of Q(s, a_0) over batches


@dataclass(frozen=True)
class DPMD(PosteriorActorCritic):
    """Algorithm 1. The default takes the mirror step in closed form, on the policy's posteriors and
    by the gradient of Q; `paper` regresses on samples of pi_old weighted by exp(Q / lam)."""

    anchor: float = 0.5  # power of pi_old in the mirror step of posteriors; 0 is SDAC's default
    # Only used with posterior=None, that is by `paper` and `released`.
    loss_at: Literal["obs", "target"] = "target"  # target: its action serves the policy loss too
    lam: Anneal | None = None  # temperature of the weights exp(Q / lam); none: equal weights
    q_ema: float = 1e-3  # xi: rate of the mean and std that normalise Q for the weights; 0: Q as is

    without_posteriors = (*PosteriorActorCritic.without_posteriors, "loss_at", "lam", "q_ema")
    only_posteriors = ("anchor",)

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.q_ema <= 1:
            raise UsageError(f"q_ema must lie in [0, 1], not {self.q_ema}")
        if not 0 <= self.anchor < 1:
            raise UsageError(f"anchor must lie in [0, 1), not {self.anchor}")

    def init(self, key: Array, spec: Spec) -> State | SoftState:
        if self.posterior is not None:
            return self.init_soft(key, spec)
        log_lam = self.lam.create() if self.lam else None
        return State(*self.init_state(key, spec), log_lam, Moments.create())

    def update(self, state: Any, batch: Transition, key: Array, step: Array) -> Update:
        if self.posterior is not None:
            return self.update_posteriors(state, batch, key, step, self.anchor)
        k_next, k_loss, k_t, k_noise = jax.random.split(key, 4)
        # A terminal s' has no next action; s in its place makes every row good for the policy loss.
        next_obs = jnp.where(batch.terminated[:, None] > 0, batch.obs, batch.next_obs)

        # Policy evaluation (lines 6-7).
        a_next = self.choose_action(state, next_obs, k_next)
        critic, metrics = self.fit_critic(state.nets, batch, a_next)

        # Mirror descent (lines 9-10): score matching on a_0 ~ pi_old, weighted by exp(Q / lam).
        def improve() -> tuple[tuple[Learned, Moments], dict]:
            obs, a_0 = next_obs, a_next
            if self.loss_at == "obs":
                obs, a_0 = batch.obs, self.choose_action(state, batch.obs, k_loss)
            weight, moments, measured = jnp.ones(()), state.q, {}
            if self.lam:
                lam = jnp.exp(state.log_lam.params)
                q = self.q_values(self.policy_critic(state.nets, critic), obs, a_0)
                weight = jnp.exp(jnp.clip(state.q.normalise(q), -MAX_Q, MAX_Q) / lam)
                moments = state.q.follow(q, self.q_ema)  # line 12
                measured = {**weight_metrics(weight), "q_spread": jnp.std(q), "lam": lam}
            t, noise, a_t = self.noised(a_0, k_t, k_noise)
            actor, loss = self.regress(state.nets.actor, obs, a_t, t, noise, weight)
            return (actor, moments), loss | measured

        (actor, q), measured = self.delayed(step, improve, (state.nets.actor, state.q))
        log_lam = self.lam and self.lam.step(state.log_lam, step)  # line 11
        new = state._replace(q=q, log_lam=log_lam)
        return self.finish(new, actor, critic, metrics | measured, step)
