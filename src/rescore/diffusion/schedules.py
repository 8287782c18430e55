"""Noise schedules beta_1..beta_T and the coefficients that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rescore.core import UsageError


@dataclass(frozen=True)
class NoiseSchedule:
    """beta_t for t = 1..T, hashable; array index is t - 1 and stays inside `diffusion`."""

    beta: tuple[float, ...]

    def __post_init__(self):
        if not self.beta or not all(0.0 < b < 1.0 for b in self.beta):
            raise UsageError("a noise schedule needs at least one beta, each inside (0, 1)")

    @property
    def T(self) -> int:
        return len(self.beta)

    @cached_property
    def alpha_bar(self) -> np.ndarray:
        """alpha_bar_t for t = 0..T, with alpha_bar_0 = 1. [T + 1] float64"""
        return np.concatenate([[1.0], np.cumprod(1.0 - np.asarray(self.beta))])

    @property
    def end_std(self) -> float:
        """Standard deviation of the noise in a_T: where the reverse process should start."""
        return float(np.sqrt(1.0 - self.alpha_bar[-1]))


def demand_steps(T: int) -> None:
    if T < 1:
        raise UsageError(f"T must be at least 1, not {T}")


def linear(T: int, scale: float = 1.0, first: float = 1e-4, last: float = 0.999) -> NoiseSchedule:
    """beta_t on a line; `scale` 0.8 is the authors' released run."""
    demand_steps(T)
    return NoiseSchedule(tuple(scale * np.linspace(first, last, T)))


def cosine(T: int, scale: float = 1.0) -> NoiseSchedule:
    """alpha_bar_t on a squared cosine (the paper's choice); beta_t capped at 0.999."""
    demand_steps(T)
    u, offset = np.arange(T + 1) / T, 0.008  # Nichol and Dhariwal (2021)
    f = np.cos((u + offset) / (1.0 + offset) * np.pi / 2.0) ** 2
    return NoiseSchedule(tuple(scale * np.clip(1.0 - f[1:] / f[:-1], 1e-6, 0.999)))


def vp(T: int, scale: float = 1.0) -> NoiseSchedule:
    """Discretised variance-preserving diffusion."""
    demand_steps(T)
    beta_min, beta_max = 0.1, 10.0
    t = np.arange(1, T + 1)
    exponent = beta_min / T + 0.5 * (beta_max - beta_min) * (2 * t - 1) / T**2
    return NoiseSchedule(tuple(scale * -np.expm1(-exponent)))


def geometric(T: int, first: float = 0.01, last: float = 5.0) -> NoiseSchedule:
    """Noise-to-signal ratio sqrt(1 / alpha_bar_t - 1), the width of phi_{0|t}, from first to last.

    Equal ratios serve features of every size in between alike, which an unseen density needs; it
    is the schedule of iDEM, there written for variance-exploding noise.
    """
    demand_steps(T)
    if not 0.0 < first < last:
        raise UsageError(f"a geometric schedule needs 0 < first < last, not {first} and {last}")
    alpha_bar = 1.0 / (1.0 + np.geomspace(first, last, T) ** 2)
    return NoiseSchedule(tuple(1.0 - alpha_bar / np.append(1.0, alpha_bar[:-1])))


SCHEDULES: dict[str, Callable[..., NoiseSchedule]] = {
    "linear": linear,
    "cosine": cosine,
    "vp": vp,
}
