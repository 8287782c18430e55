"""Golden numbers: 20 updates on fixed batches. They move only on purpose.

`make golden` rewrites tests/golden.json; say why under Behaviour in CHANGELOG.md.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.small import NAMES, act_of, experience, initial, random_batch, small, update_of

GOLDEN = Path(__file__).with_name("golden.json")
UPDATES = 20
AS_PUBLISHED = ("paper", "released")


# The paper's estimators too: their defaults are of another kind.
CASES = [*NAMES, *(f"{name} {preset}" for name in ("dpmd", "sdac") for preset in AS_PUBLISHED)]


def measure(case: str) -> dict[str, float]:
    """Metrics after 20 updates, mean of the parameters' magnitudes, and one action."""
    algo = small(*case.split())
    state, found = initial(algo, jax.random.key(7)), {}
    for step in range(UPDATES):
        key = jax.random.fold_in(jax.random.key(8), step)
        result = update_of(algo)(state, experience(algo, step), key, jnp.int32(step))
        state = result.state
        # The last that was measured: a policy that waits measures nothing.
        found |= {k: float(v) for k, v in result.metrics.items() if not np.isnan(v)}
    leaves = [np.abs(np.asarray(x)).mean() for x in jax.tree.leaves(state.nets)]
    found["magnitude"] = float(np.mean(leaves))
    action = act_of(algo)(state, random_batch().obs[:1], jax.random.key(9), False).action
    found["action"] = float(action[0, 0])
    return found


@pytest.mark.parametrize("case", CASES)
def test_golden_numbers(case):
    stored = json.loads(GOLDEN.read_text())
    assert set(stored) == set(CASES), "run `make golden` after adding an algorithm"
    found = measure(case)
    assert set(found) == set(stored[case])
    for metric, value in stored[case].items():
        assert found[metric] == pytest.approx(value, rel=1e-4, abs=1e-5), metric


if __name__ == "__main__":
    found = {case: measure(case) for case in CASES}
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"wrote {GOLDEN}: say why the numbers moved under Behaviour in CHANGELOG.md")
