"""The paper's toy studies: every method on one target, measured alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rescore.boltzmann.energy import Cost
from rescore.boltzmann.fab import fit_flow
from rescore.boltzmann.metrics import compare
from rescore.boltzmann.targets import Target
from rescore.boltzmann.train import fit
from rescore.diffusion.process import signal_and_noise
from rescore.diffusion.reverse import mean_noise
from rescore.diffusion.samplers import ddpm, langevin
from rescore.diffusion.schedules import geometric, linear
from rescore.show.progress import Progress
from rescore.show.text import table as text_table

DATA = 50_000  # exact samples that DSM and DDPM learn from
EXACT = 20_000  # exact samples that metrics compare with
TWENTY = linear(20, first=0.001, last=0.999)  # the paper's schedule
ENERGY_MATCHING: dict[str, Any] = {  # iDEM's, in the coordinates that the pilot finds
    "model_share": 1.0,
    "num_reverse": 256,
    "level_weight": "noise",
    "schedule": geometric(256, 0.01, 3.0),
}
LANGEVIN_STEP = 0.1  # times the variance of the target's finest feature


class Outcome(NamedTuple):
    """Samples of a method and what they cost."""

    samples: np.ndarray  # [n, d]
    cost: Cost
    seconds: float
    log_z: float | None = None
    verdict: str | None = None  # of the fit's own report


@dataclass
class Study:
    """One target, one seed; fits that two methods share are made once."""

    target: Target
    seed: int
    n: int  # samples per method
    progress: Progress
    settings: dict[str, Any] = field(default_factory=dict)  # of `fit`, over those of the method
    fits: dict[Callable, Any] = field(default_factory=dict)

    def run(self, method: str) -> Outcome:
        """Samples of a method, or of the sampler that it fits; training counts in the time."""
        _, make, how = METHODS[method]
        if make in (Study.exact, Study.langevin, Study.twenty):
            return make(self, **how)
        if make not in self.fits:
            self.fits[make] = make(self)
        sampler, began = self.fits[make], time.monotonic()
        samples = np.asarray(sampler.sample(self.n, self.keys(2)[1], **how))
        seconds = sampler.seconds + time.monotonic() - began
        verdict = sampler.report and sampler.report.verdict
        return Outcome(samples, sampler.cost, seconds, sampler.log_z, verdict)

    def keys(self, n: int) -> Array:
        return jax.random.split(jax.random.fold_in(jax.random.key(self.seed), 1), n)

    def fit(self, *args: Any, **settings: Any) -> Any:
        settings = {**settings, **self.settings}
        density = self.target.log_density
        return fit(
            density, self.target.dim, *args, seed=self.seed, progress=self.progress, **settings
        )

    def fixed(self, proposal: str, width: float, **settings: Any) -> Any:
        """Reweighted score matching with one h_t for all t and nothing found beforehand."""
        return self.fit(
            coordinates=(0.0, 3.0 * self.target.unit),
            proposal=proposal,
            width=width,
            model_share=0.0,
            num_reverse=256,
            schedule=geometric(256, 0.01, 10.0),
            **{"reference": 1.3, **settings},
        )

    def literal(self, weights: str = "literal", num_reverse: int = 1) -> Any:
        """The paper's table of settings, and its loss: one draw of phi, weighted by p_0 itself.

        With normalised weights, which take many draws, it is the control of that loss.
        """
        return self.fit(
            coordinates=(0.0, 1.0),
            width=2.0,
            model_share=0.0,
            weights=weights,
            reference=None,
            num_reverse=num_reverse,
            level_weight="noise",
            schedule=TWENTY,
            hidden=(128, 128),
            activation="leaky_relu",
            learning_rate=3e-4,
            batch_size=1024,
            updates=6_000,
        )

    def denoising(self, level_weight: str) -> Any:
        data = self.target.sample(jax.random.key(1000 + self.seed), DATA)
        return self.fit(
            "dsm", samples=data, level_weight=level_weight, batch_size=1024, updates=4_000
        )

    def idem(self) -> Any:
        """Denoising energy matching on noised samples of the model alone."""
        return self.fit("dem", **ENERGY_MATCHING)

    def fab(self) -> Any:
        coordinates = (0.0, 3.0 * self.target.unit)
        return fit_flow(
            self.target.log_density,
            self.target.dim,
            coordinates,
            seed=self.seed,
            progress=self.progress,
        )

    def exact(self) -> Outcome:
        (key,) = self.keys(1)
        return Outcome(np.asarray(self.target.sample(key, self.n)), Cost(), 0.0, None)

    def twenty(self) -> Outcome:
        """The paper's 20 ancestral steps with the exact score, that of many exact samples."""
        began, (k_data, k_draw) = time.monotonic(), self.keys(2)
        data = self.target.sample(k_data, DATA // 20)

        def eps(a_t: Array, t: Array) -> Array:
            signal, std = signal_and_noise(TWENTY, t)
            noise = (a_t[None] - signal[None] * data) / std[None]
            return mean_noise(-0.5 * jnp.sum(jnp.square(noise), axis=-1), noise)[0]

        def one(key: Array) -> Array:
            return ddpm(TWENTY, eps, key, (self.target.dim,), clip=None)

        draw = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=100))
        samples = np.asarray(draw(jax.random.split(k_draw, self.n)))
        return Outcome(samples, Cost(), time.monotonic() - began)

    def langevin(self, steps: int) -> Outcome:
        """Unadjusted Langevin dynamics with the exact score, from a Gaussian of two units."""
        target, began = self.target, time.monotonic()
        k_start, k_walk = self.keys(2)
        start = 2.0 * target.unit * jax.random.normal(k_start, (self.n, target.dim))
        score = jax.grad(lambda x: target.log_density(x).sum())
        step_size = LANGEVIN_STEP * target.narrowest**2
        walk = jax.jit(lambda x, key: langevin(score, x, key, step_size, steps))
        samples = np.asarray(walk(start, k_walk))
        return Outcome(samples, Cost(0, self.n * steps), time.monotonic() - began)


