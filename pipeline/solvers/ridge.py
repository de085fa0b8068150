"""Least squares on a selected support: removes the shrinkage that the penalty puts on the weights it keeps.

All outputs share the support (the union of theirs), so one Cholesky factorisation serves them all:

    W = (gram_PP + ρ I)⁻¹ kty_P

with a ridge ρ, the one of a short list whose squared error on the held-out rows is lowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pipeline.statistics import GramStatistics

# Ridges tried, as fractions of the mean diagonal of the Gram: below the first, rounding rules.
RIDGES = tuple(10.0**exponent for exponent in range(-13, 0))


@dataclass(frozen=True)
class Refit:
    """Refitted weights (m, T), intercept (T,), the ridge ρ, and the mean squared held-out error of each ridge tried."""

    weights: np.ndarray
    intercept: np.ndarray
    ridge: float
    hold_out_errors: tuple[tuple[float, float], ...]


def least_squares(statistics: GramStatistics, ridge: float, *, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (m, T) and intercept (T,) of ridge regression; m³/3 + m²·T operations.

    Raises LinAlgError where the Gram with this ridge is not positive definite in float64.
    """
    used = statistics.centred() if intercept else statistics
    damped = used.gram.copy()
    damped[np.diag_indices_from(damped)] += ridge
    weights = cho_solve(cho_factor(damped, lower=True, overwrite_a=True), used.kty)
    return weights, statistics.intercept(weights) if intercept else np.zeros(weights.shape[1])


def refit(
    fit: GramStatistics,
    hold_out: GramStatistics,
    final: GramStatistics,
    *,
    intercept: bool,
    fractions: Sequence[float] = RIDGES,
) -> Refit:
    """Choose the ridge by the held-out error of a fit on `fit`, then fit `final` with it.

    The three are statistics of the same columns. `final` may be `fit` (while penalties are compared) or all rows; the
    ridge grows with their number. Raises LinAlgError where no ridge of the list makes the Gram definite.
    """
    errors: list[tuple[float, float]] = []
    for fraction in fractions:
        ridge = fraction * _scale(fit)
        try:
            weights, offset = least_squares(fit, ridge, intercept=intercept)
        except LinAlgError:
            continue
        error = float(hold_out.squared_error(weights, offset).sum() / hold_out.weight_sum)
        errors.append((fraction, error))
    for fraction, _ in sorted(errors, key=lambda pair: pair[1]):
        ridge = fraction * _scale(final)
        try:
            weights, offset = least_squares(final, ridge, intercept=intercept)
        except LinAlgError:
            continue
        return Refit(weights, offset, ridge, tuple(errors))
    raise LinAlgError("the Gram of the support is not positive definite with any ridge tried")


def _scale(statistics: GramStatistics) -> float:
    return float(np.trace(statistics.gram)) / max(len(statistics.gram), 1)
