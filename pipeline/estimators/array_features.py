"""Rows of arrays as the steps of a fit read them: features, targets, weights and keys of the rows that count.

They are read by blocks: what is standardised or scaled is never in memory whole.
"""

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from features.array_sources import unmasked
from features.deformed_copies import Copies
from features.descriptors.extraction import FeatureSpec, extract
from features.errors import DataError
from features.row_draws import RowKeys, group_keys, keys_apart, row_keys
from features.source import Part
from features.standardisation import Standardisation
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import fit_moments
from pipeline.kernels.kernel_functions import first_non_finite_row, scaled
from storage.zarr_arrays import chunk_rows_for

BLOCK_BYTES = 64 * 2**20  # of features, kernel values and their float64 copies held at once
MOST_BLOCK_ROWS, LEAST_BLOCK_ROWS = 4096, 64


class Rows:
    """A matrix (n, d) of float32 or float64 that is read by row blocks."""

    def __init__(self, X: NDArray[np.floating]) -> None:
        self._X = X
        self._standardisation: Standardisation | None = None
        self._scales: NDArray[np.float32] | None = None
        self.shape = (int(X.shape[0]), int(X.shape[1]))
        self.dtype: type = X.dtype.type

    def __len__(self) -> int:
        return self.shape[0]

    def seen(self, standardisation: Standardisation | None, scales: NDArray[np.float32] | None = None) -> "Rows":
        """Return the rows as the kernel sees them: standardised as they are read, then scaled; None does neither."""
        rows = copy(self)
        rows._standardisation, rows._scales = standardisation, scales
        return rows

    def blocks(self, n_columns: int) -> Iterator[tuple[slice, NDArray[np.floating]]]:
        """Yield (rows, X[rows]) in order, C-contiguous `dtype`; sized for `n_columns` kernel values a row."""
        per_row = 24 * self.shape[1] + 20 * n_columns  # features as read, standardised and scaled
        block = int(np.clip(BLOCK_BYTES // per_row, LEAST_BLOCK_ROWS, MOST_BLOCK_ROWS))
        for start in range(0, len(self), block):
            stop = min(start + block, len(self))
            yield slice(start, stop), self.read(start, stop)

    def read(self, start: int, stop: int) -> NDArray[np.floating]:
        """Return some rows (stop - start, d), as `dtype`."""
        return self._finite(self._X[start:stop], np.arange(start, stop))

    def take(self, index: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the rows `index`, in its order, as `dtype`: (len(index), d)."""
        out: NDArray[np.floating] = np.empty((len(index), self.shape[1]), self.dtype)
        for start in range(0, len(index), MOST_BLOCK_ROWS):  # of which float64 copies are made
            some = index[start : start + MOST_BLOCK_ROWS]
            out[start : start + len(some)] = self._finite(self._X[some], some)
        return out

    def _finite(self, rows: NDArray[Any], index: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return rows as the kernel sees them. Raises ValueError naming the first that holds NaN or infinity."""
        values = rows
        if self._standardisation is not None:
            values = self._standardisation.apply(values, self.dtype)
        with np.errstate(over="ignore"):
            values = scaled(np.ascontiguousarray(values, dtype=self.dtype), self._scales)
        row = first_non_finite_row(values)
        if row is not None:
            fault = f"Input X contains NaN or infinity in row {index[row]}; remove or impute such rows before"
            if np.isfinite(rows[row]).all():
                fault = f"Input X is too large for {np.dtype(self.dtype)} in row {index[row]}; rescale or remove it"
            raise ValueError(fault)
        return values


class ArrayFeatures:
    """The rows that have a weight, as `datasets.feature_rows.FeatureRows`.

    Of rows (n, d): targets (n,) as stored, weights (n,) ≥ 0 or None, groups (n,) or None. index (n,): which of the rows
    have a weight; row_numbers (n,): what these are called.
    """

    def __init__(
        self,
        rows: Rows,
        targets: NDArray[Any],
        weights: NDArray[np.float64] | None = None,
        groups: ArrayLike | None = None,
    ) -> None:
        self._given, self._rows, self.dtype = rows, rows, rows.dtype
        self.input_shape: tuple[int, ...] = rows.shape[1:]
        self.image_scale: float | None = None  # what is white in images
        self._standardisation: Standardisation | None = None
        self.index = self.row_numbers = np.arange(len(rows)) if weights is None else np.flatnonzero(weights > 0)
        self._targets, self._weights = targets[self.index], None if weights is None else weights[self.index]
        keys = np.concatenate([np.empty(0, np.uint64), *(row_keys(X) for _, X in rows.blocks(0))])
        self._keys = keys[self.index]
        apart = keys_apart(self._keys) if groups is None else _keys_of_groups(groups, len(keys))[self.index]
        self._groups = self._keys if apart is None else apart

    def take_images(self, images: NDArray[Any], spec: FeatureSpec, copies: Copies) -> None:
        """Have the features of images (n, ...), which the rows are, from now on, and of deformed copies of each."""
        kept, n_rows = self.index, len(self.index) * copies.count
        counted = images[kept]
        starts = range(0, n_rows, MOST_BLOCK_ROWS)
        spans = [(start, min(start + MOST_BLOCK_ROWS, n_rows)) for start in starts]
        made = [extract(spec, copies.rows(lambda start, stop: counted[start:stop], *span)) for span in spans]
        self._given = self._rows = Rows(np.concatenate(made))
        self.dtype, self.input_shape = self._rows.dtype, images.shape[1:]
        self._keys, self._groups = copies.keys(self._keys, 0, n_rows), np.repeat(self._groups, copies.count)
        self._targets = np.repeat(self._targets, copies.count)
        self._weights = None if self._weights is None else np.repeat(self._weights, copies.count)
        self.index = np.arange(n_rows)
        self.row_numbers = (kept[:, None] * copies.count + np.arange(copies.count)).ravel()

    def shape(self, task: str, classes: tuple[Any, ...]) -> FeatureShape:
        n_features = self._rows.shape[1]
        return FeatureShape(
            digest="",
            dataset="X",
            task=task,
            classes=classes,
            n_train=len(self.index),
            n_test=0,
            n_features=n_features,
            chunk_rows=chunk_rows_for(4 * n_features, max(len(self.index), 1)),
            description={},
            weighted=() if self._weights is None else ("train",),
            dtype=np.dtype(self.dtype).name,
        )

    def standardise(self, shape: FeatureShape, *, balanced: bool) -> None:
        """Z-score the rows from now on. Raises DataError where their moments leave float64."""

        def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
            return self.read("train", start, stop), self.targets("train", start, stop)

        self._rows, weights = self._given, self.weights("train", 0, shape.n_train)
        self._standardisation = fit_moments(read, shape, weights, balanced=balanced)
        self._rows = self._given.seen(self._standardisation)

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.floating]:
        if start == stop:
            return self._rows.read(0, 0)
        first, last = int(self.index[start]), int(self.index[stop - 1]) + 1
        values = self._rows.read(first, last)
        return values if len(values) == stop - start else values[self.index[start:stop] - first]

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        return self._targets[start:stop]

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        return None if self._weights is None else self._weights[start:stop]

    def keys(self, start: int, stop: int) -> tuple[RowKeys, RowKeys]:
        return self._keys[start:stop], self._groups[start:stop]

    def take(self, rows: NDArray[np.int64], *, as_given: bool = False) -> NDArray[np.floating]:
        """Return some rows (len(rows), n_features), as the kernel sees them or as they were given."""
        return (self._given if as_given else self._rows).take(self.index[rows])

    def standardisation(self) -> Standardisation:
        assert self._standardisation is not None
        return self._standardisation


def _keys_of_groups(groups: ArrayLike, n_rows: int) -> RowKeys:
    names = np.asarray(unmasked(groups))
    if names.shape not in ((n_rows,), (n_rows, 1)):
        raise ValueError(f"groups has the shape {names.shape}; ({n_rows},), one for each row, is needed")
    names = names.reshape(-1)
    try:
        return group_keys(names.astype(str) if names.dtype.kind == "O" else names)
    except DataError as error:
        raise ValueError(f"groups: {error}") from None
