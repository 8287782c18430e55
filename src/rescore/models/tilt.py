"""The weights exp(Q / lam) that tilt pi_old towards better actions, and what steers them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from rescore.diffusion.matching import normalised_weights, weight_metrics
from rescore.models.controllers import Moments, Relaxation, match_kl
from rescore.models.learned import Learned


class Tilt(NamedTuple):
    """State of the mirror-descent weights, and what the last policy step measured of them."""

    log_lam: Learned  # the KL coefficient
    q: Moments  # of Q(s, a_0) over batches
    metrics: dict[str, Array]

    @classmethod
    def create(cls, lam: Relaxation) -> Tilt:
        names = ("policy_loss", "ess", "weight_kl", "q_spread")
        return cls(lam.create(), Moments.create(), dict.fromkeys(names, jnp.float32(0.0)))

    @property
    def lam(self) -> Array:
        return jnp.exp(self.log_lam.params)

    def weigh(self, q: Array, per_state: bool, normalise: bool, max_q: float) -> Array:
        """exp(Q / lam) [K, B]: with mean 1 over the K actions of a state, or clipped to max_q.

        Across states it is mostly a priority of states; within one, the advantage of an action.
        """
        q = self.q.normalise(q) if normalise else q
        if per_state:
            return normalised_weights(q / self.lam)
        return jnp.exp(jnp.clip(q, -max_q, max_q) / self.lam)

    def follow(self, q: Array, weight: Array, per_state: bool, rate: float) -> Tilt:
        """Q statistics a step further (line 12), and metrics of these weights."""
        axis = 0 if per_state else 1
        spread = {"q_spread": jnp.mean(jnp.std(q, axis=axis))}
        metrics = {**self.metrics, **weight_metrics(weight, axis), **spread}
        return Tilt(self.log_lam, self.q.follow(q, rate), metrics)

    def match_kl(self, goal: float, lr: float) -> Tilt:
        """Temperature a step towards the one at which the weights' KL is `goal`."""
        kl = self.metrics["weight_kl"]
        return self._replace(log_lam=match_kl(self.log_lam, optax.adam(lr), kl, goal))
