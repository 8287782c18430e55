"""What the off-policy diffusion algorithms share: hyperparameters, networks, acting, evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.core import Act, Spec, Transition, UsageError, check_choices
from rescore.diffusion.samplers import best_of, ddpm
from rescore.diffusion.schedules import SCHEDULES, NoiseSchedule
from rescore.models.controllers import Relaxation
from rescore.models.critics import Critic, bellman_target, td_loss
from rescore.models.learned import Learned, every, polyak
from rescore.models.networks import NoiseNet


class Nets(NamedTuple):
    """theta and zeta with their optimisers, and the slow copies of both."""

    actor: Learned  # of NoiseNet
    slow_actor: NoiseNet
    critic: Learned  # of Critic
    target_critic: Critic


@dataclass(frozen=True)
class DiffusionActorCritic:
    """Hyperparameters and pure methods; nothing implemented here is ever overridden."""

    source: ClassVar[str] = "replay"
    keeps_particles: ClassVar[bool] = False

    hidden: tuple[int, ...] = (256, 256)  # widths of actor and critics
    activation: Literal["mish", "relu", "gelu", "tanh"] = "mish"
    num_critics: int = 2  # ensemble size; its minimum is the pessimistic value
    gamma: float = 0.99  # discount
    reward_scale: float = 1.0  # factor on rewards before the Bellman target
    critic_lr: float = 3e-4
    critic_steps: int = 1  # optimiser steps of the critic per update, on one target
    actor_lr: float = 3e-4
    actor_lr_end: float = 3e-4  # reached linearly between the two policy steps of actor_lr_decay
    actor_lr_decay: tuple[int, int] = (25_000, 75_000)  # counted in policy steps
    polyak_rate: float = 0.02  # step of the slow copies towards the online networks
    policy_delay: int = 2  # updates between two policy steps
    target_delay: int = 2  # updates between two steps of the slow copies
    schedule: Literal["cosine", "linear", "vp"] = "cosine"
    schedule_scale: float = 1.0  # factor on beta_t
    T: int = 10  # diffusion steps
    start_std: float | None = None  # std of a_T; none: sqrt(1 - alpha_bar_T)
    act_candidates: int = 4  # M: samples to choose from when acting
    target_candidates: int = 1  # samples to choose from in the Bellman target
    eval_candidates: int = 16  # samples to choose from in evaluation and predict
    act_with: Literal["slow", "online"] = "slow"  # which copy of the actor acts
    noise: Relaxation = Relaxation(0.5, 0.1)  # std of the Gaussian added to actions
    update_noise: Literal["none", "candidates", "choice"] = "candidates"  # noise in the update
    noisy_copies: int = 4  # of each sample, when the noise is on the candidates
    pi_old: Literal["online", "slow"] = "online"  # which copy of the actor is pi_old

    def __post_init__(self):
        """Refuse impossible values here, where the message can say so."""
        check_choices(self)
        self.demand_positive("num_critics", "critic_steps", "policy_delay", "target_delay", "T")
        self.demand_positive("act_candidates", "target_candidates", "eval_candidates")
        self.demand_positive("noisy_copies", "critic_lr", "actor_lr", "actor_lr_end")
        self.demand_positive("reward_scale", "schedule_scale", "start_std")
        if not 0 <= self.gamma < 1 or not 0 < self.polyak_rate <= 1:
            raise UsageError("gamma must lie in [0, 1) and polyak_rate in (0, 1]")
        if self.noise_schedule.alpha_bar[-1] < 1e-70:  # its root would vanish in float32
            raise UsageError("alpha_bar_T is no longer a number: smaller T or schedule_scale")
        if not self.hidden or min(self.hidden) < 1:
            raise UsageError(f"hidden must name at least one width, not {self.hidden}")

    def demand_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} must be positive and finite, not {value}")

    @property
    def noise_schedule(self) -> NoiseSchedule:
        return SCHEDULES[self.schedule](self.T, self.schedule_scale)

    @property
    def actor_optimizer(self) -> optax.GradientTransformation:
        begin, end = self.actor_lr_decay
        rate = optax.linear_schedule(self.actor_lr, self.actor_lr_end, end - begin, begin)
        return optax.adam(self.actor_lr if self.actor_lr == self.actor_lr_end else rate)

    @property
    def critic_optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.critic_lr)

    def init_nets(self, key: Array, spec: Spec) -> Nets:
        k_actor, k_critic = jax.random.split(key)
        actor = NoiseNet(k_actor, *spec, self.T, self.hidden, self.activation)
        critic = Critic(k_critic, *spec, self.hidden, self.activation, self.num_critics)
        return Nets(
            actor=Learned.create(actor, self.actor_optimizer),
            slow_actor=actor,
            critic=Learned.create(critic, self.critic_optimizer),
            target_critic=critic,
        )

    def sample(self, actor: NoiseNet, obs: Array, key: Array, n: int) -> Array:
        """n actions per state by the reverse process: [B, obs_dim] -> [n, B, act_dim]"""
        shape = (n, obs.shape[0], actor.trunk.rest[-1].bias.shape[0])
        return ddpm(self.noise_schedule, actor.at(obs[None]), key, shape, start_std=self.start_std)

    def choose(self, actor: NoiseNet, critic: Critic, obs: Array, key: Array, n: int) -> Array:
        """Best of n by the critic, eq. (behavior_policy). [B, act_dim]"""
        candidates = self.sample(actor, obs, key, n)
        return best_of(candidates, critic.of_candidates(obs, candidates))

    def act(self, state: Any, obs: Array, key: Array, explore: bool) -> Act:
        """Best of M plus clipped Gaussian noise; without noise when not exploring."""
        nets: Nets = state.nets
        k_sample, k_noise = jax.random.split(key)
        actor = nets.slow_actor if self.act_with == "slow" else nets.actor.params
        n = self.act_candidates if explore else self.eval_candidates
        action = self.choose(actor, nets.critic.params, obs, k_sample, n)
        std = jnp.exp(state.log_noise.params) if explore else 0.0
        return Act(jitter(k_noise, action, std), {})

    def old_actions(
        self, nets: Nets, obs: Array, std: Array, key: Array, n: int
    ) -> tuple[Array, Array]:
        """Actions of pi_old from n samples per state [N, B, act_dim], and their Q [N, B].

        Noise on the candidates is part of pi_old, so that the choice by Q selects among it and
        the policy moves within its reach; noise on the choice only widens the policy.
        """
        k_sample, k_noise = jax.random.split(key)
        actor = nets.actor.params if self.pi_old == "online" else nets.slow_actor
        actions = self.sample(actor, obs, k_sample, n)
        if self.update_noise == "candidates":
            actions = jitter(k_noise, jnp.repeat(actions, self.noisy_copies, axis=0), std)
        return actions, nets.critic.params.of_candidates(obs, actions)

    def evaluate(self, nets: Nets, batch: Transition, a_next: Array) -> tuple[Learned, dict]:
        """Policy evaluation: the critic's step(s) on the Bellman residual."""
        next_value = nets.target_critic.min(batch.next_obs, a_next)
        target = bellman_target(batch, next_value, self.gamma, self.reward_scale)
        critic = nets.critic
        for _ in range(self.critic_steps):
            critic, metrics = critic.descend(
                self.critic_optimizer, lambda params: td_loss(params, batch, target)
            )
        return critic, metrics

    def advance(self, actor: Learned, critic: Learned, nets: Nets, step: Array) -> Nets:
        """The new networks, their slow copies moved when it is time."""
        slow = (nets.slow_actor, nets.target_critic)
        slow_actor, target_critic = every(
            self.target_delay,
            step,
            lambda: polyak(slow, (actor.params, critic.params), self.polyak_rate),
            lambda: slow,
        )
        return Nets(actor, slow_actor, critic, target_critic)


def jitter(key: Array, action: Array, std: Array | float) -> Array:
    """Gaussian noise added, then clipped to the box: nothing outside it is ever used."""
    return jnp.clip(action + std * jax.random.normal(key, action.shape), -1.0, 1.0)
