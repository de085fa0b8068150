"""Least squares on a selected support: removes the shrinkage that the penalty puts on the weights it keeps.

All outputs share the support (the union of theirs), so one Cholesky factorisation serves them all:

    W = (gram_PP + ρ I)⁻¹ kty_P

with a ridge ρ, the one whose squared error on the held-out rows is lowest; the largest tried is never the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.leave_one_out import RidgeFit

# Ridges tried, as fractions of the mean diagonal of the Gram: below the first, rounding rules. Larger ones follow while
# the last is the best, to the largest, which leaves next to nothing of the weights.
RIDGES = tuple(10.0**exponent for exponent in range(-13, 0))
LARGEST_RIDGE = 1e6


@dataclass(frozen=True)
class Refit:
    """Refitted weights (m, T), intercept (T,), the ridge ρ, and the mean squared held-out error of each ridge tried.

    of_fit: the fit to the fit rows with this ridge, which has not seen the held-out rows.
    """

    weights: np.ndarray
    intercept: np.ndarray
    ridge: float
    held_out_errors: tuple[tuple[float, float], ...]
    of_fit: RidgeFit


def least_squares(statistics: GramStatistics, ridge: float, *, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (m, T) and intercept (T,) of ridge regression; m³/3 + m²·T operations.

    mathematics.md, eq. 60.

    Raises LinAlgError where the Gram with this ridge is not positive definite in float64.
    """
    used = statistics.centred() if intercept else statistics
    damped = used.gram.copy()
    damped[np.diag_indices_from(damped)] += ridge
    weights = cho_solve(cho_factor(damped, lower=True, overwrite_a=True), used.kty)
    return weights, statistics.intercept(weights) if intercept else np.zeros(weights.shape[1])


def refit(
    fit: GramStatistics,
    held_out: GramStatistics,
    final: GramStatistics,
    *,
    intercept: bool,
    fractions: Sequence[float] = RIDGES,
) -> Refit:
    """Choose the ridge by the held-out error of a fit on `fit`, then fit `final` with it.

    The three are statistics of the same columns. `final` may be `fit` (while penalties are compared) or all rows; the
    ridge grows with their number. Raises LinAlgError where no ridge of the list makes the Gram definite.
    """

    def error_at(fraction: float) -> NDArray[np.float64]:
        try:
            weights, offset = least_squares(fit, fraction * _scale(fit), intercept=intercept)
        except LinAlgError:
            return np.array([np.inf])
        return held_out.squared_error(weights, offset).sum(keepdims=True) / held_out.weight_sum

    tried = [(fraction, float(error[0])) for fraction, error in bracketed(error_at, fractions)]
    errors = [(fraction, error) for fraction, error in tried if np.isfinite(error)]
    for fraction, _ in sorted(errors, key=lambda pair: pair[1]):
        ridge = fraction * _scale(final)
        try:
            weights, offset = least_squares(final, ridge, intercept=intercept)
        except LinAlgError:
            continue
        fit_ridge = fraction * _scale(fit)
        of_fit = RidgeFit(fit, fit_ridge, *least_squares(fit, fit_ridge, intercept=intercept), intercept)
        return Refit(weights, offset, ridge, tuple(errors), of_fit)
    raise LinAlgError("the Gram of the support is not positive definite with any ridge tried")


def bracketed(
    errors_at: Callable[[float], NDArray[np.float64]], fractions: Sequence[float]
) -> list[tuple[float, NDArray[np.float64]]]:
    """Return fractions, rising, with their errors: those given, and larger ones while the last lowers any error.

    errors_at: errors (g,) f8 at a fraction, infinite where no factor exists.
    """
    tried = [(fraction, errors_at(fraction)) for fraction in fractions]
    while tried[-1][0] < LARGEST_RIDGE:
        *before, last = (errors for _, errors in tried)
        if not np.any(last < np.min(before, axis=0, initial=np.inf)):
            break
        larger = 10.0 * tried[-1][0]
        tried.append((larger, errors_at(larger)))
    return tried


def _scale(statistics: GramStatistics) -> float:
    return float(np.trace(statistics.gram)) / max(len(statistics.gram), 1)
