"""Sufficient statistics of the columns: all that the solvers need of the rows, added up over them.

With K the (n, M) columns and Y the (n, T) targets: gram = KᵀK, kty = KᵀY, yty = diag(YᵀY), the column sums Kᵀ1, the
target sums Yᵀ1 and the number (sum of weights) of rows.
"""

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.exact_sums import ExactGram, ExactSum, ExactSums, ForEach, serially

LEAST_TARGET = 1e-145  # Where the largest target is smaller, float64 loses penalties, small parts of squares.
_CENTRED_ROWS = 64  # Rows of a Gram are centred in blocks of this size.


@dataclass(frozen=True)
class GramStatistics:
    """Statistics of some rows (mathematics.md, eq. 7). Memory: 8·M² bytes and little else."""

    gram: NDArray[np.float64]  # (M, M), symmetric
    kty: NDArray[np.float64]  # (M, T)
    yty: NDArray[np.float64]  # (T,)
    column_sums: NDArray[np.float64]  # (M,)
    target_sums: NDArray[np.float64]  # (T,)
    weight_sum: float  # the number of rows
    # The most that the units of exact sums may have changed an entry of the Gram, a row of kty and a column sum by; 0
    # where that is not known. The largest entries of kty and of the Gram that centring set to zero.
    unit_errors: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    lost: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))

    def __add__(self, other: "GramStatistics") -> "GramStatistics":
        """Return the statistics of the rows of both (mathematics.md, eq. 8)."""
        return GramStatistics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def absorbing(self, other: "GramStatistics") -> "GramStatistics":
        """Return the statistics of the rows of both; the Gram overwrites this one's where that may be written to."""
        gram = np.add(self.gram, other.gram, out=self.gram if self.gram.flags.writeable else None)
        nothing = np.zeros(())
        return replace(replace(self, gram=nothing) + replace(other, gram=nothing), gram=gram)

    def __sub__(self, other: "GramStatistics") -> "GramStatistics":
        less = GramStatistics(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))
        return replace(less, unit_errors=self.unit_errors + other.unit_errors)

    def check_range(self) -> None:
        """Raise InvalidDataError where the squares that bound the penalties overflow (mathematics.md, eq. 51)."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(self.yty.sum()) * self.weight_sum + float((self.kty**2).sum())
        if not np.isfinite(total):
            raise too_large()

    @property
    def n_centers(self) -> int:
        return len(self.gram)

    def cut(self, columns: NDArray[np.int64]) -> "GramStatistics":
        """Return the statistics of some of the columns, copied."""
        return replace(
            self,
            gram=np.ascontiguousarray(self.gram[np.ix_(columns, columns)]),
            kty=self.kty[columns],
            yty=np.array(self.yty),  # what is cut may be mapped, and its files are removed
            column_sums=self.column_sums[columns],
            target_sums=np.array(self.target_sums),
        )

    def prefix(self, size: int) -> "GramStatistics":
        """Return the statistics of the first columns, without a copy."""
        first, gram = slice(0, size), self.gram[:size, :size]
        return replace(self, gram=gram, kty=self.kty[first], column_sums=self.column_sums[first])

    def damped(self, ridge: float) -> NDArray[np.float64]:
        """Return the Gram with a ridge added to its diagonal, a copy (M, M), in the order that LAPACK overwrites."""
        gram = self.gram.copy(order="F")
        gram[np.diag_indices_from(gram)] += ridge
        return gram

    def centred(self) -> "GramStatistics":
        """Return the statistics about the means of columns and targets; constant columns become zero, sums stay.

        A solver run on them fits an unpenalised intercept, which `intercept` recovers (mathematics.md, eq. 56). What
        the columns lose by it is `lost`, for the certificate. Takes one new Gram of memory.
        """
        kty, yty = self.centred_targets()
        constant, of_gram = self._constant(), 0.0
        of_kty = (np.abs(kty) + self._target_rounding())[constant].max(initial=0.0)
        means, gram = self.column_sums / self.weight_sum, np.empty_like(self.gram)
        for start in range(0, len(gram), _CENTRED_ROWS):
            rows = slice(start, start + _CENTRED_ROWS)
            stripe = self.gram[rows] - np.outer(self.column_sums[rows], means)
            stripe += self.gram[rows] - np.outer(means[rows], self.column_sums)  # neither product alone is symmetric
            np.multiply(stripe, 0.5, out=gram[rows])
            of_gram = max(of_gram, np.abs(gram[rows][constant[rows]]).max(initial=0.0))
        kty[constant] = gram[constant, :] = gram[:, constant] = 0.0
        return replace(self, gram=gram, kty=kty, yty=yty, lost=np.array([of_kty, of_gram]))

    def centred_targets(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return kty (M, T) and yty (T,) about the means; kty of constant columns is zero where it is but rounding."""
        if not self.weight_sum > 0:
            raise InvalidDataError(
                "an intercept needs rows to be fitted on, these statistics have none; leave `solver.intercept` out",
                "lower `statistics.hold_out`",
            )
        kty = self.kty - np.outer(self.column_sums, self.target_sums) / self.weight_sum
        kty[self._constant()[:, None] & (np.abs(kty) <= self._target_rounding())] = 0.0
        return kty, np.maximum(self.yty - self.target_sums**2 / self.weight_sum, 0.0)

    def rounding(self) -> "Rounding":
        """Return what rounding may change a score by; of columns that were centred, before they were."""
        means = np.abs(self.column_sums) / max(self.weight_sum, 1e-300)
        largest = float((np.diagonal(self.gram) + np.abs(self.column_sums) * means).max(initial=0.0))
        target_mean = float(np.linalg.norm(self.target_sums)) / max(self.weight_sum, 1e-300)
        of_gram, of_kty, of_sums = self.unit_errors.tolist()
        units = of_gram + 3.0 * of_sums * float(means.max(initial=0.0))
        always = 2.0 * (of_kty + of_sums * target_mean)
        return Rounding(Rounding.of_squares(largest).each, units, always, *self.lost.tolist())

    def _constant(self) -> NDArray[np.bool_]:
        """Return which columns are constant to rounding, (M,)."""
        squares = np.diagonal(self.gram)
        return np.asarray(squares - self.column_sums * (self.column_sums / self.weight_sum) <= 1e-13 * squares)

    def _target_rounding(self) -> NDArray[np.float64]:
        """Return what float64 may change entries of kty by, (M, T), before they are centred."""
        return Rounding.of_squares(1.0).each * np.sqrt(np.abs(np.outer(np.diagonal(self.gram), self.yty)))

    def intercept(
        self, weights: NDArray[np.float64], columns: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.float64]:
        """Return the intercept (T,) for weights (M, T), or (a, T) of some `columns` (mathematics.md, eq. 57)."""
        return (self.target_sums - self.column_sums[columns] @ weights) / self.weight_sum

    def squared_error(self, weights: NDArray[np.float64], intercept: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Σ (y - K w - b)² over the rows, (T,); not for centred statistics (mathematics.md, eq. 10)."""
        linear = np.einsum("mt,mt->t", weights, self.kty) + intercept * self.target_sums
        quadratic = np.einsum("mt,mt->t", weights, self.gram @ weights)
        quadratic += 2 * intercept * (self.column_sums @ weights) + self.weight_sum * intercept**2
        return np.maximum(self.yty - 2 * linear + quadratic, 0.0)


def joined(old: GramStatistics | None, stay: NDArray[np.int64], new: GramStatistics) -> GramStatistics:
    """Return the statistics of the columns that stay, then the new ones (mathematics.md, eq. 11).

    new: the last rows of the joined Gram, and the sums of the new columns.
    """
    if old is None:
        return new
    k, size = len(stay), new.gram.shape[1]
    gram = np.empty((size, size))
    for start in range(0, k, 512):  # by stripes: the old Gram is mapped, and may be as large as the new one
        gram[start : min(start + 512, k), :k] = old.gram[stay[start : start + 512]][:, stay]
    gram[k:] = new.gram
    gram[:k, k:] = new.gram[:, :k].T
    kty = np.concatenate([old.kty[stay], new.kty])
    return replace(new, gram=gram, kty=kty, column_sums=np.concatenate([old.column_sums[stay], new.column_sums]))


class Rounding(NamedTuple):
    """What rounding may change a score c_mᵀ(y - K w) by (mathematics.md, eq. 46)."""

    each: float  # by float64, for each unit of Σ_m |w_m|, as an entry of the Gram
    units: float = 0.0  # by the units of exact sums, for each unit of Σ_m |w_m|
    always: float = 0.0  # by these units, whatever the weights
    lost: float = 0.0  # the largest score of a column that centring made zero, whatever the weights
    lost_each: float = 0.0  # the same, for each unit of Σ_m |w_m|

    @classmethod
    def of_squares(cls, largest: float) -> "Rounding":
        """Return the rounding of float64 for the largest squared norm of a column, before it was centred."""
        return cls(12.0 * float(np.finfo(np.float64).eps) * largest)


class RowBounds(NamedTuple):
    """The largest terms that a row of weight s and T targets y adds to the sums (eq. 72); columns are in [0, 1]."""

    weight: float  # s, also of the Gram and the column sums
    targets: tuple[float, ...]  # s |y|, also of kty
    yty: tuple[float, ...]  # s y² of each output

    @classmethod
    def of(cls, terms: NDArray[np.float64]) -> "RowBounds":
        weight, *of_outputs = terms.tolist()
        n = len(of_outputs) // 2
        return cls(weight, tuple(of_outputs[:n]), tuple(of_outputs[n:]))


def largest_terms(targets: NDArray[np.float64], weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the largest terms of some rows, (1 + 2 T,), in the order of `RowBounds` (mathematics.md, eq. 72).

    targets (rows, T); weights (rows,) or one of all (none: 1 each). Products are bounded, not their factors: a row with
    a large target and a small weight is a small one.
    """
    y, shape = np.abs(targets), (len(targets), 1)
    s = np.broadcast_to(np.reshape(1.0 if weights is None else weights, (-1, 1)), shape)
    with np.errstate(over="ignore"):  # what overflows is refused, in words
        terms = np.hstack([s, s * y, (np.sqrt(s) * y) ** 2])
    return np.asarray(terms.max(axis=0, initial=0.0))


class StatisticsSums(ExactSums):
    """Statistics of one part (fit or held out), added up exactly: blocks may come in any order and grouping.

    The bits depend on the bounds: what a row adds at most, most rows a block, most blocks. The Gram is that of the
    columns from `n_kept` on, against all columns.
    """

    def __init__(self, n_columns: int, largest: RowBounds, block_rows: int, n_blocks: int, n_kept: int = 0) -> None:
        self._kept, new, t = n_kept, n_columns - n_kept, len(largest.targets)
        shapes = {"kty": (new, t), "yty": (t,), "column_sums": (new,), "target_sums": (t,), "weight_sum": ()}
        bounds = (largest.targets, largest.yty, largest.weight, largest.targets, largest.weight)
        with np.errstate(over="ignore"):  # what overflows is refused, in words
            for (name, shape), bound in zip(shapes.items(), bounds, strict=True):
                self[name] = ExactSum(shape, block_rows * np.array(bound), n_blocks)
        self["gram"] = ExactGram(n_columns, n_kept, block_rows * largest.weight, n_blocks)

    def add(
        self,
        columns: NDArray[np.float64],
        targets: NDArray[np.float64],
        weights: NDArray[np.float64] | None = None,
        each: ForEach = serially,
    ) -> None:
        """Add a row block: columns (rows, M) f8 C-contiguous, targets (rows, T), weights (rows,) > 0 (none: 1 each).

        With weights, `columns` is changed in place. `each` shares out the tiles of the Gram. Costs rows·M² operations
        where nothing is kept. mathematics.md, eqs. 7, 8 and 9.
        """
        if not len(columns):
            return
        ones = np.ones(len(columns)) if weights is None else weights
        self["target_sums"].add(ones @ targets)
        self["weight_sum"].add(float(ones.sum()))
        if weights is not None and np.any(weights != 1.0):
            ones = np.sqrt(weights)
            columns *= ones[:, None]
            targets = targets * ones[:, None]
        sums = np.column_stack([targets, ones]).T @ columns[:, self._kept :]  # one reading of the columns
        self["kty"].add(sums[:-1].T)
        self["column_sums"].add(sums[-1])
        self["yty"].add(np.einsum("it,it->t", targets, targets))
        self["gram"].add_products(columns, each)

    def statistics(self) -> GramStatistics:
        """Return the sums so far, the Gram (M - n_kept, M); it overwrites the units, so call it once."""
        values = {name: value.values() for name, value in self.items()}
        errors = [self["gram"].error, *(np.linalg.norm(self[name].error) for name in ("kty", "column_sums"))]
        weight_sum = float(values.pop("weight_sum"))
        return GramStatistics(weight_sum=weight_sum, unit_errors=np.array(errors), **values)


def statistics_by_part(sums: ExactSums) -> dict[str, GramStatistics]:
    """Return the statistics of each part of the rows; they take the place of the sums, so call it once."""
    return {part: of_part.statistics() for part, of_part in sums.items()}


def too_large() -> InvalidDataError:
    """Return the error of targets with which float64 cannot go on."""
    return InvalidDataError("the targets are too large: their sum of squares leaves float64; rescale them")
