"""Weights on columns, and least squares on a support, W = (gram_PP + ρ I)⁻¹ kty_P, which removes a penalty's shrinkage.

All outputs share the support and one Cholesky factorisation; held-out rows choose the ridge ρ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from pipeline.kernels.gram_statistics import GramStatistics

RIDGE_GRAMS = 5  # The choice of a ridge and its refit hold three Grams, a centred one and a factor.
# Ridges are fractions of the mean diagonal of the Gram; below the first, rounding rules. Moved centers try all of
# these, and larger ones while the last is the best, up to the largest, which leaves next to nothing of the weights.
RIDGES = tuple(10.0**exponent for exponent in range(-13, 0))
LARGEST_RIDGE = 1e6
# A search by exponents stays within these, and begins with the second where fits are of a sample.
RIDGE_STEPS, FIRST_RIDGE = range(-13, 7), -5
COARSE_EXPONENTS = (-13, -10, -7, -4, -1)  # Held-out errors may have several valleys: the search begins in the lowest.
SUPPORT_RIDGE = 1e-5  # Least squares in place of a penalised fit has this fraction of the mean diagonal as ridge.
LEAST_FREE, ROUNDING = 1e-6, 1e-12  # Where 1 - h is below LEAST_FREE, ROUNDING rules the value of a row without itself.
Values = NDArray[np.float64]
SplitStatistics = tuple[GramStatistics, GramStatistics]  # fit rows, held-out rows
# Of rows: decision values (n, T), classes (n,) and weights (n,).
LabelledValues = tuple[Values, NDArray[np.int64], Values]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights (k, T) f8 and intercept (T,) f8 on columns (k,) i8, by their position in some statistics."""

    columns: NDArray[np.int64]
    weights: Values
    intercept: Values

    @staticmethod
    def of_support(table: Values, statistics: GramStatistics, *, intercept: bool) -> "Weights":
        """Return the rows of a table (M, T) that are not zero, with the intercept that the statistics give them."""
        columns = np.flatnonzero(table.any(axis=1))
        offset = statistics.intercept(table[columns], columns) if intercept else np.zeros(table.shape[1])
        return Weights(columns, table[columns], offset)

    def decide(self, columns: NDArray[np.floating]) -> Values:
        """Return the decision values (n, T) of rows with these kernel columns (n, k)."""
        return columns @ self.weights + self.intercept

    def named(self, names: NDArray[np.int64]) -> "Weights":
        """Return the weights with names (M,) i8 of the columns in place of their positions."""
        return replace(self, columns=names[self.columns])


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Ridge regression on some rows: its weights, the statistics of the rows, and whether an intercept was fitted."""

    weights: Weights
    statistics: GramStatistics
    ridge: float
    centred: bool


class LabelledColumns(NamedTuple):
    """Columns of rows, and what is known of them."""

    units: NDArray[Any]  # (b,), in order
    columns: NDArray[np.floating]  # (b, m)
    targets: Values  # (b, T)
    truth: NDArray[np.int64]  # (b,), classes
    weights: Values  # (b,), above 0
    held_out: NDArray[np.bool_]  # (b,)


@dataclass(frozen=True, eq=False)
class CalibrationWeights:
    """Weights that predict the held-out rows, from which the temperature of the probabilities is found."""

    weights: Weights
    fit: RidgeFit | None = None  # the least squares they are from; None for penalised weights and moved centers
    points: NDArray[np.floating] | None = None  # (k, d), where the centers were moved
    everything: GramStatistics | None = None  # statistics of all rows, where the weights were fitted to these


def intercept_of(statistics: GramStatistics, weights: Values, *, intercept: bool) -> Values:
    """Return the intercept (T,) that goes with weights (M, T) of all columns; zero where none is fitted."""
    return statistics.intercept(weights) if intercept else np.zeros(weights.shape[1])


@dataclass(frozen=True)
class Refit:
    """Least-squares weights, their ridge ρ, and the mean held-out losses of ridges tried: squared, or log losses."""

    weights: Weights
    ridge: float
    held_out_errors: tuple[tuple[float, float], ...]
    of_fit: RidgeFit  # to the fit rows alone, with the same fraction of the diagonal as ridge


def least_squares(
    statistics: GramStatistics, ridge: float, *, intercept: bool, centred: GramStatistics | None = None
) -> Weights:
    """Return the weights of ridge regression on all columns (mathematics.md, eq. 58), or raise LinAlgError."""
    used = centred or statistics.centred() if intercept else statistics
    weights = cho_solve(cho_factor(used.damped(ridge), lower=True, overwrite_a=True), used.kty)
    offset = intercept_of(statistics, weights, intercept=intercept)
    return Weights(np.arange(len(weights)), weights, offset)


def refit(
    fit: GramStatistics,
    held_out: GramStatistics,
    final: GramStatistics,
    *,
    intercept: bool,
    fractions: Sequence[float] = (),
) -> Refit:
    """Choose the ridge by the held-out error of a fit on `fit`, as `try_ridges` does, then fit `final` with it.

    `fit` and `final` are statistics of the same columns; `final` may be `fit` (while penalties are compared) or all
    rows, and the ridge grows with their number. Raises LinAlgError where no ridge makes the Gram definite.
    """
    errors, of_fractions = try_ridges(fit, held_out, fractions, intercept=intercept)
    return with_ridge(fit, final, errors, intercept=intercept, of_fractions=of_fractions)


def try_ridges(
    fit: GramStatistics,
    held_out: GramStatistics,
    fractions: Sequence[float] = (),
    start: int | None = None,
    *,
    intercept: bool,
) -> tuple[list[tuple[float, float]], dict[float, Weights]]:
    """Return fractions with the held-out errors of fits, and the weights; see `refit`.

    After the fractions given come larger ones, while the last has the lowest error. Without any the error is followed
    downhill from the fraction with the exponent `start`, or with the best of COARSE_EXPONENTS.
    """
    of_fractions, scale = dict[float, Weights](), mean_diagonal(fit)
    centred = fit.centred() if intercept else None

    def error_at(fraction: float) -> float:
        try:
            found = least_squares(fit, fraction * scale, intercept=intercept, centred=centred)
        except LinAlgError:
            return np.inf
        of_fractions[fraction] = found
        return float(held_out.squared_error(found.weights, found.intercept).sum() / held_out.weight_sum)

    if fractions:
        errors = [(fraction, error_at(fraction)) for fraction in fractions]
        while errors[-1][0] < LARGEST_RIDGE and min(errors, key=lambda pair: pair[1]) is errors[-1]:
            larger = 10.0 * errors[-1][0]
            errors.append((larger, error_at(larger)))
    else:
        of_exponent = cache(lambda exponent: error_at(10.0**exponent))
        by_exponent = {exponent: of_exponent(exponent) for exponent in COARSE_EXPONENTS} if start is None else {}
        first = min(by_exponent, key=by_exponent.__getitem__) if start is None else start
        by_exponent |= search_exponents(of_exponent, first, RIDGE_STEPS)
        errors = [(10.0**exponent, error) for exponent, error in sorted(by_exponent.items())]
    return [(fraction, error) for fraction, error in errors if np.isfinite(error)], of_fractions


def ridge_summary(refitted: Refit | None) -> dict[str, Any]:
    """Return what the report says of the ridge of a refit, and of those tried."""
    if refitted is None:
        return {"ridge": None, "ridges": None}
    return {"ridge": refitted.ridge, "ridges": [list(pair) for pair in refitted.held_out_errors]}


def with_ridge(
    fit: GramStatistics,
    final: GramStatistics,
    held_out_errors: Sequence[tuple[float, float]],
    *,
    intercept: bool,
    of_fractions: Mapping[float, Weights] | None = None,
) -> Refit:
    """Return the fit to `final` with the ridge of the lowest held-out error; of_fractions: known weights of `fit`."""
    scale, final_scale = mean_diagonal(fit), mean_diagonal(final)
    for fraction, _ in sorted(held_out_errors, key=lambda pair: pair[1]):
        try:
            of_fit = (of_fractions or {}).get(fraction) or least_squares(fit, fraction * scale, intercept=intercept)
            weights = of_fit if final is fit else least_squares(final, fraction * final_scale, intercept=intercept)
        except LinAlgError:
            continue
        fitted = RidgeFit(of_fit, fit, fraction * scale, intercept)
        return Refit(weights, fraction * final_scale, tuple(held_out_errors), fitted)
    raise LinAlgError("the Gram of the support is not positive definite with any ridge tried")


def mean_diagonal(statistics: GramStatistics) -> float:
    """Return the mean square of the columns, of which ridges are fractions; 1 where all are 0."""
    return float(np.trace(statistics.gram)) / max(len(statistics.gram), 1) or 1.0


def search_exponents(error_at: Callable[[int], float], start: int, steps: range) -> dict[int, float]:
    """Return errors at whole numbers: from `start` down while they fall, else up; past infinite ones, within `steps`.

    The lowest is the best of all where the error falls to it and rises beyond it.
    """
    errors, best = {start: error_at(start)}, start
    for step in (-1, 1):
        while best + step in steps:
            errors[best + step] = error_at(best + step)
            if not (errors[best + step] < errors[best] or errors[best] == np.inf):
                break
            best += step
        if best != start and np.isfinite(errors[best]):
            break
        best = start
    return errors


def support_fit(statistics: GramStatistics, *, intercept: bool) -> RidgeFit:
    """Return least squares in the place of a penalised fit to these rows, on its support."""
    ridge = SUPPORT_RIDGE * mean_diagonal(statistics)
    return RidgeFit(least_squares(statistics, ridge, intercept=intercept), statistics, ridge, intercept)


def left_out(
    fit: RidgeFit, batches: Iterable[LabelledColumns]
) -> tuple[LabelledValues, NDArray[Any], NDArray[np.bool_]]:
    """Return decision values of rows by a fit, each without its unit (mathematics.md, eq. 79); units; who is held out.

    batches: of whole units. Held-out rows keep the values of the fit; rows that alone determine their values are left
    out. Costs m³/3 operations, m² for each row, and b³ for a unit of b rows; 16·m² bytes, and 24·m for each row of a
    batch.
    """
    used = fit.statistics.centred() if fit.centred else fit.statistics
    means = used.column_sums / used.weight_sum if fit.centred else np.zeros(used.n_centers)
    constant = np.diagonal(used.gram) == 0.0
    factor = cho_factor(used.damped(fit.ridge), lower=True, overwrite_a=True)[0]
    del used
    of_mean = 1.0 / fit.statistics.weight_sum if fit.centred else 0.0
    found = list[tuple[NDArray[Any], ...]]()
    for units, columns, targets, truth, weights, held_out in batches:
        about_means = columns - means
        about_means[:, constant] = 0.0
        root = solve_triangular(factor, about_means.T, lower=True).T
        f = fit.weights.decide(columns)
        off, own, sure = targets - f, np.where(held_out, 0.0, weights), np.zeros(len(f), bool)
        _, firsts, sizes = np.unique(units, return_index=True, return_counts=True)
        for size in np.unique(sizes):
            rows = firsts[sizes == size, None] + np.arange(size)  # (units of this size, size)
            leverages = root[rows] @ root[rows].transpose(0, 2, 1) + of_mean
            free = np.linalg.inv((1.0 + ROUNDING) * np.eye(size) - leverages * own[rows][:, None, :])
            each = np.diagonal(free, axis1=1, axis2=2)
            sure[rows] = ((each < 0.0) | (each > 1.0 / LEAST_FREE)).any(axis=1, keepdims=True)
            f[rows] -= free @ off[rows] - off[rows]
        found.append(tuple(values[~sure] for values in (f, truth, weights, units, held_out)))
    f, truth, weights, units, unseen = (np.concatenate(values) for values in zip(*found, strict=True))
    return (f, truth, weights), units, unseen
