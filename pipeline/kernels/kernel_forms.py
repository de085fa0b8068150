"""The kernels: each turns rows into blocks of columns k(x, z) / √k(z, z) for fixed points z; widths that suit points.

A point may have several widths, each with a column: its inner products are computed once for all of them.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.kernel_loops import gaussian_float32, gaussian_float64, intersections, polynomial
from pipeline.kernels.scaled_rows import first_non_finite_row

KERNELS = ("gaussian", "polynomial", "intersection")
# The mean is subtracted where its squared norm exceeds the points' mean squared deviation this many times; below,
# the loss is at most that much larger than it has to be, and the pass over the rows is saved.
FAR_FROM_ORIGIN = 10.0
LARGEST_KERNEL_ERROR = 1e-2  # of a kernel value, by the rounding of its distance; more is refused
TILE_COLUMNS = 512  # of the inner products computed at once: work for several threads, and long enough for BLAS
_RESCALE = "standardise the inputs (--set data.standardise=true) or rescale them"


@dataclass(frozen=True)
class Kernel:
    """Which kernel; its width σ² belongs to the columns.

    gaussian: exp(-‖x-z‖² / (2 σ²)), for which k(z, z) = 1. polynomial: (1 + x·z / σ²)^degree. intersection: Σ_j
    min(x_j, z_j) of features of at least 0 (histograms), without a width; Maji and Malik 2009 use it on sphog features.
    """

    name: str = "gaussian"
    degree: int = 2

    def __post_init__(self) -> None:
        if self.name not in KERNELS:
            raise ValueError(f"the kernel must be one of {', '.join(KERNELS)}, got {self.name!r}")
        if self.degree < 1:
            raise ValueError(f"the degree must be at least 1, got {self.degree}")

    @property
    def has_width(self) -> bool:
        """Whether σ² means anything to it."""
        return self.name != "intersection"

    @property
    def is_bounded(self) -> bool:
        """Whether 0 ≤ k(x, z) = k(z, x) ≤ 1 for all columns: they are symmetric, and Σ k bounds Σ k².

        mathematics.md, eq. 49.
        """
        return self.name == "gaussian"

    @property
    def largest_value(self) -> float:
        """Bound of |k| for all columns: of others than the bounded ones, what a float32 holds."""
        return 1.0 if self.is_bounded else float(np.finfo(np.float32).max)


# Rows of a block as a kernel wants them, (rows, d), and a size of each, (rows,); the same for all tiles.
Rows = tuple[NDArray[np.floating], NDArray[np.floating]]


class _Form:
    """Some points, values (p, d) of one float dtype; column j is of point place[j], or j without places."""

    def __init__(self, values: NDArray[np.floating], place: NDArray[np.int64] | None) -> None:
        self._values, self._place = values, place
        self._n_columns = len(values) if place is None else len(place)

    def _spread(self, of_points: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return what is known of each point, (..., p), for each column, (..., columns)."""
        return of_points if self._place is None else np.ascontiguousarray(of_points[..., self._place])

    def tiles(self) -> list[slice]:
        """Return what `write` takes at once: all columns."""
        return [slice(0, self._n_columns)] if self._n_columns else []

    def prepared(self, X: NDArray[np.floating]) -> Rows:
        """Return rows X (rows, d) as `write` takes them. Raises InvalidDataError naming one that is too large."""
        raise NotImplementedError

    def write(self, prepared: Rows, order: NDArray[np.int64], out: NDArray[np.floating], tile: slice) -> None:
        """Write the columns of a tile over prepared rows, taken in this order, to `out` (rows, columns)."""
        raise NotImplementedError


