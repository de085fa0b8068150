"""The data side of the estimators: rows read by slices, candidates drawn from them, statistics with row weights.

Nothing but slices X[i:j] is asked of an array, so that memory maps, dask and zarr arrays are never in memory whole.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import LinAlgError
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from features.errors import DataError
from features.row_draws import Keys, draw_held_out, group_keys, held_out_limit, row_keys, tells_labels_apart
from features.standardisation import RunningMoments, Standardisation
from pipeline.errors import InvalidDataError
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.finite_rows import first_non_finite_row
from pipeline.kernels.gram_statistics import (
    LEAST_TARGET,
    GramStatistics,
    RowBounds,
    StatisticsSums,
    SumBounds,
    largest_terms,
)
from pipeline.kernels.scaled_features import scaled

BLOCK_BYTES = 64 * 2**20  # of features, kernel values and their float64 copies held at once
MOST_BLOCK_ROWS, LEAST_BLOCK_ROWS = 4096, 64
HELD_OUT = 0.1  # share of the rows held out, as in the runs of the command line


def is_sliced(X: Any) -> bool:
    """Tell whether X is read by slices: a memory map, or any array with a numpy dtype that is no numpy array."""
    if isinstance(X, np.ndarray):
        return isinstance(X, np.memmap)
    array_like = hasattr(X, "shape") and hasattr(X, "__getitem__") and isinstance(getattr(X, "dtype", None), np.dtype)
    return array_like and not sparse.issparse(X) and not hasattr(X, "iloc")  # pandas converts itself


class Rows:
    """A matrix (n, d) that is read by row blocks.

    Parameters
    ----------
    X : array with `shape`, `dtype` and slices of rows.
    name : what errors call it.

    Raises
    ------
    ValueError
        X is not two-dimensional, has an unknown length, or values that are no real numbers.
    """

    def __init__(self, X: Any, name: str = "X") -> None:
        if len(X.shape) != 2:
            raise ValueError(
                f"Expected 2D array, got {len(X.shape)}D array instead: {name} has the shape {tuple(X.shape)}. "
                "Reshape your data"
            )
        if not all(size == size for size in X.shape):  # dask knows no shape after a filter: NaN
            raise ValueError(f"{name} has an unknown shape {tuple(X.shape)}; call its compute_chunk_sizes() before")
        dtype = np.dtype(X.dtype)
        if dtype.kind == "c":
            raise ValueError(f"Complex data not supported: {name} has the dtype {dtype}")
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} has the dtype {dtype}; numbers are needed, convert it")
        self._X, self._name = X, name
        self._standardisation: Standardisation | None = None
        self._scales: NDArray[np.float32] | None = None
        self.shape = (int(X.shape[0]), int(X.shape[1]))
        # float32 holds bytes and float16 exactly, at half the cost.
        self.dtype: type = np.float32 if np.can_cast(dtype, np.float32) else np.float64

    def scaled(self, scales: NDArray[np.float32] | None) -> "Rows":
        """Return the rows times scales (d,) of the features; these where there are none."""
        if scales is None:
            return self
        rows = copy(self)
        rows._scales = scales
        return rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def standardised(self, standardisation: Standardisation | None) -> "Rows":
        """Return the rows standardised as they are read, before they are scaled; these where it is None."""
        if standardisation is None:
            return self
        rows = copy(self)
        rows._standardisation = standardisation
        return rows

    @property
    def in_memory(self) -> bool:
        """Whether rows cost nothing to read."""
        return isinstance(self._X, np.ndarray) and not isinstance(self._X, np.memmap)

    def blocks(self, n_columns: int) -> Iterator[tuple[slice, NDArray[np.floating]]]:
        """Yield (rows, X[rows]) in order, C-contiguous `dtype`; sized for `n_columns` kernel values a row.

        Whole chunks of a chunked array are read at once, so that none is decoded twice. Raises ValueError naming the
        first row that holds NaN or infinity.
        """
        block = self.block_rows(n_columns)
        chunk = _chunk_rows(self._X)
        slab = chunk * max(1, block // chunk) if chunk else block
        for first in range(0, len(self), slab):
            rows = self._read(slice(first, min(first + slab, len(self))))
            for start in range(0, len(rows), block):
                part = rows[start : start + block]
                yield slice(first + start, first + start + len(part)), part

    def block_rows(self, n_columns: int) -> int:
        """Return how many rows a block has at most, where each row has so many kernel values."""
        per_row = 24 * self.shape[1] + 20 * n_columns  # features as read, standardised and scaled
        return int(np.clip(BLOCK_BYTES // per_row, LEAST_BLOCK_ROWS, MOST_BLOCK_ROWS))

    def take(self, index: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the rows `index`, in its order, as `dtype`: (len(index), d). At most one pass over the data."""
        if isinstance(self._X, np.ndarray):
            values = self._convert(self._X[index])
            _check_finite(values, index, self._name)
            return values
        out: NDArray[np.floating] = np.empty((len(index), self.shape[1]), self.dtype)
        order = np.argsort(index, kind="stable")
        ordered, step = index[order], _chunk_rows(self._X) or MOST_BLOCK_ROWS
        for first in range(0, len(self), step):
            inside = slice(*np.searchsorted(ordered, (first, first + step)))
            if inside.start < inside.stop:
                block = self._read(slice(first, min(first + step, len(self))))
                out[order[inside]] = block[ordered[inside] - first]
        return out

    def _read(self, rows: slice) -> NDArray[np.floating]:
        values = self._convert(self._X[rows])
        _check_finite(values, np.arange(rows.start, rows.stop), self._name)
        return values

    def _convert(self, rows: Any) -> NDArray[np.floating]:
        values = np.asarray(rows)
        if self._standardisation is not None:
            values = self._standardisation.apply(values, self.dtype)
        return scaled(np.ascontiguousarray(values, dtype=self.dtype), self._scales)


