"""The pass that adds up how the squared error of the fit rows changes as each center moves, at given weights.

Residuals and weights are scaled by bounds of theirs, so that every product is within ±1 and every term of a sum within
a few widths of the kernel: that fixes the unit of the exact sums.
"""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.exact_sums import Each
from pipeline.kernels.gram_statistics import RowBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.block_pass import Add, BlockPass, ExactSums, sum_of_arrays
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid

INPUT = "input.npz"
_SLACK = 2.0  # of a term: k ‖x - z‖ is σ/√e at most, and float32 products are rounded


def gradient_pass(rows: RowTask, given: Stored, n_points: int, largest: RowBounds) -> BlockPass[ExactSums]:
    """Return a pass that adds up scaled sums (m, d) over the fit rows; see `gradient_of`.

    given : has points (m, d), weights (m, T) f8 and intercept (T,) f8
    largest : bounds of targets times row weights, and of the weights
    """
    shape = (n_points, rows.shape.n_features)
    blocks = row_grid("train", rows.shape.n_train, n_points, 8 * math.prod(shape))
    bound = _SLACK * float(np.sqrt(rows.sigma2[0])) * blocks.block_rows
    return BlockPass(
        rows,
        blocks,
        partial(_opened, given, largest),
        partial(sum_of_arrays, shape, bound, blocks.n_blocks),
        (n_points, largest, TILE_COLUMNS),
        sums_bytes=8 * math.prod(shape),
        threads_a_piece=-(-n_points // TILE_COLUMNS),
    )


def gradient_of(
    sums: ExactSums, weights: NDArray[np.float64], intercept: NDArray[np.float64], largest: RowBounds, sigma2: float
) -> NDArray[np.float64]:
    """Return the derivative of half the squared error by every number of every center, (m, d) f8."""
    scale = scales(weights, intercept, largest)[1] * largest.weight
    return np.asarray(sums["sum"].values() * (-scale / sigma2))


def scales(
    weights: NDArray[np.float64], intercept: NDArray[np.float64], largest: RowBounds
) -> tuple[NDArray[np.float64], float]:
    """Return a bound of the residuals of each output (T,), and one of |Σ_t r_it w_mt|; columns are within [0, 1].

    Both are of rows times their weights, parts of the largest.
    """
    residual = np.array(largest.targets) / largest.weight + np.abs(intercept) + np.abs(weights).sum(axis=0)
    return np.maximum(residual, 1e-300), max(float((np.abs(weights) @ residual).max()), 1e-300)


def _opened(given: Stored, largest: RowBounds, rows: RowTask) -> Add[ExactSums]:
    """Read the points and weights; return what adds a block."""
    arrays = given.read()
    points, weights, intercept = (arrays[name] for name in ("points", "weights", "intercept"))
    generator, (residual_bound, scale) = rows.generator_of(points), scales(weights, intercept, largest)
    # Rows and points are measured from the middle of the points: far from the origin, products would cancel.
    middle = points.mean(axis=0, dtype=np.float64).astype(rows.precision)

    def add(sums: ExactSums, number: int, block: RowBlock, each: Each) -> None:
        """Add a block, tile by tile of the centers (mathematics.md, eq. 85)."""
        fitted = ~block.held_out
        if not fitted.any():
            return
        X = block.X[fitted]
        columns = generator.block(X, out_dtype=np.float64, each=each)
        residuals = (block.targets[fitted] - columns @ weights - intercept) / residual_bound
        if block.weights is not None:
            residuals *= (block.weights[fitted] / largest.weight)[:, None]
        away = X.astype(middle.dtype) - middle

        def add_tile(tile: slice) -> None:
            pulls = residuals @ (weights[tile] * (residual_bound / scale)).T
            pulls *= columns[:, tile]
            moved = (pulls.astype(away.dtype).T @ away).astype(np.float64)
            moved -= pulls.sum(axis=0)[:, None] * (points[tile] - middle).astype(np.float64)
            sums["sum"].add(moved, tile)

        n = len(points)
        each(add_tile, [slice(first, min(first + TILE_COLUMNS, n)) for first in range(0, n, TILE_COLUMNS)])

    return add
