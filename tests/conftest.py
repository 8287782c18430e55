"""How JAX runs under test: on the CPU, strict about shapes, compiling quickly and once."""

from __future__ import annotations

import os
from pathlib import Path

# Read when the backend starts. Tests compile much and compute little: a lower level compiles
# up to four times faster.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1"

import hypothesis
import jax
import pytest

from rescore.algorithms import REGISTRY

SETTINGS = {
    "jax_platforms": "cpu",
    "jax_numpy_rank_promotion": "raise",
    "jax_compilation_cache_dir": str(Path(__file__).parents[1] / ".jax_cache"),
    "jax_persistent_cache_min_compile_time_secs": 0.5,
}
for name, value in SETTINGS.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)  # processes that a test starts follow suit

# A failure must not depend on the load of the machine nor on the day.
hypothesis.settings.register_profile("rescore", deadline=None, derandomize=True)
hypothesis.settings.load_profile("rescore")


# Walks over the whole registry compile much: `make test` takes one algorithm of each kind, and
# `make test-slow` the others.
WALKS = {"test_contract", "test_probes", "test_resume"}
QUICK = {"dpmd", "sac", "ppo", "dipo"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        if name in REGISTRY and name not in QUICK and item.path.stem in WALKS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(scope="module")
def strict():
    """No implicit type promotion in this module (optax's Adam would not survive it)."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="module")
def quick():
    """Compile as quickly as can be: for modules that compile much and compute next to nothing."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
