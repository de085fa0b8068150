"""The pass that adds up how the squared error of the fit rows changes as each center moves, at given weights.

Residuals and weights are scaled by bounds of theirs, so that every product is within ±1 and every term of a sum within
a few widths of the kernel: that fixes the unit of the exact sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.exact_sums import ExactSum
from pipeline.kernels.gram_statistics import RowBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS
from pipeline.runtime import progress
from pipeline.runtime.committed_sums import Arrays
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.training_rows import BlockPieces, RowBlock, RowGrid, RowTask, row_grid, stream_blocks
from storage.arrays import read_arrays

INPUT = "input.npz"
_SLACK = 2.0  # of a term: k ‖x - z‖ is σ/√e at most, and float32 products are rounded


@dataclass(frozen=True)
class GradientPass(BlockPieces):
    """Sums over the fit rows, at the points and weights in a file: points (m, d) f4, weights (m, T), intercept (T,).

    largest : bounds of targets times row weights, and of the weights
    """

    rows: RowTask
    file: Path
    n_points: int
    largest: RowBounds

    @cached_property
    def blocks(self) -> RowGrid:
        """The blocks of rows."""
        return row_grid("train", self.rows.shape.n_train, self.n_points, self.sums_bytes)

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the blocks, and the bounds and tiles of their sums."""
        return (self.blocks, self.n_points, self.largest, TILE_COLUMNS)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums."""
        return 8 * self.n_points * self.rows.shape.n_features

    @property
    def threads_a_piece(self) -> int:
        """How many tiles of centers a block has."""
        return -(-self.n_points // TILE_COLUMNS)

    def empty(self) -> "GradientSums":
        """Return sums of no rows."""
        shape, width = (self.n_points, self.rows.shape.n_features), float(np.sqrt(self.rows.sigma2[0]))
        return GradientSums(ExactSum(shape, _SLACK * width * self.blocks.block_rows, self.blocks.n_blocks))

    def open(self) -> "GradientAdder":
        """Read the points and weights."""
        arrays = read_arrays(self.file)
        points, weights, intercept = (arrays[name] for name in ("points", "weights", "intercept"))
        residual, scale = scales(weights, intercept, self.largest)
        generator = self.rows.generator_of(points)
        middle = points.mean(axis=0, dtype=np.float64).astype(self.rows.precision)
        return GradientAdder(self, generator, points, middle, weights, intercept, residual, scale)

    def gradient(
        self, sums: "GradientSums", weights: NDArray[np.float64], intercept: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the derivative of half the squared error by every number of every center, (m, d) f8."""
        scale = scales(weights, intercept, self.largest)[1] * self.largest.weight
        return sums.sums.values() * (-scale / self.rows.sigma2[0])


def scales(
    weights: NDArray[np.float64], intercept: NDArray[np.float64], largest: RowBounds
) -> tuple[NDArray[np.float64], float]:
    """Return a bound of the residuals of each output (T,), and one of |Σ_t r_it w_mt|; columns are within [0, 1].

    Both are of rows times their weights, parts of the largest.
    """
    residual = np.array(largest.targets) / largest.weight + np.abs(intercept) + np.abs(weights).sum(axis=0)
    return np.maximum(residual, 1e-300), max(float((np.abs(weights) @ residual).max()), 1e-300)


class GradientSums:
    """The scaled sums."""

    def __init__(self, sums: ExactSum) -> None:
        self.sums = sums

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the sums in units."""
        return {"sums": self.sums.units}

    def absorb(self, arrays: Arrays) -> None:
        """Add those of other rows."""
        for _, units in arrays:
            self.sums.units += units


@dataclass(frozen=True)
class GradientAdder:
    """The pass in a process.

    middle (d,): of the points, from which rows and points are measured: far from the origin, products would cancel
    """

    task: GradientPass
    generator: ColumnGenerator
    points: NDArray[np.float32]
    middle: NDArray[np.floating]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    residual: NDArray[np.float64]
    scale: float

    def add(self, pieces: range, sums: GradientSums, team: ThreadTeam) -> Iterator[int]:
        """Add some blocks, one after the other, and yield the number of each when it is added."""
        for number, block in stream_blocks(self.task.rows, self.task.blocks, pieces):
            self._add(block, sums.sums, team)
            progress.advance(len(block.X))
            yield number

    def _add(self, block: RowBlock, sums: ExactSum, team: ThreadTeam) -> None:
        """Add a block, tile by tile of the centers (mathematics.md, eq. 85)."""
        fitted = ~block.held_out
        if not fitted.any():
            return
        X = block.X[fitted]
        columns: NDArray[np.float64] = self.generator.block(X, out_dtype=np.float64, each=team.each)  # type: ignore[assignment]
        residuals = (block.targets[fitted] - columns @ self.weights - self.intercept) / self.residual
        if block.weights is not None:
            residuals *= (block.weights[fitted] / self.task.largest.weight)[:, None]
        away = X.astype(self.middle.dtype) - self.middle

        def add_tile(tile: slice) -> None:
            shares = residuals @ (self.weights[tile] * (self.residual / self.scale)).T
            shares *= columns[:, tile]
            moved = (shares.astype(away.dtype).T @ away).astype(np.float64)
            moved -= shares.sum(axis=0)[:, None] * (self.points[tile] - self.middle).astype(np.float64)
            sums.add(moved, tile)

        n_points = self.task.n_points
        team.each(
            add_tile,
            [slice(first, min(first + TILE_COLUMNS, n_points)) for first in range(0, n_points, TILE_COLUMNS)],
        )
