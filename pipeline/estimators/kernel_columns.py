"""The kernel columns of an estimator: its candidates, each at every width."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.estimators.fit_data import Rows
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.kernel_forms import Kernel, column_bounds


@dataclass(frozen=True, eq=False)
class KernelColumns:
    """Columns of points (p, d), as the kernel sees them, at widths (W,): all at the first, then all at the next.

    dtype: of the kernel values.
    """

    kernel: Kernel
    points: NDArray[np.floating]
    widths: NDArray[np.float64]
    dtype: type

    @property
    def place(self) -> NDArray[np.int64]:
        """The point of each column, (M,)."""
        return np.tile(np.arange(len(self.points)), len(self.widths))

    @property
    def sigma2(self) -> NDArray[np.float64]:
        """The width of each column, (M,)."""
        return np.repeat(self.widths, len(self.points))

    def generator(self, columns: NDArray[np.int64] | None = None) -> ColumnGenerator:
        """Return what computes some of the columns (all where none are named), each point's products once."""
        place, sigma2 = self.place, self.sigma2
        if columns is not None:
            place, sigma2 = place[columns], sigma2[columns]
        distinct, index = np.unique(place, return_inverse=True)
        if len(distinct) == len(place):
            return ColumnGenerator(self.points[place], sigma2, self.dtype, kernel=self.kernel)
        return ColumnGenerator(self.points[distinct], sigma2, self.dtype, kernel=self.kernel, place=index)

    def bounds(self, rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a bound of the values on each row of weight above 0, (n,): one pass over the data if it takes one."""
        bounds = np.ones(len(rows))
        for span, X in () if self.kernel.is_bounded else rows.blocks(0):
            counted = weights[span] > 0
            bounds[span][counted] = column_bounds(self.kernel, X[counted], float(self.widths.min()))
        return bounds
