"""The column generator: blocks of kernel columns c_m = k(X, x_m) / sqrt(k(x_m, x_m)), made on the fly.

For the Gaussian kernel k(x, x) = 1, so a column is the kernel itself. No block outlives the call that asked
for it: one sgemm gives the inner products, one compiled epilogue turns them into kernel values.

‖x‖² + ‖z‖² - 2 xᵀz cancels where points lie far from the origin and close to each other: about norm²·eps is lost.
Where the centers' mean is far from the origin, rows and centers are therefore taken relative to it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.columns_numba import gaussian_float32, gaussian_float64
from pipeline.errors import InvalidDataError

# The mean is subtracted where its squared norm exceeds the centers' mean squared deviation this many times; below,
# the loss is at most that much larger than it has to be, and the pass over the rows is saved.
FAR_FROM_ORIGIN = 10.0
LARGEST_KERNEL_ERROR = 1e-2  # of a kernel value, by the rounding of its distance; more is refused


@dataclass(frozen=True)
class GaussianKernel:
    """k(x, x') = exp(-‖x-x'‖² / (2 σ²)); `sigma2` is σ² in squared feature units, above 0."""

    sigma2: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma2) and self.sigma2 > 0):
            raise ValueError(f"sigma2 must be a finite number above 0, got {self.sigma2}")


class ColumnGenerator:
    """Kernel columns of fixed centers over any rows.

    Parameters
    ----------
    centers : (n_centers, n_features) array, kept as C-contiguous `dtype`.
    sigma2 : width of every center, or one (n_centers,) width each; above 0.
    dtype : float32 (one sgemm, values rounded to float32) or float64 (for exact comparisons; twice the cost).

    Raises
    ------
    ValueError
        A width is not a finite number above 0.
    InvalidDataError
        The centers are too large for `dtype`, or so large compared with sigma2 that kernel values would be rounding.
    """

    def __init__(self, centers: NDArray[np.floating], sigma2: ArrayLike, dtype: type = np.float32) -> None:
        widths = np.broadcast_to(np.asarray(sigma2, np.float64), (len(centers),))
        if not (np.isfinite(widths).all() and (widths > 0).all()):
            raise ValueError("every sigma2 must be a finite number above 0")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below, in words
            kept: NDArray[np.floating] = np.ascontiguousarray(centers, dtype=dtype)
            self._origin = _origin(kept)
            self._centers = kept if self._origin is None else kept - self._origin
            self._norms = _squared_norms(self._centers)
            self._scales: NDArray[np.floating] = (0.5 / widths).astype(dtype)
        self._check(widths)
        self._epilogue = gaussian_float32 if kept.dtype == np.float32 else gaussian_float64

    @property
    def n_centers(self) -> int:
        """Number of columns."""
        return len(self._centers)

    def block(
        self,
        X: NDArray[np.floating],
        row_order: NDArray[np.int64] | None = None,
        out_dtype: type = np.float32,
    ) -> NDArray[np.floating]:
        """Return the kernel block (rows, n_centers) of some rows, C-contiguous.

        X is (rows, n_features); output row i belongs to X[row_order[i]] (default: in order). With float32
        centers the values are float32 numbers, stored as `out_dtype` (float64 saves the statistics a copy).
        Costs 2·rows·n_features·n_centers operations and rows·n_centers·(4 + itemsize) bytes. Raises
        InvalidDataError naming the row where one is too large for squared distances.
        """
        dtype = self._centers.dtype
        if X.ndim != 2 or X.shape[1] != self._centers.shape[1]:
            raise ValueError(f"rows have {X.shape[1:]} features, the centers have {self._centers.shape[1]}")
        order = np.arange(len(X)) if row_order is None else row_order
        dots, row_norms = self._products(X)
        out: NDArray[np.floating] = np.empty(dots.shape, np.float64 if dtype == np.float64 else out_dtype)
        self._epilogue(dots, row_norms, self._norms, self._scales, order, out)
        return out

    def _products(self, X: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return inner products (rows, n_centers) and squared norms (rows,), both relative to the origin chosen."""
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.ascontiguousarray(X, dtype=self._centers.dtype)
            if self._origin is not None:
                rows = rows - self._origin
            norms = _squared_norms(rows)
        bad = np.flatnonzero(~(norms <= _largest_norm(norms.dtype)))
        if bad.size:
            raise InvalidDataError(
                f"row {bad[0]} of a block of {len(X)}: its squared norm is {norms[bad[0]]:g}, too large for "
                f"{norms.dtype} distances; standardise the inputs (--set data.standardise=true) or rescale them"
            )
        return rows @ self._centers.T, norms

    def _check(self, widths: NDArray[np.float64]) -> None:
        """Raise InvalidDataError where the kernel values of a center would not be numbers, or no more than rounding.

        Rows need no such check: one with a kernel value above rounding is about as long as its center.
        """
        dtype = self._norms.dtype
        bad = np.flatnonzero(~(self._norms <= _largest_norm(dtype)))
        if bad.size:
            raise InvalidDataError(
                f"center {bad[0]}: its squared norm is {self._norms[bad[0]]:g}, too large for {dtype} distances; "
                "standardise the inputs (--set data.standardise=true) or rescale them"
            )
        bad = np.flatnonzero(~np.isfinite(self._scales))
        if bad.size:
            raise InvalidDataError(
                f"sigma2 = {widths[bad[0]]:g} is too small: 1/(2 sigma2) is no {dtype} number; use a larger --sigma2"
            )
        with np.errstate(over="ignore"):
            errors = self._norms.astype(np.float64) * (float(np.finfo(dtype).eps) / widths)
        worst = int(np.argmax(errors)) if len(errors) else 0
        if len(errors) and errors[worst] > LARGEST_KERNEL_ERROR:
            raise InvalidDataError(
                f"center {worst}: with a squared norm of {self._norms[worst]:g} and sigma2 = {widths[worst]:g}, kernel "
                f"values would be wrong by {min(errors[worst], 1.0):.1g} from {dtype} rounding; standardise the inputs "
                "(--set data.standardise=true), rescale them, or use a larger --sigma2"
            )


def _origin(centers: NDArray[np.floating]) -> NDArray[np.floating] | None:
    """Return the centers' mean (n_features,), rounded to their dtype, or None where it is no help."""
    if not len(centers):
        return None
    mean = centers.mean(axis=0, dtype=np.float64)
    offset = float(mean @ mean)
    spread = float(np.einsum("ij,ij->i", centers, centers, dtype=np.float64).mean()) - offset
    return mean.astype(centers.dtype) if offset > FAR_FROM_ORIGIN * spread else None


def _largest_norm(dtype: np.dtype) -> float:
    """Return the largest squared norm with which ‖x‖² + ‖z‖² - 2 xᵀz cannot overflow on its way."""
    return float(np.finfo(dtype).max) / 8


def _squared_norms(X: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.einsum("ij,ij->i", X, X)
