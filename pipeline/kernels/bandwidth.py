"""Widths that suit points, whatever is learned from them."""

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.kernel_forms import Kernel

MEDIAN_POINTS = 1000


def default_sigma2(points: NDArray[np.floating], kernel: Kernel) -> float:
    """Return the typical width of the first points (m, d), of four digits: the same on machines that round otherwise.

    Of `MEDIAN_POINTS` at most; drawn, since the first may be of one class.
    """
    return float(f"{typical_sigma2(points[:MEDIAN_POINTS], kernel):.4g}")


def typical_sigma2(points: NDArray[np.floating], kernel: Kernel) -> float:
    """Return the σ² at which kernel values are neither all alike nor all different, for points (m, d).

    The median of the squared distances between different points (mathematics.md, eq. 68), at which the Gaussian is
    exp(-1/2); for inner products the median of the squared norms. Of `MEDIAN_POINTS` at most, drawn, since the first
    may be of one class; 1 where there is nothing to measure.
    """
    drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:MEDIAN_POINTS])
    values = points[drawn].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of points that are too large for kernels: refused elsewhere
        if kernel.name == "gaussian":
            values -= values.mean(axis=0)  # far from the origin, the distances below would cancel
        norms = np.einsum("ij,ij->i", values, values)
        squares = norms
        if kernel.name == "gaussian":
            distances = norms[:, None] + norms - 2.0 * (values @ values.T)
            squares = distances[np.triu_indices(len(values), 1)]
        squares = squares[np.isfinite(squares) & (squares > 1e-12 * norms.max(initial=0.0))]
    return float(np.median(squares)) if len(squares) else 1.0
