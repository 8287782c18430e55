"""What the off-policy diffusion algorithms share: sampling, acting, pi_old, the regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.algorithms.actor_critic import ActorCritic, Nets, jitter
from rescore.core import Act, Spec, Transition, Update, UsageError, check_positive
from rescore.diffusion.matching import score_matching
from rescore.diffusion.process import perturb
from rescore.diffusion.samplers import best_of, ddpm
from rescore.diffusion.schedules import SCHEDULES, NoiseSchedule
from rescore.models.learned import Anneal, Learned
from rescore.models.networks import NoiseNet

Schedule = Literal["cosine", "linear", "vp"]
Copy = Literal["online", "target"]  # of the actor
NoiseIn = Literal["none", "acting", "candidates", "choice"]
NOISY_COPIES = 4  # of each sample, when the noise is on the candidates


class State(NamedTuple):
    """What changes; an algorithm with more to remember has a state of its own."""

    nets: Nets
    log_noise: Learned  # std of the exploration noise


class SoftState(NamedTuple):
    """That of a policy which follows exp(Q / lam)."""

    nets: Nets
    log_noise: Learned
    log_lam: Learned  # the temperature


@dataclass(frozen=True)
class DiffusionActorCritic(ActorCritic):
    """Hyperparameters and pure methods. Subclasses may replace init_actor, sample, candidates,
    clone and imitate, and nothing else."""

    schedule: Schedule = "cosine"
    schedule_scale: float = 1.0  # factor on beta_t
    T: int = 10  # diffusion steps
    start_std: float | None = None  # std of a_T; none: sqrt(1 - alpha_bar_T)
    act_candidates: int = 4  # M: samples to choose from when acting
    target_candidates: int = 1  # samples to choose from in the Bellman target
    eval_candidates: int = 16  # samples to choose from in evaluation and predict
    act_with: Copy = "target"  # which copy of the actor acts
    noise: Anneal = Anneal(0.5, 0.1)  # std of the Gaussian added to actions
    # Actions that get the noise: none; executed ones (acting); those and all candidates of the
    # update; those and the action that the update chooses (choice).
    noise_in: NoiseIn = "candidates"

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "act_candidates", "target_candidates", "eval_candidates", "T")
        check_positive(self, "schedule_scale", "start_std")
        if self.noise_schedule.alpha_bar[-1] < 1e-70:  # its root would vanish in float32
            raise UsageError("alpha_bar_T is no longer a number: smaller T or schedule_scale")

    @property
    def noise_schedule(self) -> NoiseSchedule:
        return SCHEDULES[self.schedule](self.T, self.schedule_scale)

    def init_actor(self, key: Array, spec: Spec) -> Any:
        """The policy's network; `sample`, `candidates`, `clone` and `imitate` go with it."""
        return NoiseNet(key, *spec, self.T, self.hidden, self.activation)

    def init_state(self, key: Array, spec: Spec) -> State:
        k_actor, k_critic = jax.random.split(key)
        actor = self.init_actor(k_actor, spec)
        nets = self.create_nets(actor, actor, self.init_critic(k_critic, spec))
        return State(nets, self.noise.create())

    def sample(self, actor: Any, obs: Array, key: Array, n: int) -> Array:
        """n actions per state, by default by DDPM: [B, obs_dim] -> [n, B, act_dim]"""
        shape = (n, obs.shape[0], actor.act_dim)
        eps = actor.at(obs[None])
        return ddpm(self.noise_schedule, eps, key, shape, start_std=self.start_std)

    def candidates(self, actor: Any, obs: Array, key: Array, explore: bool) -> Array:
        """The actions of which `act` takes the best. [n, B, act_dim]"""
        n = self.act_candidates if explore else self.eval_candidates
        return self.sample(actor, obs, key, n)

    def act(self, state: Any, obs: Array, key: Array, explore: bool) -> Act:
        """Best of M by the critic, eq. (behavior_policy), plus clipped noise when exploring."""
        nets: Nets = state.nets
        k_sample, k_noise = jax.random.split(key)
        copy = nets.target_actor if self.act_with == "target" else nets.actor.params
        candidates = self.candidates(
            self.policy_to_act(nets, copy, explore), obs, k_sample, explore
        )
        action = candidates[0]
        if len(candidates) > 1:
            action = best_of(candidates, self.q_values(nets.critic.params, obs, candidates))
        std = jnp.exp(state.log_noise.params) if explore and self.noise_in != "none" else 0.0
        return Act(jitter(k_noise, action, std), {})

    def q_values(self, critic: Any, obs: Array, actions: Array) -> Array:
        """Q of one or of N actions per state: [..., B, d] -> [..., B]"""
        obs = obs.reshape((1,) * (actions.ndim - obs.ndim) + obs.shape)
        return critic.value(obs, actions)

    def choose_action(
        self, state: Any, obs: Array, key: Array, actor: NoiseNet | None = None
    ) -> Array:
        """The best by Q of `target_candidates` samples of pi_old. [B, act_dim]

        pi_old is the online actor unless another is given. Noise on the candidates is part of
        pi_old, so that the choice by Q selects among it and the policy moves within its reach;
        noise on the choice only widens the policy.
        """
        k_old, k_choice = jax.random.split(key)
        k_sample, k_noise = jax.random.split(k_old)
        nets, std = state.nets, jnp.exp(state.log_noise.params)
        pi_old = nets.actor.params if actor is None else actor
        actions = self.sample(pi_old, obs, k_sample, self.target_candidates)
        if self.noise_in == "candidates":
            actions = jitter(k_noise, jnp.repeat(actions, NOISY_COPIES, axis=0), std)
        action = best_of(actions, self.q_values(nets.critic.params, obs, actions))
        return jitter(k_choice, action, std) if self.noise_in == "choice" else action

    def random_times(self, key: Array, shape: tuple[int, ...]) -> Array:
        """t uniform on 1..T."""
        return 1 + (self.T * streams.uniform(key, shape)).astype(jnp.int32)

    def noised(self, a_0: Array, k_t: Array, k_noise: Array) -> tuple[Array, Array, Array]:
        """Random times t, noise, and a_t: what score matching on a_0 regresses on."""
        t = self.random_times(k_t, a_0.shape[:-1])
        noise = streams.normal(k_noise, a_0.shape)
        return t, noise, perturb(self.noise_schedule, a_0, t, noise)

    def regress(
        self, actor: Learned, obs: Array, a_t: Array, t: Array, target: Array, weight: Array | float
    ) -> tuple[Learned, dict]:
        """The policy's step on mean weight |eps(s, a_t, t) - target|^2, an algorithm's choice."""
        return actor.descend(
            self.actor_optimizer,
            lambda net: score_matching(net.at(obs), a_t, t, target, weight),
        )

    def imitate(self, state: Any, batch: Transition, key: Array, step: Array) -> Update:
        """Behaviour cloning of the batch's actions, while the critic learns the policy's values."""
        k_next, k_t, k_noise = jax.random.split(key, 3)
        nets: Nets = state.nets
        a_next = self.sample(nets.actor.params, batch.next_obs, k_next, 1)[0]
        critic, metrics = self.fit_critic(nets, batch, a_next)
        actor, loss = self.clone(nets.actor, batch.obs, batch.action, k_t, k_noise)
        return self.finish(state, actor, critic, metrics | loss, step)

    def clone(
        self, actor: Learned, obs: Array, action: Array, k_t: Array, k_noise: Array
    ) -> tuple[Learned, dict]:
        """The policy's step towards these actions: plain score matching."""
        t, noise, a_t = self.noised(action, k_t, k_noise)
        return self.regress(actor, obs, a_t, t, noise, 1.0)

    def finish(
        self, state: Any, actor: Learned, critic: Learned, metrics: dict, step: Array
    ) -> Update:
        """The new networks, their target networks and the noise moved on; other fields as given."""
        new = state._replace(
            nets=self.update_targets(actor, critic, state.nets, step),
            log_noise=self.noise.step(state.log_noise, step),
        )
        if self.noise_in != "none":
            metrics = {**metrics, "noise": jnp.exp(state.log_noise.params)}
        return Update(new, metrics)
