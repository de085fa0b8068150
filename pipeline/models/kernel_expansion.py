"""A sum of kernel columns: f(x) = Σ_m w_m k(x, x_m) + b."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.kernel_functions import Kernel

FAR_VALUE = 1e-3  # a kernel value below which a row is far from a center: 3.7 widths σ of the Gaussian, 6.9 of others


@dataclass(frozen=True, eq=False)
class KernelExpansion:
    """Weights on kernel columns (mathematics.md, eq. 6).

    kernel: of all columns; centers (m, d) f4; sigma2: the width; weights (m, T) f8; intercept (T,) f8.
    """

    kernel: type[Kernel]
    centers: NDArray[np.float32]
    sigma2: float
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]

    @cached_property
    def _generator(self) -> Kernel:
        return self.kernel(self.centers, self.sigma2)

    def columns(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return k(x, x_m) of features X (rows, d) and every center, (rows, m) f8."""
        return self._generator.block(X, out_dtype=np.float64)

    def decide(self, X: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return decision values (rows, T) f8 for features X (rows, d), and which rows are far from every center.

        Such a row gets the intercept and next to nothing else. Costs rows·m·(d + T)·2 operations.
        """
        if not len(self.centers):
            return np.tile(self.intercept, (len(X), 1)), np.ones(len(X), bool)
        columns = self.columns(X)
        return columns @ self.weights + self.intercept, columns.max(axis=1) < FAR_VALUE

    def largest_decisions(self) -> NDArray[np.float64]:
        """Return what no decision value can exceed, whatever the row, (T,); it may be infinite."""
        with np.errstate(over="ignore"):
            bound: NDArray[np.float64] = np.abs(self.weights).sum(axis=0) + np.abs(self.intercept)
            return bound
