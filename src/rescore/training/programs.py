"""An algorithm as compiled programs over seeds, and where compiled programs are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import platformdirs

from rescore.algorithms.normalised import prepared
from rescore.core import Act, Algorithm, Spec, UsageError
from rescore.streams import Stream, key
from rescore.training.replay import unpack


class Sum(NamedTuple):
    """Of a metric over the updates that measured it; a delayed policy step is not in all."""

    total: jax.Array  # [S]
    updates: jax.Array  # [S]


class Programs(NamedTuple):
    """The compiled functions of an algorithm, each over a leading axis of seeds.

    They take and give the leaves of a state: finding them in nested modules, and putting these
    together again, would take longer than a small policy's action.
    """

    shapes: Any  # a state of shapes and types instead of arrays [S]
    layout: Any  # of a state: jax.tree.unflatten(layout, leaves)
    init: Callable  # () -> leaves [S]
    act: Callable  # (leaves, obs [S, N, obs_dim], stream, step, explore) -> Act [S, N, ...]
    update: Callable  # (leaves, batches [K, S, ...], step) -> leaves, Sums, edits
    imitate: Callable  # the same by behaviour cloning, where the algorithm can
    finite: Callable  # leaves -> bool


def each_seed(function: Callable) -> Callable:
    """The function over a leading axis of seeds.

    One after the other on a CPU, where products of single matrices are faster than batched ones
    (1.2 to 1.5 times, one seed included). A seed alone agrees with itself among others up to
    rounding.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *args: jax.lax.map(lambda row: function(*row), args)


def compile_programs(algo: Algorithm, spec: Spec, seeds: tuple[int, ...]) -> Programs:
    """The programs of an algorithm; one more agent of the same kind compiles nothing anew."""
    try:
        hash(algo)
    except TypeError:
        raise UsageError(
            f"{type(algo).__name__} must be a frozen dataclass of plain settings: "
            f"@dataclass(frozen=True), with tuples instead of lists"
        ) from None
    return _compile(algo, spec, seeds)


@lru_cache(maxsize=8)
def _compile(algo: Algorithm, spec: Spec, seeds: tuple[int, ...]) -> Programs:
    """jit, vmap, scan and donation live here; algorithms stay plain functions.

    Seeds are an argument of the compiled programs: what the disk keeps of them serves all seeds.
    """
    algo = prepared(algo)

    def keys(seeds: jax.Array, stream: Stream, step: Any) -> jax.Array:
        return jax.vmap(lambda seed: key(seed, stream, step))(seeds)

    def init(seeds: jax.Array) -> Any:
        return jax.vmap(lambda k: algo.init(k, spec))(keys(seeds, Stream.INIT, 0))

    def act(
        seeds: jax.Array, leaves: list, obs: jax.Array, stream: Stream, step: Any, explore: bool
    ) -> Act:
        one = each_seed(lambda s, o, k: algo.act(s, o, k, explore))
        return one(jax.tree.unflatten(layout, leaves), obs, keys(seeds, stream, step))

    def update(seeds: jax.Array, leaves: list, batches: Any, step: jax.Array, how: str = "update"):
        def one(carry: tuple, batch: Any):
            state, step = carry
            if algo.source == "replay":
                batch = unpack(batch, spec, algo.keeps_particles)
            one_seed = each_seed(lambda s, b, k: getattr(algo, how)(s, b, k, step))
            new = one_seed(state, batch, keys(seeds, Stream.UPDATE, step))
            return (new.state, step + 1), (new.metrics, new.edits)

        start = jax.tree.unflatten(layout, leaves), step
        (state, _), (metrics, edits) = jax.lax.scan(one, start, batches)
        sums = {k: Sum(jnp.nansum(m, 0), jnp.sum(~jnp.isnan(m), 0)) for k, m in metrics.items()}
        return jax.tree.leaves(state), sums, edits

    def finite(leaves: list) -> jax.Array:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))

    # Under jit, so that target networks own their buffers and donation is legal. It runs once:
    # compiling it quickly matters more than its speed.
    quick = {"xla_backend_optimization_level": 0}
    seed_array = jnp.asarray(seeds, jnp.uint32)
    shapes = jax.eval_shape(init, seed_array)
    layout = jax.tree.structure(shapes)
    first = jax.jit(lambda seeds: jax.tree.leaves(init(seeds)), compiler_options=quick)
    return Programs(
        shapes=shapes,
        layout=layout,
        init=partial(first, seed_array),
        act=partial(jax.jit(act, static_argnums=(3, 5)), seed_array),
        update=partial(jax.jit(update, donate_argnums=1), seed_array),
        imitate=partial(jax.jit(partial(update, how="imitate"), donate_argnums=1), seed_array),
        finite=jax.jit(finite),
    )


def keep_compiled() -> None:
    """A second start compiles nothing: programs outlive the process.

    Whoever chose a folder (JAX_COMPILATION_CACHE_DIR, or jax.config) is left alone.
    """
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        folder = cache_folder(Path(__file__).parents[3])
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def cache_folder(root: Path) -> Path:
    """In a clone that of `make`, so that nothing leaves it; else the user's cache folder."""
    if (root / "pyproject.toml").exists() and (root / "Makefile").exists():
        return root / ".jax_cache"
    return platformdirs.user_cache_path("rescore") / "compiled"
