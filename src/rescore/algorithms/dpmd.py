"""Diffusion Policy Mirror Descent: Algorithm 1 of Ma et al. (ICML 2025).

Score matching on actions of pi_old, each weighted by exp(Q / lam): eq. (loss_mirror_descent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.actor_critic import Nets, jitter
from rescore.algorithms.diffusion_actor import DiffusionActorCritic
from rescore.core import Spec, Transition, Update, UsageError, check_positive
from rescore.diffusion.samplers import best_of, one_of
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned, every
from rescore.models.tilt import Tilt


class State(NamedTuple):
    nets: Nets
    tilt: Tilt
    log_noise: Learned  # std of the exploration noise


class Drawn(NamedTuple):
    """Actions of pi_old at B states: those of the policy loss, and that of the Bellman target."""

    a_0: Array  # [K or 1, B, act_dim]
    q: Array  # [K, B], of all actions drawn
    weight: Array  # [K, B]
    choice: Array  # [B, act_dim]


@dataclass(frozen=True)
class DPMD(DiffusionActorCritic):
    """Algorithm 1; every choice that the paper leaves open or the released code changed."""

    T: int = 3  # diffusion steps
    judges: int | None = 1  # critics whose minimum compares actions of one state; none: all
    target_candidates: int = 4  # samples to choose from in the Bellman target
    noisy_copies: int = 1  # of each sample, when the noise is on the candidates
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
        check_positive(self, "num_particles", "lam_lr", "q_ema", "max_q")
        if self.target_kl is not None and (not self.per_state or self.lam.init != self.lam.target):
            raise UsageError("target_kl tunes a constant lam of a_0 particles or resampled")
        k = self.num_particles if self.loss_at == "obs" else self.target_candidates
        k *= self.noisy_copies if self.update_noise == "candidates" else 1
        if self.per_state and (k == 1 or self.update_noise == "choice"):
            raise UsageError(f"a_0 {self.a_0} needs several candidates, and no noise on the choice")

    @property
    def per_state(self) -> bool:
        """Whether weights compare the actions of one state, not one action each of all states."""
        return self.a_0 in ("particles", "resampled")

    def init(self, key: Array, spec: Spec) -> State:
        return State(self.init_nets(key, spec), Tilt.create(self.lam), self.noise.create())

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_target, k_loss, k_t, k_noise = jax.random.split(key, 4)
        nets, tilt, std = state.nets, state.tilt, jnp.exp(state.log_noise.params)
        # A terminal s' needs no action; s in its place makes every row good for the policy loss.
        next_obs = jnp.where(batch.terminated[:, None] > 0, batch.obs, batch.next_obs)

        # Policy evaluation (lines 6-7).
        drawn = self.draw(state, next_obs, k_target, self.target_candidates)
        critic, metrics = self.evaluate(nets, batch, drawn.choice)

        # Mirror descent (lines 9-10): score matching on a_0 ~ pi_old, weighted by exp(Q / lam).
        def improve() -> tuple[Learned, Tilt]:
            obs, old = next_obs, drawn
            if self.loss_at == "obs":
                obs, old = batch.obs, self.draw(state, batch.obs, k_loss, self.num_particles)
            a_0, q, weight = old.a_0, old.q, old.weight
            if not self.per_state:
                q = self.compare(critic, obs, a_0)
                weight = tilt.weigh(q, False, self.normalise_q, self.max_q)
            new = tilt.follow(q, weight, self.per_state, self.q_ema)
            if self.a_0 == "resampled":  # drawn by weight: the particles' loss in expectation
                weight = jnp.ones_like(weight[:1])
            t, noise, a_t = self.noised(a_0, k_t, k_noise)
            actor, measured = self.regress(nets.actor, obs[None], a_t, t, noise, weight)
            new = new if self.target_kl is None else new.match_kl(self.target_kl, self.lam_lr)
            return actor, new._replace(metrics={**new.metrics, **measured})

        actor, tilt = every(self.policy_delay, step, improve, lambda: (nets.actor, tilt))
        metrics |= {**tilt.metrics, "lam": tilt.lam, "noise": std}
        tilt = tilt._replace(log_lam=self.lam.advance(tilt.log_lam, step))  # line 11
        log_noise = self.noise.advance(state.log_noise, step)
        return Update(State(self.advance(actor, critic, nets, step), tilt, log_noise), metrics)

    def draw(self, state: State, obs: Array, key: Array, n: int) -> Drawn:
        """Actions of pi_old, and the choice among them: the best, or one drawn by its weight."""
        k_old, k = jax.random.split(key)
        std = jnp.exp(state.log_noise.params)
        actions, q = self.old_actions(state.nets, obs, std, k_old, n)
        weight = state.tilt.weigh(q, self.per_state, self.normalise_q, self.max_q)
        choice = one_of(k, actions, weight) if self.a_0 == "resampled" else best_of(actions, q)
        choice = jitter(k, choice, std) if self.update_noise == "choice" else choice
        a_0 = {"policy": actions[:1], "particles": actions}.get(self.a_0, choice[None])
        return Drawn(a_0, q, weight, choice)
