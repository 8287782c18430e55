"""How the policy loss copes with many action dimensions: a bandit whose best policy is known.

Q is lam times the log-density of two Gaussians inside the box (0.7 and 0.3 of the mass, deviation
0.25), so exp(Q / lam) is a density with exact samples in any dimension. The critic is Q itself:
whatever error remains is that of the policy's loss and sampler. DPMD stands beside SDAC although it
aims elsewhere: its steps from pi_old to pi_old exp(Q / lam), repeated, end at the best action.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.algorithms.posterior_actor import PosteriorSettings
from rescore.core import Spec, Transition
from rescore.files.run_record import append_result
from rescore.models.critics import CriticSettings
from rescore.models.learned import Anneal, Learned
from rescore.show.curves import COLOURS
from rescore.training.config import configure

DIMENSIONS = (1, 2, 4, 8, 17)
STD, HEAVY, BATCH, SAMPLES = 0.25, 0.7, 256, 4000
SHARED = {"hidden": (128, 128), "critic": CriticSettings(), "b1": 0.9, "policy_delay": 2}
# The paper's estimators: samples and reverse draws, at three diffusion steps.
DRAWS = {"posterior": None, "noise": Anneal(0.1, 0.1), "noise_in": "candidates", "T": 3}
SOFT = SHARED | DRAWS | {"lam": Anneal(1.0, 1.0)}
HELD = PosteriorSettings(lam=1.0, lam_lr=1e-9)  # a temperature that stays
METHODS = {
    "SDAC, 16 reverse draws": ("sdac", SOFT | {"reverse_draws": 16}),
    "SDAC, 64 reverse draws": ("sdac", SOFT | {"reverse_draws": 64}),
    "SDAC, learned posteriors": ("sdac", SHARED | {"posterior": HELD}),
    "DPMD, best of noisy samples": ("dpmd", SHARED | DRAWS | {"target_candidates": 4}),
}


def centre(d: int) -> np.ndarray:
    """The heavy mode; the light one lies opposite."""
    return np.where(np.arange(d) % 2 == 0, 0.5, -0.5)


class Known(eqx.Module):
    """A critic that is Q itself, with nothing to learn."""

    d: int = eqx.field(static=True)

    def __call__(self, obs: Array, action: Array) -> Array:
        mode = jnp.asarray(centre(self.d), jnp.float32)
        at = lambda c: -0.5 * jnp.sum(jnp.square((action - c) / STD), axis=-1)  # noqa: E731
        return jnp.logaddexp(np.log(HEAVY) + at(mode), np.log(1 - HEAVY) + at(-mode))[None]

    def outputs(self, obs: Array, action: Array) -> Array:
        return self(obs, action)[..., None]

    def value(self, obs: Array, action: Array) -> Array:
        return self(obs, action)[0]


def exact(rng: np.random.Generator, d: int) -> np.ndarray:
    """Samples of the Boltzmann policy, by rejection of what falls outside the box."""
    side = np.where(rng.random((SAMPLES, 1)) < HEAVY, 1.0, -1.0) * centre(d)
    x = side + STD * rng.normal(size=(SAMPLES, d))
    while np.any(outside := np.abs(x) > 1):
        x = np.where(outside, side + STD * rng.normal(size=x.shape), x)
    return x


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Wasserstein-1 between marginals, averaged over dimensions."""
    return float(np.mean(np.abs(np.sort(x, axis=0) - np.sort(y, axis=0))))


def learn(name: str, settings: dict, d: int, updates: int, seed: int) -> np.ndarray:
    """Samples of the policy after training on its own actions."""
    configured: Any = configure(name, "default", settings, {})[0]
    algo = dataclasses.replace(configured, actor_lr=1e-3, actor_lr_end=1e-3)
    state = algo.init(jax.random.key(seed), Spec(1, d))
    known = Known(d)
    critic = Learned.create(known, algo.critic_optimizer)
    state = state._replace(nets=state.nets._replace(critic=critic, target_critic=known))
    obs, one = jnp.zeros((BATCH, 1)), jnp.ones(BATCH)

    def step(state, inputs):
        key, step = inputs
        k_act, k_update = jax.random.split(key)
        action = algo.act(state, obs, k_act, True).action
        batch = Transition(obs, action, known.value(obs, action), one, obs)
        return algo.update(state, batch, k_update, step).state, None

    keys = jax.random.split(jax.random.key(seed + 1), updates)
    state, _ = jax.jit(lambda s: jax.lax.scan(step, s, (keys, jnp.arange(updates))))(state)
    sample = jax.jit(lambda actor, k: algo.sample(actor, jnp.zeros((SAMPLES, 1)), k, 1)[0])
    return np.asarray(sample(state.nets.actor.params, jax.random.key(seed + 2)))


def measure(updates: int, seed: int) -> list[dict]:
    rows = []
    for d in DIMENSIONS:
        rng = np.random.default_rng(seed)
        truth, again = exact(rng, d), exact(rng, d)
        value = lambda x: float(np.mean(Known(d).value(None, jnp.asarray(x, jnp.float32))))  # noqa: E731, B023
        rows.append({"d": d, "method": "exact", "w1": distance(truth, again), "q": value(truth)})
        for method, (name, settings) in METHODS.items():
            began = time.perf_counter()
            x = learn(name, settings, d, updates, seed)
            row = {"d": d, "method": method, "w1": distance(x, truth), "q": value(x)}
            row |= {"heavy": float(np.mean(x @ centre(d) > 0))}
            row |= {"seconds": round(time.perf_counter() - began, 1)}
            rows.append(row)
            print(
                {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True
            )
    return rows


def draw(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.0), layout="constrained")
    colours = ["0.4", *COLOURS]
    for method, colour in zip(("exact", *METHODS), colours):
        own = [row for row in rows if row["method"] == method]
        d = [row["d"] for row in own]
        style = {"linestyle": "--"} if method == "exact" else {"marker": "o"}
        name = "exact samples" if method == "exact" else method
        left.plot(d, [row["w1"] for row in own], label=name, color=colour, **style)
        right.plot(d, [row["q"] / row["d"] for row in own], color=colour, **style)
    left.set(ylabel="marginal Wasserstein-1 to exp(Q / λ)", ylim=(0, None))
    right.set(ylabel="mean of Q / λ, per dimension")
    for axes in (left, right):
        axes.set(xlabel="action dimensions", xscale="log", xticks=DIMENSIONS)
        axes.set_xticks(DIMENSIONS, map(str, DIMENSIONS))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    lines, names = left.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", help="append the figures as one JSON line to this file")
    parser.add_argument("--figure", help="draw them to this file")
    args = parser.parse_args()
    rows = measure(args.updates, args.seed)
    if args.record:
        figures = {"updates": args.updates, "seed": args.seed, "rows": rows}
        append_result(args.record, {"benchmark": "bandit", "figures": figures})
    if args.figure:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
