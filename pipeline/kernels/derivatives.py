"""Derivatives."""

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.kernel_forms import ColumnGenerator, Kernel

DIAGONAL, METRIC = "diagonal", "metric"


class Derivatives:
    """The partial derivatives of f(u) = Σ_m w_m exp(-‖u - u_m‖² / (2σ²)) by each feature of rows u.

    mathematics.md, eq. 80. centers (m, d), of the dtype in which the columns are computed; weights (m, T) f8.
    """

    def __init__(
        self, centers: NDArray[np.floating], sigma2: float, weights: NDArray[np.float64], kernel: Kernel
    ) -> None:
        self._generator = ColumnGenerator(centers, sigma2, centers.dtype.type)
        self._origin = centers.mean(axis=0, dtype=np.float64)  # far from it, the difference below would cancel
        self._centers, self._sigma2, self._weights = centers - self._origin, sigma2, weights

    def sums(
        self, X: NDArray[np.floating], kind: str, row_weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return Σ_i s_i Σ_t (∂f_t/∂u_j)², (d,) f8, over rows X (rows, d), of the weights s (none: 1 each).

        For a METRIC Σ_i s_i Σ_t (∂f_t/∂u_j)(∂f_t/∂u_k), (d, d), for another 2·rows·d²·T operations. Costs
        2·rows·m·d·(1 + T) operations and 8·rows·(2·m + 2·d) bytes.
        """
        total = np.zeros(X.shape[1] if kind == DIAGONAL else (X.shape[1], X.shape[1]))
        columns, rows = self._generator.block(X, None, np.float64), X - self._origin
        for weights in self._weights.T:
            pulls = columns * weights
            slopes = pulls @ self._centers
            slopes -= pulls.sum(axis=1)[:, None] * rows  # σ² ∂f_t/∂u (rows, d)
            if kind == METRIC:
                total += slopes.T @ (slopes if row_weights is None else row_weights[:, None] * slopes)
            else:
                np.square(slopes, out=slopes)
                total += slopes.sum(axis=0) if row_weights is None else row_weights @ slopes
        return total / self._sigma2**2
