"""Weights on columns: what solves, refits, paths and selections all end with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights (k, T) f8 and intercept (T,) f8 on columns (k,) i8, by their position in some statistics."""

    columns: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]

    @staticmethod
    def of_support(table: NDArray[np.float64], statistics: GramStatistics, *, intercept: bool) -> Weights:
        """Return the rows of a table (M, T) that are not zero, with the intercept that the statistics give them."""
        columns = np.flatnonzero(table.any(axis=1))
        offset = statistics.intercept(table[columns], columns) if intercept else np.zeros(table.shape[1])
        return Weights(columns, table[columns], offset)

    def decide(self, columns: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the decision values (n, T) of rows with these kernel columns (n, k)."""
        return columns @ self.weights + self.intercept

    def named(self, names: NDArray[np.int64]) -> Weights:
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
    """Weights that predict the held-out rows, from which the temperature of the probabilities is found.

    seen: they were fitted to these rows too, for want of others; fit: the least squares they are from, None for
    penalised weights and moved centers; points (k, d): where the centers were moved.
    """

    weights: Weights
    seen: bool = False
    fit: RidgeFit | None = None
    points: NDArray[np.floating] | None = None


def intercept_of(statistics: GramStatistics, weights: NDArray[np.float64], *, intercept: bool) -> NDArray[np.float64]:
    """Return the intercept (T,) that goes with weights (M, T) of all columns; zero where none is fitted."""
    return statistics.intercept(weights) if intercept else np.zeros(weights.shape[1])
