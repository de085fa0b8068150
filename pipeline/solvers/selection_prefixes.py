"""Prefixes of a selection: their weights at all sizes from one factorisation, and their held-out errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.ridge import RIDGES, bracketed


def prefix_sizes(size: int) -> NDArray[np.int64]:
    """Return the sizes at which prefixes of a selection are compared, (g,) int64: 1 to 10, then 6 % apart."""
    sizes, k = [], 1.0
    while k < size:
        sizes.append(int(k))
        k = max(k + 1, k * 1.06) if k >= 10 else k + 1
    return np.array([*sizes, size], np.int64)


def prefix_weights(
    statistics: GramStatistics, sizes: NDArray[np.int64], ridge: float, *, intercept: bool
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the ridge weights (size, T) of every prefix of the columns, and the intercepts (g, T).

    The Cholesky factor of a prefix is the prefix of the factor: one factorisation serves all sizes (mathematics.md,
    eq. 61). Raises LinAlgError where the Gram with this ridge is not definite.
    """
    used = statistics.centred() if intercept else statistics
    damped = used.gram.copy()
    damped[np.diag_indices_from(damped)] += ridge
    L = cholesky(damped, lower=True, overwrite_a=True)
    z = solve_triangular(L, used.kty, lower=True)
    weights = [solve_triangular(L[:k, :k], z[:k], lower=True, trans=1) for k in sizes]
    if not intercept:
        return weights, np.zeros((len(sizes), used.kty.shape[1]))
    sums, n = statistics.column_sums, statistics.weight_sum
    return weights, np.stack([(statistics.target_sums - sums[: len(w)] @ w) / n for w in weights])


def held_out_curve(
    fit: GramStatistics,
    held_out: GramStatistics,
    sizes: NDArray[np.int64],
    *,
    intercept: bool,
    fractions: Sequence[float] = RIDGES,
) -> NDArray[np.float64]:
    """Return the mean squared held-out error of every prefix of the columns at its best ridge, (g,) float64.

    Both are statistics of the same columns, in the order chosen. All ridges are tried at a few of the sizes, and at
    all sizes those that were best at one of these, and their neighbours. Infinite where none makes the Gram definite.
    """
    step = max(len(sizes) // 8, 1)

    def errors_of(places: NDArray[np.int64], fraction: float) -> NDArray[np.float64]:
        return _errors(fit, held_out, places, fraction, intercept)

    tried = bracketed(partial(errors_of, sizes[::-step]), fractions)
    best = np.unique(np.argmin([errors for _, errors in tried], axis=0))
    near = sorted({place + step for place in best.tolist() for step in (-1, 0, 1)} & set(range(len(tried))))
    errors: NDArray[np.float64] = np.min([errors_of(sizes, tried[place][0]) for place in near], axis=0)
    return errors


def _errors(
    fit: GramStatistics, held_out: GramStatistics, sizes: NDArray[np.int64], fraction: float, intercept: bool
) -> NDArray[np.float64]:
    """Return the held-out errors of all prefixes at a ridge, (sizes,)."""
    errors = np.full(len(sizes), np.inf)
    try:
        ridge = fraction * float(np.mean(np.diagonal(fit.gram)))
        weights, intercepts = prefix_weights(fit, sizes, ridge, intercept=intercept)
    except LinAlgError:
        return errors
    for index, (k, w) in enumerate(zip(sizes, weights, strict=True)):
        errors[index] = _prefix(held_out, k).squared_error(w, intercepts[index]).sum() / held_out.weight_sum
    return errors


def _prefix(statistics: GramStatistics, size: int) -> GramStatistics:
    """Return the statistics of the first columns, without a copy."""
    first = slice(0, size)
    return replace(
        statistics,
        gram=statistics.gram[first, first],
        kty=statistics.kty[first],
        column_sums=statistics.column_sums[first],
    )
