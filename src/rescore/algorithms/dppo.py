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

from rescore.algorithms.on_policy import Appraised, Metrics, Nets, OnPolicy, State, mean_of
from rescore.core import Act, Rollout, Spec, Update, UsageError, check_positive
from rescore.diffusion.samplers import ddpm
from rescore.diffusion.schedules import SCHEDULES, NoiseSchedule
from rescore.models.chain import kernel, sample_chain
from rescore.models.gaussian import Gaussian
from rescore.models.networks import NoiseNet
from rescore.models.policy_gradient import standardise, surrogate


@dataclass(frozen=True)
class DPPO(OnPolicy):
    """PPO's recipe on denoising steps."""

    activation: Literal["mish", "relu", "gelu", "tanh"] = "mish"  # of both networks
    schedule: Literal["cosine", "linear", "vp"] = "cosine"
    T: int = 10  # denoising steps
    min_std: float = 0.1  # of every denoising step, the last included: all exploration there is
    denoising_gamma: float = 1.0  # discount of the advantage per step that is still to come
    clip_start: float | None = None  # clip of the first step, rising to `clip`; none for no change
    clip_rate: float = 3.0  # how late the clip rises, in exponents
    reduce: Literal["sum", "mean"] = "sum"  # over action dimensions, of a step's log-ratio

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "T", "min_std", "clip_start", "clip_rate")
        if not 0 <= self.denoising_gamma <= 1:
            raise UsageError(f"denoising_gamma must lie in [0, 1], not {self.denoising_gamma}")

    @property
    def noise_schedule(self) -> NoiseSchedule:
        return SCHEDULES[self.schedule](self.T)

    def init(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = NoiseNet(k_actor, *spec, self.T, self.hidden, self.activation)
        return self.init_state(k_critic, actor, spec.obs_dim)

    def act(self, state: State, obs: Array, key: Array, explore: bool) -> Act:
        """The end of a chain, all of which is remembered; not exploring, without the floor."""
        actor: NoiseNet = state.nets.actor.params
        eps, shape = actor.at(self.see(state, obs)), (obs.shape[0], actor.act_dim)
        if not explore:
            return Act(ddpm(self.noise_schedule, eps, key, shape, start_std=1.0), {})
        chain = sample_chain(self.noise_schedule, eps, key, shape, self.min_std)
        return Act(jnp.clip(chain[-1], -1.0, 1.0), {"chain": jnp.moveaxis(chain, 0, 1)})

    def update(self, state: State, rollout: Rollout, key: Array, step: Array) -> Update:
        rows, new = self.appraise(state, rollout)
        chain = rollout.extras["chain"]
        nets, metrics = self.improve(state.nets, rows, chain.reshape(-1, *chain.shape[2:]), key)
        return Update(new._replace(nets=nets), mean_of(metrics))

    def steps(self, actor: NoiseNet, obs: Array, a_t: Array, t: Array) -> Gaussian:
        """p(a_{t-1} | a_t, s) of the given steps."""
        return kernel(self.noise_schedule, actor.at(obs), a_t, t, self.min_std)

    def improve(
        self, nets: Nets, rows: Appraised, chain: Array, key: Array
    ) -> tuple[Nets, Metrics]:
        """All epochs on single denoising steps of chains [n, T + 1, d]; metrics of each minibatch.

        Steps are drawn over environment and denoising time alike, not chain by chain.
        """
        done = jnp.broadcast_to(jnp.arange(self.T), (rows.count, self.T))  # steps before this one
        old = self.steps(nets.actor.params, rows.obs[:, None], chain[:, :-1], self.T - done)

        def one(nets: Nets, index: Array) -> tuple[Nets, Metrics]:
            row, k = index // self.T, index % self.T
            batch = jax.tree.map(lambda x: x[row], rows)
            before, a_t, a_s = jax.tree.map(lambda x: x[row, k], (old, chain[:, :-1], chain[:, 1:]))
            to_come = (self.T - 1 - k).astype(jnp.float32)
            advantage = standardise(batch.advantage) * self.denoising_gamma**to_come

            def loss(actor: NoiseNet) -> tuple[Array, Metrics]:
                change = self.steps(actor, batch.obs, a_t, self.T - k).log_ratio(before, a_s)
                change = getattr(jnp, self.reduce)(change, axis=-1)
                return surrogate(change, advantage, self.clip_at(k))

            actor, measured = nets.actor.descend(self.optimizer(self.actor_lr), loss)
            critic, metrics = self.evaluate(nets.critic, batch)
            return Nets(actor, critic), metrics | measured

        nets, metrics = self.sweep(nets, rows.count * self.T, key, one)
        likely = jnp.mean(jnp.sum(old.log_prob(chain[:, 1:]), axis=(1, 2)))
        return nets, metrics | {"chain_log_prob": jnp.full_like(metrics["kl"], likely)}

    def clip_at(self, k: Array) -> Array | float:
        """Clip of denoising step k = 0..T - 1, exponentially from `clip_start` to `clip`."""
        if self.clip_start is None:
            return self.clip
        share = jnp.expm1(self.clip_rate * k / max(self.T - 1, 1)) / jnp.expm1(self.clip_rate)
        return self.clip_start + (self.clip - self.clip_start) * share
