"""Diffusion Policy Mirror Descent: Algorithm 1 of Ma et al. (ICML 2025).

The policy solves max E[Q] - lam KL(pi | pi_old) by score matching on actions of pi_old, each
weighted by exp(Q / lam): eq. (loss_mirror_descent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.algorithms.actor_critic import DiffusionActorCritic, Nets
from rescore.core import Spec, Transition, Update, UsageError
from rescore.diffusion.kernels import perturb
from rescore.diffusion.matching import normalised_weights, score_matching, weight_metrics
from rescore.models.controllers import Moments, Relaxation, match_kl
from rescore.models.learned import Learned, every


class Mirror(NamedTuple):
    """What the policy step steers besides the actor, and what it last measured."""

    log_lam: Learned  # the KL coefficient
    q: Moments  # of Q(s, a_0) over batches
    metrics: dict[str, Array]


class State(NamedTuple):
    nets: Nets
    mirror: Mirror
    log_noise: Learned  # std of the exploration noise


@dataclass(frozen=True)
class DPMD(DiffusionActorCritic):
    """Algorithm 1; every choice that the paper leaves open or the released code changed."""

    a_0: Literal["policy", "best", "particles"] = "best"  # one sample, best of K, or K weighted
    num_particles: int = 1  # K, samples of pi_old per state for the policy loss at obs
    loss_at: Literal["obs", "target"] = "target"  # target: its samples serve the policy loss too
    lam: Relaxation = Relaxation(1000.0, 1000.0)  # temperature of the weights
    target_kl: float | None = None  # particles: tune lam until the weights' KL is this (nats)
    lam_lr: float = 3e-4  # rate of that tuning
    normalise_q: bool = True  # weights see (Q - mean) / std by EMA statistics, else Q
    q_ema: float = 1e-3  # xi, rate of the EMA statistics
    max_q: float = 3.0  # Q is clipped to +- this before the exponential

    def __post_init__(self):
        super().__post_init__()
        if self.num_particles < 1 or min(self.q_ema, self.max_q, self.lam_lr) <= 0:
            raise UsageError("num_particles, q_ema, max_q and lam_lr must be positive")
        if self.target_kl is not None and self.a_0 != "particles":
            raise UsageError('target_kl tunes lam of a_0 "particles": drop it or change a_0')

    def init(self, key: Array, spec: Spec) -> State:
        nothing = dict.fromkeys(("policy_loss", "ess", "weight_kl", "q_spread"), jnp.float32(0.0))
        mirror = Mirror(self.lam.create(), Moments.create(), nothing)
        return State(self.init_nets(key, spec), mirror, self.noise.create())

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_target, k_loss, k_t, k_noise = jax.random.split(key, 4)
        nets, mirror, std = state.nets, state.mirror, jnp.exp(state.log_noise.params)
        # A terminal s' needs no action; s in its place makes every row good for the policy loss.
        next_obs = jnp.where(batch.terminated[:, None] > 0, batch.obs, batch.next_obs)

        # Policy evaluation (lines 6-7).
        drawn = self.old_actions(nets, next_obs, std, k_target, self.target_candidates)
        critic, metrics = self.evaluate(nets, batch, drawn[1])

        # Mirror descent (lines 9-10): score matching on a_0 ~ pi_old, weighted by exp(Q / lam).
        def improve() -> tuple[Learned, Mirror]:
            obs, (old, best) = next_obs, drawn
            if self.loss_at == "obs":
                obs = batch.obs
                old, best = self.old_actions(nets, obs, std, k_loss, self.num_particles)
            a_0 = {"policy": old[:1], "best": best[None], "particles": old}[self.a_0]  # [K, B, d]
            q = critic.params.of_candidates(obs, a_0)
            weight = self.weigh(mirror, q)
            t = jax.random.randint(k_t, q.shape, 1, self.T + 1)
            noise = jax.random.normal(k_noise, a_0.shape)
            a_t = perturb(self.noise_schedule, a_0, t, noise)
            actor, measured = nets.actor.descend(
                self.actor_optimizer,
                lambda actor: score_matching(actor.at(obs[None]), a_t, t, noise, weight),
            )
            return actor, self.steer(mirror, q, weight, measured)

        actor, mirror = every(self.policy_delay, step, improve, lambda: (nets.actor, mirror))

        metrics |= {**mirror.metrics, "lam": jnp.exp(mirror.log_lam.params), "noise": std}
        nets = self.advance(actor, critic, nets, step)
        mirror = mirror._replace(log_lam=self.lam.advance(mirror.log_lam, step))  # line 11
        return Update(State(nets, mirror, self.noise.advance(state.log_noise, step)), metrics)

    def weigh(self, mirror: Mirror, q: Array) -> Array:
        """exp(Q / lam): normalised over the particles of a state, or clipped across states."""
        q = mirror.q.normalise(q) if self.normalise_q else q
        lam = jnp.exp(mirror.log_lam.params)
        if self.a_0 == "particles":
            return normalised_weights(q / lam)
        return jnp.exp(jnp.clip(q, -self.max_q, self.max_q) / lam)

    def steer(self, mirror: Mirror, q: Array, weight: Array, measured: dict) -> Mirror:
        """Temperature by the weights' KL, Q statistics (line 12), and metrics of this step."""
        axis = 0 if self.a_0 == "particles" else 1
        metrics = {**measured, **weight_metrics(weight, axis)}
        metrics["q_spread"] = jnp.mean(jnp.std(q, axis=axis))
        log_lam = mirror.log_lam
        if self.target_kl is not None:
            rule = optax.adam(self.lam_lr)
            log_lam = match_kl(log_lam, rule, metrics["weight_kl"], self.target_kl)
        return Mirror(log_lam, mirror.q.follow(q, self.q_ema), metrics)
