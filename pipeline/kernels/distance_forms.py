"""How kernels make blocks of columns: functions of a distance, in tiles of points with several widths each."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.jit import read_only
from pipeline.kernels.kernel_loops import (
    direct_distances,
    gaussian_float32,
    gaussian_float64,
    laplace_float32,
    laplace_float64,
)
from pipeline.kernels.scaled_rows import first_non_finite_row

Values = NDArray[np.floating]
Index = NDArray[np.int64]

# The mean is subtracted where its squared norm exceeds the points' mean squared deviation this many times; below,
# the loss is at most that much larger than it has to be, and the pass over the rows is saved.
FAR_FROM_ORIGIN = 10.0
LARGEST_KERNEL_ERROR = 1e-2  # of a kernel value, by the rounding of its distance; more is refused
TILE_COLUMNS = 512  # of the inner products computed at once: work for several threads, and long enough for BLAS


class Form:
    """A kernel, a function of the distance between 0 and 1: all that the rest of the system knows of it is in its form.

    An object is the kernel at points, values (p, d) of one float dtype; column j is of point place[j], or j without
    places. `prepared` checks rows X (rows, d) and returns them as `write` wants them, with a size of each, (rows,): the
    same for all tiles. `write` fills the columns of a tile in `out` (rows, columns) with the rows, taken in an order.
    loops : see `Kernel`
    """

    loops = tuple[str, ...]()

    def __init__(self, values: Values, place: Index | None, sigma2: NDArray[np.float64]) -> None:
        self._values, self._place = values, place
        self._runs = None if place is None else _runs_of_tiles(place)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is refused, in words
            self._set_up(sigma2)

    @staticmethod
    def squares(points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what σ² is typical as the median of: the squared distances of pairs of points (m, d)."""
        centred = points - points.mean(axis=0)  # far from the origin, the distances would cancel
        norms = _squared_norms(centred)
        return (norms[:, None] + norms - 2.0 * (centred @ centred.T))[np.triu_indices(len(points), 1)]

    def _set_up(self, sigma2: NDArray[np.float64]) -> None:
        raise NotImplementedError

    def tiles(self) -> list[slice]:
        """Return the points whose columns `write` takes at once, of all widths."""
        n_points = len(self._values)
        return [slice(j, min(j + TILE_COLUMNS, n_points)) for j in range(0, n_points, TILE_COLUMNS)]

    def write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        """Write the columns of a tile of points: distances or inner products, then each column of them."""
        of_points = self._of_points(X, tile)
        for columns in [tile] if self._runs is None else self._runs.get(tile.start // TILE_COLUMNS, []):
            of_columns = of_points
            if self._place is not None:
                points = self._place[columns] - tile.start
                if not np.array_equal(points, np.arange(of_points.shape[1])):
                    of_columns = np.take(of_points, points, axis=1)
            self._epilogue(of_columns, sizes, columns, order, out)

    def _spread(self, of_points: Values) -> Values:
        """Return what is known of each point, (..., p), for each column, (..., columns)."""
        return of_points if self._place is None else np.ascontiguousarray(of_points[..., self._place])

    def _of_points(self, X: Values, tile: slice) -> Values:
        """Return what the values of a tile of points are made of, (rows, points)."""
        raise NotImplementedError

    def _epilogue(self, of_columns: Values, sizes: Values, columns: slice, order: Index, out: Values) -> None:
        """Write the values of some columns, (rows, columns)."""
        raise NotImplementedError


class GaussianForm(Form):
    """exp(-‖x-z‖² / (2 σ²)) from inner products: one sgemm, one compiled epilogue (mathematics.md, eqs. 2 and 3).

    ‖x‖² + ‖z‖² - 2 xᵀz cancels where points lie far from the origin and close to each other: about norm²·eps is lost.
    Where the points' mean is far from the origin, rows and points are therefore taken relative to it.
    """

    loops = ("gaussian_float32", "gaussian_float64")

    def _set_up(self, sigma2: NDArray[np.float64]) -> None:
        dtype = self._values.dtype
        self._origin = _origin(self._values)
        self._centers = self._values if self._origin is None else self._values - self._origin
        self._norms = self._spread(_squared_norms(self._centers))
        self._scales: Values = (0.5 / sigma2).astype(dtype)
        # Rows need no such check: one with a kernel value above rounding is about as long as its center.
        _check_sizes("center", self._norms, _largest_norm(dtype))
        _check_scales(self._scales, sigma2, "1/(2 sigma2)")
        errors = self._norms.astype(np.float64) * (float(np.finfo(dtype).eps) / sigma2)
        if errors.max(initial=0.0) > LARGEST_KERNEL_ERROR:
            worst = int(np.argmax(errors))
            raise InvalidDataError(
                f"center {worst}: with a squared norm of {self._norms[worst]:g} and sigma2 = {sigma2[worst]:g}, kernel "
                f"values would be wrong by {min(errors[worst], 1.0):.1g} from {dtype} rounding; standardise the inputs "
                "(--set data.standardise=true), rescale them, or use a larger --sigma2"
            )

    def prepared(self, X: Values) -> tuple[Values, Values]:
        """Return the rows, relative to the points' mean where that is far, and their squared norms."""
        values = X if self._origin is None else X - self._origin
        norms = _squared_norms(values)
        _check_sizes("row", norms, _largest_norm(norms.dtype))
        return values, norms

    def _of_points(self, X: Values, tile: slice) -> Values:
        return X @ self._centers[tile].T

    def _epilogue(self, of_columns: Values, sizes: Values, columns: slice, order: Index, out: Values) -> None:
        loop = gaussian_float32 if of_columns.dtype == np.float32 else gaussian_float64
        loop(of_columns, sizes, self._norms[columns], self._scales[columns], order, out, columns.start)


class LaplaceForm(Form):
    """exp(-‖x-z‖ / σ), of distances from differences, which do not cancel (mathematics.md, eq. 4)."""

    loops = ("direct_distances", "laplace_float32", "laplace_float64")
    _euclidean, _size = True, "squared norm"

    def _set_up(self, sigma2: NDArray[np.float64]) -> None:
        _check_sizes("center", self._sizes(self._values), _largest_norm(self._values.dtype), self._size)
        self._scales: Values = (1.0 / np.sqrt(sigma2)).astype(self._values.dtype)
        _check_scales(self._scales, sigma2, "1/√sigma2")

    def prepared(self, X: Values) -> tuple[Values, Values]:
        """Return the rows and their norms, squared or of absolute values."""
        sizes = self._sizes(X)
        _check_sizes("row", sizes, _largest_norm(X.dtype), self._size)
        return X, sizes

    @staticmethod
    def _sizes(X: Values) -> Values:
        return _squared_norms(X)

    def _of_points(self, X: Values, tile: slice) -> Values:
        rows, centers = read_only(X), read_only(self._values[tile])
        distances = np.empty((len(X), len(centers)), X.dtype)
        direct_distances(rows, centers, self._euclidean, distances)
        return distances

    def _epilogue(self, of_columns: Values, sizes: Values, columns: slice, order: Index, out: Values) -> None:
        loop = laplace_float32 if of_columns.dtype == np.float32 else laplace_float64
        loop(of_columns, self._scales[columns], order, out, columns.start)


class ProductLaplaceForm(LaplaceForm):
    """exp(-Σ_j |x_j - z_j| / σ), the product of one Laplace kernel for each feature (mathematics.md, eq. 5)."""

    _euclidean, _size = False, "sum of absolute features"

    @staticmethod
    def squares(points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squares of the distances of pairs of points, in the 1-norm."""
        centred = read_only((points - points.mean(axis=0)).astype(np.float32))  # for which the loop is compiled
        distances = np.empty((len(points), len(points)), np.float32)
        direct_distances(centred, centred, False, distances)
        return np.square(distances[np.triu_indices(len(points), 1)], dtype=np.float64)

    @staticmethod
    def _sizes(X: Values) -> Values:
        return np.asarray(np.abs(X).sum(axis=1))


def _runs_of_tiles(place: Index) -> dict[int, list[slice]]:
    """Return the columns of each tile of points, by its number: runs of those that stand together."""
    tiles = place // TILE_COLUMNS
    edges = [0, *(np.flatnonzero(np.diff(tiles)) + 1).tolist(), len(tiles)]
    runs: dict[int, list[slice]] = {}
    for first, stop in pairwise(edges) if len(tiles) else ():
        runs.setdefault(int(tiles[first]), []).append(slice(first, stop))
    return runs


def _origin(centers: Values) -> Values | None:
    """Return the centers' mean (n_features,), rounded to their dtype, or None where it is no help."""
    if not len(centers):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = centers.mean(axis=0, dtype=np.float64)
        offset = float(mean @ mean)
        spread = float(np.einsum("ij,ij->i", centers, centers, dtype=np.float64).mean()) - offset
        return mean.astype(centers.dtype) if offset > FAR_FROM_ORIGIN * spread else None


def _check_sizes(who: str, sizes: Values, largest: float, what: str = "squared norm") -> None:
    """Raise InvalidDataError naming the first row or center whose size (rows,) is above the largest that will do."""
    bad = np.flatnonzero(~(sizes <= largest))
    if bad.size:
        place = f"row {bad[0]} of a block of {len(sizes)}" if who == "row" else f"{who} {bad[0]}"
        raise InvalidDataError(
            f"{place}: its {what} is {sizes[bad[0]]:g}, too large for {sizes.dtype} kernel values; standardise the "
            "inputs (--set data.standardise=true) or rescale them"
        )


def _check_scales(scales: Values, widths: NDArray[np.float64], what: str) -> None:
    """Raise InvalidDataError where what is made of the widths (columns,) overflowed to infinity."""
    place = first_non_finite_row(scales)
    if place is not None:
        raise InvalidDataError(
            f"sigma2 = {widths[place]:g} is too small: {what} is no {scales.dtype} number; use a larger --sigma2"
        )


def _largest_norm(dtype: np.dtype) -> float:
    """Return the largest squared norm with which ‖x‖² + ‖z‖² - 2 xᵀz cannot overflow on its way."""
    return float(np.finfo(dtype).max) / 8


def _squared_norms(X: Values) -> Values:
    """Return ‖x‖² of rows X (rows, d), in their dtype."""
    return np.einsum("ij,ij->i", X, X)
