"""Networks in one compiled call where the processor allows it; the values are those of JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from rescore import native
from rescore.diffusion import samplers
from rescore.diffusion.schedules import NoiseSchedule
from rescore.models.networks import MLP, NoiseNet

UNBOUNDED = float(np.finfo(np.float32).max)


def differentiated_as(reference: Callable, kernel: Callable) -> Callable:
    """`kernel`, whose derivatives are those of `reference`."""
    call = jax.custom_jvp(kernel)

    def rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        values, tree = jax.tree.flatten(primals)
        moves = jax.tree.leaves(tangents, is_leaf=lambda x: isinstance(x, SymbolicZero))
        moving = [i for i, move in enumerate(moves) if not isinstance(move, SymbolicZero)]

        def of_moving(*some: Array) -> Any:
            filled = dict(zip(moving, some))
            return reference(
                *jax.tree.unflatten(tree, [filled.get(i, x) for i, x in enumerate(values)])
            )

        return jax.jvp(of_moving, [values[i] for i in moving], [moves[i] for i in moving])

    call.defjvp(rule, symbolic_zeros=True)
    return call


def each(nets: MLP, obs: Array, action: Array, n: int | None = None) -> Array:
    """The first n networks of a stack, or all, with one output, on the same rows. [n, ...]"""
    nets = jax.tree.map(lambda x: x[:n], nets)
    return jax.vmap(lambda net: net(obs, action)[..., 0])(nets)


def ensemble(nets: MLP, obs: Array, action: Array, n: int | None = None) -> Array:
    """`each`, where states may repeat over leading axes of the actions. [n, ...]"""
    lead, own = action.shape[:-1], obs.shape[:-1]
    while len(own) > 1 and own[0] == 1:
        own = own[1:]
    suited = nets.rest[-1].weight.shape[-1] == 1 and obs.ndim <= action.ndim
    suited &= obs.dtype == action.dtype == jnp.float32
    if not suited or lead[len(lead) - len(own) :] != own or nets.kernels is None:
        return each(nets, obs, action, n)

    def kernel(nets: MLP, obs: Array, action: Array) -> Array:
        (first, second), states = nets.first, obs.reshape(-1, obs.shape[-1])
        points, inputs = action.reshape(-1, action.shape[-1]), (first.weight, first.bias)
        out = native.values(states, points, inputs, second.weight, n=n, **nets.kernels)
        return out.reshape(out.shape[0], *lead)

    return differentiated_as(partial(each, n=n), kernel)(nets, obs, action)


def ddpm(
    schedule: NoiseSchedule,
    actor: NoiseNet,
    obs: Array,
    key: Array,
    n: int,
    *,
    start_std: float | None = None,
    eta: float = 1.0,
) -> Array:
    """n actions per state by `samplers.ddpm`: [B, obs_dim] -> [n, B, act_dim]"""
    shape = (n, obs.shape[0], actor.act_dim)

    def reference(actor: NoiseNet, obs: Array, key: Array) -> Array:
        model = actor.at(obs[None])
        return samplers.ddpm(schedule, model, key, shape, start_std=start_std, eta=eta)

    def kernel(actor: NoiseNet, obs: Array, key: Array) -> Array:
        t = samplers.time_grid(schedule.T, None)
        signal, std = np.sqrt(schedule.alpha_bar[t]), np.sqrt(1.0 - schedule.alpha_bar[t])
        to_a_0 = np.stack([1.0 / signal, -std / signal], axis=1)
        rows = np.concatenate([to_a_0, samplers.reverse_coefficients(schedule, t, eta)], axis=1)
        z = native.normal(key, (len(t) + 1, *shape)).reshape(len(t) + 1, -1, shape[-1])
        first, second, _ = actor.trunk.first
        sample = native.reverse(
            obs,
            actor.trunk.project(2, actor.times()[t - 1]),
            (schedule.end_std if start_std is None else start_std) * z[0],
            z[1:],
            jnp.asarray(rows, jnp.float32),
            (first.weight, first.bias),
            second.weight,
            inner=1.0,
            outer=UNBOUNDED,
            **actor.trunk.kernels,
        )
        return sample.reshape(shape)

    if actor.trunk.kernels is None:
        return reference(actor, obs, key)
    return differentiated_as(reference, kernel)(actor, obs, key)
