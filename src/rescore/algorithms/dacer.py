"""DACER: Wang et al. (2024). The gradient of Q flows through the whole denoising chain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from scipy.special import digamma

from rescore import streams
from rescore.algorithms.actor_critic import Nets, jitter
from rescore.algorithms.diffusion_actor import DiffusionActorCritic, NoiseIn
from rescore.core import Spec, Transition, Update, UsageError, check_positive
from rescore.models.critics import CriticSettings
from rescore.models.gaussian_critics import GaussianCritic, bellman_targets, likelihood_loss
from rescore.models.learned import Anneal, Learned, every, polyak, regulate
from rescore.models.networks import NoiseNet


class State(NamedTuple):
    nets: Nets
    scale: Array  # [n], usual standard deviation of each critic
    log_noise: Learned  # std of the noise that holds the entropy


@dataclass(frozen=True)
class DACER(DiffusionActorCritic):
    """Policy gradient through the sampler; a distributional critic; noise tuned to an entropy."""

    T: int = 5  # diffusion steps
    act_candidates: int = 1  # samples to choose from when acting
    eval_candidates: int = 1  # samples to choose from in evaluation and predict
    noise_in: NoiseIn = "choice"  # which actions get the noise
    # Std of the noise at first, and of the Gaussian whose entropy the policy is held at.
    noise: Anneal = Anneal(0.3, 0.09838, lr=3e-2, period=500)
    entropy_states: int = 32  # states over which the entropy is averaged
    entropy_draws: int = 64  # actions per state of its estimate

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "entropy_states", "entropy_draws")
        if self.entropy_draws < 4 or self.noise_in == "candidates":
            raise UsageError("DACER needs at least 4 entropy_draws, and noise on the choice only")
        if self.critic != CriticSettings(ensemble=self.critic.ensemble, lr=self.critic.lr):
            raise UsageError("DACER has a critic of its own: only critic.ensemble and critic.lr")

    def init(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = NoiseNet(k_actor, *spec, self.T, self.hidden, self.activation)
        critic = GaussianCritic(k_critic, spec, self.hidden, self.activation, self.critic.ensemble)
        nets = self.create_nets(actor, actor, critic)
        return State(nets, jnp.zeros(self.critic.ensemble), self.noise.create())

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        k_next, k_return, k_policy, k_entropy = jax.random.split(key, 4)
        nets, std = state.nets, jnp.exp(state.log_noise.params)

        # Distributional policy evaluation.
        a_next = self.choose_action(state, batch.next_obs, k_next)
        values = (self.gamma, self.reward_scale)
        targets = bellman_targets(nets.target_critic, batch, a_next, k_return, *values)
        spread = jnp.mean(nets.critic.params(batch.obs, batch.action)[1], axis=1)
        begun = jnp.any(state.scale > 0)  # not at step 0, which may clone demonstrations
        scale = jnp.where(begun, polyak(state.scale, spread, self.polyak_rate), spread)
        critic, metrics = nets.critic.descend(
            self.critic_optimizer, lambda net: likelihood_loss(net, batch, targets, scale)
        )

        # Policy gradient through all steps of the chain and its noise.
        def loss(actor: NoiseNet) -> tuple[Array, dict]:
            k_sample, k_noise = jax.random.split(k_policy)
            action = jitter(k_noise, self.sample(actor, batch.obs, k_sample, 1)[0], std)
            loss = -jnp.mean(critic.params.value(batch.obs, action))
            return loss, {"policy_loss": loss}

        improve = partial(nets.actor.descend, self.actor_optimizer, loss)
        actor, measured = self.delayed(step, improve, nets.actor)

        # The noise grows while the entropy of the policy is below its target.
        def tune() -> Learned:
            surplus = self.entropy_of(actor.params, batch.obs, std, k_entropy) - self.goal(batch)
            return regulate(state.log_noise, surplus, self.noise.optimizer)

        log_noise = every(self.noise.period, step, tune, lambda: state.log_noise)
        nets = self.update_targets(actor, critic, nets, step)
        return Update(State(nets, scale, log_noise), metrics | measured | {"noise": std})

    def imitate(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        """Behaviour cloning of the actor alone."""
        actor, loss = self.clone(state.nets.actor, batch.obs, batch.action, *jax.random.split(key))
        nets = self.update_targets(actor, state.nets.critic, state.nets, step)
        return Update(state._replace(nets=nets), loss)

    def goal(self, batch: Transition) -> float:
        """Target entropy, -0.9 nats per dimension by default."""
        per_dim = math.log(self.noise.target) + 0.5 * math.log(2 * math.pi * math.e)
        return batch.action.shape[-1] * per_dim

    def entropy_of(self, actor: NoiseNet, obs: Array, std: Array, key: Array) -> Array:
        """Entropy of noisy actions before clipping: clipped ones pile up at the border, where the
        estimate diverges."""
        k, k_noise = jax.random.split(key)
        actions = self.sample(actor, obs[: self.entropy_states], k, self.entropy_draws)
        actions += std * streams.normal(k_noise, actions.shape)  # [draws, states, d]
        return jnp.mean(knn_entropy(jnp.swapaxes(actions, 0, 1)))


def knn_entropy(x: Array, k: int = 3) -> Array:
    """Kozachenko-Leonenko estimate from distances to k-th neighbours: [..., n, d] -> [...] nats."""
    n, d = x.shape[-2:]
    squared = jnp.sum(jnp.square(x[..., :, None, :] - x[..., None, :, :]), axis=-1)
    nearest = jnp.sort(squared, axis=-1)[..., k]  # index 0 is the point itself
    log_ball = 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1.0)
    constant = float(digamma(n) - digamma(k)) + log_ball
    return constant + 0.5 * d * jnp.mean(jnp.log(jnp.maximum(nearest, 1e-20)), axis=-1)
