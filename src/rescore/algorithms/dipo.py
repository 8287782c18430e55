"""DIPO: Yang et al. (2023). Replayed actions climb Q, and a diffusion model imitates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.algorithms.diffusion_actor import Copy, DiffusionActorCritic, State, UpdateNoise
from rescore.core import Spec, Transition, Update, check_positive
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned, climb


@dataclass(frozen=True)
class DIPO(DiffusionActorCritic):
    """Score matching on particles, the editable copies of replayed actions."""

    keeps_particles: ClassVar[bool] = True

    edit_steps: int = 5  # ascents of each particle per update
    edit_lr: float = 0.03  # rate of their fresh Adam
    noise: Relaxation = Relaxation(0.1, 0.1)  # std of the Gaussian added to actions
    update_noise: UpdateNoise = "none"  # where the noise enters actions of the update
    pi_old: Copy = "slow"  # which copy of the actor the Bellman target samples
    edit_grad_norm: float = 0.1  # per action dimension: the batch's gradient is shortened to it

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "edit_steps", "edit_lr", "edit_grad_norm")

    def init(self, key: Array, spec: Spec) -> State:
        return self.init_state(key, spec, "policy_loss")

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_t, k_noise = jax.random.split(key, 3)
        nets = state.nets

        # Policy evaluation.
        a_next = self.choice(state, batch.next_obs, k_next, self.target_candidates)
        critic, metrics = self.evaluate(nets, batch, a_next)

        # Action gradient: particles climb Q, and return to replay.
        clip = optax.clip_by_global_norm(self.edit_grad_norm * batch.action.shape[-1])
        ascent = optax.chain(clip, optax.adam(self.edit_lr, eps=self.adam_eps))
        value = lambda a: jnp.sum(critic.params.min(batch.obs, a))  # noqa: E731
        a_0 = climb(value, batch.particle, ascent, self.edit_steps)
        metrics["climbed"] = jnp.mean(jnp.abs(a_0 - batch.particle))

        # Score matching on them, all of one weight.
        def improve() -> tuple[Learned, dict]:
            t, noise, a_t = self.noised(a_0, k_t, k_noise)
            return self.regress(nets.actor, batch.obs, a_t, t, noise, 1.0)

        actor, measured = self.delayed(state, step, improve)
        new = self.finish(state, actor, critic, measured, metrics, step)
        return new._replace(edits=a_0)
