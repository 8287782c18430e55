"""DIPO: Yang et al. (2023). Replayed actions climb Q, and a diffusion model imitates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rescore.algorithms.diffusion_actor import DiffusionActorCritic, NoiseIn, State
from rescore.core import Spec, Transition, Update, check_positive
from rescore.models.learned import Anneal, Learned

# Of the particles' ascent, by the authors' code (agent/DiPo.py): the rate of its Adam, and the norm
# per action dimension to which the gradient of the whole batch is shortened.
EDIT_LR = 0.03
EDIT_GRAD_NORM = 0.1


@dataclass(frozen=True)
class DIPO(DiffusionActorCritic):
    """Score matching on particles, the editable copies of replayed actions."""

    keeps_particles: ClassVar[bool] = True
    actor_target_delay: ClassVar[int | None] = 2  # updates, by the same code

    edit_steps: int = 5  # ascents of each particle per update, by a fresh Adam
    noise: Anneal = Anneal(0.1, 0.1)  # std of the Gaussian added to actions
    noise_in: NoiseIn = "acting"  # which actions get the noise

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "edit_steps")

    def init(self, key: Array, spec: Spec) -> State:
        return self.init_state(key, spec)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_t, k_noise = jax.random.split(key, 3)

        # Policy evaluation.
        a_next = self.choose_action(state, batch.next_obs, k_next, state.nets.target_actor)
        critic, metrics = self.fit_critic(state.nets, batch, a_next)

        # Action gradient: particles climb Q, and return to replay.
        clip = optax.clip_by_global_norm(EDIT_GRAD_NORM * batch.action.shape[-1])
        policy_critic = self.policy_critic(state.nets, critic)
        value = lambda a: jnp.sum(policy_critic.value(batch.obs, a))  # noqa: E731
        ascent = optax.chain(clip, optax.adam(EDIT_LR))
        assert batch.particle is not None, "replay keeps them for this algorithm"
        a_0 = climb(value, batch.particle, ascent, self.edit_steps)
        metrics["climbed"] = jnp.mean(jnp.abs(a_0 - batch.particle))

        # Score matching on them, all of one weight.
        def improve() -> tuple[Learned, dict]:
            t, noise, a_t = self.noised(a_0, k_t, k_noise)
            return self.regress(state.nets.actor, batch.obs, a_t, t, noise, 1.0)

        actor, measured = self.delayed(step, improve, state.nets.actor)
        new = self.finish(state, actor, critic, metrics | measured, step)
        return new._replace(edits=a_0)


def climb(
    value: Callable[[Array], Array], x: Array, optimizer: optax.GradientTransformation, steps: int
) -> Array:
    """x after this many ascents of `value`, each clipped to the box; the optimiser starts fresh."""

    def one(point: Learned, _: None) -> tuple[Learned, None]:
        new = point.descend(optimizer, lambda x: (-value(x), {}))[0]
        return new._replace(params=jnp.clip(new.params, -1.0, 1.0)), None

    return jax.lax.scan(one, Learned.create(x, optimizer), length=steps)[0].params
