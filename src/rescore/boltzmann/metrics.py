"""How far samples are from a target whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from rescore.boltzmann.targets import Target

PROJECTIONS = 128  # directions of the sliced distance
MMD_POINTS = 2000  # of each side: the kernel matrix is quadratic in them


def compare(target: Target, x: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Every measure of samples x [n, d] against exact samples of the target [m, d]."""
    x, exact = np.asarray(x, np.float64), np.asarray(exact, np.float64)
    weights, low, high = mode_weights(target, x)
    truth, _, _ = mode_weights(target, exact)
    mean_error, cov_error = mode_moments(target, x, exact)
    return {
        "mode_weights": weights,
        "mode_weights_low": low,
        "mode_weights_high": high,
        "mode_weights_exact": truth,
        "mode_weight_error": np.max(np.abs(weights - truth)),
        "mean_error": mean_error,
        "cov_error": cov_error,
        "sliced_w2": sliced_w2(x, exact),
        "mmd2": mmd2(x, exact),
        "bridge": None if target.bridge is None else np.mean(np.abs(x[:, 0]) < target.bridge),
    }


def nearest(target: Target, x: np.ndarray) -> np.ndarray:
    """The mode of each point. [n]"""
    return np.argmin(cdist(x, target.centres), axis=1)


def mode_weights(target: Target, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of each mode, and Wilson's 95 % interval for independent samples."""
    n, z = len(x), 1.96
    share = np.bincount(nearest(target, x), minlength=len(target.centres)) / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return share, middle - half, middle + half


def mode_moments(target: Target, x: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Worst distance of a mode's mean, and worst relative Frobenius error of its covariance.

    A mode with fewer than two points is lost: its errors are infinite.
    """
    mine, theirs = nearest(target, x), nearest(target, exact)
    mean_error, cov_error = [], []
    for mode in range(len(target.centres)):
        a, b = x[mine == mode], exact[theirs == mode]
        if len(a) < 2:
            return np.inf, np.inf
        truth = np.cov(b.T)
        mean_error.append(np.linalg.norm(a.mean(axis=0) - b.mean(axis=0)))
        cov_error.append(np.linalg.norm(np.cov(a.T) - truth) / np.linalg.norm(truth))
    return float(max(mean_error)), float(max(cov_error))


def sliced_w2(x: np.ndarray, y: np.ndarray, seed: int = 0) -> float:
    """Root mean square over directions of the one-dimensional Wasserstein-2 distance."""
    direction = np.random.default_rng(seed).normal(size=(x.shape[1], PROJECTIONS))
    direction /= np.linalg.norm(direction, axis=0)
    n = min(len(x), len(y))
    gap = quantiles(x @ direction, n) - quantiles(y @ direction, n)
    return float(np.sqrt(np.mean(gap**2)))


def quantiles(values: np.ndarray, n: int) -> np.ndarray:
    """n evenly spread order statistics of each column. [m, k] -> [n, k]"""
    ranks = (np.arange(n) + 0.5) * len(values) / n
    return np.sort(values, axis=0)[ranks.astype(int)]


def mmd2(x: np.ndarray, y: np.ndarray) -> float:
    """Unbiased squared maximum mean discrepancy; Gaussian kernel of y's median distance.

    Around 0, on either side, where nothing tells the two apart.
    """
    x, y = x[:MMD_POINTS], y[:MMD_POINTS]
    yy = cdist(y, y, "sqeuclidean")
    width = np.median(yy)
    same = [off_diagonal_mean(np.exp(-d / width)) for d in (cdist(x, x, "sqeuclidean"), yy)]
    return float(sum(same) - 2.0 * np.mean(np.exp(-cdist(x, y, "sqeuclidean") / width)))


def off_diagonal_mean(matrix: np.ndarray) -> float:
    n = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (n * (n - 1)))
