"""Diffusion Policy Policy Optimization, Ren et al. (2024), from scratch.

PPO on a two-level decision process: each denoising step is an action of its own, a Gaussian whose
ratio is known, and all steps of a chain share the advantage of the action that it ends in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.on_policy import Batch, Metrics, Nets, OnPolicy, State, mean_of
from rescore.algorithms.policy_gradient import standardise, surrogate
from rescore.core import Act, Activation, Rollout, Spec, Update, check_positive
from rescore.diffusion.chain import Gaussian, reverse_step, sample_chain
from rescore.diffusion.samplers import ddpm
from rescore.diffusion.schedules import NoiseSchedule, cosine
from rescore.models.networks import NoiseNet


@dataclass(frozen=True)
class DPPO(OnPolicy):
    """PPO's recipe on denoising steps."""

    activation: Activation = "mish"  # of both networks
    T: int = 10  # denoising steps
    min_std: float = 0.1  # of every denoising step, the last included: all exploration there is
    reduce: Literal["sum", "mean"] = "sum"  # over action dimensions, of a step's log-ratio

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "T", "min_std")

    @property
    def noise_schedule(self) -> NoiseSchedule:
        return cosine(self.T)

    def init(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = NoiseNet(k_actor, *spec, self.T, self.hidden, self.activation)
        return self.init_state(k_critic, actor, spec.obs_dim)

    def act(self, state: State, obs: Array, key: Array, explore: bool) -> Act:
        """The last action of a denoising chain, all of which the update gets; else no min_std."""
        actor: NoiseNet = state.nets.actor.params
        eps, shape = actor.at(self.normalise(state, obs)), (obs.shape[0], actor.act_dim)
        if not explore:
            return Act(ddpm(self.noise_schedule, eps, key, shape, start_std=1.0), {})
        chain = sample_chain(self.noise_schedule, eps, key, shape, self.min_std)
        return Act(jnp.clip(chain[-1], -1.0, 1.0), {"chain": jnp.moveaxis(chain, 0, 1)})

    def update(self, state: State, rollout: Rollout, key: Array, step: Array) -> Update:
        rows, new = self.advantages(state, rollout)
        chain = rollout.extras["chain"]
        nets, metrics = self.improve(state.nets, rows, chain.reshape(-1, *chain.shape[2:]), key)
        return Update(new._replace(nets=nets), mean_of(metrics))

    def steps(self, actor: NoiseNet, obs: Array, a_t: Array, t: Array) -> Gaussian:
        """p(a_{t-1} | a_t, s) of the given steps."""
        return reverse_step(self.noise_schedule, actor.at(obs), a_t, t, self.min_std)

    def improve(self, nets: Nets, rows: Batch, chain: Array, key: Array) -> tuple[Nets, Metrics]:
        """All epochs on single denoising steps of chains [n, T + 1, d]; metrics of each minibatch.

        Steps are drawn over environment and denoising time alike, not chain by chain.
        """
        done = jnp.broadcast_to(jnp.arange(self.T), (rows.size, self.T))  # steps before this one
        old = self.steps(nets.actor.params, rows.obs[:, None], chain[:, :-1], self.T - done)

        reduce = jnp.sum if self.reduce == "sum" else jnp.mean

        def one(nets: Nets, index: Array) -> tuple[Nets, Metrics]:
            row, k = index // self.T, index % self.T
            batch = jax.tree.map(lambda x: x[row], rows)
            old_step, a_t, a_prev = jax.tree.map(
                lambda x: x[row, k], (old, chain[:, :-1], chain[:, 1:])
            )
            advantage = standardise(batch.advantage)

            def loss(actor: NoiseNet) -> tuple[Array, Metrics]:
                change = self.steps(actor, batch.obs, a_t, self.T - k).log_ratio(old_step, a_prev)
                return surrogate(reduce(change, axis=-1), advantage, self.clip)

            actor, measured = nets.actor.descend(self.optimizer(self.actor_lr), loss)
            critic, metrics = self.fit_critic(nets.critic, batch)
            return Nets(actor, critic), metrics | measured

        nets, metrics = self.sweep(nets, rows.size * self.T, key, one)
        likely = jnp.mean(jnp.sum(old.log_prob(chain[:, 1:]), axis=(1, 2)))
        return nets, metrics | {"chain_log_prob": jnp.full_like(metrics["kl"], likely)}
