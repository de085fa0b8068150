"""Kernel widths from the data: a typical σ² of some points, and which of several gives the lowest held-out error."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.columns import ColumnGenerator
from pipeline.kernels import Kernel
from pipeline.solvers.refit import refit
from pipeline.statistics import StatisticsAccumulator

MEDIAN_POINTS = 1000
BLOCK_ROWS = 1024
STEPS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)  # times the typical width; on MNIST's features 1/2 is best


def typical_sigma2(points: NDArray[np.floating], kernel: Kernel) -> float:
    """Return the σ² at which kernel values are neither all alike nor all different, for points (m, d).

    The median of the squared distances between different points, at which the Gaussian is exp(-1/2); for inner
    products the median of the squared norms. Of `MEDIAN_POINTS` at most, drawn, since the first may be of one class; 1
    where there is nothing to measure.
    """
    drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:MEDIAN_POINTS])
    looked = points[drawn].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of points that are too large for kernels: refused elsewhere
        if kernel.name == "gaussian":
            looked -= looked.mean(axis=0)  # far from the origin, the distances below would cancel
        norms = np.einsum("ij,ij->i", looked, looked)
        sizes = norms
        if kernel.name == "gaussian":
            squares = norms[:, None] + norms - 2.0 * (looked @ looked.T)
            sizes = squares[np.triu_indices(len(looked), 1)]
        sizes = sizes[np.isfinite(sizes) & (sizes > 1e-12 * norms.max(initial=0.0))]
    return float(np.median(sizes)) if len(sizes) else 1.0


def hold_out_errors(
    points: NDArray[np.floating],
    widths: Sequence[float],
    kernel: Kernel,
    X: NDArray[np.floating],
    targets: NDArray[np.float64],
    held_out: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the mean squared held-out error of least squares on all the points, at each width, (widths,) f8.

    points (m, d), X (rows, d), targets (rows, T), held_out (rows,). The ridge is the best one for each width. Costs
    2·rows·d·m + widths·rows·m² operations; infinite where no ridge makes the Gram definite.
    """
    m, place = len(points), np.tile(np.arange(len(points)), len(widths))
    generator = ColumnGenerator(points, np.repeat(widths, m), kernel=kernel, place=place)
    parts = [tuple(StatisticsAccumulator(m, targets.shape[1]) for _ in range(2)) for _ in widths]
    for start in range(0, len(X), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        order = np.argsort(held_out[rows], kind="stable")
        n_fit = len(order) - int(np.count_nonzero(held_out[rows]))
        columns = generator.block(X[rows], order, np.float64)
        for index, (fit, apart) in enumerate(parts):
            own = np.ascontiguousarray(columns[:, index * m : (index + 1) * m])
            fit.add(own[:n_fit], targets[rows][order[:n_fit]])
            apart.add(own[n_fit:], targets[rows][order[n_fit:]])
    return np.array([_error(fit, apart) for fit, apart in parts])


def _error(fit: StatisticsAccumulator, hold_out: StatisticsAccumulator) -> float:
    found = fit.statistics()
    try:
        return min(error for _, error in refit(found, hold_out.statistics(), found, intercept=False).hold_out_errors)
    except LinAlgError:
        return float("inf")
