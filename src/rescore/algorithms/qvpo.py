"""Q-weighted Variational Policy Optimization: Ding et al. (2024)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore import streams
from rescore.algorithms.diffusion_actor import Copy, DiffusionActorCritic, NoiseIn, State
from rescore.core import Spec, Transition, Update, check_positive
from rescore.diffusion.samplers import best_of
from rescore.models.learned import Anneal, Learned

ENTROPY_WEIGHT = (0.02, 0.002)  # omega of uniform actions, first and last: the authors' code


@dataclass(frozen=True)
class QVPO(DiffusionActorCritic):
    """Score matching on the best of K samples, weighted by its advantage; uniform actions beside
    it keep the entropy."""

    num_samples: int = 4  # K: samples per state, the best of them is learned from
    uniform_actions: int = 4  # per state, for the entropy
    entropy_decay: int = 1_000_000  # updates over which their weight falls
    noise: Anneal = Anneal(0.1, 0.1)  # std of the Gaussian added to actions
    noise_in: NoiseIn = "acting"  # which actions get the noise
    target_candidates: int = 2  # samples to choose from in the Bellman target
    pi_old: Copy = "target"  # which copy of the actor the Bellman target samples

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "num_samples", "uniform_actions", "entropy_decay")

    def init(self, key: Array, spec: Spec) -> State:
        return self.init_state(key, spec)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_sample, k_uniform, k_t, k_noise = jax.random.split(key, 5)
        nets = state.nets

        # Policy evaluation.
        pi_old = nets.target_actor if self.pi_old == "target" else nets.actor.params
        a_next = self.choose_action(state, batch.next_obs, k_next, pi_old)
        critic, metrics = self.fit_critic(nets, batch, a_next)

        # Variational policy improvement with the advantage weight max(Q - V, 0).
        def improve() -> tuple[Learned, dict]:
            samples = self.sample(nets.actor.params, batch.obs, k_sample, self.num_samples)
            q = self.q_values(self.policy_critic(nets, critic), batch.obs, samples)  # [K, B]
            advantage = jnp.max(q, axis=0) - jnp.mean(q, axis=0)
            shape = (self.uniform_actions, *batch.action.shape)
            uniform = 2.0 * streams.uniform(k_uniform, shape) - 1.0
            a_0 = jnp.concatenate([best_of(samples, q)[None], uniform])  # [1 + uniform, B, d]
            omega = optax.linear_schedule(*ENTROPY_WEIGHT, self.entropy_decay)(step)
            share = jnp.concatenate([jnp.ones(1), jnp.full(self.uniform_actions, omega)])
            weight = share[:, None] * advantage[None]
            t, noise, a_t = self.noised(a_0, k_t, k_noise)
            actor, loss = self.regress(nets.actor, batch.obs[None], a_t, t, noise, weight)
            return actor, loss | {"advantage": jnp.mean(advantage)}

        actor, measured = self.delayed(step, improve, nets.actor)
        return self.finish(state, actor, critic, metrics | measured, step)
