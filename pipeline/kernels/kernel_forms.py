"""The kernels: each turns rows into blocks of columns k(x, z) / √k(z, z) for fixed points z; widths that suit points.

No block outlives the call that asked for it. A point may have several widths, each with a column: its inner products
are computed once for all of them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.distance_forms import GaussianForm, LaplaceForm, ProductLaplaceForm
from pipeline.kernels.exact_sums import Each, serially
from pipeline.kernels.form import Form, Index, Values, check_scales, check_sizes, largest_norm, squared_norms
from pipeline.kernels.kernel_loops import intersections, polynomial

_ROUNDING = 1e-3  # by which values of float32 may exceed what they would be in exact arithmetic, and more


class _PolynomialForm(Form):
    """(1 + x·z/σ²)^degree over its root at (z, z): a power of (1 + x·z/σ²) / √(1 + ‖z‖²/σ²) (mathematics.md, eq. 4)."""

    loops = ("polynomial",)

    @staticmethod
    def bounds(X: Values, sigma2: float, degree: int) -> NDArray[np.float64]:
        with np.errstate(over="ignore"):
            sizes = np.einsum("ij,ij->i", X, X, dtype=np.float64) / sigma2
        check_sizes("row", sizes, _largest_power(sizes.dtype, degree), "squared norm over sigma2")
        return np.asarray((1.0 + _ROUNDING) * (1.0 + sizes) ** (degree / 2))

    def _set_up(self, sigma2: NDArray[np.float64]) -> None:
        norms, self._scales = self._spread(squared_norms(self._values)), 1.0 / sigma2
        self._most = _largest_power(self._values.dtype, self._degree)
        check_scales(self._scales, sigma2, "1/sigma2")
        check_sizes("center", norms * self._scales, self._most, "squared norm over sigma2")
        self._roots = 1.0 / np.sqrt(1.0 + norms * self._scales)

    def prepared(self, X: Values) -> tuple[Values, Values]:
        norms = squared_norms(X)
        check_sizes("row", norms * self._scales.max(initial=0.0), self._most, "squared norm over sigma2")
        return X, norms

    def write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        polynomial(self._spread(X @ self._values.T), self._scales, self._roots, self._degree, order, out)


class _IntersectionForm(Form):
    """Σ_j min(x_j, z_j) / √Σ_j z_j, zero for z = 0: 2·d operations a value, though no sgemm (mathematics.md, eq. 5)."""

    has_width, loops = False, ("intersections",)

    @staticmethod
    def bounds(X: Values, sigma2: float, degree: int) -> NDArray[np.float64]:
        sums = np.maximum(X.sum(axis=1, dtype=np.float64), 0.0)  # negative features are refused as columns are made
        return np.asarray((1.0 + _ROUNDING) * np.sqrt(sums))

    def _set_up(self, sigma2: NDArray[np.float64]) -> None:
        sums = self._values.sum(axis=1, dtype=np.float64)
        _check_not_negative(self._values, "center")
        check_sizes("center", sums, largest_norm(self._values.dtype), "sum of features")
        self._roots = np.where(sums > 0, 1.0 / np.sqrt(sums), 0.0)
        self._transposed = np.ascontiguousarray(self._values.T)

    def prepared(self, X: Values) -> tuple[Values, Values]:
        sums = X.sum(axis=1, dtype=np.float64)
        _check_not_negative(X, f"row of a block of {len(X)}, its number")
        check_sizes("row", sums, largest_norm(X.dtype), "sum of features")
        return X, sums

    def write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        values = np.empty((len(X), len(self._roots)), X.dtype)
        intersections(X, self._transposed, self._roots, values)
        out[:] = self._spread(values)[order]


_FORMS: dict[str, type[GaussianForm] | type[LaplaceForm] | type[_PolynomialForm] | type[_IntersectionForm]] = {
    "gaussian": GaussianForm,
    "laplace": LaplaceForm,
    "product-laplace": ProductLaplaceForm,
    "polynomial": _PolynomialForm,
    "intersection": _IntersectionForm,
}
KERNELS = tuple(_FORMS)


@dataclass(frozen=True)
class Kernel:
    """Which kernel; its width σ² belongs to the columns.

    gaussian: exp(-‖x-z‖² / (2 σ²)), laplace: exp(-‖x-z‖ / σ), product-laplace: exp(-Σ_j |x_j - z_j| / σ), for which
    k(z, z) = 1. polynomial: (1 + x·z / σ²)^degree. intersection: Σ_j min(x_j, z_j) of features of at least 0
    (histograms), without a width; Maji and Malik 2009 use it on sphog features.
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
        return _FORMS[self.name].has_width

    @property
    def is_bounded(self) -> bool:
        """Whether 0 ≤ k(x, z) = k(z, x) ≤ 1 = k(z, z): Σ k bounds Σ k² (mathematics.md, eq. 49)."""
        return _FORMS[self.name].is_bounded

    @property
    def has_scales(self) -> bool:
        """Whether it is of distances, so that scales of the features can be learned."""
        return self.has_width and self.is_bounded

    @property
    def has_metric(self) -> bool:
        """Whether it is of distances in the 2-norm, so that directions of all features can be learned."""
        return self.has_scales and self.name != "product-laplace"

    @property
    def largest_value(self) -> float:
        """Bound of |k| for all columns: of others than the bounded ones, what a float32 holds."""
        return 1.0 if self.is_bounded else float(np.finfo(np.float32).max)

    @property
    def loops(self) -> tuple[str, ...]:
        """Names of its compiled loops, which are in `kernel_loops`."""
        return _FORMS[self.name].loops


