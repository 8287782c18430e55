"""Twin Delayed Deep Deterministic policy gradient: Fujimoto et al. (2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.algorithms.actor_critic import ActorCritic, Nets, jitter
from rescore.core import Act, Activation, Spec, Transition, Update, check_positive
from rescore.models.learned import Learned
from rescore.models.networks import MLP


class State(NamedTuple):
    nets: Nets


@dataclass(frozen=True)
class TD3(ActorCritic):
    """A deterministic policy, explored and smoothed by Gaussian noise in the normalised box."""

    activation: Activation = "relu"
    polyak_rate: float = 0.005  # step of the target networks towards the online ones
    act_noise: float = 0.1  # std of the noise added to actions in the environment
    target_noise: float = 0.2  # std of the noise that smooths the Bellman target
    target_noise_max: float = 0.5  # that noise is clipped to +- this

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "act_noise", "target_noise", "target_noise_max")

    def init(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = MLP(k_actor, [spec.obs_dim], self.hidden, spec.act_dim, self.activation)
        nets = self.create_nets(actor, actor, self.init_critic(k_critic, spec))
        return State(nets)

    def act(self, state: State, obs: Array, key: Array, explore: bool) -> Act:
        actor = self.policy_to_act(state.nets, state.nets.actor.params, explore)
        action = jnp.tanh(actor(obs))
        return Act(jitter(key, action, self.act_noise) if explore else action, {})

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        nets, limit = state.nets, self.target_noise_max

        # Policy evaluation at the target policy's action, smoothed by clipped noise.
        noise = streams.normal(key, batch.action.shape)
        noise = jnp.clip(self.target_noise * noise, -limit, limit)
        a_next = jnp.clip(jnp.tanh(nets.target_actor(batch.next_obs)) + noise, -1.0, 1.0)
        critic, metrics = self.fit_critic(nets, batch, a_next)

        # Deterministic policy gradient of the first critic, unless improve_reduce says of which.
        def loss(actor: MLP) -> tuple[Array, dict]:
            policy_critic = self.policy_critic(nets, critic)
            values = policy_critic(batch.obs, jnp.tanh(actor(batch.obs)))
            value = policy_critic.reduce(values) if self.critic.improve_reduce else values[0]
            loss = -jnp.mean(value)
            return loss, {"policy_loss": loss}

        def improve() -> tuple[Learned, dict]:
            return nets.actor.descend(self.actor_optimizer, loss)

        actor, measured = self.delayed(step, improve, nets.actor)
        nets = self.update_targets(actor, critic, nets, step)
        return Update(State(nets), metrics | measured)
