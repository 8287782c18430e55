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

from rescore.algorithms.actor_critic import DiffusionActorCritic, Nets, jitter
from rescore.core import Spec, Transition, Update, UsageError
from rescore.diffusion.kernels import perturb
from rescore.diffusion.matching import normalised_weights, score_matching, weight_metrics
from rescore.diffusion.samplers import best_of, one_of
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


class Drawn(NamedTuple):
    """Actions of pi_old at B states."""

    actions: Array  # [K, B, act_dim]
    q: Array  # [K, B]
    weight: Array  # [K, B]
    choice: Array  # [B, act_dim]


PER_STATE = ("particles", "resampled")  # weights compare the actions of one state


@dataclass(frozen=True)
class DPMD(DiffusionActorCritic):
    """Algorithm 1; every choice that the paper leaves open or the released code changed."""

    # One sample of pi_old, the best of K, K weighted ones, or one of K drawn by those weights.
    a_0: Literal["policy", "best", "particles", "resampled"] = "best"
    num_particles: int = 1  # K before noisy copies, for the policy loss at obs
    loss_at: Literal["obs", "target"] = "target"  # target: its samples serve the policy loss too
    lam: Relaxation = Relaxation(1000.0, 1000.0)  # temperature of the weights
    target_kl: float | None = None  # with weights per state: lam is tuned until their KL is this
    lam_lr: float = 1e-2  # rate of that tuning
    normalise_q: bool = True  # weights see (Q - mean) / std by EMA statistics, else Q
    q_ema: float = 1e-3  # xi, rate of the EMA statistics
    max_q: float = 3.0  # Q is clipped to +- this before the exponential

    def __post_init__(self):
        super().__post_init__()
        if self.num_particles < 1 or min(self.q_ema, self.max_q, self.lam_lr) <= 0:
            raise UsageError("num_particles, q_ema, max_q and lam_lr must be positive")
        if self.target_kl is not None and self.a_0 not in PER_STATE:
            raise UsageError("target_kl tunes lam of a_0 particles or resampled: set it to none")

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
        drawn = self.draw(nets, mirror, next_obs, std, k_target, self.target_candidates)
        critic, metrics = self.evaluate(nets, batch, drawn.choice)

        # Mirror descent (lines 9-10): score matching on a_0 ~ pi_old, weighted by exp(Q / lam).
        def improve() -> tuple[Learned, Mirror]:
            obs, old = next_obs, drawn
            if self.loss_at == "obs":
                obs = batch.obs
                old = self.draw(nets, mirror, obs, std, k_loss, self.num_particles)
            if self.a_0 == "particles":
                a_0, q, weight = old.actions, old.q, old.weight
            elif self.a_0 == "resampled":  # the same in expectation, with one row per state
                a_0, q, weight = old.choice[None], old.q, jnp.ones_like(old.weight[:1])
            else:
                a_0 = old.actions[:1] if self.a_0 == "policy" else old.choice[None]
                q = critic.params.of_candidates(obs, a_0)
                weight = self.weigh(mirror, q)
            t = jax.random.randint(k_t, a_0.shape[:-1], 1, self.T + 1)
            noise = jax.random.normal(k_noise, a_0.shape)
            a_t = perturb(self.noise_schedule, a_0, t, noise)
            actor, measured = nets.actor.descend(
                self.actor_optimizer,
                lambda actor: score_matching(actor.at(obs[None]), a_t, t, noise, weight),
            )
            return actor, self.steer(mirror, q, measured)

        actor, mirror = every(self.policy_delay, step, improve, lambda: (nets.actor, mirror))

        metrics |= {**mirror.metrics, "lam": jnp.exp(mirror.log_lam.params), "noise": std}
        nets = self.advance(actor, critic, nets, step)
        mirror = mirror._replace(log_lam=self.lam.advance(mirror.log_lam, step))  # line 11
        return Update(State(nets, mirror, self.noise.advance(state.log_noise, step)), metrics)

    def draw(self, nets: Nets, mirror: Mirror, obs: Array, std: Array, key: Array, n: int) -> Drawn:
        """Actions of pi_old, and the choice among them: the best, or one drawn by its weight."""
        k_old, k_choice = jax.random.split(key)
        actions, q = self.old_actions(nets, obs, std, k_old, n)
        weight = self.weigh(mirror, q)
        if self.a_0 == "resampled":
            return Drawn(actions, q, weight, one_of(k_choice, actions, weight))
        best = best_of(actions, q)
        best = jitter(k_choice, best, std) if self.update_noise == "choice" else best
        return Drawn(actions, q, weight, best)

    def weigh(self, mirror: Mirror, q: Array) -> Array:
        """exp(Q / lam): normalised over the actions of a state, or clipped across states."""
        q = mirror.q.normalise(q) if self.normalise_q else q
        lam = jnp.exp(mirror.log_lam.params)
        if self.a_0 in PER_STATE:
            return normalised_weights(q / lam)
        return jnp.exp(jnp.clip(q, -self.max_q, self.max_q) / lam)

    def steer(self, mirror: Mirror, q: Array, measured: dict[str, Array]) -> Mirror:
        """Temperature by the weights' KL, Q statistics (line 12), and metrics of this step."""
        axis = 0 if self.a_0 in PER_STATE else 1
        metrics = {**measured, **weight_metrics(self.weigh(mirror, q), axis)}
        metrics["q_spread"] = jnp.mean(jnp.std(q, axis=axis))
        log_lam = mirror.log_lam
        if self.target_kl is not None:
            rule = optax.adam(self.lam_lr)
            log_lam = match_kl(log_lam, rule, metrics["weight_kl"], self.target_kl)
        return Mirror(log_lam, mirror.q.follow(q, self.q_ema), metrics)
