"""Reweighted score matching: one weighted regression on noise, most diffusion policies' loss."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def score_matching(
    eps: Callable[[Array, Array], Array],
    a_t: Array,
    t: Array,
    target: Array,
    weight: Array | float,
) -> tuple[Array, dict[str, Array]]:
    """mean of weight * |eps(a_t, t) - target|^2: eq. (general_loss_g) in noise form.

    The noise form carries the factor 1 - alpha_bar_t of eq. (ddpm_loss). An algorithm chooses
    a_t, target and weight; with a_t ~ q_{t|0}(. | a_0), target = its noise and weight
    exp(Q(s, a_0) / lam) over a_0 ~ pi_old it is DPMD's eq. (loss_mirror_descent).
    """
    error = jnp.sum(jnp.square(eps(a_t, t) - target), axis=-1)
    loss = jnp.mean(weight * error)
    return loss, {"policy_loss": loss}


def effective_sample_size(weight: Array, axis: int = 0) -> Array:
    """(sum w)^2 / (n sum w^2) in (0, 1]: near 1 no selection, near 1/n one sample decides."""
    total = jnp.sum(weight, axis=axis)
    return jnp.square(total) / (weight.shape[axis] * jnp.sum(jnp.square(weight), axis=axis))


def kl_to_uniform(weight: Array, axis: int = 0) -> Array:
    """KL of the self-normalised weights to equal ones: the size of the mirror-descent step."""
    p = weight / jnp.sum(weight, axis=axis, keepdims=True)
    return jnp.log(weight.shape[axis]) + jnp.sum(jax.scipy.special.xlogy(p, p), axis=axis)


def weight_metrics(weight: Array) -> dict[str, Array]:
    """Effective sample size of the weights, and their KL to uniform."""
    return {
        "ess": jnp.mean(effective_sample_size(weight)),
        "weight_kl": jnp.mean(kl_to_uniform(weight)),
    }