GAUSSIAN = Kernel()


class ColumnGenerator:
    """Kernel columns c_m = k(X, x_m) / √k(x_m, x_m) of fixed centers over any rows (mathematics.md, eq. 1).

    centers : (n_points, n_features) array, kept as C-contiguous `dtype`
    sigma2 : width of every column, or one (n_centers,) width each
    dtype : float32 (one sgemm, values rounded to float32) or float64 (for exact comparisons; twice the cost)
    place : (n_centers,) i8, which of `centers` each column belongs to; None: one column each, in order

    Raises ValueError for a width that is no finite number above 0, InvalidDataError where the centers are too large for
    `dtype`, so large compared with sigma2 that kernel values would be rounding, or negative for an intersection.
    """

    def __init__(
        self,
        centers: Values,
        sigma2: ArrayLike,
        dtype: type = np.float32,
        *,
        kernel: Kernel = GAUSSIAN,
        place: Index | None = None,
    ) -> None:
        self.n_centers = len(centers) if place is None else len(place)  # columns
        widths = np.broadcast_to(np.asarray(sigma2, np.float64), (self.n_centers,))
        if not (np.isfinite(widths).all() and (widths > 0).all()):
            raise ValueError("every sigma2 must be a finite number above 0")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused, in words
            kept: Values = np.ascontiguousarray(centers, dtype=dtype)
        self._n_features, self._dtype = kept.shape[1], kept.dtype
        self._form = _FORMS[kernel.name](kept, place, widths, kernel.degree)

    def block(
        self, X: Values, row_order: Index | None = None, out_dtype: type = np.float32, each: Each = serially
    ) -> NDArray[Any]:
        """Return the kernel block (rows, n_centers) of some rows, C-contiguous.

        X is (rows, n_features); output row i belongs to X[row_order[i]] (default: in order). With float32 centers the
        values are float32 numbers, stored as `out_dtype` (float64 saves the statistics a copy). `each` shares out the
        tiles of columns: the bits of a value depend on the rows of the block and on the centers alone. Costs
        2·rows·n_features·n_points operations and rows·n_centers·(4 + itemsize) bytes. Raises InvalidDataError naming
        a row that is too large for squared distances.
        """
        if X.ndim != 2 or X.shape[1] != self._n_features:
            raise ValueError(f"rows have {X.shape[1:]} features, the centers have {self._n_features}")
        with np.errstate(over="ignore", invalid="ignore"):
            rows, sizes = self._form.prepared(np.ascontiguousarray(X, dtype=self._dtype))
        order = np.arange(len(rows)) if row_order is None else row_order
        stored = np.float64 if self._dtype == np.float64 else out_dtype
        out: Values = np.empty((len(rows), self.n_centers), stored)
        each(lambda tile: self._form.write(rows, sizes, order, out, tile), self._form.tiles())
        return out


def column_bounds(kernel: Kernel, X: Values, sigma2: float) -> NDArray[np.float64]:
    """Return bounds (rows,) of |k(x, z)| / √k(z, z) for rows X (rows, d) and any z: √k(x, x), by Cauchy-Schwarz.

    mathematics.md, eq. 72. sigma2: the smallest width. Raises InvalidDataError where no float64 holds it.
    """
    return _FORMS[kernel.name].bounds(X, sigma2, kernel.degree)


def _check_not_negative(values: Values, what: str) -> None:
    bad = np.flatnonzero((values < 0).any(axis=1))
    if bad.size:
        raise InvalidDataError(
            f"{what} {bad[0]}: has the feature {values[bad[0]].min():g}; the intersection kernel needs features of at "
            "least 0: do not standardise them (--set data.standardise=false), or use another --kernel"
        )


def _largest_power(dtype: np.dtype, degree: int) -> float:
    """Return the largest ‖x‖²/σ² for which squares of values, up to (1 + ‖x‖²/σ²)^degree, can be summed."""
    return float(np.finfo(dtype).max ** (1.0 / degree)) / 8


MEDIAN_POINTS = 1000


def default_sigma2(points: Values, kernel: Kernel) -> float:
    """Return the typical width of the first points (m, d), of four digits: alike on machines that round otherwise."""
    return float(f"{typical_sigma2(points[:MEDIAN_POINTS], kernel):.4g}")


def typical_sigma2(points: Values, kernel: Kernel) -> float:
    """Return the σ² at which kernel values are neither all alike nor all different, for points (m, d).

    The median of the squared distances between different points (mathematics.md, eq. 68), at which the Gaussian is
    exp(-1/2) and the others 1/e; for inner products the median of the squared norms. Of `MEDIAN_POINTS` at most, drawn,
    since the first may be of one class; 1 where there is nothing to measure.
    """
    drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:MEDIAN_POINTS])
    values = points[drawn].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of points that are too large for kernels: refused elsewhere
        squares = _FORMS[kernel.name].squares(values)
    squares = squares[np.isfinite(squares)]
    squares = squares[squares > 1e-12 * squares.max(initial=0.0)]  # of points that differ
    return float(np.median(squares)) if len(squares) else 1.0
