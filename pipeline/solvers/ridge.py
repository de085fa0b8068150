"""Weights on columns, and least squares on a support, W = (gram_PP + ρ I)⁻¹ kty_P, which removes a penalty's shrinkage.

All outputs share the support and one Cholesky factorisation; the ridge ρ has the lowest squared held-out error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from pipeline.kernels.gram_statistics import GramStatistics

# Ridges tried, as fractions of the mean diagonal of the Gram: below the first, rounding rules. Larger ones follow while
# the last is the best, to the largest, which leaves next to nothing of the weights.
RIDGE_GRAMS = 5  # The choice of a ridge and its refit hold as much: three Grams, one centred, one factor.
RIDGES = tuple(10.0**exponent for exponent in range(-13, 0))
LARGEST_RIDGE = 1e6
RIDGE_STEPS = range(-13, 7)  # exponents of such fractions that `search_exponents` may come to
SUPPORT_RIDGE = 1e-5  # of least squares that stands for a penalised fit, as a fraction of the mean diagonal
LEAST_FREE = 1e-6  # of 1 - h: below it, rounding rules the value of a row without itself
Values = NDArray[np.float64]
SplitStatistics = tuple[GramStatistics, GramStatistics]  # of the fit rows and of the held-out rows
# Of rows: keys (b,), equal for equal ones, columns (b, m), classes (b,), weights (b,) > 0, and who is held out (b,).
LabelledColumns = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
# Of distinct rows: decision values (n, T), classes (n,) and weights (n,).
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


class HeldOutRows(NamedTuple):
    """What judges weights in place of statistics: the number of rows, and their squared error of each output, (T,)."""

    weight_sum: float
    squared_error: Callable[[Values, Values], Values]


def refit(
    fit: GramStatistics,
    held_out: GramStatistics,
    final: GramStatistics,
    *,
    intercept: bool,
    fractions: Sequence[float] = RIDGES,
) -> Refit:
    """Choose the ridge by the held-out error of a fit on `fit`, then fit `final` with it.

    `fit` and `final` are statistics of the same columns; `final` may be `fit` (while penalties are compared) or all
    rows, and the ridge grows with their number. Raises LinAlgError where no ridge makes the Gram definite.
    """
    errors, tried = try_ridges([(fit, held_out)], fractions, intercept=intercept)
    of_fractions = {fraction: weights for fraction, (weights,) in tried.items()}
    return with_ridge(fit, final, errors, intercept=intercept, of_fractions=of_fractions)


def try_ridges(
    folds: Sequence[tuple[GramStatistics, GramStatistics | HeldOutRows]],
    fractions: Sequence[float] = RIDGES,
    start: int | None = None,
    *,
    intercept: bool,
) -> tuple[list[tuple[float, float]], dict[float, list[Weights]]]:
    """Return fractions with their held-out errors, over all folds, and the weights of each fold; see `refit`.

    folds: the statistics of the rows that are fitted, and what judges them. start: the exponent of a fraction from
    which the error is followed downhill, in place of all fractions. Keeps no centred Gram.
    """
    of_fractions, weight_sum = dict[float, list[Weights]](), sum(held_out.weight_sum for _, held_out in folds)
    centred = [fit.centred() if intercept else None for fit, _ in folds]

    def error_at(fraction: float) -> Values:
        tried, error = list[Weights](), 0.0
        for (fit, held_out), of_fold in zip(folds, centred, strict=True):
            try:
                found = least_squares(fit, fraction * mean_diagonal(fit), intercept=intercept, centred=of_fold)
            except LinAlgError:
                return np.array([np.inf])
            tried.append(found)
            error += float(held_out.squared_error(found.weights, found.intercept).sum())
        of_fractions[fraction] = tried
        return np.array([error / weight_sum])

    if start is None:
        found = [(fraction, float(of[0])) for fraction, of in bracketed(error_at, fractions)]
    else:
        by_exponent = search_exponents(lambda exponent: float(error_at(10.0**exponent)[0]), start, RIDGE_STEPS)
        found = [(10.0**exponent, error) for exponent, error in sorted(by_exponent.items())]
    return [(fraction, error) for fraction, error in found if np.isfinite(error)], of_fractions


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
    """Return the mean square of the columns, of which ridges are fractions; 1 where all are 0, as any weights are."""
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


def bracketed(errors_at: Callable[[float], Values], fractions: Sequence[float]) -> list[tuple[float, Values]]:
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


def support_fit(statistics: GramStatistics, *, intercept: bool) -> RidgeFit:
    """Return least squares in the place of a penalised fit to these rows, on its support."""
    ridge = SUPPORT_RIDGE * mean_diagonal(statistics)
    return RidgeFit(least_squares(statistics, ridge, intercept=intercept), statistics, ridge, intercept)


def left_out(fit: RidgeFit, blocks: Iterable[LabelledColumns]) -> tuple[LabelledValues, NDArray[np.bool_]]:
    """Return decision values of rows by a fit, each without its own row and those equal to it (mathematics.md, eq. 79).

    Equal rows of one class count as one. Fit rows that alone determine their values do not count, held-out ones
    equal to them keep the values of the fit; which rows are held out is returned with the values. Costs m³/3
    operations, and m² for each row; 16·m² bytes.
    """
    used = fit.statistics.centred() if fit.centred else fit.statistics
    means = used.column_sums / used.weight_sum if fit.centred else np.zeros(used.n_centers)
    constant = np.diagonal(used.gram) == 0.0
    factor = cho_factor(used.damped(fit.ridge), lower=True, overwrite_a=True)[0]
    del used
    of_blocks = list[tuple[NDArray[Any], ...]]()
    for keys, columns, truth, weights, held_out in blocks:
        about_means = columns - means
        about_means[:, constant] = 0.0
        root = solve_triangular(factor, about_means.T, lower=True)
        leverages = np.einsum("mi,mi->i", root, root)
        leverages += 1.0 / fit.statistics.weight_sum if fit.centred else 0.0
        own = np.where(held_out, 0.0, weights * leverages)
        of_blocks.append((keys, fit.weights.decide(columns), truth, weights, own))
    keys, f, truth, weights, own = (np.concatenate(values) for values in zip(*of_blocks, strict=True))
    n_outputs, group = f.shape[1], np.unique(keys, return_inverse=True)[1]
    signs = np.where(truth[:, None] == (np.arange(n_outputs) if n_outputs > 1 else 1), 1.0, -1.0)
    pull = np.stack([np.bincount(group, own * sign) for sign in signs.T], axis=1)[group]
    free = 1.0 - np.bincount(group, own)[group]
    sure = free <= LEAST_FREE
    pull[sure], free[sure] = 0.0, 1.0
    kept = np.flatnonzero(~sure | (own == 0.0))
    pairs = group[kept] * max(n_outputs, 2) + truth[kept]
    _, first, place = np.unique(pairs, return_index=True, return_inverse=True)
    one = kept[first]
    without: Values = (f[one] - pull[one]) / free[one, None]
    counts = np.asarray(np.bincount(place, weights[kept]), np.float64)
    return (without, truth[one], counts), own[one] == 0.0