class GaussianForm(_Form):
    """exp(-‖x-z‖² / (2 σ²)) from inner products: one sgemm, one compiled epilogue (mathematics.md, eqs. 2 and 3).

    ‖x‖² + ‖z‖² - 2 xᵀz cancels where points lie far from the origin and close to each other: about norm²·eps is lost.
    Where the points' mean is far from the origin, rows and points are therefore taken relative to it.
    """

    def __init__(
        self, values: NDArray[np.floating], place: NDArray[np.int64] | None, sigma2: NDArray[np.float64]
    ) -> None:
        super().__init__(values, place)
        self._origin, self._widths = _origin(values), sigma2
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below, in words
            self._centers = values if self._origin is None else values - self._origin
            self._norms = self._spread(_squared_norms(self._centers))
            self._scales: NDArray[np.floating] = (0.5 / sigma2).astype(values.dtype)
        self._check()
        self._runs = None if place is None else _runs_of_tiles(place)
        self._epilogue = gaussian_float32 if values.dtype == np.float32 else gaussian_float64

    def tiles(self) -> list[slice]:
        """Return the points whose columns `write` takes at once, of all widths: they share inner products."""
        n_points = len(self._centers)
        return [slice(j, min(j + TILE_COLUMNS, n_points)) for j in range(0, n_points, TILE_COLUMNS)]

    def prepared(self, X: NDArray[np.floating]) -> Rows:
        """Return rows X (rows, d) relative to the origin, and their squared norms."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = X if self._origin is None else X - self._origin
            norms = _squared_norms(values)
        _check_sizes("row", norms, _largest_norm(norms.dtype))
        return values, norms

    def write(self, prepared: Rows, order: NDArray[np.int64], out: NDArray[np.floating], tile: slice) -> None:
        """Write the columns of a tile of points."""
        rows, norms = prepared
        dots = rows @ self._centers[tile].T
        for columns in [tile] if self._runs is None else self._runs.get(tile.start // TILE_COLUMNS, []):
            of_columns = self._dots_of(columns, dots, tile)
            self._epilogue(of_columns, norms, self._norms[columns], self._scales[columns], order, out, columns.start)

    def _dots_of(self, columns: slice, dots: NDArray[np.floating], tile: slice) -> NDArray[np.floating]:
        """Return the inner products (rows, k) of k columns from those of the points of their tile."""
        if self._place is None:
            return dots
        places = self._place[columns] - tile.start
        return dots if np.array_equal(places, np.arange(dots.shape[1])) else np.take(dots, places, axis=1)

    def _check(self) -> None:
        """Raise InvalidDataError where the kernel values of a center would not be numbers, or no more than rounding.

        Rows need no such check: one with a kernel value above rounding is about as long as its center.
        """
        dtype, widths = self._norms.dtype, self._widths
        _check_sizes("center", self._norms, _largest_norm(dtype))
        _check_scales(self._scales, widths)
        with np.errstate(over="ignore"):
            errors = self._norms.astype(np.float64) * (float(np.finfo(dtype).eps) / widths)
        worst = int(np.argmax(errors)) if len(errors) else 0
        if len(errors) and errors[worst] > LARGEST_KERNEL_ERROR:
            raise InvalidDataError(
                f"center {worst}: with a squared norm of {self._norms[worst]:g} and sigma2 = {widths[worst]:g}, kernel "
                f"values would be wrong by {min(errors[worst], 1.0):.1g} from {dtype} rounding; standardise the inputs "
                "(--set data.standardise=true), rescale them, or use a larger --sigma2"
            )


class PolynomialForm(_Form):
    """(1 + x·z/σ²)^degree over its root at (z, z), as the power of (1 + x·z/σ²) / √(1 + ‖z‖²/σ²).

    mathematics.md, eq. 4.
    """

    def __init__(
        self, values: NDArray[np.floating], place: NDArray[np.int64] | None, sigma2: NDArray[np.float64], degree: int
    ) -> None:
        super().__init__(values, place)
        self._degree = degree
        with np.errstate(over="ignore", invalid="ignore"):
            norms = self._spread(_squared_norms(values))
            self._scales = 1.0 / sigma2
            self._most = _largest_power(values.dtype, degree)
        _check_scales(self._scales, sigma2)
        _check_sizes("center", norms * self._scales, self._most, "squared norm over sigma2")
        self._roots = 1.0 / np.sqrt(1.0 + norms * self._scales)

    def prepared(self, X: NDArray[np.floating]) -> Rows:
        """Return rows X (rows, d) and their squared norms."""
        with np.errstate(over="ignore", invalid="ignore"):
            norms = _squared_norms(X)
        _check_sizes("row", norms * self._scales.max(initial=0.0), self._most, "squared norm over sigma2")
        return X, norms

    def write(self, prepared: Rows, order: NDArray[np.int64], out: NDArray[np.floating], tile: slice) -> None:
        """Write all columns."""
        dots = self._spread(prepared[0] @ self._values.T)
        polynomial(dots, self._scales, self._roots, self._degree, order, out)


class IntersectionForm(_Form):
    """Σ_j min(x_j, z_j) / √Σ_j z_j: 2·d operations a value as well, though no sgemm. The column of z = 0 is zero.

    mathematics.md, eq. 5.
    """

    def __init__(self, values: NDArray[np.floating], place: NDArray[np.int64] | None) -> None:
        super().__init__(values, place)
        sums = values.sum(axis=1, dtype=np.float64)
        _check_not_negative(values, "center")
        _check_sizes("center", sums, _largest_norm(values.dtype), "sum of features")
        with np.errstate(divide="ignore"):
            self._roots = np.where(sums > 0, 1.0 / np.sqrt(sums), 0.0)
        self._transposed = np.ascontiguousarray(values.T)

    def prepared(self, X: NDArray[np.floating]) -> Rows:
        """Return rows X (rows, d) and their sums."""
        sums = X.sum(axis=1, dtype=np.float64)
        _check_not_negative(X, f"row of a block of {len(X)}, its number")
        _check_sizes("row", sums, _largest_norm(X.dtype), "sum of features")
        return X, sums

    def write(self, prepared: Rows, order: NDArray[np.int64], out: NDArray[np.floating], tile: slice) -> None:
        """Write all columns."""
        X = prepared[0]
        values = np.empty((len(X), len(self._roots)), X.dtype)
        intersections(X, self._transposed, self._roots, values)
        out[:] = self._spread(values)[order]


_ROUNDING = 1e-3  # by which values of float32 may exceed what they would be in exact arithmetic, and more


def column_bounds(kernel: Kernel, X: NDArray[np.floating], sigma2: float) -> NDArray[np.float64]:
    """Return bounds (rows,) of |k(x, z)| / √k(z, z) for rows X (rows, d) and any z: √k(x, x), by Cauchy-Schwarz.

    mathematics.md, eq. 72. sigma2: the smallest width. Raises InvalidDataError where no float64 holds it.
    """
    if kernel.is_bounded:
        return np.ones(len(X))
    if kernel.name == "polynomial":
        with np.errstate(over="ignore"):
            sizes = np.einsum("ij,ij->i", X, X, dtype=np.float64) / sigma2
        _check_sizes("row", sizes, _largest_power(sizes.dtype, kernel.degree), "squared norm over sigma2")
        return np.asarray((1.0 + _ROUNDING) * (1.0 + sizes) ** (kernel.degree / 2))
    sums = np.maximum(X.sum(axis=1, dtype=np.float64), 0.0)  # negative features are refused as columns are made
    return np.asarray((1.0 + _ROUNDING) * np.sqrt(sums))


def form_of(
    kernel: Kernel, values: NDArray[np.floating], place: NDArray[np.int64] | None, sigma2: NDArray[np.float64]
) -> _Form:
    """Return the kernel at points (p, d); column j is of values[place[j]] (None: of values[j]), width σ²_j.

    Raises ValueError for a width that is no finite number above 0, InvalidDataError where values at these points
    would overflow, be no more than rounding, or make no sense (negative features of an intersection).
    """
    if not (np.isfinite(sigma2).all() and (sigma2 > 0).all()):
        raise ValueError("every sigma2 must be a finite number above 0")
    if kernel.name == "polynomial":
        return PolynomialForm(values, place, sigma2, kernel.degree)
    return IntersectionForm(values, place) if kernel.name == "intersection" else GaussianForm(values, place, sigma2)


def _runs_of_tiles(place: NDArray[np.int64]) -> dict[int, list[slice]]:
    """Return the columns of each tile of points, by its number: runs of those that stand together."""
    tiles = place // TILE_COLUMNS
    edges = [0, *(np.flatnonzero(np.diff(tiles)) + 1).tolist(), len(tiles)]
    runs: dict[int, list[slice]] = {}
    for first, stop in pairwise(edges) if len(tiles) else ():
        runs.setdefault(int(tiles[first]), []).append(slice(first, stop))
    return runs


def _check_sizes(who: str, sizes: NDArray[np.floating], largest: float, what: str = "squared norm") -> None:
    """Raise InvalidDataError naming the first row or center whose size (rows,) is above the largest that will do."""
    bad = np.flatnonzero(~(sizes <= largest))
    if bad.size:
        place = f"row {bad[0]} of a block of {len(sizes)}" if who == "row" else f"{who} {bad[0]}"
        raise InvalidDataError(
            f"{place}: its {what} is {sizes[bad[0]]:g}, too large for {sizes.dtype} kernel values; {_RESCALE}"
        )


def _check_scales(scales: NDArray[np.floating], widths: NDArray[np.float64]) -> None:
    place = first_non_finite_row(scales)
    if place is not None:
        raise InvalidDataError(
            f"sigma2 = {widths[place]:g} is too small: 1/(2 sigma2) is no {scales.dtype} number; use a larger --sigma2"
        )


def _check_not_negative(values: NDArray[np.floating], what: str) -> None:
    bad = np.flatnonzero((values < 0).any(axis=1))
    if bad.size:
        raise InvalidDataError(
            f"{what} {bad[0]}: has the feature {values[bad[0]].min():g}; the intersection kernel needs features of at "
            "least 0: do not standardise them (--set data.standardise=false), or use another --kernel"
        )


def _origin(centers: NDArray[np.floating]) -> NDArray[np.floating] | None:
    """Return the centers' mean (n_features,), rounded to their dtype, or None where it is no help."""
    if not len(centers):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = centers.mean(axis=0, dtype=np.float64)
        offset = float(mean @ mean)
        spread = float(np.einsum("ij,ij->i", centers, centers, dtype=np.float64).mean()) - offset
        return mean.astype(centers.dtype) if offset > FAR_FROM_ORIGIN * spread else None


