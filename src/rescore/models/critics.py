"""Critic ensembles, of values or of Gaussian returns (DACER); their Bellman targets and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore import streams
from rescore.core import (
    Activation,
    Spec,
    Transition,
    UsageError,
    check_choices,
    check_positive,
)
from rescore.models.networks import MLP

# Batch norm as in CrossQ's code: share of a batch in the running statistics, and epsilon.
NORM_RATE = 0.01
NORM_EPS = 1e-3


Reduce = Literal["min", "mean"]


@dataclass(frozen=True)
class CriticSettings:
    """How values are learned, the same part for every off-policy algorithm."""

    hidden: tuple[int, ...] | None = None  # widths; none: those of the actor
    activation: Activation | None = None  # none: that of the actor
    ensemble: int = 2  # networks
    reduce: Reduce = "min"  # how their values become one, in the Bellman target and in a ranking
    improve_reduce: Reduce | None = None  # the same where they improve the policy; none: as above
    norm: Literal["none", "batch"] = "none"  # batch: of the input and after every hidden layer
    target: bool = True  # whether Polyak copies value s' in the Bellman target; else the critics
    improve_with: Literal["online", "target"] = "online"  # the critics that improve the policy
    lr: float = 3e-4  # Adam's rate
    steps: int = 1  # optimiser steps per update, all on one Bellman target

    def __post_init__(self):
        check_choices(self)
        check_positive(self, "ensemble", "lr", "steps")
        if self.hidden is not None and (not self.hidden or min(self.hidden) < 1):
            raise UsageError(f"critic.hidden must name at least one width, not {self.hidden}")


class BatchNorm(eqx.Module):
    """Ioffe and Szegedy (2015); the statistics move in `train` only, and are not descended on."""

    gain: Array  # [size]
    bias: Array  # [size]
    mean: Array  # [size]
    var: Array  # [size]

    def __init__(self, size: int):
        self.gain, self.bias = jnp.ones(size), jnp.zeros(size)
        self.mean, self.var = jnp.zeros(size), jnp.ones(size)

    def affine(self) -> tuple[Array, Array]:
        """Factor and summand by which the running statistics normalise."""
        factor = self.gain * jax.lax.rsqrt(self.var + NORM_EPS)
        return factor, self.bias - factor * self.mean

    def train(self, x: Array) -> tuple[Array, BatchNorm]:
        """Rows [B, size] by their own mean and variance, and the statistics moved towards them."""
        mean, var = jnp.mean(x, axis=0), jnp.var(x, axis=0)
        factor = self.gain * jax.lax.rsqrt(var + NORM_EPS)
        y = x * factor[None] + (self.bias - factor * mean)[None]
        moved = [old + NORM_RATE * (new - old) for old, new in ((self.mean, mean), (self.var, var))]
        return y, eqx.tree_at(lambda norm: (norm.mean, norm.var), self, tuple(moved))


class Critic(eqx.Module):
    """Q_zeta: an ensemble of n networks, their parameters stacked on a first axis."""

    nets: MLP  # leaves [n, ...]
    norms: tuple[BatchNorm, ...]  # of the input and of each hidden layer's output; may be empty
    reduction: Reduce = eqx.field(static=True)

    @classmethod
    def create(
        cls, key: Array, spec: Spec, settings: CriticSettings, hidden: Sequence[int], act: str
    ) -> Critic:
        """`hidden` and `act` are the actor's, for settings that name none of their own."""
        hidden, act = settings.hidden or hidden, settings.activation or act
        sizes = [sum(spec), *hidden] if settings.norm == "batch" else []

        def one(k: Array) -> tuple[MLP, tuple[BatchNorm, ...]]:
            return MLP(k, list(spec), hidden, 1, act), tuple(BatchNorm(n) for n in sizes)

        nets, norms = jax.vmap(one)(jax.random.split(key, settings.ensemble))
        return cls(nets, norms, settings.reduce)

    def __call__(self, obs: Array, action: Array) -> Array:
        """[..., obs_dim], [..., act_dim] -> [n, ...]

        obs may broadcast over candidates. Batch norm takes its running statistics here: ranking,
        acting and the policy's gradient see plain networks.
        """
        return jax.vmap(lambda net: net(obs, action)[..., 0])(self.folded())

    def value(self, obs: Array, action: Array) -> Array:
        """One value by all networks: their minimum or mean. [...]"""
        return self.reduce(self(obs, action))

    def reduce(self, values: Array) -> Array:
        """[n, ...] -> [...]"""
        return jnp.min(values, axis=0) if self.reduction == "min" else jnp.mean(values, axis=0)

    def reduced_by(self, reduction: Reduce) -> Critic:
        """The same networks, whose values become one in this way."""
        return replace(self, reduction=reduction)

    def train(self, obs: Array, action: Array) -> tuple[Array, tuple[BatchNorm, ...]]:
        """Values [n, B] with batch statistics, and the norms with their statistics moved."""

        def one(net: MLP, norms: tuple[BatchNorm, ...]) -> tuple[Array, tuple[BatchNorm, ...]]:
            moved: list[BatchNorm] = []

            def normalised(x: Array) -> Array:
                y, norm = norms[len(moved)].train(x)
                moved.append(norm)
                return y

            x = normalised(jnp.concatenate([obs, action], axis=-1))
            first, *others = (net.project(i, p) for i, p in enumerate(split_inputs(net, x)))
            x = sum(others, first)
            for layer in net.rest:
                x = layer(normalised(net.activation(x)))
            return x[..., 0], tuple(moved)

        return jax.vmap(one)(self.nets, self.norms)

    def folded(self) -> MLP:
        """The networks with their running statistics multiplied into the linear layers."""
        return jax.vmap(fold)(self.nets, self.norms) if self.norms else self.nets


