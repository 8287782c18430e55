"""What the off-policy diffusion algorithms share: sampling, acting, pi_old, the regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rescore import streams
from rescore.algorithms.actor_critic import ActorCritic, Nets, jitter
from rescore.core import Act, Spec, Update, UsageError, check_positive
from rescore.diffusion.kernels import perturb
from rescore.diffusion.matching import score_matching
from rescore.diffusion.samplers import best_of, clipped_ddpm, ddpm, shrinking_langevin
from rescore.diffusion.schedules import SCHEDULES, NoiseSchedule
from rescore.models.controllers import Relaxation
from rescore.models.learned import Learned, every
from rescore.models.networks import NoiseNet

Schedule = Literal["cosine", "linear", "vp"]
Copy = Literal["online", "slow"]  # of the actor
UpdateNoise = Literal["none", "candidates", "choice"]


class State(NamedTuple):
    """What changes; an algorithm with more to remember has a state of its own."""

    nets: Nets
    log_noise: Learned  # std of the exploration noise
    measured: dict[str, Array]  # by the last policy step


@dataclass(frozen=True)
class DiffusionActorCritic(ActorCritic):
    """Hyperparameters and pure methods; nothing implemented here is ever overridden."""

    schedule: Schedule = "cosine"
    schedule_scale: float = 1.0  # factor on beta_t
    T: int = 10  # diffusion steps
    start_std: float | None = None  # std of a_T; none: sqrt(1 - alpha_bar_T)
    # Each step denoises and clips a_0; or clips a_t; or is Langevin's, on the score at t = 1.
    chain: Literal["denoise", "clip", "langevin"] = "denoise"
    act_candidates: int = 4  # M: samples to choose from when acting
    target_candidates: int = 1  # samples to choose from in the Bellman target
    eval_candidates: int = 16  # samples to choose from in evaluation and predict
    eval_eta: float = 1.0  # factor on the reverse process's noise in evaluation and predict
    act_with: Copy = "slow"  # which copy of the actor acts
    act_noise: bool = True  # whether the environment sees `noise` added to actions
    noise: Relaxation = Relaxation(0.5, 0.1)  # std of the Gaussian added to actions
    update_noise: UpdateNoise = "candidates"  # where the noise enters actions of the update
    noisy_copies: int = 4  # of each sample, when the noise is on the candidates
    pi_old: Copy = "online"  # which copy of the actor is pi_old
    judges: int | None = None  # critics whose minimum compares actions of one state; none: all

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "act_candidates", "target_candidates", "eval_candidates", "T")
        check_positive(self, "noisy_copies", "schedule_scale", "start_std", "judges")
        if self.judges is not None and self.judges > self.num_critics:
            raise UsageError(f"judges are some of the {self.num_critics} critics: 1 to all of them")
        if not 0 <= self.eval_eta <= 1:
            raise UsageError(f"eval_eta must lie in [0, 1], not {self.eval_eta}")
        if self.noise_schedule.alpha_bar[-1] < 1e-70:  # its root would vanish in float32
            raise UsageError("alpha_bar_T is no longer a number: smaller T or schedule_scale")

    @property
    def noise_schedule(self) -> NoiseSchedule:
        return SCHEDULES[self.schedule](self.T, self.schedule_scale)

    def init_nets(self, key: Array, spec: Spec) -> Nets:
        k_actor, k_critic = jax.random.split(key)
        actor = NoiseNet(k_actor, *spec, self.T, self.hidden, self.activation)
        return self.create_nets(actor, actor, self.init_critic(k_critic, spec))

    def init_state(self, key: Array, spec: Spec, *measured: str) -> State:
        zeros = dict.fromkeys(measured, jnp.float32(0.0))
        return State(self.init_nets(key, spec), self.noise.create(), zeros)

    def sample(self, actor: NoiseNet, obs: Array, key: Array, n: int, eta: float = 1.0) -> Array:
        """n actions per state by the reverse process: [B, obs_dim] -> [n, B, act_dim]"""
        schedule, shape = self.noise_schedule, (n, obs.shape[0], actor.act_dim)
        eps = actor.at(obs[None])
        if self.chain == "denoise":
            return ddpm(schedule, eps, key, shape, start_std=self.start_std, eta=eta)
        if self.chain == "clip":
            return clipped_ddpm(schedule, eps, key, shape)
        now = jnp.ones(shape[:-1], int)
        return shrinking_langevin(lambda a: -eps(a, now), key, shape, self.T)

    def act(self, state: Any, obs: Array, key: Array, explore: bool) -> Act:
        """Best of M by the critic, eq. (behavior_policy), plus clipped noise when exploring."""
        nets: Nets = state.nets
        k_sample, k_noise = jax.random.split(key)
        actor = nets.slow_actor if self.act_with == "slow" else nets.actor.params
        n, eta = (self.act_candidates, 1.0) if explore else (self.eval_candidates, self.eval_eta)
        candidates = self.sample(actor, obs, k_sample, n, eta)
        action = candidates[0]
        if n > 1:
            action = best_of(candidates, self.compare(nets.critic, obs, candidates))
        std = jnp.exp(state.log_noise.params) if explore and self.act_noise else 0.0
        return Act(jitter(k_noise, action, std), {})

    def old_actions(
        self, nets: Nets, obs: Array, std: Array, key: Array, n: int
    ) -> tuple[Array, Array]:
        """Actions of pi_old from n samples per state [N, B, act_dim], and their Q [N, B].

        Noise on the candidates is part of pi_old, so that the choice by Q selects among it and
        the policy moves within its reach; noise on the choice only widens the policy.
        """
        k_sample, k_noise = jax.random.split(key)
        actor = nets.actor.params if self.pi_old == "online" else nets.slow_actor
        actions = self.sample(actor, obs, k_sample, n)
        if self.update_noise == "candidates":
            actions = jitter(k_noise, jnp.repeat(actions, self.noisy_copies, axis=0), std)
        return actions, self.compare(nets.critic, obs, actions)

    def compare(self, critic: Learned, obs: Array, actions: Array) -> Array:
        """Q of N actions per state, as good as needed to tell which is better. [N, B]"""
        return critic.params.min(obs[None], actions, self.judges)

    def choice(self, state: Any, obs: Array, key: Array, n: int) -> Array:
        """The best by Q of n samples of pi_old, as the Bellman target takes it. [B, act_dim]"""
        k_old, k_noise = jax.random.split(key)
        std = jnp.exp(state.log_noise.params)
        actions, q = self.old_actions(state.nets, obs, std, k_old, n)
        action = best_of(actions, q)
        return jitter(k_noise, action, std) if self.update_noise == "choice" else action

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

    def delayed(self, state: Any, step: Array, improve: Callable[[], tuple[Learned, dict]]):
        """The policy's step when it is time: the actor, and what the last step measured."""
        hold = (state.nets.actor, state.measured)
        return every(self.policy_delay, step, improve, lambda: hold)

    def finish(
        self,
        state: Any,
        actor: Learned,
        critic: Learned,
        measured: dict,
        metrics: dict,
        step: Array,
    ) -> Update:
        """The new state: slow copies and noise moved on, the rest as given."""
        new = state._replace(
            nets=self.advance(actor, critic, state.nets, step),
            log_noise=self.noise.advance(state.log_noise, step),
            measured=measured,
        )
        noise = {"noise": jnp.exp(state.log_noise.params)}
        return Update(new, {**metrics, **measured, **noise})
