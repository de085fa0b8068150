"""The column generator: blocks of kernel columns c_m = k(X, x_m) / sqrt(k(x_m, x_m)), made on the fly.

No block outlives the call that asked for it. For the Gaussian kernel k(x, x) = 1, so a column is the kernel itself:
one sgemm gives the inner products, one compiled epilogue turns them into kernel values.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.kernels.exact_sums import Each, serially
from pipeline.kernels.kernel_forms import Kernel, form_of

GAUSSIAN = Kernel()


class ColumnGenerator:
    """Kernel columns of fixed centers over any rows (mathematics.md, eq. 1).

    Parameters
    ----------
    centers : (n_points, n_features) array, kept as C-contiguous `dtype`.
    sigma2 : width of every column, or one (n_centers,) width each; above 0.
    dtype : float32 (one sgemm, values rounded to float32) or float64 (for exact comparisons; twice the cost).
    place : (n_centers,) i8, which of `centers` each column belongs to; None: one column each, in order. Columns of
        the same center, of several widths, share its inner products.

    Raises
    ------
    ValueError
        A width is not a finite number above 0.
    InvalidDataError
        The centers are too large for `dtype`, or so large compared with sigma2 that kernel values would be rounding;
        or negative, where the kernel compares histograms.
    """

    def __init__(
        self,
        centers: NDArray[np.floating],
        sigma2: ArrayLike,
        dtype: type = np.float32,
        *,
        kernel: Kernel = GAUSSIAN,
        place: NDArray[np.int64] | None = None,
    ) -> None:
        self._n_columns = len(centers) if place is None else len(place)
        widths = np.broadcast_to(np.asarray(sigma2, np.float64), (self._n_columns,))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused, in words
            kept: NDArray[np.floating] = np.ascontiguousarray(centers, dtype=dtype)
        self._n_features, self._dtype = kept.shape[1], kept.dtype
        self._form = form_of(kernel, kept, place, widths)

    @property
    def n_centers(self) -> int:
        """Number of columns."""
        return self._n_columns

    def block(
        self,
        X: NDArray[np.floating],
        row_order: NDArray[np.int64] | None = None,
        out_dtype: type = np.float32,
        each: Each = serially,
    ) -> NDArray[np.floating]:
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
            rows: NDArray[np.floating] = np.ascontiguousarray(X, dtype=self._dtype)
        order = np.arange(len(rows)) if row_order is None else row_order
        in_double = self._dtype == np.float64
        out: NDArray[np.floating] = np.empty((len(rows), self._n_columns), np.float64 if in_double else out_dtype)
        prepared = self._form.prepared(rows)
        each(lambda tile: self._form.write(prepared, order, out, tile), self._form.tiles())
        return out