class Method(NamedTuple):
    """A title for the figure, what makes samples or fits a sampler of them, and how to sample."""

    title: str
    make: Callable[..., Any]
    how: dict[str, Any] = {}  # noqa: RUF012 never changed


def gaussian_fit(study: Study) -> Any:
    return study.fixed("gaussian", 1.0)


def control(study: Study) -> Any:
    return study.literal("normalised", 64)


ANCESTRAL = {"how": "ddpm"}  # as the paper samples
METHODS: dict[str, Method] = {
    "exact": Method("exact samples", Study.exact),
    "rsm": Method("RSM, defaults", Study.fit),
    "rsm-mh": Method("RSM, corrected", Study.fit, {"correct": "mh"}),
    "rsm-gaussian": Method("RSM, Gaussian h", gaussian_fit, ANCESTRAL),
    "rsm-uniform": Method(
        "RSM, uniform h", lambda study: study.fixed("uniform", np.sqrt(3.0)), ANCESTRAL
    ),
    "rsm-phi": Method(
        "RSM, phi", lambda study: study.fixed("gaussian", 1.0, reference=None), ANCESTRAL
    ),
    "rsm-literal": Method("RSM, literal loss", Study.literal, ANCESTRAL),
    "rsm-control": Method("its control", control, ANCESTRAL),
    "exact-20": Method("exact score, 20 steps", Study.twenty),
    "annealed-langevin": Method(
        "RSM, annealed Langevin", gaussian_fit, {"how": "annealed-langevin", "steps": 40}
    ),
    "dsm": Method("DSM (data)", lambda study: study.denoising("velocity"), ANCESTRAL),
    "ddpm": Method("DDPM (data)", lambda study: study.denoising("noise"), ANCESTRAL),
    "langevin": Method("Langevin, 20 steps", Study.langevin, {"steps": 20}),
    "langevin-long": Method("Langevin, 5,000 steps", Study.langevin, {"steps": 5_000}),
    "idem": Method("iDEM", Study.idem, ANCESTRAL),
    "fab": Method("FAB", Study.fab),
}


def measure(study: Study, methods: Sequence[str]) -> Iterator[tuple[str, Outcome, dict[str, Any]]]:
    """Each method with its samples and their metrics, as soon as they are there."""
    target = study.target
    exact = np.asarray(target.sample(jax.random.key(2000 + study.seed), EXACT))
    for method in methods:
        study.progress.message(f"{target.name}: {METHODS[method].title}")
        outcome = study.run(method)
        metrics = compare(target, outcome.samples, exact)
        error = None if outcome.log_z is None else outcome.log_z - target.log_z
        metrics |= {
            "log_z_error": error,
            "verdict": outcome.verdict,
            **outcome.cost._asdict(),
            "seconds": outcome.seconds,
        }
        off, seconds = metrics["mode_weight_error"], outcome.seconds
        study.progress.message(f"  largest error of a mode's share {off:.3f}, {seconds:.0f} s")
        yield method, outcome, metrics


COLUMNS = [
    *("weight", "mode_weight_error", "mean_error", "cov_error", "sliced_w2", "mmd2", "bridge"),
    *("log_z_error", "verdict", "energy", "gradient", "seconds"),
]


def table(results: dict[str, dict[str, Any]]) -> str:
    """The metrics of all methods as Markdown; a column without numbers is left out."""
    rows = {method: {"weight": heaviest(m), **m} for method, m in results.items()}
    shown = [c for c in COLUMNS if any(row[c] is not None for row in rows.values())]
    return text_table(
        ["method", *(column.replace("_", " ") for column in shown)],
        [[method, *(cell(row[c]) for c in shown)] for method, row in rows.items()],
    )


def heaviest(metrics: dict[str, Any]) -> str:
    """Share of the mode that is heaviest in truth, with its interval."""
    mode = int(np.argmax(metrics["mode_weights_exact"]))
    share, low, high = (
        metrics[name][mode] for name in ("mode_weights", "mode_weights_low", "mode_weights_high")
    )
    return f"{share:.3f} [{low:.3f}, {high:.3f}]"


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if abs(value) >= 1e4:
        return f"{value:.1e}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}"
