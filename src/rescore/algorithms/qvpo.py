"""Q-weighted Variational Policy Optimization: Ding et al. (2024)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore import streams
from rescore.algorithms.diffusion_actor import Copy, DiffusionActorCritic, State, UpdateNoise
from rescore.core import Spec, Transition, Update, check_positive
from rescore.diffusion.samplers import best_of
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned


@dataclass(frozen=True)
class QVPO(DiffusionActorCritic):
    """Score matching on the best of K samples, weighted by its advantage; uniform actions beside
    it keep the entropy."""

    num_samples: int = 4  # K: samples per state, the best of them is learned from
    uniform_actions: int = 4  # per state, for the entropy
    entropy_weight: tuple[float, float] = (0.02, 0.002)  # omega of those, first and last
    entropy_decay: int = 1_000_000  # updates from the first to the last, linearly
    noise: Relaxation = Relaxation(0.1, 0.1)  # std of the Gaussian added to actions
    update_noise: UpdateNoise = "none"  # where the noise enters actions of the update
    target_candidates: int = 2  # samples to choose from in the Bellman target
    pi_old: Copy = "slow"  # which copy of the actor the Bellman target samples

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "num_samples", "uniform_actions", "entropy_decay")

    def init(self, key: Array, spec: Spec) -> State:
        return self.init_state(key, spec, "policy_loss", "advantage")

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_sample, k_uniform, k_t, k_noise = jax.random.split(key, 5)
        nets = state.nets

        # Policy evaluation.
        a_next = self.choice(state, batch.next_obs, k_next, self.target_candidates)
        critic, metrics = self.evaluate(nets, batch, a_next)

        # Variational policy improvement with the advantage weight max(Q - V, 0).
        def improve() -> tuple[Learned, dict]:
            samples = self.sample(nets.actor.params, batch.obs, k_sample, self.num_samples)
            q = self.compare(critic, batch.obs, samples)  # [K, B]
            advantage = jnp.max(q, axis=0) - jnp.mean(q, axis=0)
            shape = (self.uniform_actions, *batch.action.shape)
            uniform = 2.0 * streams.uniform(k_uniform, shape) - 1.0
            a_0 = jnp.concatenate([best_of(samples, q)[None], uniform])  # [1 + uniform, B, d]
            omega = optax.linear_schedule(*self.entropy_weight, self.entropy_decay)(step)
            weight = jnp.full(a_0.shape[:1], omega).at[0].set(1.0)[:, None] * advantage[None]
            t, noise, a_t = self.noised(a_0, k_t, k_noise)
            actor, measured = self.regress(nets.actor, batch.obs[None], a_t, t, noise, weight)
            return actor, {**measured, "advantage": jnp.mean(advantage)}

        actor, measured = self.delayed(state, step, improve)
        return self.finish(state, actor, critic, measured, metrics, step)
