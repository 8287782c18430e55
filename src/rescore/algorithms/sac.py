"""Soft Actor-Critic: Haarnoja et al. (2018), with the temperature tuned to a target entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.actor_critic import ActorCritic, Nets
from rescore.core import Act, Activation, Spec, Transition, Update, check_positive
from rescore.models.learned import Learned, regulate
from rescore.models.networks import MLP
from rescore.models.policies import sample_squashed, squashed_parameters


class State(NamedTuple):
    nets: Nets
    log_alpha: Learned


@dataclass(frozen=True)
class SAC(ActorCritic):
    """A squashed Gaussian policy, its entropy part of the value."""

    activation: Activation = "relu"
    polyak_rate: float = 0.005  # step of the target critics towards the online ones
    policy_delay: int = 1  # updates between two policy steps
    target_delay: int = 1  # updates between two steps of the target critics
    alpha: float = 1.0  # first temperature
    alpha_lr: float = 3e-4  # rate of log alpha
    entropy_per_dim: float = -1.0  # target entropy of the policy, per action dimension

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "alpha", "alpha_lr")

    def init(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = MLP(k_actor, [spec.obs_dim], self.hidden, 2 * spec.act_dim, self.activation)
        nets = self.create_nets(actor, None, self.init_critic(k_critic, spec))
        log_alpha = Learned.create(jnp.log(jnp.float32(self.alpha)), self.adam(self.alpha_lr))
        return State(nets, log_alpha)

    def act(self, state: State, obs: Array, key: Array, explore: bool) -> Act:
        actor = self.policy_to_act(state.nets, state.nets.actor.params, explore)
        if explore:
            return Act(sample_squashed(actor(obs), key)[0], {})
        return Act(jnp.tanh(squashed_parameters(actor(obs))[0]), {})

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_policy = jax.random.split(key)
        nets, alpha = state.nets, jnp.exp(state.log_alpha.params)

        # Soft policy evaluation: the entropy of the next action joins its value.
        a_next, log_pi_next = sample_squashed(nets.actor.params(batch.next_obs), k_next)
        critic, metrics = self.fit_critic(nets, batch, a_next, -alpha * log_pi_next)

        # Policy improvement: the reparameterised gradient of alpha log pi - Q.
        def loss(actor: MLP) -> tuple[Array, dict]:
            action, log_pi = sample_squashed(actor(batch.obs), k_policy)
            q = self.policy_critic(nets, critic).value(batch.obs, action)
            loss = jnp.mean(alpha * log_pi - q)
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_pi)}

        # Temperature: it grows while the entropy is below its target.
        def improve() -> tuple[tuple[Learned, Learned], dict]:
            actor, measured = nets.actor.descend(self.actor_optimizer, loss)
            surplus = measured["entropy"] - self.entropy_per_dim * batch.action.shape[-1]
            log_alpha = regulate(state.log_alpha, surplus, self.adam(self.alpha_lr))
            return (actor, log_alpha), measured

        hold = (nets.actor, state.log_alpha)
        (actor, log_alpha), measured = self.delayed(step, improve, hold)
        nets = self.update_targets(actor, critic, nets, step)
        return Update(State(nets, log_alpha), metrics | measured | {"alpha": alpha})
