"""Critic ensembles: their settings, norms and heads, Bellman targets and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.core import (
    Activation,
    Spec,
    Transition,
    UsageError,
    check_choices,
    check_positive,
)
from rescore.models.networks import MLP, Linear

# Batch norm as in CrossQ's code: share of a batch in the running statistics, and epsilon.
NORM_RATE = 0.01
NORM_EPS = 1e-3
# A histogram of returns, in units of their standard deviation: the ends of its support as in XQC
# and FlashSAC, and the standard deviation of a target in bins (Farebrother et al., 2024).
SUPPORT = 5.0
BLUR = 0.75

Reduce = Literal["min", "mean"]


@dataclass(frozen=True)
class CriticSettings:
    """How values are learned, the same part for every off-policy algorithm."""

    hidden: tuple[int, ...] | None = None  # widths; none: those of the actor
    activation: Activation | None = None  # none: that of the actor
    ensemble: int = 2  # networks
    reduce: Reduce = "min"  # how their values become one, in the Bellman target and in a ranking
    improve_reduce: Reduce | None = None  # the same where they improve the policy; none: as above
    # batch: of the input and after every hidden layer; layer: before every activation
    norm: Literal["none", "layer", "batch"] = "none"
    target: bool = True  # whether Polyak copies value s' in the Bellman target; else the critics
    improve_with: Literal["online", "target"] = "online"  # the critics that improve the policy
    lr: float = 3e-4  # Adam's rate
    steps: int = 1  # optimiser steps per update; with target networks all on one Bellman target
    n_step: int = 1  # rewards in the Bellman target before it takes a value
    normalise_rewards: bool = False  # in units of the running std of the discounted return
    atoms: int | None = None  # bins of a histogram of the return; none: its mean alone
    unit_weights: bool = False  # whether each unit's weights return to length 1 after a step

    def __post_init__(self):
        check_choices(self)
        check_positive(self, "ensemble", "lr", "steps", "n_step")
        if self.atoms is not None and (self.atoms < 2 or not self.normalise_rewards):
            raise UsageError(
                "critic.atoms must be at least 2, and needs critic.normalise_rewards, which brings "
                "returns into the support of a histogram"
            )
        if self.unit_weights and self.atoms is None:
            raise UsageError("critic.unit_weights bounds what a network can say: set critic.atoms")
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


class LayerNorm(eqx.Module):
    """Ba et al. (2016): a row by its own mean and variance."""

    gain: Array  # [size]
    bias: Array  # [size]

    def __init__(self, size: int):
        self.gain, self.bias = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x: Array) -> Array:
        mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
        normed = (x - mean) * jax.lax.rsqrt(var + NORM_EPS)
        gain, bias = (jnp.broadcast_to(part, x.shape) for part in (self.gain, self.bias))
        return gain * normed + bias


class Critic(eqx.Module):
    """Q_zeta: an ensemble of n networks, their parameters stacked on a first axis."""

    nets: MLP  # leaves [n, ...]; their output is a value, or logits of a histogram of returns
    norms: tuple[Any, ...]  # batch: of the input and each hidden layer; layer: of each hidden layer
    reduction: Reduce = eqx.field(static=True)

    @classmethod
    def create(
        cls, key: Array, spec: Spec, settings: CriticSettings, hidden: Sequence[int], act: str
    ) -> Critic:
        """`hidden` and `act` are the actor's, for settings that name none of their own."""
        hidden, act = settings.hidden or hidden, settings.activation or act
        norms = {"none": [], "batch": [sum(spec), *hidden], "layer": hidden}
        kind = BatchNorm if settings.norm == "batch" else LayerNorm

        def one(k: Array) -> tuple[MLP, tuple[Any, ...]]:
            net = MLP(k, list(spec), hidden, settings.atoms or 1, act)
            net = unit_weights(net) if settings.unit_weights else net
            return net, tuple(kind(n) for n in norms[settings.norm])

        return cls(*jax.vmap(one)(jax.random.split(key, settings.ensemble)), settings.reduce)

    def __call__(self, obs: Array, action: Array) -> Array:
        """[..., obs_dim], [..., act_dim] -> [n, ...]

        obs may broadcast over candidates. Batch norm takes its running statistics here: ranking,
        acting and the policy's gradient see plain networks.
        """
        return mean_return(self.outputs(obs, action))

    def outputs(self, obs: Array, action: Array) -> Array:
        """What the networks say, before it becomes a value. [n, ..., 1 or atoms]"""
        if self.norms and isinstance(self.norms[0], LayerNorm):
            each = lambda net, norms: layer_normed(net, norms, obs, action)  # noqa: E731
            return jax.vmap(each)(self.nets, self.norms)
        return jax.vmap(lambda net: net(obs, action))(self.folded())

    def value(self, obs: Array, action: Array) -> Array:
        """One value by all networks: their minimum or mean. [...]"""
        return self.reduce(self(obs, action))

    def reduce(self, values: Array) -> Array:
        """[n, ...] -> [...]"""
        return jnp.min(values, axis=0) if self.reduction == "min" else jnp.mean(values, axis=0)

    def reduced_by(self, reduction: Reduce) -> Critic:
        """The same networks, whose values become one in this way."""
        return replace(self, reduction=reduction)

    def at_unit_length(self) -> Critic:
        return replace(self, nets=jax.vmap(unit_weights)(self.nets))

    def train(self, obs: Array, action: Array) -> tuple[Array, tuple[BatchNorm, ...]]:
        """Outputs [n, B, 1 or atoms] with batch statistics, and the norms, those moved."""

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
            return x, tuple(moved)

        return jax.vmap(one)(self.nets, self.norms)

    def folded(self) -> MLP:
        """The networks with their running statistics multiplied into the linear layers."""
        return jax.vmap(fold)(self.nets, self.norms) if self.norms else self.nets


