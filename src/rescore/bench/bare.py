"""An update of SAC written without this library: what `rescore bench speed` holds ours against."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from rescore.bench.timing import CALL, best_ms

OBS, ACT, WIDTH, BATCH = 17, 6, 256, 256
ADAM = optax.adam(3e-4)


def layers(key: Any, *sizes: int) -> list:
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(k, (i, j)) / i**0.5, jnp.zeros(j))
        for k, i, j in zip(keys, sizes, sizes[1:])
    ]


def mlp(net: list, x: Any) -> Any:
    for w, c in net[:-1]:
        x = jax.nn.relu(x @ w + c)
    return x @ net[-1][0] + net[-1][1]


def act(net: list, s: Any, key: Any) -> tuple[Any, Any]:
    """An action and its log-density, up to a constant."""
    mean, log_std = jnp.split(mlp(net, s), 2, axis=-1)
    log_std = jnp.clip(log_std, -5, 2)
    z = jax.random.normal(key, mean.shape)
    a = jnp.tanh(mean + jnp.exp(log_std) * z)
    return a, jnp.sum(-0.5 * z**2 - log_std - jnp.log(1 - a**2 + 1e-6), axis=-1)


def q(nets: Any, s: Any, a: Any) -> Any:
    return jax.vmap(lambda net: mlp(net, jnp.concatenate([s, a], axis=-1))[..., 0])(nets)


def update(carry: tuple, key: Any) -> tuple[tuple, None]:
    pi, pi_opt, qs, q_opt, target, log_alpha, (s, a, r) = carry
    k1, k2 = jax.random.split(key)
    a2, logp = act(pi, s, k1)
    y = r + 0.99 * (q(target, s, a2).min(0) - jnp.exp(log_alpha) * logp)
    step, q_opt = ADAM.update(jax.grad(lambda p: jnp.mean((q(p, s, a) - y) ** 2))(qs), q_opt)
    qs = optax.apply_updates(qs, step)

    def loss(p: list) -> Any:
        a, logp = act(p, s, k2)
        return jnp.mean(jnp.exp(log_alpha) * logp - q(qs, s, a).min(0))

    step, pi_opt = ADAM.update(jax.grad(loss)(pi), pi_opt)
    pi = optax.apply_updates(pi, step)
    target = optax.incremental_update(qs, target, 0.005)
    return (pi, pi_opt, qs, q_opt, target, log_alpha, (s, a, r)), None


def bare_sac_ms(seconds: float) -> dict[str, float]:
    """A SAC update in plain JAX and optax, without this library: the floor of an update."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        key = jax.random.key(0)
        batch = jax.random.normal(key, (BATCH, OBS)), jnp.zeros((BATCH, ACT)), jnp.ones(BATCH)
        pi = layers(key, OBS, WIDTH, WIDTH, 2 * ACT)
        qs = jax.vmap(lambda k: layers(k, OBS + ACT, WIDTH, WIDTH, 1))(jax.random.split(key))
        carry = (pi, ADAM.init(pi), qs, ADAM.init(qs), qs, jnp.float32(0.0), batch)
        keys = jax.random.split(key, CALL)
        run = jax.jit(lambda carry: jax.lax.scan(update, carry, keys)[0])
        return {"update_ms": best_ms(lambda: jax.block_until_ready(run(carry)), seconds) / CALL}
