"""The partial derivatives of a sum of kernel columns by each feature: their squares, or products, over rows."""

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.jit import read_only
from pipeline.kernels.kernel_forms import ColumnGenerator, Kernel
from pipeline.kernels.kernel_loops import add_squared_slopes, direct_distances

DIAGONAL, METRIC = "diagonal", "metric"  # squares of the derivative by each feature; products of each two


class Derivatives:
    """The partial derivatives of f(u) = Σ_m w_m k(u, u_m) by each feature of rows u.

    mathematics.md, eqs. 80, 105 and 106. centers (m, d), of the dtype in which the columns are computed; weights
    (m, T) f8.
    """

    def __init__(
        self, centers: NDArray[np.floating], sigma2: float, weights: NDArray[np.float64], kernel: Kernel
    ) -> None:
        self._generator = ColumnGenerator(centers, sigma2, centers.dtype.type, kernel=kernel)
        self._kernel, self._sigma2, self._weights = kernel, sigma2, np.ascontiguousarray(weights)
        self._given = np.ascontiguousarray(centers)
        self._origin = centers.mean(axis=0, dtype=np.float64)  # far from it, differences of products would cancel
        self._centers = centers - self._origin

    def sums(
        self, X: NDArray[np.floating], kind: str, row_weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return Σ_i s_i Σ_t (∂f_t/∂u_j)², (d,) f8, over rows X (rows, d), of the weights s (none: 1 each).

        For a METRIC Σ_i s_i Σ_t (∂f_t/∂u_j)(∂f_t/∂u_k), (d, d), for another 2·rows·d²·T operations; the product-laplace
        kernel has none (ValueError). Costs 2·rows·m·d·(1 + T) operations and 8·rows·(2·m + 2·d) bytes.
        """
        if self._kernel.name == "product-laplace":
            return self._of_signs(X, kind, np.ones(len(X)) if row_weights is None else row_weights)
        total = np.zeros(X.shape[1] if kind == DIAGONAL else (X.shape[1], X.shape[1]))
        steepness, rows = self._steepness(X), X - self._origin
        for weights in self._weights.T:
            pulls = steepness * weights
            slopes = pulls @ self._centers
            slopes -= pulls.sum(axis=1)[:, None] * rows  # ∂f_t/∂u (rows, d), times σ² or σ
            if kind == METRIC:
                total += slopes.T @ (slopes if row_weights is None else row_weights[:, None] * slopes)
            else:
                np.square(slopes, out=slopes)
                total += slopes.sum(axis=0) if row_weights is None else row_weights @ slopes
        return total / (self._sigma2**2 if self._kernel.name == "gaussian" else self._sigma2)

    def _steepness(self, X: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return k(u, u_m) of rows X (rows, d) and all centers, (rows, m) f8; over ‖u - u_m‖ for a Laplace kernel."""
        if self._kernel.name == "gaussian":
            return self._generator.block(X, None, np.float64)
        rows = np.ascontiguousarray(X, self._given.dtype)
        distances = np.empty((len(rows), len(self._given)), rows.dtype)
        direct_distances(read_only(rows), read_only(self._given), True, distances)
        steepness = np.exp(distances * rows.dtype.type(-1.0 / math.sqrt(self._sigma2))).astype(np.float64, copy=False)
        return np.divide(steepness, distances, out=steepness, where=distances > 0)  # at a center u_m - u is zero

    def _of_signs(self, X: NDArray[np.floating], kind: str, row_weights: NDArray[np.float64]) -> NDArray[np.float64]:
        if kind != DIAGONAL:
            raise ValueError("the product-laplace kernel has scales of its features, and no metric")
        total = np.zeros(X.shape[1])
        columns, centers = self._generator.block(X, None, np.float64), self._given.astype(np.float64)
        rows = np.ascontiguousarray(X.astype(self._given.dtype, copy=False), np.float64)
        add_squared_slopes(
            read_only(rows),
            read_only(centers),
            read_only(columns),
            read_only(self._weights),
            read_only(row_weights),
            total,
        )
        return total / self._sigma2