def _largest_norm(dtype: np.dtype) -> float:
    """Return the largest squared norm with which ‖x‖² + ‖z‖² - 2 xᵀz cannot overflow on its way."""
    return float(np.finfo(dtype).max) / 8


def _largest_power(dtype: np.dtype, degree: int) -> float:
    """Return the largest ‖x‖²/σ² whose column values, at most (1 + ‖x‖²/σ²)^(degree/2), have squares that can be
    summed."""
    return float(np.finfo(dtype).max ** (1.0 / max(degree, 1))) / 8


def _squared_norms(X: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.einsum("ij,ij->i", X, X)


MEDIAN_POINTS = 1000


def default_sigma2(points: NDArray[np.floating], kernel: Kernel) -> float:
    """Return the typical width of the first points (m, d), of four digits: the same on machines that round otherwise.

    Of `MEDIAN_POINTS` at most; drawn, since the first may be of one class.
    """
    return float(f"{typical_sigma2(points[:MEDIAN_POINTS], kernel):.4g}")


def typical_sigma2(points: NDArray[np.floating], kernel: Kernel) -> float:
    """Return the σ² at which kernel values are neither all alike nor all different, for points (m, d).

    The median of the squared distances between different points (mathematics.md, eq. 68), at which the Gaussian is
    exp(-1/2); for inner products the median of the squared norms. Of `MEDIAN_POINTS` at most, drawn, since the first
    may be of one class; 1 where there is nothing to measure.
    """
    drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:MEDIAN_POINTS])
    values = points[drawn].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of points that are too large for kernels: refused elsewhere
        if kernel.name == "gaussian":
            values -= values.mean(axis=0)  # far from the origin, the distances below would cancel
        norms = np.einsum("ij,ij->i", values, values)
        squares = norms
        if kernel.name == "gaussian":
            distances = norms[:, None] + norms - 2.0 * (values @ values.T)
            squares = distances[np.triu_indices(len(values), 1)]
        squares = squares[np.isfinite(squares) & (squares > 1e-12 * norms.max(initial=0.0))]
    return float(np.median(squares)) if len(squares) else 1.0
