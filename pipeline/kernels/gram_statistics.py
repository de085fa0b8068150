"""Sufficient statistics of the columns: all that the solvers need to know of the samples.

With K the (n, M) columns and Y the (n, T) targets: gram = KᵀK, kty = KᵀY, yty = diag(YᵀY), the column sums
Kᵀ1, the target sums Yᵀ1 and the number (sum of weights) of rows. They are additive over rows, and are kept
apart for the rows used to fit and the rows held out.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pipeline.blas import add_gram
from pipeline.columns import ColumnGenerator
from pipeline.errors import InvalidDataError

_HOLD_OUT_GROUP_ROWS = 4096  # rows drawn from one generator; fixed, so that block sizes do not change the draw
_CENTRED_ROWS = 64  # of a Gram that are centred at once


@dataclass(frozen=True)
class GramStatistics:
    """Statistics of some rows.

    gram (M, M) f8 symmetric; kty (M, T) f8; yty (T,) f8; column_sums (M,) f8; target_sums (T,) f8;
    weight_sum float, the number of rows. Memory: 8·M² bytes and little else.
    """

    gram: NDArray[np.float64]
    kty: NDArray[np.float64]
    yty: NDArray[np.float64]
    column_sums: NDArray[np.float64]
    target_sums: NDArray[np.float64]
    weight_sum: float

    def __add__(self, other: "GramStatistics") -> "GramStatistics":
        """Return the statistics of the rows of both; what is summed later comes second (bits depend on it)."""
        return GramStatistics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "GramStatistics") -> "GramStatistics":
        """Return the statistics of the rows of this that are not among those of the other."""
        return GramStatistics(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def n_centers(self) -> int:
        """Number of columns M."""
        return len(self.gram)

    def cut(self, columns: NDArray[np.int64]) -> "GramStatistics":
        """Return the statistics of some of the columns, copied."""
        return GramStatistics(
            np.ascontiguousarray(self.gram[np.ix_(columns, columns)]),
            self.kty[columns],
            self.yty,
            self.column_sums[columns],
            self.target_sums,
            self.weight_sum,
        )

    def centred(self) -> "GramStatistics":
        """Return the statistics about the means of columns and targets; the sums stay as they are.

        A solver run on them fits an unpenalised intercept, which `intercept` recovers (mathematics: gram - k kᵀ/n
        with k = Kᵀ1). Constant columns become exactly zero, so that no rounding makes them look useful. Takes one new
        Gram of memory. Raises InvalidDataError where there are no rows.
        """
        kty, yty = self.centred_targets()
        means, gram = self.column_sums / self.weight_sum, np.empty_like(self.gram)
        for start in range(0, len(gram), _CENTRED_ROWS):
            rows = slice(start, start + _CENTRED_ROWS)
            stripe = self.gram[rows] - np.outer(self.column_sums[rows], means)
            stripe += self.gram[rows] - np.outer(means[rows], self.column_sums)  # neither product alone is symmetric
            np.multiply(stripe, 0.5, out=gram[rows])
        constant = self._constant()
        gram[constant, :] = gram[:, constant] = 0.0
        return GramStatistics(gram, kty, yty, self.column_sums, self.target_sums, self.weight_sum)

    def centred_targets(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return kty (M, T) and yty (T,) of the centred statistics, which need no more of the Gram than its diagonal.

        Raises InvalidDataError where there are no rows.
        """
        if not self.weight_sum > 0:
            raise InvalidDataError(
                "an intercept needs rows to be fitted on, these statistics have none; lower statistics.hold_out, or "
                "leave --intercept out"
            )
        kty = self.kty - np.outer(self.column_sums, self.target_sums) / self.weight_sum
        kty[self._constant()] = 0.0
        return kty, np.maximum(self.yty - self.target_sums**2 / self.weight_sum, 0.0)

    def _constant(self) -> NDArray[np.bool_]:
        """Return which columns are constant to rounding, (M,)."""
        squares = np.diagonal(self.gram)
        return np.asarray(squares - self.column_sums * (self.column_sums / self.weight_sum) <= 1e-13 * squares)

    def intercept(
        self, weights: NDArray[np.float64], columns: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.float64]:
        """Return the intercept (T,) that goes with weights (M, T) fitted on the centred statistics.

        The weights may be those of some `columns` (a,) alone, (a, T), where all others are zero.
        """
        return (self.target_sums - self.column_sums[columns] @ weights) / self.weight_sum

    def squared_error(self, weights: NDArray[np.float64], intercept: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Σ (y - K w - b)² over the rows for each output, (T,); not for centred statistics.

        Weights (M, T), intercept (T,). Costs M²·T operations and no pass over the rows.
        """
        linear = np.einsum("mt,mt->t", weights, self.kty) + intercept * self.target_sums
        quadratic = np.einsum("mt,mt->t", weights, self.gram @ weights)
        quadratic += 2 * intercept * (self.column_sums @ weights) + self.weight_sum * intercept**2
        return np.maximum(self.yty - 2 * linear + quadratic, 0.0)


class StatisticsAccumulator:
    """Running statistics of one part (fit or hold-out); row blocks must come in a fixed order."""

    def __init__(self, n_centers: int, n_outputs: int) -> None:
        self._lower = np.zeros((n_centers, n_centers))
        self._kty = np.zeros((n_centers, n_outputs))
        self._yty = np.zeros(n_outputs)
        self._column_sums = np.zeros(n_centers)
        self._target_sums = np.zeros(n_outputs)
        self._rows = 0

    def add(self, columns: NDArray[np.float64], targets: NDArray[np.float64]) -> None:
        """Add a row block: columns (rows, M) f8 C-contiguous, targets (rows, T) f8. Costs rows·M² operations."""
        add_gram(columns, self._lower)
        self._kty += columns.T @ targets
        self._yty += np.einsum("it,it->t", targets, targets)
        self._column_sums += columns.sum(axis=0)
        self._target_sums += targets.sum(axis=0)
        self._rows += len(columns)

    def statistics(self) -> GramStatistics:
        """Return the sums so far; the Gram is completed from its lower triangle in place, so call it once."""
        mirror_lower(self._lower)
        return GramStatistics(
            self._lower, self._kty, self._yty, self._column_sums, self._target_sums, float(self._rows)
        )


def add_block(
    generator: ColumnGenerator,
    X: NDArray[np.floating],
    targets: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    fit: StatisticsAccumulator,
    hold_out: StatisticsAccumulator,
) -> None:
    """Compute the columns of a row block once and add them to the part each row belongs to.

    X (rows, d) f4, targets (rows, T) f8, held_out (rows,) bool. The epilogue writes the fit rows first, so that
    both parts are contiguous slices of one float64 block: rows·M·12 bytes at the peak.
    """
    order = np.argsort(held_out, kind="stable")
    n_fit = len(order) - int(np.count_nonzero(held_out))
    columns: NDArray[np.float64] = generator.block(X, order, np.float64)  # type: ignore[assignment]
    ordered = targets[order]
    fit.add(columns[:n_fit], ordered[:n_fit])
    hold_out.add(columns[n_fit:], ordered[n_fit:])


def hold_out_rows(seed: int, fraction: float, start: int, stop: int) -> NDArray[np.bool_]:
    """Return which of the rows start..stop are held out: a seeded coin for each row, whatever the blocks are.

    `seed` is the run's; `fraction` lies in [0, 1). Bool (stop - start,).
    """
    if fraction == 0.0:
        return np.zeros(stop - start, bool)
    groups = range(start // _HOLD_OUT_GROUP_ROWS, -(-stop // _HOLD_OUT_GROUP_ROWS))
    coins = [np.random.default_rng([seed, 2, group]).random(_HOLD_OUT_GROUP_ROWS) for group in groups]
    first = groups[0] * _HOLD_OUT_GROUP_ROWS if len(groups) else 0
    drawn = np.concatenate(coins) if coins else np.empty(0)
    return drawn[start - first : stop - first] < fraction


def mirror_lower(matrix: NDArray[np.float64], stripe: int = 256) -> None:
    """Copy the lower triangle onto the upper one, a stripe at a time (no M×M temporary)."""
    for start in range(0, len(matrix), stripe):
        stop = min(start + stripe, len(matrix))
        matrix[:start, start:stop] = matrix[start:stop, :start].T
        corner = matrix[start:stop, start:stop]
        corner[:] = np.tril(corner) + np.tril(corner, -1).T
