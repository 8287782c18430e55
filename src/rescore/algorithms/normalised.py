"""A wrapper that normalises observations for any algorithm on replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import jax.numpy as jnp
from jax import Array

from rescore.core import Act, Algorithm, Spec, Transition, Update
from rescore.models.normalise import BOUND


class Recent(NamedTuple):
    """Mean and variance of recent batches, by an exponential moving average."""

    mean: Array  # [size]
    var: Array  # [size]

    @classmethod
    def create(cls, size: int) -> Recent:
        return cls(jnp.zeros(size), jnp.ones(size))

    def follow(self, rows: Array, rate: float = 0.01) -> Recent:
        """A step of size `rate` towards the moments of rows [B, size]."""
        mean, var = jnp.mean(rows, axis=0), jnp.var(rows, axis=0)
        return Recent(self.mean + rate * (mean - self.mean), self.var + rate * (var - self.var))

    def normalise(self, x: Array) -> Array:
        """(x - mean) / std over the last axis, clipped."""
        mean, scale = (jnp.broadcast_to(m, x.shape) for m in (self.mean, jnp.sqrt(self.var + 1e-3)))
        return jnp.clip((x - mean) / scale, -BOUND, BOUND)


class State(NamedTuple):
    inner: Any  # of the algorithm
    obs: Recent  # statistics of the batches' observations


@dataclass(frozen=True)
class Normalised:
    """An algorithm around another: replay and environments keep observations as they are."""

    source: ClassVar[str] = "replay"

    algo: Algorithm

    @property
    def keeps_particles(self) -> bool:
        return self.algo.keeps_particles

    def init(self, key: Array, spec: Spec) -> State:
        return State(self.algo.init(key, spec), Recent.create(spec.obs_dim))

    def act(self, state: State, obs: Array, key: Array, explore: bool) -> Act:
        return self.algo.act(state.inner, state.obs.normalise(obs), key, explore)

    def update(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        return self.learn(self.algo.update, state, batch, key, step)

    def imitate(self, state: State, batch: Transition, key: Array, step: Array) -> Update:
        return self.learn(cast(Any, self.algo).imitate, state, batch, key, step)

    def learn(
        self, how: Callable[..., Update], state: State, batch: Transition, key: Array, step: Array
    ) -> Update:
        seen = state.obs.follow(batch.obs)
        obs, next_obs = (seen.normalise(x) for x in (batch.obs, batch.next_obs))
        batch = batch._replace(obs=obs, next_obs=next_obs)
        new = how(state.inner, batch, key, step)
        return new._replace(state=State(new.state, seen))


def prepared(algo: Algorithm) -> Algorithm:
    """The algorithm, wrapped if it asks for `normalise_obs`."""
    wanted = algo.source == "replay" and getattr(algo, "normalise_obs", False)
    return cast(Algorithm, Normalised(algo)) if wanted else algo
