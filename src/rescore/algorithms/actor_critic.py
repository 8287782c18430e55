"""What every off-policy actor-critic shares: hyperparameters, critic steps, target networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore import streams
from rescore.core import (
    Activation,
    RewardRule,
    Spec,
    Transition,
    UsageError,
    check_choices,
    check_positive,
)
from rescore.models.critics import (
    BatchNorm,
    Critic,
    CriticSettings,
    bellman_target,
    mean_return,
    replace_norms,
    td_loss,
)
from rescore.models.learned import Learned, every, measured_every, polyak

# Policy steps between which the actor's rate falls: relax/algorithm/dpmd.py of the released code.
ACTOR_LR_DECAY = (25_000, 75_000)


# Batch norm instead of target networks: CrossQ (Bhatt et al., 2024), at an eighth of its width.
# Its gradient is noisy where its values are not, and the policy follows the gradient: so networks
# are smooth, and it follows the mean of their Polyak averages (ADR 0033 and 0036).
MODERN = CriticSettings(
    activation="mish",
    improve_reduce="mean",
    norm="batch",
    target=False,
    improve_with="target",
    lr=1e-3,
)


class Nets(NamedTuple):
    """theta and zeta with their optimisers, and the target networks of both."""

    actor: Learned
    target_actor: Any  # none in SAC
    critic: Learned
    target_critic: Any  # none without one
    averaged_actor: Any  # mean of its recent weights; none without one


@dataclass(frozen=True)
class ActorCritic:
    """Hyperparameters and pure methods; nothing implemented here is ever overridden."""

    source: ClassVar[str] = "replay"
    keeps_particles: ClassVar[bool] = False
    actor_target_delay: ClassVar[int | None] = None  # as target_delay, of the actor's; none: as it

    hidden: tuple[int, ...] = (256, 256)  # widths of actor and critics
    activation: Activation = "mish"
    gamma: float = 0.99  # discount
    normalise_obs: bool = False  # whether networks see observations in units of their spread
    reward_scale: float = 1.0  # factor on rewards before the Bellman target
    critic: CriticSettings = CriticSettings()  # how values are learned
    actor_lr: float = 3e-4  # Adam's rate for the policy
    actor_lr_end: float = 3e-4  # reached linearly between policy steps 25,000 and 75,000
    b1: float = 0.9  # Adam's first decay, of actor and critics
    max_grad_norm: float | None = None  # longer gradients of actor and critic are shortened to it
    polyak_rate: float = 0.02  # step of the target networks towards the online ones
    policy_delay: int = 2  # updates between two policy steps
    target_delay: int = 2  # updates between two steps of the target networks
    # Updates over which the actor's weights are averaged for evaluation; none: its newest weights.
    averaging: int | None = None

    def __post_init__(self):
        """Refuse impossible values here, where the message can say so."""
        check_choices(self)
        check_positive(self, "actor_lr", "actor_lr_end", "reward_scale", "max_grad_norm")
        check_positive(self, "policy_delay", "target_delay", "averaging")
        for name in ("gamma", "b1"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie in [0, 1), not {getattr(self, name)}")
        if self.critic.normalise_rewards and self.reward_scale != 1:
            raise UsageError(
                "critic.normalise_rewards brings rewards to their scale: leave reward_scale at 1"
            )
        if not 0 < self.polyak_rate <= 1:
            raise UsageError(f"polyak_rate must lie in (0, 1], not {self.polyak_rate}")
        if not self.hidden or min(self.hidden) < 1:
            raise UsageError(f"hidden must name at least one width, not {self.hidden}")

    @property
    def reward_rule(self) -> RewardRule:
        return RewardRule(self.critic.n_step, self.gamma, self.critic.normalise_rewards)

    @property
    def actor_optimizer(self) -> optax.GradientTransformation:
        begin, end = ACTOR_LR_DECAY
        rate = optax.linear_schedule(self.actor_lr, self.actor_lr_end, end - begin, begin)
        return self.adam(self.actor_lr if self.actor_lr == self.actor_lr_end else rate)

    @property
    def critic_optimizer(self) -> optax.GradientTransformation:
        return self.adam(self.critic.lr)

    def adam(self, rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
        adam = optax.adam(rate, b1=self.b1)
        if self.max_grad_norm is None:
            return adam
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adam)

    def create_nets(self, actor: Any, target_actor: Any, critic: Any) -> Nets:
        copied = self.critic.target or self.critic.improve_with == "target"
        return Nets(
            actor=Learned.create(actor, self.actor_optimizer),
            target_actor=target_actor,
            critic=Learned.create(critic, self.critic_optimizer),
            target_critic=critic if copied else None,
            averaged_actor=actor if self.averaging else None,
        )

    def init_critic(self, key: Array, spec: Spec) -> Critic:
        return Critic.create(key, spec, self.critic, self.hidden, self.activation)

    def fit_critic(
        self, nets: Nets, batch: Transition, a_next: Array, bonus: Array | float = 0.0
    ) -> tuple[Learned, dict]:
        """Policy evaluation: the critic's step(s) on the Bellman residual.

        `bonus` joins the value of s', as the entropy of a soft method does. With batch norm, (s, a)
        and (s', a') are one batch of 2 B rows, so that both are normalised alike (CrossQ).
        """
        if self.critic.norm == "batch":
            return self.fit_jointly(nets, batch, a_next, bonus)
        bootstrap = nets.target_critic if self.critic.target else nets.critic.params
        next_value = bootstrap.value(batch.next_obs, a_next) + bonus
        target = bellman_target(batch, next_value, self.gamma, self.reward_scale)
        critic = nets.critic
        for _ in range(self.critic.steps):
            critic, metrics = critic.descend(
                self.critic_optimizer,
                lambda net: td_loss(net.outputs(batch.obs, batch.action), target),
            )
            critic = self.project(critic)
        return critic, metrics

    def fit_jointly(
        self, nets: Nets, batch: Transition, a_next: Array, bonus: Array | float
    ) -> tuple[Learned, dict]:
        """The same for critics with batch norm, in train mode throughout."""
        rows = batch.reward.shape[0]
        obs = jnp.concatenate([batch.obs, batch.next_obs])
        action = jnp.concatenate([batch.action, a_next])

        def loss(net: Critic) -> tuple[Array, tuple[dict, tuple[BatchNorm, ...]]]:
            outputs, norms = net.train(obs, action)  # [n, 2 B, ...]
            then = nets.target_critic.train(obs, action)[0] if self.critic.target else outputs
            next_value = net.reduce(mean_return(jax.lax.stop_gradient(then[:, rows:]))) + bonus
            target = bellman_target(batch, next_value, self.gamma, self.reward_scale)
            value, metrics = td_loss(outputs[:, :rows], target)
            return value, (metrics, norms)

        critic = nets.critic
        for _ in range(self.critic.steps):
            critic, (metrics, norms) = critic.descend(self.critic_optimizer, loss)
            critic = critic._replace(params=replace_norms(critic.params, norms))
            critic = self.project(critic)
        return critic, metrics

    def project(self, critic: Learned) -> Learned:
        """The critic after a step, its weights back at length 1 if they are to be."""
        if not self.critic.unit_weights:
            return critic
        return critic._replace(params=critic.params.at_unit_length())

    def update_targets(self, actor: Learned, critic: Learned, nets: Nets, step: Array) -> Nets:
        """The new networks; their target networks moved, if it is time."""
        actor_delay = self.actor_target_delay or self.target_delay
        target_actor = self.follow(nets.target_actor, actor.params, actor_delay, step)
        target_critic = self.follow(nets.target_critic, critic.params, self.target_delay, step)
        averaged = self.average(nets.averaged_actor, actor.params, step)
        return Nets(actor, target_actor, critic, target_critic, averaged)

    def delayed(
        self, step: Array, improve: Callable[[], tuple[Any, dict]], hold: Any
    ) -> tuple[Any, dict]:
        """improve() -> (new, metrics) at policy steps; between them `hold`, with no metrics."""
        return measured_every(self.policy_delay, step, improve, hold)

    def average(self, averaged: Any, online: Any, step: Array) -> Any:
        """The average, moved on: over the last tenth of all updates, and `averaging` at most."""
        if self.averaging is None:
            return None
        rate = jnp.maximum(1.0 / self.averaging, 10.0 / (10.0 + step))
        return polyak(averaged, online, rate)

    def policy_critic(self, nets: Nets, critic: Learned) -> Any:
        """The critics that improve the policy: those just fitted, or their target network."""
        followed = nets.target_critic if self.critic.improve_with == "target" else critic.params
        reduction = self.critic.improve_reduce
        return followed.reduced_by(reduction) if reduction else followed

    def policy_to_act(self, nets: Nets, copy: Any, explore: bool) -> Any:
        """This copy of the actor explores; the averaged one, if there is one, is evaluated."""
        return copy if explore or nets.averaged_actor is None else nets.averaged_actor

    def follow(self, target: Any, online: Any, delay: int, step: Array) -> Any:
        """A target network, if there is one, a Polyak step nearer to the online one in time."""
        if target is None:
            return None
        return every(delay, step, lambda: polyak(target, online, self.polyak_rate), lambda: target)


def jitter(key: Array, action: Array, std: Array | float) -> Array:
    """Gaussian noise added, then clipped to the box: nothing outside it is ever used."""
    return jnp.clip(action + std * streams.normal(key, action.shape), -1.0, 1.0)
