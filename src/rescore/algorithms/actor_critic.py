"""What every off-policy actor-critic shares: hyperparameters, critic steps, target networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from rescore import streams
from rescore.core import Activation, Spec, Transition, UsageError, check_choices, check_positive
from rescore.models.critics import Critic, bellman_target, td_loss
from rescore.models.learned import Learned, every, polyak

# Policy steps between which the actor's rate falls: relax/algorithm/dpmd.py of the released code.
ACTOR_LR_DECAY = (25_000, 75_000)


class Nets(NamedTuple):
    """theta and zeta with their optimisers, and the target networks of both."""

    actor: Learned
    target_actor: Any  # none where nothing reads it
    critic: Learned
    target_critic: Any


@dataclass(frozen=True)
class ActorCritic:
    """Hyperparameters and pure methods; nothing implemented here is ever overridden."""

    source: ClassVar[str] = "replay"
    keeps_particles: ClassVar[bool] = False

    hidden: tuple[int, ...] = (256, 256)  # widths of actor and critics
    activation: Activation = "mish"
    num_critics: int = 2  # ensemble size; its minimum is the pessimistic value
    gamma: float = 0.99  # discount
    reward_scale: float = 1.0  # factor on rewards before the Bellman target
    critic_lr: float = 3e-4
    critic_steps: int = 1  # optimiser steps of the critic per update, on one target
    actor_lr: float = 3e-4
    actor_lr_end: float = 3e-4  # reached linearly between policy steps 25,000 and 75,000
    max_grad_norm: float | None = None  # longer gradients of actor and critic are shortened to it
    polyak_rate: float = 0.02  # step of the target networks towards the online ones
    policy_delay: int = 2  # updates between two policy steps
    target_delay: int = 2  # updates between two steps of the target networks

    def __post_init__(self):
        """Refuse impossible values here, where the message can say so."""
        check_choices(self)
        check_positive(self, "num_critics", "critic_steps", "policy_delay", "target_delay")
        check_positive(self, "critic_lr", "actor_lr", "actor_lr_end", "reward_scale")
        check_positive(self, "max_grad_norm")
        if not 0 <= self.gamma < 1 or not 0 < self.polyak_rate <= 1:
            raise UsageError("gamma must lie in [0, 1) and polyak_rate in (0, 1]")
        if not self.hidden or min(self.hidden) < 1:
            raise UsageError(f"hidden must name at least one width, not {self.hidden}")

    @property
    def actor_optimizer(self) -> optax.GradientTransformation:
        begin, end = ACTOR_LR_DECAY
        rate = optax.linear_schedule(self.actor_lr, self.actor_lr_end, end - begin, begin)
        return self.adam(self.actor_lr if self.actor_lr == self.actor_lr_end else rate)

    @property
    def critic_optimizer(self) -> optax.GradientTransformation:
        return self.adam(self.critic_lr)

    def adam(self, rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
        adam = optax.adam(rate)
        if self.max_grad_norm is None:
            return adam
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adam)

    def create_nets(self, actor: Any, target_actor: Any, critic: Any) -> Nets:
        return Nets(
            actor=Learned.create(actor, self.actor_optimizer),
            target_actor=target_actor,
            critic=Learned.create(critic, self.critic_optimizer),
            target_critic=critic,
        )

    def init_critic(self, key: Array, spec: Spec) -> Critic:
        return Critic(key, *spec, self.hidden, self.activation, self.num_critics)

    def fit_critic(
        self, nets: Nets, batch: Transition, a_next: Array, bonus: Array | float = 0.0
    ) -> tuple[Learned, dict]:
        """Policy evaluation: the critic's step(s) on the Bellman residual.

        `bonus` joins the value of s', as the entropy of a soft method does.
        """
        next_value = nets.target_critic.min(batch.next_obs, a_next) + bonus
        target = bellman_target(batch, next_value, self.gamma, self.reward_scale)
        critic = nets.critic
        for _ in range(self.critic_steps):
            critic, metrics = critic.descend(
                self.critic_optimizer, lambda params: td_loss(params, batch, target)
            )
        return critic, metrics

    def update_targets(
        self, actor: Learned, critic: Learned, nets: Nets, step: Array, actor_delay: int = 0
    ) -> Nets:
        """The new networks, their targets moved when it is time; `actor_delay`: the actor's."""
        online = actor.params if nets.target_actor is not None else None
        target_actor = self.follow(
            nets.target_actor, online, actor_delay or self.target_delay, step
        )
        target_critic = self.follow(nets.target_critic, critic.params, self.target_delay, step)
        return Nets(actor, target_actor, critic, target_critic)

    def follow(self, target: Any, online: Any, delay: int, step: Array) -> Any:
        """A target network, a Polyak step nearer to the online one when it is time."""
        return every(delay, step, lambda: polyak(target, online, self.polyak_rate), lambda: target)


def jitter(key: Array, action: Array, std: Array | float) -> Array:
    """Gaussian noise added, then clipped to the box: nothing outside it is ever used."""
    return jnp.clip(action + std * streams.normal(key, action.shape), -1.0, 1.0)