def split_inputs(net: MLP, x: Array) -> list[Array]:
    """Columns of x for each input of a network."""
    edges = np.cumsum([layer.weight.shape[0] for layer in net.first])[:-1]
    return jnp.split(x, edges, axis=-1)


def layer_normed(net: MLP, norms: tuple[LayerNorm, ...], obs: Array, action: Array) -> Array:
    """A network's output with a norm before every activation."""
    x = net.project(0, obs) + net.project(1, action)
    for norm, layer in zip(norms, net.rest):
        x = layer(net.activation(norm(x)))
    return x


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


def unit_weights(net: MLP) -> MLP:
    """Each unit's incoming weights, its bias among them, at length 1; of the head without a bias.

    As in XQC: a step of Adam then turns weights by the same angle however long training lasts.
    """

    def lengths(weights: Sequence[Array], bias: Array | None) -> Array:
        squares = sum(jnp.sum(jnp.square(w), axis=0) for w in weights)
        return jnp.sqrt(squares + (0.0 if bias is None else jnp.square(bias)) + 1e-12)

    def shorter(layer: Linear, by: Array) -> Linear:
        return jax.tree.map(lambda x: x / jnp.broadcast_to(by, x.shape), layer)

    *hidden, head = net.rest
    by = lengths([layer.weight for layer in net.first], net.first[0].bias)
    first = tuple(shorter(layer, by) for layer in net.first)
    rest = [shorter(layer, lengths([layer.weight], layer.bias)) for layer in hidden]
    by = lengths([head.weight], None)
    rest.append(eqx.tree_at(lambda layer: layer.weight, head, head.weight / by[None]))
    return eqx.tree_at(lambda net: (net.first, net.rest), net, (first, tuple(rest)))


def bellman_target(
    batch: Transition, next_value: Array, gamma: float, reward_scale: float
) -> Array:
    """r + gamma V(s') where the episode went on, eq. (q_loss_standard); over n steps, r is the sum
    of the discounted rewards and gamma the product of the discounts. [B]"""
    alive = 1.0 - batch.terminated
    discount = gamma if batch.discount is None else gamma * batch.discount
    return jax.lax.stop_gradient(reward_scale * batch.reward + discount * alive * next_value)


def mean_return(outputs: Array) -> Array:
    """Values of a critic's outputs: [..., 1 or atoms] -> [...]"""
    atoms = outputs.shape[-1]
    if atoms == 1:
        return outputs[..., 0]
    centres = jnp.broadcast_to(jnp.linspace(-SUPPORT, SUPPORT, atoms), outputs.shape)
    return jnp.sum(jax.nn.softmax(outputs) * centres, axis=-1)


def histogram(target: Array, atoms: int) -> Array:
    """A return as shares of bins: a Gaussian around it, cut off at the ends. [B] -> [B, atoms]"""
    width = 2.0 * SUPPORT / (atoms - 1)
    edges = jnp.linspace(-SUPPORT - width / 2, SUPPORT + width / 2, atoms + 1)
    inside = jnp.clip(target, -SUPPORT, SUPPORT)[:, None]
    below = jax.scipy.special.ndtr((edges[None] - inside) / (BLUR * width))
    return jnp.diff(below) / (below[:, -1:] - below[:, :1])


def td_loss(outputs: Array, target: Array) -> tuple[Array, dict[str, Array]]:
    """Squared Bellman residual of outputs [n, B, 1], or the cross-entropy of a histogram
    [n, B, atoms] to that of the target [B]; summed over the ensemble."""
    values, measured = mean_return(outputs), {}
    if outputs.shape[-1] == 1:
        loss = jnp.sum(jnp.mean(jnp.square(values - target[None]), axis=1))
    else:
        shares = histogram(target, outputs.shape[-1])
        loss = -jnp.sum(jnp.mean(jnp.sum(shares[None] * jax.nn.log_softmax(outputs), -1), axis=1))
        measured["beyond_support"] = jnp.mean((jnp.abs(target) > SUPPORT).astype(jnp.float32))
    return loss, {"critic_loss": loss, "q": jnp.mean(values), **measured}
