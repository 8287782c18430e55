"""Q-Score Matching: Psenka et al. (2024). The score of the policy is the gradient of Q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from rescore.algorithms.diffusion_actor import DiffusionActorCritic, NoiseIn, Schedule, State
from rescore.core import Spec, Transition, Update, check_positive
from rescore.diffusion.process import noise_of_score
from rescore.diffusion.samplers import clipped_ddpm, shrinking_langevin
from rescore.models.critics import Critic, CriticSettings
from rescore.models.learned import Anneal, Learned
from rescore.models.networks import NoiseNet


@dataclass(frozen=True)
class QSM(DiffusionActorCritic):
    """Regression of the noise network on a scaled gradient of Q at the noised replay action."""

    # Reverse step: DDPM with a clipped a_t, as published, or Langevin on a score of clean actions.
    chain: Literal["clip", "langevin"] = "clip"
    schedule: Schedule = "vp"
    q_scale: float = 10.0  # M_q: factor on the gradient
    # The gradient as it is; or over its mean length in the batch, and in the chain of DDPM times
    # sqrt(1 - alpha_bar_t).
    gradient: Literal["raw", "normalised"] = "normalised"
    critic: CriticSettings = CriticSettings(improve_reduce="mean")  # how values are learned
    noise: Anneal = Anneal(0.1, 0.1)  # std of the Gaussian added to actions
    noise_in: NoiseIn = "choice"  # which actions get the noise

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "q_scale")

    def init(self, key: Array, spec: Spec) -> State:
        return self.init_state(key, spec)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_t, k_noise = jax.random.split(key, 3)

        # Policy evaluation.
        a_next = self.choose_action(state, batch.next_obs, k_next)
        critic, metrics = self.fit_critic(state.nets, batch, a_next)

        # The policy's score follows the gradient of Q at the noisy action.
        def improve() -> tuple[Learned, dict]:
            if self.chain == "langevin":
                t, a_t = jnp.ones(batch.reward.shape, int), batch.action
            else:
                t, _, a_t = self.noised(batch.action, k_t, k_noise)
            slope = self.gradient_at(self.policy_critic(state.nets, critic), batch.obs, a_t)
            length = jnp.mean(jnp.linalg.norm(slope, axis=-1))
            score, target = self.q_scale * slope, -self.q_scale * slope
            if self.gradient == "normalised":
                score = score / jnp.maximum(length, 1e-6)
                langevin = self.chain == "langevin"  # it moves by the score, and has no level t
                target = -score if langevin else noise_of_score(self.noise_schedule, score, t)
            actor, loss = self.regress(state.nets.actor, batch.obs, a_t, t, target, 1.0)
            return actor, loss | {"q_gradient": length}

        actor, measured = self.delayed(step, improve, state.nets.actor)
        return self.finish(state, actor, critic, metrics | measured, step)

    def sample(self, actor: NoiseNet, obs: Array, key: Array, n: int) -> Array:
        """n actions per state in small steps: nothing is denoised to a_0 on the way. [n, B, d]"""
        eps, shape = actor.at(obs[None]), (n, obs.shape[0], actor.act_dim)
        if self.chain == "clip":
            return clipped_ddpm(self.noise_schedule, eps, key, shape)
        first = jnp.ones(shape[:-1], int)
        return shrinking_langevin(lambda a: -eps(a, first), key, shape, self.T)

    def gradient_at(self, critic: Critic, obs: Array, action: Array) -> Array:
        """grad_a Q. [B, act_dim]"""
        return jax.grad(lambda a: jnp.sum(critic.value(obs, a)))(action)
