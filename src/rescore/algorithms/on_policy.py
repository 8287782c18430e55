"""What the on-policy algorithms share: hyperparameters, statistics, advantages, the epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore import streams
from rescore.algorithms.policy_gradient import discounted_sums, generalised_advantage, value_loss
from rescore.core import Activation, Rollout, UsageError, check_choices, check_positive
from rescore.models.learned import Learned
from rescore.models.networks import MLP
from rescore.models.normalise import Running

Metrics = dict[str, Array]


class Nets(NamedTuple):
    """The policy and the state value V(s), with their optimisers."""

    actor: Learned
    critic: Learned  # of MLP


class State(NamedTuple):
    nets: Nets
    obs: Running  # of observations [obs_dim]; fixed within a rollout and its update
    returns: Running  # of discounted sums of rewards


class Batch(NamedTuple):
    """A rollout's n = L N steps as rows for learning, all in normalised units."""

    obs: Array  # [n, obs_dim]
    value: Array  # [n], before the update
    advantage: Array  # [n]
    target: Array  # [n], of the value

    @property
    def size(self) -> int:
        return self.value.shape[0]


@dataclass(frozen=True)
class OnPolicy:
    """Hyperparameters and pure methods; nothing implemented here is ever overridden."""

    source: ClassVar[str] = "rollout"
    keeps_particles: ClassVar[bool] = False

    hidden: tuple[int, ...] = (64, 64)  # widths of the policy
    critic_hidden: tuple[int, ...] = (64, 64)  # widths of the value network
    activation: Activation = "tanh"  # of both networks
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95  # 0: one-step advantages, 1: whole returns
    epochs: int = 10  # passes over a rollout
    minibatches: int = 32  # gradient steps per pass; rows that do not fill the last one sit out
    clip: float = 0.2  # bound on the change of the probability ratio
    value_clip: float | None = None  # bound on the change of the value, none for no bound
    target_kl: float | None = None  # an update ends once its KL exceeds this
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    lr_end: float = 0.1  # share of both rates that is left after lr_updates, linearly
    lr_updates: int = 244  # updates, one per rollout
    max_grad_norm: float | None = 0.5  # bound on the gradient's norm, for each network
    normalise_obs: bool = True  # by running mean and standard deviation, clipped to +-10
    normalise_reward: bool = True  # by the running std of discounted sums, clipped to +-10

    def __post_init__(self):
        """Refuse impossible values here, where the message can say so."""
        check_choices(self)
        check_positive(self, "epochs", "minibatches", "clip", "value_clip", "target_kl")
        check_positive(self, "actor_lr", "critic_lr", "lr_updates", "max_grad_norm")
        if not 0 <= self.gamma < 1 or not 0 <= self.gae_lambda <= 1 or not 0 <= self.lr_end <= 1:
            raise UsageError("gamma must lie in [0, 1), gae_lambda and lr_end in [0, 1]")
        for name in ("hidden", "critic_hidden"):
            if min(getattr(self, name), default=0) < 1:
                raise UsageError(f"{name} must name at least one width, not {getattr(self, name)}")

    def optimizer(self, lr: float) -> optax.GradientTransformation:
        steps = self.lr_updates * self.epochs * self.minibatches
        rate = optax.linear_schedule(lr, self.lr_end * lr, steps) if self.lr_end < 1 else lr
        bound = self.max_grad_norm
        clip = optax.identity() if bound is None else optax.clip_by_global_norm(bound)
        return optax.chain(clip, optax.adam(rate, eps=1e-5))

    def init_state(self, key: Array, actor: Any, obs_dim: int) -> State:
        critic = MLP(key, [obs_dim], self.critic_hidden, 1, self.activation)
        nets = Nets(
            Learned.create(actor, self.optimizer(self.actor_lr)),
            Learned.create(critic, self.optimizer(self.critic_lr)),
        )
        return State(nets, Running.create(obs_dim), Running.create())

    def normalise(self, state: State, obs: Array) -> Array:
        """Observations as the networks see them."""
        return state.obs.normalise(obs) if self.normalise_obs else obs

    def advantages(self, state: State, rollout: Rollout) -> tuple[Batch, State]:
        """The rollout with advantages and value targets, and the statistics for the next one.

        Rewards are scaled by statistics that know them; observations as they were when acting.
        """
        seen = rollout.transition
        ended = jnp.maximum(seen.terminated, rollout.truncated)
        returns = state.returns.follow(discounted_sums(seen.reward, ended, self.gamma).ravel())
        reward = returns.scale(seen.reward) if self.normalise_reward else seen.reward
        obs, critic = self.normalise(state, seen.obs), state.nets.critic.params
        value = critic(obs)[..., 0]
        next_value = critic(self.normalise(state, seen.next_obs))[..., 0]
        advantage = generalised_advantage(
            rollout, reward, value, next_value, self.gamma, self.gae_lambda
        )
        rows = Batch(
            obs.reshape(-1, obs.shape[-1]),
            value.ravel(),
            advantage.ravel(),
            (advantage + value).ravel(),
        )
        moments = state.obs.follow(seen.obs.reshape(-1, obs.shape[-1]))
        return rows, State(state.nets, moments, returns)

    def sweep(
        self, nets: Nets, n: int, key: Array, step: Callable[[Nets, Array], tuple[Nets, Metrics]]
    ) -> tuple[Nets, Metrics]:
        """All epochs of `step(nets, index)` on minibatches of n rows, in a fresh order each.

        Metrics come stacked, one row per minibatch.
        """
        size = n // self.minibatches
        if size == 0:
            raise UsageError(
                f"a rollout with {n} rows cannot fill {self.minibatches} minibatches: "
                "take a larger chunk or fewer minibatches"
            )
        order = jnp.argsort(streams.uniform(key, (self.epochs, n)), axis=1)
        order = order[:, : size * self.minibatches].reshape(-1, size)

        def one(carry: tuple[Nets, Array], index: Array):
            nets, go_on = carry
            new, metrics = step(nets, index)
            if self.target_kl is not None:
                new = jax.tree.map(lambda a, b: jnp.where(go_on, a, b), new, nets)
                metrics |= {"used": go_on.astype(jnp.float32)}
                go_on &= metrics["kl"] <= self.target_kl
            return (new, go_on), metrics

        (nets, _), metrics = jax.lax.scan(one, (nets, jnp.bool_(True)), order)
        return nets, metrics

    def fit_critic(self, critic: Learned, rows: Batch) -> tuple[Learned, Metrics]:
        """A step of the critic on a minibatch."""

        def loss(critic: MLP) -> tuple[Array, Metrics]:
            value = critic(rows.obs)[:, 0]
            error = value_loss(value, rows.value, rows.target, self.value_clip)
            return error, {"critic_loss": error, "value": jnp.mean(value)}

        return critic.descend(self.optimizer(self.critic_lr), loss)


def mean_of(metrics: Metrics) -> Metrics:
    """Means over the minibatches of an update that were used."""
    used = metrics.get("used", jnp.ones_like(metrics["kl"]))
    means = {name: jnp.sum(used * m) / jnp.sum(used) for name, m in metrics.items()}
    return means | ({"used": jnp.mean(used)} if "used" in metrics else {})
