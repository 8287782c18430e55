"""Diffusion policies that predict q(u_0 | s, u_t), not the noise: the defaults of DPMD and SDAC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.algorithms.actor_critic import MODERN
from rescore.algorithms.diffusion_actor import Copy, DiffusionActorCritic, NoiseIn, SoftState
from rescore.core import Spec, Transition, Update, UsageError, check_positive
from rescore.diffusion.posterior import (
    Levels,
    ancestral,
    levels,
    log_squashed,
    noised,
    noiseless,
    soft_loss,
)
from rescore.models.critics import CriticSettings
from rescore.models.learned import Learned, regulate
from rescore.models.networks import Denoiser

INSIDE = 0.999  # actions of others may lie on the border, which tanh never reaches


@dataclass(frozen=True)
class PosteriorSettings:
    """Noise levels of the predicted Gaussians, and the temperature that holds a target entropy."""

    low: float = 0.25  # sigma_1, the smallest noise level, before the squashing by tanh
    high: float = 1.5  # sigma_{T-1}; the last level is infinite
    entropy_per_dim: float = -0.5  # target entropy of the policy, per action dimension
    lam: float = 0.1  # first temperature, in units of scaled rewards
    lam_lr: float = 1e-3  # rate of its logarithm
    bonus: float = 1.0  # factor on lam in the entropy bonus of the Bellman target

    def __post_init__(self):
        check_positive(self, "low", "high", "lam", "lam_lr")
        if self.low > self.high:
            raise UsageError(f"posterior.low {self.low} must not exceed posterior.high {self.high}")
        if not 0 <= self.bonus < math.inf:
            raise UsageError(f"posterior.bonus must be a number from 0 on, not {self.bonus}")


@dataclass(frozen=True)
class PosteriorActorCritic(DiffusionActorCritic):
    """A diffusion actor-critic whose policy is a noise network, or posteriors."""

    posterior: PosteriorSettings | None = PosteriorSettings()  # none: a noise network
    T: int = 4  # diffusion steps
    critic: CriticSettings = MODERN  # how values are learned
    normalise_obs: bool = True  # whether networks see observations in units of their spread
    actor_lr: float = 1e-3  # Adam's rate for the policy
    actor_lr_end: float = 1e-3  # reached linearly between policy steps 25,000 and 75,000
    b1: float = 0.5  # Adam's first decay, of actor and critics
    policy_delay: int = 3  # updates between two policy steps
    averaging: int | None = 1_000  # updates over which weights are averaged for evaluation
    act_candidates: int = 1  # M: samples to choose from when acting
    act_with: Copy = "online"  # which copy of the actor acts
    noise_in: NoiseIn = "none"  # which actions get the noise

    # Settings of a noise network and its samples, which learned posteriors do not look at.
    without_posteriors: ClassVar[tuple[str, ...]] = (
        *("schedule", "schedule_scale", "start_std", "target_candidates", "eval_candidates"),
    )

    only_posteriors: ClassVar[tuple[str, ...]] = ()  # settings that nothing but these look at

    def __post_init__(self):
        super().__post_init__()
        posteriors = self.posterior is not None
        for name in self.without_effect:
            if getattr(self, name) != getattr(type(self), name):
                policy = "learns its posteriors" if posteriors else "is a noise network"
                other = "paper" if posteriors else "default"
                raise UsageError(
                    f"{name} has no effect on a policy that {policy}: leave it out, "
                    f"or start from preset '{other}'"
                )
        if posteriors and self.noise_in not in ("none", "acting"):
            raise UsageError(
                f"noise_in {self.noise_in} is of noise networks: a policy that learns its "
                "posteriors gets noise when acting, or none"
            )

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings that nothing reads, given the others."""
        if self.posterior is None:
            return self.only_posteriors
        return self.without_posteriors + ("noise",) * (self.noise_in == "none")

    @property
    def settings(self) -> PosteriorSettings:
        assert self.posterior is not None
        return self.posterior

    @property
    def sigma(self) -> Levels:
        return levels(self.T, self.settings.low, self.settings.high)

    def init_actor(self, key: Array, spec: Spec) -> Any:
        if self.posterior is None:
            return super().init_actor(key, spec)
        return Denoiser(key, *spec, tuple(self.sigma), self.hidden, self.activation)

    def sample(self, actor: Any, obs: Array, key: Array, n: int) -> Array:
        if self.posterior is None:
            return super().sample(actor, obs, key, n)
        shape = (n, obs.shape[0], actor.act_dim)
        return jnp.tanh(ancestral(actor.at(obs[None]), self.sigma, key, shape).u_0)

    def candidates(self, actor: Any, obs: Array, key: Array, explore: bool) -> Array:
        """Samples to explore; without exploration one action, where the means lead."""
        if explore or self.posterior is None:
            return super().candidates(actor, obs, key, explore)
        shape = (1, obs.shape[0], actor.act_dim)
        return jnp.tanh(noiseless(actor.at(obs[None]), self.sigma, shape))

    def clone(
        self, actor: Learned, obs: Array, action: Array, k_t: Array, k_noise: Array
    ) -> tuple[Learned, dict]:
        """Posteriors by their likelihood: score matching that learns its variance too."""
        if self.posterior is None:
            return super().clone(actor, obs, action, k_t, k_noise)
        u_0 = jnp.arctanh(jnp.clip(action, -INSIDE, INSIDE))
        t = self.random_times(k_t, action.shape[:1])
        u_t = noised(u_0, t, streams.normal(k_noise, action.shape), self.sigma)

        def loss(net: Denoiser) -> tuple[Array, dict]:
            loss = -jnp.mean(log_squashed(u_0, *net.at(obs)(u_t, t)))
            return loss, {"policy_loss": loss}

        return actor.descend(self.actor_optimizer, loss)

    def init_soft(self, key: Array, spec: Spec) -> SoftState:
        log_lam = jnp.log(jnp.float32(self.settings.lam))
        learned = Learned.create(log_lam, self.adam(self.settings.lam_lr))
        return SoftState(*self.init_state(key, spec), learned)

    def update_posteriors(
        self, state: SoftState, batch: Transition, key: Array, step: Array, anchor: float = 0.0
    ) -> Update:
        """Soft policy evaluation, then every posterior a step towards that of exp(Q / lam).

        `anchor` is the power of pi_old, the target actor, in what it moves to.
        """
        k_next, k_policy, k_t, k_noise, k_draw = jax.random.split(key, 5)
        nets, lam, sigma = state.nets, jnp.exp(state.log_lam.params), self.sigma
        shape = batch.action.shape

        # Soft policy evaluation. The density of the refined u_0 has no closed form: the entropy
        # bonus is that of the first draw, a Gaussian squashed by tanh.
        then = ancestral(nets.actor.params.at(batch.next_obs), sigma, k_next, shape)
        bonus = -self.settings.bonus * lam * then.log_density
        critic, metrics = self.fit_critic(nets, batch, jnp.tanh(then.u_0), bonus)

        # Policy improvement: at u_t, a noised action of the policy, q moves to the posterior of
        # exp(Q / lam); then lam falls if the policy has more entropy than it should, else rises.
        def improve() -> tuple[tuple[Learned, Learned], dict]:
            u_0 = ancestral(nets.actor.params.at(batch.obs), sigma, k_policy, shape).u_0
            t = self.random_times(k_t, shape[:1])
            u_t = noised(u_0, t, streams.normal(k_noise, shape), sigma)
            noise = streams.normal(k_draw, shape)
            policy_critic = self.policy_critic(nets, critic)
            value = lambda action: policy_critic.value(batch.obs, action) / lam  # noqa: E731
            old = nets.target_actor.at(batch.obs)(u_t, t) if anchor else None

            def loss(net: Denoiser) -> tuple[Array, dict]:
                return soft_loss(net.at(batch.obs), value, u_t, t, noise, sigma, old, anchor)

            actor, measured = nets.actor.descend(self.actor_optimizer, loss)
            surplus = measured["entropy"] - self.settings.entropy_per_dim * shape[-1]
            surplus = jnp.where(jnp.isnan(surplus), 0.0, surplus)  # a batch that did not measure it
            log_lam = regulate(state.log_lam, surplus, self.adam(self.settings.lam_lr))
            return (actor, log_lam), measured

        hold = (nets.actor, state.log_lam)
        (actor, log_lam), measured = self.delayed(step, improve, hold)
        new = state._replace(log_lam=log_lam)
        return self.finish(new, actor, critic, metrics | measured | {"lam": lam}, step)