def split_inputs(net: MLP, x: Array) -> list[Array]:
    """Columns of x for each input of a network."""
    edges = np.cumsum([layer.weight.shape[0] for layer in net.first])[:-1]
    return jnp.split(x, edges, axis=-1)


def fold(net: MLP, norms: tuple[BatchNorm, ...]) -> MLP:
    """A plain network that gives what `net` gives with batch norm in evaluation."""
    factor, summand = norms[0].affine()
    factors, summands = split_inputs(net, factor), split_inputs(net, summand)
    first = [
        eqx.tree_at(lambda layer: layer.weight, layer, factors[i][:, None] * layer.weight)
        for i, layer in enumerate(net.first)
    ]
    bias, *others = (layer(s) for s, layer in zip(summands, net.first))
    first[0] = eqx.tree_at(lambda layer: layer.bias, first[0], sum(others, bias))
    rest = []
    for norm, layer in zip(norms[1:], net.rest):
        factor, summand = norm.affine()
        parts = (factor[:, None] * layer.weight, layer(summand))
        rest.append(eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, parts))
    return eqx.tree_at(lambda net: (net.first, net.rest), net, (tuple(first), tuple(rest)))


def replace_norms(critic: Critic, norms: tuple[BatchNorm, ...]) -> Critic:
    """The critic with the statistics of `norms`, its own gains and biases."""
    moved = [
        eqx.tree_at(lambda norm: (norm.mean, norm.var), own, (new.mean, new.var))
        for own, new in zip(critic.norms, norms)
    ]
    return eqx.tree_at(lambda critic: critic.norms, critic, tuple(moved))


def bellman_target(
    batch: Transition, next_value: Array, gamma: float, reward_scale: float
) -> Array:
    """r + gamma V(s') where the episode went on, eq. (q_loss_standard). [B]"""
    alive = 1.0 - batch.terminated
    return jax.lax.stop_gradient(reward_scale * batch.reward + gamma * alive * next_value)


def td_loss(values: Array, target: Array) -> tuple[Array, dict[str, Array]]:
    """Squared Bellman residual of values [n, B], summed over the ensemble."""
    loss = jnp.sum(jnp.mean(jnp.square(values - target[None]), axis=1))
    return loss, {"critic_loss": loss, "q": jnp.mean(values)}


class GaussianCritic(eqx.Module):
    """Z_zeta: an ensemble of n Gaussians of the return, their parameters stacked."""

    nets: MLP  # leaves [n, ...]

    def __init__(self, key: Array, spec: Spec, hidden: tuple[int, ...], activation: str, n: int):
        def one(k: Array) -> MLP:
            return MLP(k, list(spec), hidden, 2, activation)

        self.nets = jax.vmap(one)(jax.random.split(key, n))

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the return by each network, [n, ...]."""
        out = jax.vmap(lambda net: net(obs, action))(self.nets)
        return out[..., 0], jax.nn.softplus(out[..., 1])

    def value(self, obs: Array, action: Array) -> Array:
        """The pessimistic mean. [...]"""
        return jnp.min(self(obs, action)[0], axis=0)


class Targets(NamedTuple):
    """Bellman targets of the mean, and of one return drawn for the spread. [B]"""

    mean: Array
    draw: Array


def bellman_targets(
    critic: GaussianCritic,
    batch: Transition,
    a_next: Array,
    key: Array,
    gamma: float,
    reward_scale: float,
) -> Targets:
    """The smaller mean, and a return drawn from the critic whose mean that is."""
    mean, std = critic(batch.next_obs, a_next)  # [n, B]
    pick = jnp.argmin(mean, axis=0)[None]
    mean, std = (jnp.take_along_axis(x, pick, axis=0)[0] for x in (mean, std))
    drawn = mean + std * jnp.clip(streams.normal(key, mean.shape), -3.0, 3.0)
    reward, discount = reward_scale * batch.reward, gamma * (1.0 - batch.terminated)
    return Targets(reward + discount * mean, reward + discount * drawn)


def likelihood_loss(
    critic: GaussianCritic, batch: Transition, targets: Targets, scale: Array
) -> tuple[Array, dict[str, Array]]:
    """DSAC-T's surrogate of the negative log-likelihood, summed over the ensemble.

    Its gradient is that of a Gaussian's log-likelihood, with variances kept from zero, returns
    clipped to three of the ensemble's usual standard deviations `scale` [n], and the whole times
    scale^2, so that the step does not depend on the size of rewards.
    """
    mean, std = critic(batch.obs, batch.action)  # [n, B]
    still = jax.lax.stop_gradient
    b = scale[:, None]
    spread = jnp.clip(targets.draw[None] - still(mean), -3.0 * b, 3.0 * b)
    to_mean = still((targets.mean[None] - mean) / (jnp.square(std) + 0.1))
    to_std = still((jnp.square(spread) - jnp.square(std)) / (std**3 + 0.1))
    per_net = -(jnp.square(scale) + 0.1) * jnp.mean(mean * to_mean + std * to_std, axis=1)
    loss = jnp.sum(per_net)
    return loss, {"critic_loss": loss, "q": jnp.mean(mean), "q_std": jnp.mean(std)}
