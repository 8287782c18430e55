"""An update of SAC written without this library: what `rescore bench speed` holds ours against."""

from __future__ import annotations

from typing import Any

from rescore.bench.timing import CALL, best_ms


def bare_sac_ms(seconds: float) -> dict[str, float]:
    """A SAC update in plain JAX and optax, without this library: the floor of an update."""
    import jax
    import jax.numpy as jnp
    import optax

    o, d, width, b = 17, 6, 256, 256
    adam = optax.adam(3e-4)

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
        mean, log_std = jnp.split(mlp(net, s), 2, axis=-1)
        log_std = jnp.clip(log_std, -5, 2)
        z = jax.random.normal(key, mean.shape)
        a = jnp.tanh(mean + jnp.exp(log_std) * z)
        return a, jnp.sum(-0.5 * z**2 - log_std - jnp.log(1 - a**2 + 1e-6), axis=-1)

    def q(nets: Any, s: Any, a: Any) -> Any:
        return jax.vmap(lambda net: mlp(net, jnp.concatenate([s, a], axis=-1))[..., 0])(nets)

    def update(carry: tuple, key: Any) -> tuple[tuple, None]:
        pi, pi_opt, qs, q_opt, target, log_alpha = carry
        k1, k2 = jax.random.split(key)
        a2, logp = act(pi, s, k1)
        y = r + 0.99 * (q(target, s, a2).min(0) - jnp.exp(log_alpha) * logp)
        grad = jax.grad(lambda p: jnp.mean((q(p, s, a) - y) ** 2))(qs)
        step, q_opt = adam.update(grad, q_opt)
        qs = optax.apply_updates(qs, step)

        def loss(p: list) -> Any:
            a, logp = act(p, s, k2)
            return jnp.mean(jnp.exp(log_alpha) * logp - q(qs, s, a).min(0))

        step, pi_opt = adam.update(jax.grad(loss)(pi), pi_opt)
        pi = optax.apply_updates(pi, step)
        target = optax.incremental_update(qs, target, 0.005)
        return (pi, pi_opt, qs, q_opt, target, log_alpha), None

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        key = jax.random.key(0)
        s, a, r = jax.random.normal(key, (b, o)), jnp.zeros((b, d)), jnp.ones(b)
        pi = layers(key, o, width, width, 2 * d)
        qs = jax.vmap(lambda k: layers(k, o + d, width, width, 1))(jax.random.split(key))
        carry = (pi, adam.init(pi), qs, adam.init(qs), qs, jnp.float32(0.0))
        keys = jax.random.split(key, CALL)
        run = jax.jit(lambda carry: jax.lax.scan(update, carry, keys)[0])
        ms = best_ms(lambda: jax.block_until_ready(run(carry)), seconds) / CALL
    return {"update_ms": ms}