def _chunk_rows(X: Any) -> int:
    """Return the rows of a chunk of a zarr or dask array, 0 where there are no chunks."""
    chunks = getattr(X, "chunks", None)
    if not chunks:
        return 0
    return int(chunks[0] if np.ndim(chunks[0]) == 0 else max(chunks[0]))


def _check_finite(rows: NDArray[np.floating], index: NDArray[np.int64], name: str) -> None:
    row = first_non_finite_row(rows)
    if row is not None:
        raise ValueError(
            f"Input {name} contains NaN or infinity in row {index[row]}; remove or impute such rows before"
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """Points (M, d) that may become centers, and their rows of X (M,) i8; -1 for points from outside."""

    points: NDArray[np.floating]
    index: NDArray[np.int64]


def moments_of(rows: Rows, weights: NDArray[np.float64]) -> Standardisation:
    """Return means and deviations of the columns of rows with weights (n,), in one pass over the data.

    Raises ValueError where they leave float64.
    """
    moments = RunningMoments.empty(rows.shape[1])
    for span, X in rows.blocks(0):
        moments = moments.update(X, weights[span])
    try:
        return moments.standardisation()
    except DataError as error:
        raise ValueError(str(error)) from None


def keys_of(rows: Rows, groups: ArrayLike | None = None) -> tuple[Keys, Keys]:
    """Return the keys (n,) of rows and of their groups (n,), numbers or text; without groups, each row is its own.

    One pass over the data. Raises ValueError where there is not one group for each row, or one has none.
    """
    keys = np.concatenate([row_keys(X) for _, X in rows.blocks(0)])
    if groups is None:
        return keys, keys
    names = np.asarray(groups)
    if names.shape not in ((len(rows),), (len(rows), 1)):
        raise ValueError(f"groups has the shape {names.shape}; ({len(rows)},), one for each row, is needed")
    names = names.reshape(-1)
    try:
        return keys, group_keys(names.astype(str) if names.dtype.kind == "O" else names)
    except DataError as error:
        raise ValueError(f"groups: {error}") from None


def first_of_equals(keys: Keys, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of some rows (m,), ascending, that are the first with their key."""
    return rows[np.sort(np.unique(keys[rows], return_index=True)[1])]


def draw_candidates(rows: Rows, eligible: NDArray[np.int64], n_centers: int, seed: int) -> Candidates:
    """Draw candidates among the `eligible` rows, which are all different.

    The draw is that of the command line with the same seed: the first of one permutation, or all rows in order.
    """
    everything = n_centers >= len(eligible)
    order = eligible if everything else eligible[np.random.default_rng([seed, 1]).permutation(len(eligible))]
    drawn = order[:n_centers]
    return Candidates(rows.take(drawn), drawn)


def given_candidates(rows: Rows, centers: Any) -> Candidates:
    """Return the candidates a user names: points (m, d), or whole numbers (m,) of rows.

    Raises ValueError for another shape, values that are not finite, rows that do not exist or are listed twice.
    """
    given = np.asarray(centers)
    if not given.size:
        raise ValueError("centers is empty; give at least one point or row")
    if given.ndim == 1 and given.dtype.kind in "iu":
        index = given.astype(np.int64)
        bad = np.flatnonzero((index < 0) | (index >= len(rows)))
        if bad.size:
            raise ValueError(f"centers: entry {bad[0]} is row {index[bad[0]]}, X has the rows 0 to {len(rows) - 1}")
        if len(np.unique(index)) < len(index):
            raise ValueError("centers lists a row twice; list each once")
        return Candidates(rows.take(index), index)
    if given.ndim != 2 or given.dtype.kind not in "biuf" or given.shape[1] != rows.shape[1]:
        raise ValueError(
            f"centers must be points (m, {rows.shape[1]}), or whole numbers (m,) of rows of X; found an array of "
            f"{given.dtype} {given.shape}"
        )
    points: NDArray[np.floating] = np.ascontiguousarray(given, rows.dtype)
    _check_finite(points, np.arange(len(points)), "centers")
    return Candidates(points, np.full(len(points), -1, np.int64))


def held_out_rows(
    seed: int, groups: Keys, weights: NDArray[np.float64], labels: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """Return which rows are held out, (n,) bool, by the keys of their groups: the draw of the command line.

    Rows of weight 0 are none. Raises ValueError where there are no two different keys to share out, and where held-out
    rows of such labels (n,), None for any, cannot choose between fits to the others.
    """
    counted = weights > 0
    limit = held_out_limit(seed, HELD_OUT, [groups[counted]])
    if not limit:
        n_rows = np.count_nonzero(counted)
        found = f"{n_rows} sample" if n_rows < 2 else f"{n_rows} samples that are equal, or of one group"
        raise ValueError(f"rows are held out to choose the penalty, ridge or size: 2 are needed, found {found}")
    held_out = draw_held_out(seed, limit, groups) & counted
    if labels is not None and not tells_labels_apart(labels[counted & ~held_out], labels[held_out]):
        raise ValueError(
            "by groups, the rows that are not held out lack the labels of those that are, or have one label alone; "
            "give groups of several labels"
        )
    return held_out


def accumulate(
    rows: Rows,
    generator: ColumnGenerator,
    targets: NDArray[np.float64],
    weights: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    column_bounds: ArrayLike = 1.0,
) -> tuple[GramStatistics, GramStatistics]:
    """Return the statistics of the rows to fit and of those held out, in one pass over the data.

    targets (n, T) f8, weights (n,) f8 ≥ 0, held_out (n,) bool; no value of a row exceeds its
    bound, (n,) or one of all. Costs
    2·n·d·M + n·M² operations and two Grams; where nothing is held out, the second has no columns.
    """
    n_centers, block_rows = generator.n_centers, min(rows.block_rows(generator.n_centers), len(rows))
    n_blocks = 2 * -(-len(rows) // block_rows) + 1  # chunks may end amid a block
    bounds = SumBounds(block_rows, n_blocks, RowBounds.of([largest_terms(column_bounds, targets, weights)]))
    fit = StatisticsSums(n_centers, bounds)
    held_out_sums = StatisticsSums(n_centers if held_out.any() else 0, bounds)
    for span, X in rows.blocks(n_centers):
        counted = np.flatnonzero(weights[span] > 0)
        order = counted[np.argsort(held_out[span][counted], kind="stable")]
        if not len(order):
            continue
        columns: NDArray[np.float64] = generator.block(X[order], None, np.float64)  # type: ignore[assignment]
        n_fit = len(order) - int(np.count_nonzero(held_out[span][order]))
        for part, chosen in ((fit, slice(0, n_fit)), (held_out_sums, slice(n_fit, None))):
            if len(order[chosen]):
                part.add(columns[chosen], targets[span][order[chosen]], weights[span][order[chosen]])
    return fit.statistics(), held_out_sums.statistics()


def standardised_points(points: NDArray[np.floating], standardisation: Standardisation | None) -> NDArray[np.floating]:
    """Return points (m, d) as kernels see them: standardised, where the rows are."""
    return points if standardisation is None else standardisation.apply(points, points.dtype.type)


def candidate_count(n_eligible: int, n_centers: int | str | None, centers: Any, most: int) -> int:
    """Return how many candidates an estimator asks for, with a warning where no more than `n_eligible` rows differ.

    n_centers: a number, "all", or None for `most`; `centers` of one's own go first.
    """
    if centers is not None:
        return len(np.atleast_1d(centers))
    if not isinstance(n_centers, Integral):
        return n_eligible if n_centers == "all" else min(most, n_eligible)
    if n_centers > n_eligible:
        warnings.warn(
            f"n_centers={n_centers} is above the {n_eligible} different rows of weight above 0; all are candidates",
            UserWarning,
            stacklevel=4,
        )
    return min(int(n_centers), n_eligible)


def row_weights(sample_weight: ArrayLike | None, rows: Rows) -> NDArray[np.float64]:
    """Return the row weights (n,); one each where none are given."""
    if sample_weight is None:
        return np.ones(len(rows))
    weights = np.asarray(sample_weight) if is_sliced(sample_weight) else sample_weight
    return np.asarray(_check_sample_weight(weights, rows, dtype=np.float64, ensure_non_negative=True))


def check_size(signs: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
    """Raise ValueError where the weighted squares of the targets (n, T) leave float64, upwards or downwards."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(weights @ (signs**2).sum(axis=1)) * float(weights.sum())
    if not np.isfinite(total):
        raise ValueError("y or sample_weight is too large: its sum of squares leaves float64; rescale it")
    if 0.0 < np.abs(signs[weights > 0]).max(initial=0.0) < LEAST_TARGET:
        raise ValueError(f"y is too small: no target is above {LEAST_TARGET:g}; rescale it")


def seed_of(random_state: Any) -> int:
    """Return an int as it is, and one drawn from anything else that scikit-learn takes."""
    if isinstance(random_state, Integral):
        check_random_state(random_state)
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raise as ValueError what the pipeline says of data, without its flags, and a Gram without a factor."""
    try:
        yield
    except (InvalidDataError, LinAlgError) as error:
        words = str(error).replace(" (--set data.standardise=true)", "").replace("--", "")
        words = words.replace("set data.standardise=false", "standardise=False")
        raise ValueError(words) from None
