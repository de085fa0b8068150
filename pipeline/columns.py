"""The column generator: blocks of kernel columns c_m = k(X, x_m) / sqrt(k(x_m, x_m)), made on the fly.

For the Gaussian kernel k(x, x) = 1, so a column is the kernel itself. No block outlives the call that asked
for it: one sgemm gives the inner products, one compiled epilogue turns them into kernel values.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.columns_numba import gaussian_float32, gaussian_float64


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
    """

    def __init__(self, centers: NDArray[np.floating], sigma2: ArrayLike, dtype: type = np.float32) -> None:
        self.centers: NDArray[np.floating] = np.ascontiguousarray(centers, dtype=dtype)
        widths = np.broadcast_to(np.asarray(sigma2, np.float64), (len(self.centers),))
        if not (np.isfinite(widths).all() and (widths > 0).all()):
            raise ValueError("every sigma2 must be a finite number above 0")
        self._scales: NDArray[np.floating] = (0.5 / widths).astype(dtype)
        self._norms = _squared_norms(self.centers)
        self._epilogue = gaussian_float32 if self.centers.dtype == np.float32 else gaussian_float64

    @property
    def n_centers(self) -> int:
        """Number of columns."""
        return len(self.centers)

    def block(
        self,
        X: NDArray[np.floating],
        row_order: NDArray[np.int64] | None = None,
        out_dtype: type = np.float32,
    ) -> NDArray[np.floating]:
        """Return the kernel block (rows, n_centers) of some rows, C-contiguous.

        X is (rows, n_features); output row i belongs to X[row_order[i]] (default: in order). With float32
        centers the values are float32 numbers, stored as `out_dtype` (float64 saves the statistics a copy).
        Costs 2·rows·n_features·n_centers operations and rows·n_centers·(4 + itemsize) bytes.
        """
        dtype = self.centers.dtype
        X = np.ascontiguousarray(X, dtype=dtype)
        if X.ndim != 2 or X.shape[1] != self.centers.shape[1]:
            raise ValueError(f"rows have {X.shape[1:]} features, the centers have {self.centers.shape[1]}")
        order = np.arange(len(X)) if row_order is None else row_order
        dots = X @ self.centers.T
        out: NDArray[np.floating] = np.empty(dots.shape, np.float64 if dtype == np.float64 else out_dtype)
        self._epilogue(dots, _squared_norms(X), self._norms, self._scales, order, out)
        return out


def _squared_norms(X: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.einsum("ij,ij->i", X, X)
