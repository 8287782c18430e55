"""FAB (Midgley et al., 2023): a normalising flow trained on annealed importance samples.

The flow is flowjax's and the Hamiltonian transitions are blackjax's; what is here is the
annealing to p^2 / q, the prioritised buffer and the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.special import logsumexp

from rescore.boltzmann.energy import Coordinates, Cost, checked, follow
from rescore.core import UsageError
from rescore.diffusion.reverse import LogDensity
from rescore.models.learned import Learned
from rescore.show.progress import Progress

EVIDENCE = 65_536  # samples of the flow that estimate log Z


@dataclass(frozen=True)
class Settings:
    """Those of the authors' code where two dimensions and minutes allow them; alpha is 2."""

    layers: int = 8  # affine couplings (RealNVP)
    width: int = 32  # of their networks, with two hidden layers
    intermediate: int = 3  # distributions between q and p^2 / q, with a transition at each
    leapfrog: int = 5  # steps of a transition
    acceptance: float = 0.65  # that the step size is steered to
    batch_size: int = 128
    batches: int = 64  # in the buffer
    reuse: int = 4  # minibatches from the buffer per annealed batch
    max_weight: float = 10.0  # of a buffered sample once the flow has moved on
    learning_rate: float = 1e-3  # decays to 0 on a cosine
    iterations: int = 1_500
    chunk: int = 100  # iterations in one compiled call


class Buffer(NamedTuple):
    """Annealed samples, with the logarithms of their weights and of q when they were weighed."""

    y: Array  # [capacity, d]
    log_weight: Array  # [capacity]; -inf where nothing is stored yet
    log_q: Array  # [capacity]


class State(NamedTuple):
    """All that an iteration changes."""

    learned: Learned
    buffer: Buffer
    step_size: Array  # of the leapfrog


@dataclass(frozen=True)
class FlowSampler:
    """Samples of a trained flow, in the caller's coordinates."""

    flow: Any
    coordinates: Coordinates
    log_z: float
    cost: Cost
    seconds: float
    report: None = None  # its flow is not judged

    def sample(self, n: int, key: Array | int = 0) -> Array:
        """n points of the flow. [n, dim]"""
        key = jax.random.key(key) if isinstance(key, int) else key
        with jax.numpy_rank_promotion("allow"):
            return self.coordinates.to_x(self.flow.sample(key, (n,)))


def libraries() -> tuple[Any, Any, Any]:
    """flowjax, paramax and blackjax's HMC, or how to get them."""
    try:
        import flowjax.distributions
        import flowjax.flows
        import paramax
        from blackjax.mcmc import hmc
    except ModuleNotFoundError as error:
        raise UsageError(
            f"method 'fab' needs {error.name}: pip install -c constraints.txt -e '.[toys]'"
        ) from None
    return flowjax, paramax, hmc


def fit_flow(
    log_density: LogDensity,
    dim: int,
    coordinates: tuple[Any, Any] = (0.0, 1.0),
    *,
    seed: int = 0,
    progress: Progress | None = None,
    settings: Settings = Settings(),  # noqa: B008
) -> FlowSampler:
    """A coupling flow of exp(log_density) on R^dim, dim > 1, that starts as N(centre, scale^2)."""
    flowjax, paramax, _ = libraries()
    began, progress = time.monotonic(), progress or Progress()
    where = Coordinates.scaled(*coordinates, dim)
    log_p = where.pull_back(checked(log_density, dim))
    k_flow, k_run, k_evidence = jax.random.split(jax.random.key(seed), 3)
    with jax.numpy_rank_promotion("allow"):  # flowjax broadcasts freely
        flow = flowjax.flows.coupling_flow(
            k_flow,
            base_dist=paramax.non_trainable(flowjax.distributions.Normal(jnp.zeros(dim))),
            flow_layers=settings.layers,
            nn_width=settings.width,
            nn_depth=2,
        )
        params, static = eqx.partition(
            flow, eqx.is_inexact_array, is_leaf=lambda x: isinstance(x, paramax.NonTrainable)
        )
        params = train(
            params, lambda p: eqx.combine(p, static), log_p, dim, k_run, progress, settings
        )
        flow = eqx.combine(params, static)
        y, log_q = flow.sample_and_log_prob(k_evidence, (EVIDENCE,))
        log_z = float(logsumexp(log_p(y) - log_q) - np.log(EVIDENCE))
    transitions = settings.iterations * settings.batch_size * settings.intermediate
    annealed = settings.iterations * settings.batch_size * (settings.intermediate + 1)
    cost = Cost(annealed + EVIDENCE, transitions * (settings.leapfrog + 1))
    return FlowSampler(flow, where, log_z, cost, time.monotonic() - began)


