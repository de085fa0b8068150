"""The kernels: each turns rows into blocks of columns k(x, z) for fixed points z; widths that suit points.

No block outlives the call that asked for it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.distance_forms import Form, GaussianForm, Index, LaplaceForm, ProductLaplaceForm, Values
from pipeline.kernels.exact_sums import Each, serially

_FORMS: dict[str, type[Form]] = {
    "gaussian": GaussianForm,
    "laplace": LaplaceForm,
    "product-laplace": ProductLaplaceForm,
}
KERNELS = tuple(_FORMS)


@dataclass(frozen=True)
class Kernel:
    """Which kernel; its width σ² belongs to the columns.

    gaussian: exp(-‖x-z‖² / (2 σ²)), laplace: exp(-‖x-z‖ / σ), product-laplace: exp(-Σ_j |x_j - z_j| / σ). Of each
    0 ≤ k(x, z) ≤ 1 = k(z, z).
    """

    name: str = "gaussian"

    def __post_init__(self) -> None:
        if self.name not in KERNELS:
            raise ValueError(f"the kernel must be one of {', '.join(KERNELS)}, got {self.name!r}")

    @property
    def has_metric(self) -> bool:
        """Whether its distances are in the 2-norm, so that directions of all features can be learned."""
        return self.name != "product-laplace"

    @property
    def loops(self) -> tuple[str, ...]:
        """Names of its compiled loops, which are in `kernel_loops`."""
        return _FORMS[self.name].loops


GAUSSIAN = Kernel()


class ColumnGenerator:
    """Kernel columns c_m = k(X, x_m) of fixed centers over any rows (mathematics.md, eq. 1).

    centers : (n_centers, n_features) array, kept as C-contiguous `dtype`
    sigma2 : the width
    dtype : float32 (one sgemm, values rounded to float32) or float64 (for exact comparisons; twice the cost)

    Raises ValueError for a width that is no finite number above 0, InvalidDataError where the centers are too large for
    `dtype`, or so large compared with sigma2 that kernel values would be rounding.
    """

    def __init__(
        self,
        centers: Values,
        sigma2: float,
        dtype: type = np.float32,
        *,
        kernel: Kernel = GAUSSIAN,
    ) -> None:
        if not (math.isfinite(sigma2) and sigma2 > 0):
            raise ValueError(f"sigma2 must be a finite number above 0, got {sigma2}")
        self.n_centers = len(centers)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused, in words
            kept: Values = np.ascontiguousarray(centers, dtype=dtype)
        self._n_features, self._dtype = kept.shape[1], kept.dtype
        self._form = _FORMS[kernel.name](kept, float(sigma2))

    def block(
        self, X: Values, row_order: Index | None = None, out_dtype: type = np.float32, each: Each = serially
    ) -> NDArray[Any]:
        """Return the kernel block (rows, n_centers) of some rows, C-contiguous.

        X is (rows, n_features); output row i belongs to X[row_order[i]] (default: in order). With float32 centers the
        values are float32 numbers, stored as `out_dtype` (float64 saves the statistics a copy). `each` shares out the
        tiles of columns: the bits of a value depend on the rows of the block and on the centers alone. Costs
        2·rows·n_features·n_centers operations and rows·n_centers·(4 + itemsize) bytes. Raises InvalidDataError naming
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


MEDIAN_POINTS = 1000


def default_sigma2(points: Values, kernel: Kernel) -> float:
    """Return the typical width of the first points (m, d), of four digits: alike on machines that round otherwise."""
    return float(f"{typical_sigma2(points[:MEDIAN_POINTS], kernel):.4g}")


def typical_sigma2(points: Values, kernel: Kernel) -> float:
    """Return the σ² at which kernel values are neither all alike nor all different, for points (m, d).

    The median of the squared distances between different points (mathematics.md, eq. 68), at which the Gaussian is
    exp(-1/2) and the others 1/e. Of `MEDIAN_POINTS` at most, drawn, since the first may be of one class; 1 where there
    is nothing to measure.
    """
    drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:MEDIAN_POINTS])
    values = points[drawn].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of points that are too large for kernels: refused elsewhere
        squares = _FORMS[kernel.name].squares(values)
    squares = squares[np.isfinite(squares)]
    squares = squares[squares > 1e-12 * squares.max(initial=0.0)]  # of points that differ
    return float(np.median(squares)) if len(squares) else 1.0
