"""Whether what critics say of actions is signal: do two of them, fitted alike, agree on it?

A policy that follows the gradient of Q learns as much as that gradient knows. The critics of an
ensemble see the same batches and start from different weights, so they share the signal and not the
noise. Here they are fitted anew on the replay of a finished run, for its policy and temperature,
once with every activation named. At states of the replay two numbers say how far they agree on the
policy's own samples: the correlation of their values within a state, and the cosine between their
gradients. Minutes instead of whole runs; it ranks critics, and only training tells what that is
worth.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.agent import Agent
from rescore.algorithms.posterior_actor import PosteriorActorCritic
from rescore.core import Activation, Spec, Transition, UsageError
from rescore.diffusion.posterior import ancestral
from rescore.files.run_record import append_result
from rescore.models.critics import Critic
from rescore.models.learned import Learned
from rescore.training.replay import unpack

ROWS, STATES, SAMPLES, CALL = 65_536, 400, 16, 500


class Finished(NamedTuple):
    """A run's settings, networks and temperature, and rows of its replay, observations scaled."""

    algo: PosteriorActorCritic
    spec: Spec
    state: Any
    data: Transition


def load(folder: Path) -> Finished:
    agent = Agent.load(folder)
    algo = agent.algo
    if not isinstance(algo, PosteriorActorCritic) or not algo.posterior or not algo.normalise_obs:
        raise UsageError(f"{folder} has no policy of learned posteriors: give a run of a default")
    run = agent.run
    state = jax.tree.unflatten(run.programs.layout, [leaf[0] for leaf in run.leaves])
    batches, _ = run.memory.sample(0, ROWS // 256, 256)
    rows = jnp.asarray(batches).reshape(ROWS, -1)
    data = unpack(rows, run.envs.spec, False)
    scaled = {name: state.obs.normalise(getattr(data, name)) for name in ("obs", "next_obs")}
    found = Finished(algo, run.envs.spec, state.inner, data._replace(**scaled))
    agent.close()
    return found


def refit(run: Finished, algo: PosteriorActorCritic, updates: int, key: Array) -> Critic:
    """New critics after so many updates on the replay, the policy held."""
    k_init, k_updates = jax.random.split(key)
    nets, lam = run.state.nets, jnp.exp(run.state.log_lam.params)
    actor = nets.actor.params

    def update(critic: Learned, key: Array) -> tuple[Learned, None]:
        k_rows, k_next = jax.random.split(key)
        picked = jax.random.randint(k_rows, (256,), STATES, ROWS)
        batch = jax.tree.map(lambda x: x[picked], run.data)
        then = ancestral(actor.at(batch.next_obs), algo.sigma, k_next, batch.action.shape)
        bonus = -lam * then.log_density
        with_it = nets._replace(critic=critic)
        return algo.fit_critic(with_it, batch, jnp.tanh(then.u_0), bonus)[0], None

    several = jax.jit(lambda critic, keys: jax.lax.scan(update, critic, keys)[0])
    critic = Learned.create(algo.init_critic(k_init, run.spec), algo.critic_optimizer)
    for keys in jax.random.split(k_updates, updates).reshape(-1, CALL):
        critic = several(critic, keys)
    return critic.params


def agreement(critic: Any, obs: Array, actions: Array) -> dict[str, float]:
    """Of the first two critics at states [S, d] and their actions [S, n, a]."""
    values = np.asarray(critic(obs[:, None], actions)[:2])  # [2, S, n]
    one, two = values - values.mean(axis=-1, keepdims=True)
    slope = jax.vmap(jax.jacrev(lambda action, s: critic(s[None], action[None])[:2, 0]))
    first, second = np.moveaxis(np.asarray(slope(actions[:, 0], obs)), 1, 0)  # [S, a] each
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    cosine = np.sum(first * second, axis=-1) / np.maximum(lengths, 1e-12)
    return {
        "correlation": float(np.sum(one * two) / np.sqrt(np.sum(one**2) * np.sum(two**2))),
        "cosine": float(np.mean(cosine)),
        "spread": float(np.std(one)),
        "q": float(np.mean(values)),
    }


def measure(run: Finished, activations: list[str], updates: int, seed: int) -> dict[str, dict]:
    """Critics as the run left them, then those fitted anew, by activation."""
    k_sample, k_fit = jax.random.split(jax.random.key(seed))
    obs = run.data.obs[:STATES]
    shape = (STATES, SAMPLES, run.spec.act_dim)
    actor = run.state.nets.actor.params.at(obs[:, None])
    actions = jnp.tanh(ancestral(actor, run.algo.sigma, k_sample, shape).u_0)
    found = {"of the run": agreement(run.state.nets.critic.params, obs, actions)}
    for name in activations:
        algo = replace(run.algo, critic=replace(run.algo.critic, activation=name))
        found[name] = agreement(refit(run, algo, updates, k_fit), obs, actions)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument(
        "--activations", nargs="*", choices=get_args(Activation), default=["relu", "mish", "gelu"]
    )
    parser.add_argument("--updates", type=int, default=3_000, help=f"a multiple of {CALL}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", help="append the figures, a JSON line for each run")
    args = parser.parse_args()
    if args.updates < CALL or args.updates % CALL:
        parser.error(f"--updates must be a multiple of {CALL}, not {args.updates}")
    for folder in args.run:
        run = load(folder)
        found = measure(run, args.activations, args.updates, args.seed)
        for name, own in found.items():
            print(folder.name, name, {key: round(value, 3) for key, value in own.items()})
        if args.record:
            about = {"run": folder.name, "updates": args.updates, "seed": args.seed}
            append_result(args.record, {"benchmark": "critic_agreement", **about, "found": found})


if __name__ == "__main__":
    main()
