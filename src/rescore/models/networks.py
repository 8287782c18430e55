"""Layers and networks as callable pytrees: every leaf is an array, so plain JAX transforms work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Function = Callable[[Array], Array]
TIME_SIZE = 16  # numbers that a diffusion time is embedded in
LOG_STD = (-5.0, 2.0)  # into which tanh maps the second half of a Gaussian's parameters
# Of a denoiser's posterior. tanh(5) is 0.9999: beyond it actions are all the same, but a mean that
# drifts out there at a standard deviation near 0 has a KL divergence of 1e6 to where it was.
POSTERIOR_MEAN = 5.0
POSTERIOR_LOG_STD = (-3.5, 0.5)


def mish(x: Array) -> Array:
    """x tanh(softplus(x)) with one exponential: n / (n + 2) for n = e^x (e^x + 2)."""
    # Beyond 20 the ratio is 1 in float32, and the cap keeps n finite.
    e = jnp.exp(jnp.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


ACTIVATIONS: dict[str, Function] = {
    "mish": mish,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "leaky_relu": jax.nn.leaky_relu,
}


class Linear(eqx.Module):
    """x @ weight + bias over any leading axes."""

    weight: Array  # [size_in, size_out]
    bias: Array | None  # [size_out]

    def __init__(
        self, key: Array, size_in: int, size_out: int, fan_in: int | None = None, bias: bool = True
    ):
        """`fan_in` is larger than `size_in` where a layer is split by its inputs."""
        draw = jax.random.truncated_normal(key, -2.0, 2.0, (size_in, size_out))
        self.weight = draw / np.float32(np.sqrt(fan_in or size_in))
        self.bias = jnp.zeros(size_out) if bias else None

    def __call__(self, x: Array) -> Array:
        y = x @ self.weight
        return y if self.bias is None else y + jnp.broadcast_to(self.bias, y.shape)


class MLP(eqx.Module):
    """Hidden layers with an activation after each, then a linear head.

    The first layer is split over its inputs, so that a part shared by many rows (the observation
    of many candidate actions and denoising steps) is multiplied once: `project` it, add, `finish`.
    """

    first: tuple[Linear, ...]  # one per input
    rest: tuple[Linear, ...]
    activation: Function = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        inputs: Sequence[int],
        hidden: Sequence[int],
        out: int,
        activation: str,
        head: float = 1.0,
    ):
        """`head` is a factor on the first weights of the linear head."""
        sizes = [*hidden, out]
        keys = jax.random.split(key, len(inputs) + len(sizes) - 1)
        fan_in = sum(inputs)
        self.first = tuple(
            Linear(keys[i], size, hidden[0], fan_in, bias=i == 0) for i, size in enumerate(inputs)
        )
        *rest, last = (
            Linear(k, i, o) for k, i, o in zip(keys[len(inputs) :], sizes[:-1], sizes[1:])
        )
        last = eqx.tree_at(lambda layer: layer.weight, last, head * last.weight)
        self.rest = (*rest, last)
        self.activation = ACTIVATIONS[activation]

    def project(self, index: int, x: Array) -> Array:
        """Share of input `index` in the first layer."""
        return self.first[index](x)

    def finish(self, first: Array) -> Array:
        """The rest of the network, from the summed shares of the first layer."""
        x = first
        for layer in self.rest:
            x = layer(self.activation(x))
        return x

    def __call__(self, *inputs: Array) -> Array:
        first, *others = (self.project(i, x) for i, x in enumerate(inputs))
        return self.finish(sum(others, first))


def sinusoid(t: Array, size: int) -> Array:
    """Sines and cosines of t at geometric frequencies, scaled to unit length. [..., size]"""
    frequency = jnp.asarray(10_000.0 ** (-np.arange(size // 2) / (size // 2)), jnp.float32)
    angle = t.astype(jnp.float32)[..., None] * frequency.reshape((1,) * t.ndim + (-1,))
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1) / np.float32(np.sqrt(size))


def squashed_parameters(out: Array, log_std: tuple[float, float] = LOG_STD) -> tuple[Array, Array]:
    """Mean and log standard deviation before a squashing, from a network's output [..., 2 d]."""
    mean, raw = jnp.split(out, 2, axis=-1)
    low, high = log_std
    return mean, low + 0.5 * (high - low) * (jnp.tanh(raw) + 1.0)


class NoiseNet(eqx.Module):
    """eps(s, a_t, t): the policy's noise prediction for t = 1..T."""

    time: MLP
    trunk: MLP
    T: int = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        obs_dim: int,
        act_dim: int,
        T: int,
        hidden: Sequence[int],
        activation: str = "mish",
    ):
        k_time, k_trunk = jax.random.split(key)
        self.time = MLP(k_time, [TIME_SIZE], [2 * TIME_SIZE], TIME_SIZE, activation)
        self.trunk = MLP(k_trunk, [obs_dim, act_dim, TIME_SIZE], hidden, act_dim, activation)
        self.T = T

    @property
    def act_dim(self) -> int:
        return self.trunk.rest[-1].weight.shape[-1]

    def at(self, obs: Array) -> Callable[[Array, Array], Array]:
        """The model `eps(a_t, t)` at these observations.

        Their share of the first layer and the table of all times are computed here, once, not
        at every denoising step and candidate. obs [..., obs_dim] must broadcast against a_t.
        """
        times = self.time(sinusoid(jnp.arange(self.T), TIME_SIZE))
        obs_share, table = self.trunk.project(0, obs), self.trunk.project(2, times)

        def eps(a_t: Array, t: Array) -> Array:
            return self.trunk.finish(obs_share + self.trunk.project(1, a_t) + table[t - 1])

        return eps


class Denoiser(eqx.Module):
    """q(u_0 | s, u_t): mean and log standard deviation of the clean action at noise level t.

    Inputs and outputs are scaled as by Karras et al. (2022) for clean actions of unit variance.
    """

    trunk: MLP
    sigma: tuple[float, ...] = eqx.field(static=True)  # sigma_1..sigma_T, the last infinite

    def __init__(
        self,
        key: Array,
        obs_dim: int,
        act_dim: int,
        sigma: Sequence[float],
        hidden: Sequence[int],
        activation: str,
    ):
        self.trunk = MLP(key, [obs_dim, act_dim, len(sigma)], hidden, 2 * act_dim, activation)
        self.sigma = tuple(map(float, sigma))

    @property
    def act_dim(self) -> int:
        return self.trunk.rest[-1].weight.shape[-1] // 2

    def at(self, obs: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
        """The posterior (u_t, t) at these observations, which must broadcast against u_t."""
        share = self.trunk.project(0, obs)
        total = 1.0 + np.square(np.array(self.sigma))
        scales = [1.0 / np.sqrt(total), 1.0 / total, np.sqrt(1.0 - 1.0 / total)]
        table = jnp.asarray(np.stack(scales), jnp.float32)  # [3, T]
        levels = jnp.eye(len(self.sigma))

        def posterior(u_t: Array, t: Array) -> tuple[Array, Array]:
            into, skip, out = table[:, t - 1][..., None]
            hidden = share + self.trunk.project(1, into * u_t)
            raw = self.trunk.finish(hidden + self.trunk.project(2, levels[t - 1]))
            mean, log_std = squashed_parameters(raw, POSTERIOR_LOG_STD)
            mean = POSTERIOR_MEAN * jnp.tanh(mean / POSTERIOR_MEAN)
            return skip * u_t + out * mean, log_std

        return posterior