def train(
    params: Any,
    flow_of: Callable[[Any], Any],
    log_p: LogDensity,
    dim: int,
    key: Array,
    progress: Progress,
    settings: Settings,
) -> Any:
    """Parameters of the flow after all iterations."""
    rate = optax.cosine_decay_schedule(settings.learning_rate, settings.iterations * settings.reuse)
    optimizer = optax.chain(optax.zero_nans(), optax.clip_by_global_norm(100.0), optax.adam(rate))
    capacity = settings.batches * settings.batch_size

    def iterate(state: State, inputs: tuple[Array, Array]) -> tuple[State, dict[str, Array]]:
        iteration, key = inputs
        k_anneal, k_draw = jax.random.split(key)
        flow = flow_of(state.learned.params)
        fresh, step_size, accepted = anneal(flow, log_p, k_anneal, state.step_size, settings)
        slot = iteration % settings.batches * settings.batch_size
        buffer = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, slot, axis=0),
            state.buffer,
            fresh,
        )

        def learn(carry: tuple[Learned, Buffer], key: Array):
            return descend(*carry, flow_of, optimizer, key, settings)

        keys = jax.random.split(k_draw, settings.reuse)
        (learned, buffer), metrics = jax.lax.scan(learn, (state.learned, buffer), keys)
        return State(learned, buffer, step_size), {**metrics, "acceptance": accepted}

    @partial(jax.jit, donate_argnums=0)
    def improve(state: State, first: Array, key: Array) -> tuple[State, dict[str, Array]]:
        numbers = first + jnp.arange(settings.chunk)
        keys = jax.random.split(key, settings.chunk)
        state, metrics = jax.lax.scan(iterate, state, (numbers, keys))
        return state, jax.tree.map(jnp.mean, metrics)

    empty = Buffer(jnp.zeros((capacity, dim)), jnp.full(capacity, -jnp.inf), jnp.zeros(capacity))
    state = State(Learned.create(params, optimizer), empty, jnp.float32(0.1))
    progress.start([], settings.iterations)
    for done in range(0, settings.iterations, settings.chunk):
        state, metrics = improve(state, jnp.asarray(done), jax.random.fold_in(key, done))
        follow(progress, done + settings.chunk, metrics)
    progress.stop()
    return state.learned.params


def anneal(
    flow: Any, log_p: LogDensity, key: Array, step_size: Array, settings: Settings
) -> tuple[Buffer, Array, Array]:
    """Samples of q moved towards p^2 / q, weighed by annealed importance sampling."""
    _, _, hmc = libraries()
    kernel = hmc.build_kernel()
    mass = jnp.ones(flow.shape[0])

    def log_bridge(beta: Array, y: Array) -> Array:
        """Between q at beta = 0 and p^2 / q at beta = 1."""
        return (1.0 - 2.0 * beta) * flow.log_prob(y) + 2.0 * beta * log_p(y)

    def transition(beta: Array, key: Array, y: Array) -> tuple[Array, Array]:
        def log_density(y: Array) -> Array:
            return log_bridge(beta, y[None])[0]

        start = hmc.init(y, log_density)
        state, info = kernel(key, start, log_density, step_size, mass, settings.leapfrog)
        return state.position, info.acceptance_rate

    def rung(carry: tuple[Array, Array], inputs: tuple[Array, Array, Array]):
        y, log_weight = carry
        beta, beta_next, key = inputs
        keys = jax.random.split(key, settings.batch_size)
        y, rate = jax.vmap(transition, in_axes=(None, 0, 0))(beta, keys, y)
        log_weight += log_bridge(beta_next, y) - log_bridge(beta, y)
        return (y, log_weight), jnp.mean(rate)

    beta = jnp.linspace(0.0, 1.0, settings.intermediate + 2)
    k_start, k_walk = jax.random.split(key)
    y, log_q = flow.sample_and_log_prob(k_start, (settings.batch_size,))
    log_weight = log_bridge(beta[1], y) - log_q
    keys = jax.random.split(k_walk, settings.intermediate)
    (y, log_weight), rate = jax.lax.scan(rung, (y, log_weight), (beta[1:-1], beta[2:], keys))
    rate = jnp.mean(rate)
    step_size = step_size * jnp.where(rate > settings.acceptance, 1.05, 1.0 / 1.05)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    return Buffer(y, log_weight, flow.log_prob(y)), step_size, rate


def descend(
    learned: Learned,
    buffer: Buffer,
    flow_of: Callable[[Any], Any],
    optimizer: optax.GradientTransformation,
    key: Array,
    settings: Settings,
) -> tuple[tuple[Learned, Buffer], dict[str, Array]]:
    """One gradient step on buffered samples, drawn by weight; their weights follow the flow."""
    # The largest of log w + Gumbel noise are draws by weight without replacement.
    race = buffer.log_weight + jax.random.gumbel(key, buffer.log_weight.shape)
    _, chosen = jax.lax.top_k(race, settings.batch_size)
    y, log_q_old = buffer.y[chosen], buffer.log_q[chosen]
    log_q = flow_of(learned.params).log_prob(y)
    moved = log_q_old - log_q  # (1 - alpha) (log q - log q_old)
    weight = jnp.minimum(jnp.exp(moved), settings.max_weight)

    def loss(params: Any) -> tuple[Array, dict[str, Array]]:
        value = -jnp.mean(weight * flow_of(params).log_prob(y))
        return value, {"loss": value}

    learned, metrics = learned.descend(optimizer, loss)
    buffer = buffer._replace(
        log_weight=buffer.log_weight.at[chosen].add(moved),
        log_q=buffer.log_q.at[chosen].set(log_q),
    )
    return (learned, buffer), metrics
