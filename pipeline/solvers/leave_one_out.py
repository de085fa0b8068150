"""What a least-squares fit says of each row without having seen it, and all from one factorisation."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, solve_triangular

from pipeline.kernels.gram_statistics import GramStatistics

FEW_ROWS = 10_000  # below which all rows are worth a value: a tenth of them, held out, tells too little
LEAST_FREE = 1e-6  # of 1 - h: below it, rounding rules the value of a row without itself


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Weights (m, T) and intercept (T,) of ridge regression, and what they were fitted to.

    statistics: of the fit rows; centred: whether the intercept was fitted.
    """

    statistics: GramStatistics
    ridge: float
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    centred: bool


@dataclass(eq=False)
class LeftOut:
    """Decision values of training rows of classes by a fit, each without its own row and those equal to it.

    Costs m³/3 operations, and m² for each row added; 16·m² bytes.
    """

    fit: RidgeFit
    _blocks: list[tuple[NDArray[Any], ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Factorise."""
        statistics, n_centers = self.fit.statistics, len(self.fit.weights)
        used = statistics.centred() if self.fit.centred else statistics
        self._means = used.column_sums / used.weight_sum if self.fit.centred else np.zeros(n_centers)
        self._constant = np.diagonal(used.gram) == 0.0
        damped = used.gram.copy()
        damped[np.diag_indices_from(damped)] += self.fit.ridge
        self._factor = cho_factor(damped, lower=True, overwrite_a=True)[0]

    def add(
        self,
        keys: NDArray[np.uint64],
        columns: NDArray[np.floating],
        truth: NDArray[np.int64],
        weights: NDArray[np.float64],
        held_out: NDArray[np.bool_],
    ) -> None:
        """Add rows: keys (b,), equal for equal rows, columns (b, m), classes, weights > 0, who is held out (b,)."""
        free = columns - self._means
        free[:, self._constant] = 0.0
        root = solve_triangular(self._factor, free.T, lower=True)
        leverages = np.einsum("mi,mi->i", root, root)
        leverages += 1.0 / self.fit.statistics.weight_sum if self.fit.centred else 0.0
        decision = columns @ self.fit.weights + self.fit.intercept
        self._blocks.append((keys, decision, truth, weights, np.where(held_out, 0.0, weights * leverages)))

    def values(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Return the decision values (n, T), classes (n,) and weights (n,) of the distinct rows.

        mathematics.md, eq. 104.

        Equal rows of one class count as one. Fit rows that alone determine their values do not count, held-out ones
        equal to them keep the values of the fit.
        """
        keys, f, truth, weights, own = (np.concatenate(values) for values in zip(*self._blocks, strict=True))
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
        without: NDArray[np.float64] = (f[one] - pull[one]) / free[one, None]
        return without, truth[one], np.asarray(np.bincount(place, weights[kept]), np.float64)
