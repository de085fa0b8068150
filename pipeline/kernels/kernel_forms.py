"""The kernels: each turns rows into blocks of columns k(x, z) / √k(z, z) for fixed points z, of its own width each.

Every form holds the points once and says which of them each column belongs to: a point may have several widths, and
its inner products are computed once for all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.columns_numba import gaussian_float32, gaussian_float64, intersections, polynomial
from pipeline.errors import InvalidDataError

KERNELS = ("gaussian", "polynomial", "intersection")
# The mean is subtracted where its squared norm exceeds the points' mean squared deviation this many times; below,
# the loss is at most that much larger than it has to be, and the pass over the rows is saved.
FAR_FROM_ORIGIN = 10.0
LARGEST_KERNEL_ERROR = 1e-2  # of a kernel value, by the rounding of its distance; more is refused
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
        """Whether 0 ≤ k(x, z) = k(z, x) ≤ 1 for all columns: they are symmetric, and Σ k bounds Σ k²."""
        return self.name == "gaussian"


@dataclass(frozen=True, eq=False)
class Points:
    """The points of the columns: values (p, d) of one float dtype; column j is of values[place[j]], width σ²_j."""

    values: NDArray[np.floating]
    place: NDArray[np.int64] | None  # None: column j is of values[j]
    sigma2: NDArray[np.float64]

    def spread(self, of_points: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return what is known of each point, (..., p), for each column, (..., columns)."""
        return of_points if self.place is None else np.ascontiguousarray(of_points[..., self.place])


class GaussianForm:
    """exp(-‖x-z‖² / (2 σ²)) from inner products: one sgemm, one compiled epilogue.

    ‖x‖² + ‖z‖² - 2 xᵀz cancels where points lie far from the origin and close to each other: about norm²·eps is lost.
    Where the points' mean is far from the origin, rows and points are therefore taken relative to it.
    """

    def __init__(self, points: Points) -> None:
        dtype = points.values.dtype
        self._points, self._origin = points, _origin(points.values)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below, in words
            self._centers = points.values if self._origin is None else points.values - self._origin
            self._norms = points.spread(_squared_norms(self._centers))
            self._scales: NDArray[np.floating] = (0.5 / points.sigma2).astype(dtype)
        self._check()
        self._epilogue = gaussian_float32 if dtype == np.float32 else gaussian_float64

    def write(self, X: NDArray[np.floating], order: NDArray[np.int64], out: NDArray[np.floating]) -> None:
        """Write the columns over the rows X (rows, d), taken in this order, to `out` (rows, columns)."""
        with np.errstate(over="ignore", invalid="ignore"):
            rows = X if self._origin is None else X - self._origin
            norms = _squared_norms(rows)
        _check_row_norms(norms, _largest_norm(norms.dtype))
        dots = self._points.spread(rows @ self._centers.T)
        self._epilogue(dots, norms, self._norms, self._scales, order, out)

    def _check(self) -> None:
        """Raise InvalidDataError where the kernel values of a center would not be numbers, or no more than rounding.

        Rows need no such check: one with a kernel value above rounding is about as long as its center.
        """
        dtype, widths = self._norms.dtype, self._points.sigma2
        _check_center_norms(self._norms, _largest_norm(dtype))
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


class PolynomialForm:
    """(1 + x·z/σ²)^degree over its root at (z, z), as the power of (1 + x·z/σ²) / √(1 + ‖z‖²/σ²)."""

    def __init__(self, points: Points, degree: int) -> None:
        self._points, self._degree = points, degree
        with np.errstate(over="ignore", invalid="ignore"):
            norms = points.spread(_squared_norms(points.values))
            self._scales = 1.0 / points.sigma2
            self._most = _largest_power(points.values.dtype, degree)
        _check_scales(self._scales, points.sigma2)
        _check_center_norms(norms * self._scales, self._most)
        self._roots = 1.0 / np.sqrt(1.0 + norms * self._scales)

    def write(self, X: NDArray[np.floating], order: NDArray[np.int64], out: NDArray[np.floating]) -> None:
        """Write the columns over the rows X (rows, d), taken in this order, to `out` (rows, columns)."""
        with np.errstate(over="ignore", invalid="ignore"):
            norms = _squared_norms(X)
        _check_row_norms(norms * self._scales.max(initial=0.0), self._most)
        dots = self._points.spread(X @ self._points.values.T)
        polynomial(dots, self._scales, self._roots, self._degree, order, out)


class IntersectionForm:
    """Σ_j min(x_j, z_j) / √Σ_j z_j: 2·d operations a value as well, though no sgemm. The column of z = 0 is zero."""

    def __init__(self, points: Points) -> None:
        self._points = points
        sums = points.values.sum(axis=1, dtype=np.float64)
        _check_not_negative(points.values, "center")
        _check_center_norms(sums, _largest_norm(points.values.dtype))
        with np.errstate(divide="ignore"):
            roots = np.where(sums > 0, 1.0 / np.sqrt(sums), 0.0)
        self._transposed, self._roots = np.ascontiguousarray(points.values.T), roots

    def write(self, X: NDArray[np.floating], order: NDArray[np.int64], out: NDArray[np.floating]) -> None:
        """Write the columns over the rows X (rows, d), taken in this order, to `out` (rows, columns)."""
        _check_not_negative(X, f"row of a block of {len(X)}, its number")
        _check_row_norms(X.sum(axis=1, dtype=np.float64), _largest_norm(X.dtype))
        values = np.empty((len(X), len(self._roots)), X.dtype)
        intersections(X, self._transposed, self._roots, values)
        out[:] = self._points.spread(values)[order]


Form = GaussianForm | PolynomialForm | IntersectionForm


def form_of(kernel: Kernel, points: Points) -> Form:
    """Return the kernel at some points.

    Raises ValueError for a width that is no finite number above 0, InvalidDataError where values at these points
    would overflow, be no more than rounding, or make no sense (negative features of an intersection).
    """
    if not (np.isfinite(points.sigma2).all() and (points.sigma2 > 0).all()):
        raise ValueError("every sigma2 must be a finite number above 0")
    if kernel.name == "polynomial":
        return PolynomialForm(points, kernel.degree)
    return IntersectionForm(points) if kernel.name == "intersection" else GaussianForm(points)


def _check_row_norms(sizes: NDArray[np.floating], largest: float) -> None:
    bad = np.flatnonzero(~(sizes <= largest))
    if bad.size:
        raise InvalidDataError(
            f"row {bad[0]} of a block of {len(sizes)}: its squared norm is {sizes[bad[0]]:g}, too large for "
            f"{sizes.dtype} distances; {_RESCALE}"
        )


def _check_center_norms(sizes: NDArray[np.floating], largest: float) -> None:
    bad = np.flatnonzero(~(sizes <= largest))
    if bad.size:
        raise InvalidDataError(
            f"center {bad[0]}: its squared norm is {sizes[bad[0]]:g}, too large for {sizes.dtype} distances; {_RESCALE}"
        )


def _check_scales(scales: NDArray[np.floating], widths: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(~np.isfinite(scales))
    if bad.size:
        raise InvalidDataError(
            f"sigma2 = {widths[bad[0]]:g} is too small: 1/(2 sigma2) is no {scales.dtype} number; use a larger --sigma2"
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
