"""How JAX runs under test: on the CPU, strict about shapes, compiling quickly and once."""

from __future__ import annotations

import os
from pathlib import Path

# Read when the backend starts. Tests compile much and compute little: with few optimisations, and
# XLA's older emitters of fused loops, an update of DPMD compiles in 60 % of the time. Not at level
# 0, where SAC's update in a scan gave NaN (jaxlib 0.10.2).
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_backend_optimization_level=1"
    + " --xla_cpu_use_fusion_emitters=false"
)

import hypothesis
import jax
import pytest

from rescore.algorithms import REGISTRY

SETTINGS = {
    "jax_platforms": "cpu",
    "jax_numpy_rank_promotion": "raise",
    "jax_compilation_cache_dir": str(Path(__file__).parents[1] / ".jax_cache"),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
}
for name, value in SETTINGS.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)  # processes that a test starts follow suit

# A failure must not depend on the load of the machine nor on the day.
hypothesis.settings.register_profile("rescore", deadline=None, derandomize=True)
hypothesis.settings.load_profile("rescore")


# Walks over the whole registry, by file or test, that compile much for each algorithm: `make test`
# takes one of each kind, and `make test-slow` the others.
QUICK = {"dpmd", "sac", "ppo", "dipo"}
WALKS = dict.fromkeys(("test_probes", "test_resume", "test_seeds_chunks_and_donation"), QUICK)
WALKS["test_a_lone_seed_gives_the_same_numbers"] = {"sac", "ppo"}

# Files that take long come first: a worker that gets one last would work on alone.
LONG = ("test_boltzmann", "test_resume", "test_gauntlet", "test_docs", "test_matrix")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        test = getattr(item, "originalname", item.name)
        quick = WALKS.get(item.path.stem) or WALKS.get(test)
        if name in REGISTRY and quick and name not in quick:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(scope="session")
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(scope="module")
def strict():
    """No implicit type promotion in this module (optax's Adam would not survive it)."""
    with jax.numpy_dtype_promotion("strict"):
        yield
