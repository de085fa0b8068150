"""The weights that a model is delivered with: penalised ones, or least squares on what the penalty keeps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.leave_one_out import RidgeFit
from pipeline.solvers.ridge import Refit, refit

Parts = tuple[GramStatistics, GramStatistics]  # of the fit rows and of the held-out rows


@dataclass(frozen=True)
class UnseenWeights:
    """Weights (a, T) and intercept (T,) on active columns (a,), fitted without the held-out rows; with, if `seen`.

    fit: the least squares that they are from, None for penalised ones.
    """

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    seen: bool = False
    fit: RidgeFit | None = None


@dataclass(frozen=True)
class Delivered:
    """Weights (a, T), intercept (T,), and the refit that they are from; None for penalised weights."""

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    refit: Refit | None


def intercept_of(statistics: GramStatistics, weights: NDArray[np.float64], *, intercept: bool) -> NDArray[np.float64]:
    """Return the intercept (T,) that goes with weights (a, T) of all columns; zero where none is fitted."""
    return statistics.intercept(weights) if intercept else np.zeros(weights.shape[1])


def deliver(
    weights: NDArray[np.float64], statistics: GramStatistics, parts: Parts | None, *, intercept: bool
) -> Delivered:
    """Return what penalised weights (a, T) of active columns deliver on the rows of their statistics.

    parts: statistics of the same columns for a refit, None for none. Raises LinAlgError where no ridge makes the Gram
    definite.
    """
    if parts is None or not len(weights):
        return Delivered(weights, intercept_of(statistics, weights, intercept=intercept), None)
    best = refit(*parts, statistics, intercept=intercept)
    return Delivered(best.weights, best.intercept, best)


@dataclass(frozen=True)
class DeliveredPath:
    """What each penalty of a path delivers on the fit rows.

    active (a,): columns of any of them; weights (penalties, a, T), intercepts (penalties, T).
    """

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercepts: NDArray[np.float64]

    def squared_errors(self, held_out: GramStatistics) -> NDArray[np.float64]:
        """Return the mean squared error of each penalty on the held-out rows, (penalties,)."""
        cut, pairs = held_out.cut(self.active), zip(self.weights, self.intercepts, strict=True)
        return np.array([cut.squared_error(w, b).sum() for w, b in pairs]) / held_out.weight_sum


def deliver_path(
    table: NDArray[np.float64], fit: GramStatistics, held_out: GramStatistics, *, refitted: bool, intercept: bool
) -> DeliveredPath:
    """Return what penalised weights (penalties, M, T) of the fit rows deliver; refitted where a refit is asked for."""
    active = np.flatnonzero(table.any(axis=(0, 2)))
    weights = np.zeros((len(table), len(active), table.shape[2]))
    intercepts = np.zeros((len(table), table.shape[2]))
    for index, of_penalty in enumerate(table):
        support = np.flatnonzero(of_penalty.any(axis=1))
        cut = fit.cut(support)
        parts = (cut, held_out.cut(support)) if refitted else None
        found = deliver(of_penalty[support], cut, parts, intercept=intercept)
        weights[index, np.searchsorted(active, support)] = found.weights
        intercepts[index] = found.intercept
    return DeliveredPath(active, weights, intercepts)


def unseen_of_refit(active: NDArray[np.int64], best: Refit) -> UnseenWeights:
    """Return the weights of a refit on the fit rows."""
    return UnseenWeights(active, best.of_fit.weights, best.of_fit.intercept, fit=best.of_fit)


def unseen_of(active: NDArray[np.int64], delivered: Delivered, before: UnseenWeights | None) -> UnseenWeights:
    """Return the weights that the held-out rows try a model with, whose columns are `active`.

    They are those of the refit on the fit rows, else those `before` of a path on the fit rows, else the model's own.
    """
    if delivered.refit is not None:
        return unseen_of_refit(active, delivered.refit)
    return before or UnseenWeights(active, delivered.weights, delivered.intercept, seen=True)


def unseen_on_path(weights: NDArray[np.float64], fit: GramStatistics, *, intercept: bool) -> UnseenWeights:
    """Return penalised weights (M, T) of the fit rows as the held-out rows are tried with them."""
    active = np.flatnonzero(weights.any(axis=1))
    of_active = weights[active]
    return UnseenWeights(active, of_active, intercept_of(fit.cut(active), of_active, intercept=intercept))
