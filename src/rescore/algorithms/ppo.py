"""Proximal Policy Optimization, Schulman et al. (2017): a Gaussian policy and clipped ratios."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.algorithms.on_policy import Batch, Metrics, Nets, OnPolicy, State, mean_of
from rescore.algorithms.policy_gradient import standardise, surrogate
from rescore.core import Act, Rollout, Spec, Update, UsageError, check_positive
from rescore.models.policies import GaussianPolicy


@dataclass(frozen=True)
class PPO(OnPolicy):
    """The standard recipe for continuous actions."""

    std: float = 1.0  # of the policy at the start, on actions in [-1, 1]
    entropy: float = 0.0  # weight of the policy's entropy in its loss

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "std")
        if self.entropy < 0:
            raise UsageError(f"entropy must not be negative, but is {self.entropy}")

    def init(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = GaussianPolicy(k_actor, *spec, self.hidden, self.activation, self.std)
        return self.init_state(k_critic, actor, spec.obs_dim)

    def act(self, state: State, obs: Array, key: Array, explore: bool) -> Act:
        """A sample, remembered as it was before the box; the mean when not exploring."""
        policy = state.nets.actor.params(self.normalise(state, obs))
        noise = streams.normal(key, policy.mean.shape)
        sample = policy.sample(noise) if explore else policy.mean
        return Act(jnp.clip(sample, -1.0, 1.0), {"sample": sample})

    def update(self, state: State, rollout: Rollout, key: Array, step: Array) -> Update:
        rows, new = self.advantages(state, rollout)
        sample = rollout.extras["sample"].reshape(rows.size, -1)
        nets, metrics = self.improve(state.nets, rows, sample, key)
        return Update(new._replace(nets=nets), mean_of(metrics))

    def improve(self, nets: Nets, rows: Batch, sample: Array, key: Array) -> tuple[Nets, Metrics]:
        """All epochs on the rows; metrics of each minibatch in turn."""
        old = nets.actor.params(rows.obs)

        def one(nets: Nets, index: Array) -> tuple[Nets, Metrics]:
            batch, before, a = jax.tree.map(lambda x: x[index], (rows, old, sample))
            advantage = standardise(batch.advantage)

            def loss(actor: GaussianPolicy) -> tuple[Array, Metrics]:
                log_ratio = jnp.sum(actor(batch.obs).log_ratio(before, a), axis=-1)
                value, metrics = surrogate(log_ratio, advantage, self.clip)
                metrics |= {"std": jnp.mean(jnp.exp(actor.log_std))}
                return value - self.entropy * actor.entropy, metrics

            actor, measured = nets.actor.descend(self.optimizer(self.actor_lr), loss)
            critic, metrics = self.fit_critic(nets.critic, batch)
            return Nets(actor, critic), metrics | measured

        return self.sweep(nets, rows.size, key, one)
