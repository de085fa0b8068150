"""How kernels make blocks of columns: functions of a distance, in tiles of points."""

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

Values = NDArray[np.floating]
Index = NDArray[np.int64]

# The mean is subtracted where its squared norm exceeds the points' mean squared deviation this many times; below,
# the loss is at most that much larger than it has to be, and the pass over the rows is saved.
FAR_FROM_ORIGIN = 10.0
LARGEST_KERNEL_ERROR = 1e-2  # of a kernel value, by the rounding of its distance; more is refused
TILE_COLUMNS = 512  # of the inner products computed at once: work for several threads, and long enough for BLAS


class Form:
    """A kernel, a function of the distance between 0 and 1: all that the rest of the system knows of it is in its form.

    An object is the kernel at points, values (m, d) of one float dtype. `prepared` checks rows X (rows, d) and returns
    them as `write` wants them, with a size of each, (rows,): the same for all tiles. `write` fills the columns of a
    tile of points in `out` (rows, m) with the rows, taken in an order.
    loops : see `Kernel`
    """

    loops = tuple[str, ...]()

    def __init__(self, values: Values, sigma2: float) -> None:
        self._values = values
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is refused, in words
            self._set_up(sigma2)

    @staticmethod
    def squares(points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what σ² is typical as the median of: the squared distances of pairs of points (m, d)."""
        centred = points - points.mean(axis=0)  # far from the origin, the distances would cancel
        norms = _squared_norms(centred)
        return (norms[:, None] + norms - 2.0 * (centred @ centred.T))[np.triu_indices(len(points), 1)]

    def _set_up(self, sigma2: float) -> None:
        raise NotImplementedError

    def prepared(self, X: Values) -> tuple[Values, Values]:
        """Return the rows as `write` wants them, and their sizes."""
        raise NotImplementedError

    def tiles(self) -> list[slice]:
        """Return the points whose columns `write` takes at once."""
        n_points = len(self._values)
        return [slice(j, min(j + TILE_COLUMNS, n_points)) for j in range(0, n_points, TILE_COLUMNS)]

    def write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        """Write the columns of a tile of points."""
        raise NotImplementedError


class GaussianForm(Form):
    """exp(-‖x-z‖² / (2 σ²)) from inner products: one sgemm, one compiled epilogue (mathematics.md, eqs. 2 and 3).

    ‖x‖² + ‖z‖² - 2 xᵀz cancels where points lie far from the origin and close to each other: about norm²·eps is lost.
    Where the points' mean is far from the origin, rows and points are therefore taken relative to it.
    """

    loops = ("gaussian_float32", "gaussian_float64")

    def _set_up(self, sigma2: float) -> None:
        dtype = self._values.dtype
        self._origin = _origin(self._values)
        self._centers = self._values if self._origin is None else self._values - self._origin
        self._norms = _squared_norms(self._centers)
        self._scale = _scale(0.5 / np.float64(sigma2), dtype, sigma2, "1/(2 sigma2)")
        # Rows need no such check: one with a kernel value above rounding is about as long as its center.
        _check_sizes("center", self._norms, _largest_norm(dtype))
        errors = self._norms.astype(np.float64) * (float(np.finfo(dtype).eps) / sigma2)
        if errors.max(initial=0.0) > LARGEST_KERNEL_ERROR:
            worst = int(np.argmax(errors))
            raise InvalidDataError(
                f"center {worst}: with a squared norm of {self._norms[worst]:g} and sigma2 = {sigma2:g}, kernel "
                f"values would be wrong by {min(errors[worst], 1.0):.1g} from {dtype} rounding; standardise the inputs "
                "(--set data.standardise=true), rescale them, or use a larger --sigma2"
            )

    def prepared(self, X: Values) -> tuple[Values, Values]:
        """Return the rows, relative to the points' mean where that is far, and their squared norms."""
        values = X if self._origin is None else X - self._origin
        norms = _squared_norms(values)
        _check_sizes("row", norms, _largest_norm(norms.dtype))
        return values, norms

    def write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        """Write the columns of a tile of points: inner products, then the kernel of them."""
        loop = gaussian_float32 if X.dtype == np.float32 else gaussian_float64
        loop(X @ self._centers[tile].T, sizes, self._norms[tile], self._scale, order, out, tile.start)


class LaplaceForm(Form):
    """exp(-‖x-z‖ / σ), of distances from differences, which do not cancel (mathematics.md, eq. 4)."""

    loops = ("direct_distances", "laplace_float32", "laplace_float64")
    _euclidean, _size = True, "squared norm"

    def _set_up(self, sigma2: float) -> None:
        _check_sizes("center", self._sizes(self._values), _largest_norm(self._values.dtype), self._size)
        self._scale = _scale(1.0 / np.sqrt(np.float64(sigma2)), self._values.dtype, sigma2, "1/√sigma2")

    def prepared(self, X: Values) -> tuple[Values, Values]:
        """Return the rows and their norms, squared or of absolute values."""
        sizes = self._sizes(X)
        _check_sizes("row", sizes, _largest_norm(X.dtype), self._size)
        return X, sizes

    @staticmethod
    def _sizes(X: Values) -> Values:
        return _squared_norms(X)

    def write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        """Write the columns of a tile of points: distances, then the kernel of them."""
        centers = read_only(self._values[tile])
        distances = np.empty((len(X), len(centers)), X.dtype)
        direct_distances(read_only(X), centers, self._euclidean, distances)
        loop = laplace_float32 if X.dtype == np.float32 else laplace_float64
        loop(distances, self._scale, order, out, tile.start)


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


def _scale(value: np.float64, dtype: np.dtype, sigma2: float, what: str) -> np.floating:
    """Return what is made of the width, in a dtype. Raises InvalidDataError where it overflows to infinity."""
    scale: np.floating = dtype.type(value)
    if not np.isfinite(scale):
        raise InvalidDataError(f"sigma2 = {sigma2:g} is too small: {what} is no {dtype} number; use a larger --sigma2")
    return scale


def _largest_norm(dtype: np.dtype) -> float:
    """Return the largest squared norm with which ‖x‖² + ‖z‖² - 2 xᵀz cannot overflow on its way."""
    return float(np.finfo(dtype).max) / 8


def _squared_norms(X: Values) -> Values:
    """Return ‖x‖² of rows X (rows, d), in their dtype."""
    return np.einsum("ij,ij->i", X, X)
