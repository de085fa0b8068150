"""The pass over blocks of rows: what a block adds to sums is a function, opened once in each process.

One pass stands here itself, `gradient_pass`: how the squared error of the fit rows changes as centers move.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.kernels.exact_sums import Each, ExactSum
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums
from pipeline.kernels.kernel_functions import COLUMNS_TILE
from pipeline.runtime import progress
from pipeline.runtime.committed_sums import Arrays, S
from pipeline.runtime.row_pass import AddPieces, RowPass, ThreadTeam
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.training_rows import (
    FeaturesOf,
    RowBlock,
    RowGrid,
    RowTask,
    row_grid,
    run_length,
    stream_blocks,
    stream_sample,
)

Values = dict[str, NDArray[Any]]
OfBlock = Callable[[RowBlock, Each], Values]  # the second shares out the tiles of columns
Add = Callable[[S, int, RowBlock, Each], None]  # adds the block of a number to sums


def block_pass(
    rows: RowTask,
    blocks: RowGrid,
    opened: Callable[[RowTask], Add[S]],
    empty: Callable[[], S],
    key: tuple[object, ...],
    *,
    sums_bytes: int = 0,
    threads_a_piece: int = 1,
    share: float | None = None,
    counts: bool = False,
    features: FeaturesOf = "all",
) -> RowPass[S]:
    """Return a pass over blocks of rows, each a piece.

    opened : called in each process, returns what adds a block to sums
    empty, sums_bytes, threads_a_piece : as of `RowPass`; key : what determines the sums beside the blocks
    share : of the fit rows that are sampled; None: all rows
    counts : whether adding a block counts its rows as done, tile by tile
    features : of which rows blocks have them
    """
    opening = partial(_open_blocks, rows, blocks, opened, share, counts, features)
    grid, together = (blocks, *key), run_length(rows, blocks)
    return RowPass(opening, empty, blocks.size, blocks.n_blocks, together, grid, sums_bytes, threads_a_piece)


def _open_blocks(
    rows: RowTask,
    blocks: RowGrid,
    opened: Callable[[RowTask], Add[S]],
    share: float | None,
    counts: bool,
    features: FeaturesOf,
) -> AddPieces[S]:
    of_block = opened(rows)

    def add(pieces: range, sums: S, team: ThreadTeam) -> Iterator[int]:
        if share is None:
            stream = stream_blocks(rows, blocks, pieces, features=features)
        else:
            stream = stream_sample(rows, blocks, pieces, share)
        for number, block in stream:
            of_block(sums, number, block, team.each)
            if not counts:
                progress.advance(len(block.X))
            yield number

    return add


class BlockValues:
    """The values of each block, by its number: arrays by name, the same names in each block."""

    def __init__(self) -> None:
        self._of_block: dict[int, Values] = {}

    def put(self, number: int, values: Values) -> None:
        """Keep the values of a block."""
        self._of_block[number] = {name: np.atleast_1d(value) for name, value in values.items()}

    def in_order(self, name: str) -> NDArray[Any]:
        """Return the values of one name of all blocks, one after the other in the order of the rows."""
        return np.concatenate([values[name] for _, values in sorted(self._of_block.items())])

    def by_block(self) -> list[Values]:
        """Return the values of all blocks, in the order of the rows."""
        return [values for _, values in sorted(self._of_block.items())]

    def arrays(self) -> Values:
        """Return all values, joined, with the numbers of the blocks and how many are of each."""
        numbers = sorted(self._of_block)
        arrays: Values = {"blocks": np.array(numbers, np.int64)}
        for name in self._of_block[numbers[0]] if numbers else ():
            arrays[f"values.{name}"] = self.in_order(name)
            arrays[f"lengths.{name}"] = np.array([len(self._of_block[number][name]) for number in numbers], np.int64)
        return arrays

    def absorb(self, stored: Arrays) -> None:
        """Keep the values of other blocks as well."""
        arrays = dict(stored)
        names = [name.removeprefix("values.") for name in arrays if name.startswith("values.")]
        parts = {name: np.split(arrays[f"values.{name}"], np.cumsum(arrays[f"lengths.{name}"])[:-1]) for name in names}
        for i, number in enumerate(arrays["blocks"].tolist()):
            self.put(number, {name: parts[name][i] for name in names})


class ExactSums(dict[str, Any]):
    """Exact sums by name: of arrays (`ExactSum`), or the statistics of parts of the rows (`StatisticsSums`)."""

    def arrays(self) -> Values:
        """Return the sums in units."""
        return {f"{name}.{inner}": units for name, sums in self.items() for inner, units in sums.arrays().items()}

    def absorb(self, arrays: Arrays) -> None:
        """Add those of other rows."""
        for name, units in arrays:
            part, _, inner = name.partition(".")
            self[part].absorb(inner, units)

    def statistics(self) -> dict[str, GramStatistics]:
        """Return the statistics of each part; they take the place of the sums, so call it once."""
        return {part: sums.statistics() for part, sums in self.items() if isinstance(sums, StatisticsSums)}


def value_pass(
    rows: RowTask, blocks: RowGrid, opened: Callable[[RowTask], OfBlock], *, features: FeaturesOf = "all"
) -> RowPass[BlockValues]:
    """Return a pass that keeps what `opened(task)(block, each)` gives of each block: small arrays by name."""
    return block_pass(rows, blocks, partial(_keeping, opened), BlockValues, _name_of(opened), features=features)


def sum_of_arrays(shape: tuple[int, ...], largest: ArrayLike, n_terms: int) -> ExactSums:
    """Return a sum of no arrays; see `ExactSum`."""
    return ExactSums({"sum": ExactSum(shape, largest, n_terms)})


def _name_of(opened: Callable[..., object]) -> tuple[str, str]:
    """Return what names the function of a pass."""
    function: Any = getattr(opened, "func", opened)  # of a partial, the function itself
    return function.__module__, function.__qualname__


def _keeping(opened: Callable[[RowTask], OfBlock], task: RowTask) -> Add[BlockValues]:
    of_block = opened(task)
    return lambda values, number, block, each: values.put(number, of_block(block, each))


INPUT = "input.npz"
_SLACK = 2.0  # of a term: k ‖x - z‖ is σ/√e at most, and float32 products are rounded


def gradient_pass(rows: RowTask, given: Stored, points: NDArray[np.floating], largest: RowBounds) -> RowPass[ExactSums]:
    """Return a pass that adds up scaled sums over the fit rows, of rows (m, d) and of their pulls (m,); `gradient_of`.

    Residuals and weights are scaled by bounds of theirs, so that every pull is within ±1 and every term of a sum within
    a few widths of the kernel and the distance of its center from their middle: that fixes the units of the exact sums.

    given : has points (m, d), weights (m, T) f8 and intercept (T,) f8
    largest : bounds of targets times row weights, and of the weights
    """
    shape = points.shape
    blocks = row_grid("train", rows.shape.n_train, len(points), 8 * math.prod(shape))
    farthest = float(np.linalg.norm(points - _middle(rows, points), axis=1).max())
    bound = _SLACK * (float(np.sqrt(rows.sigma2)) + farthest) * blocks.block_rows
    return block_pass(
        rows,
        blocks,
        partial(_opened_gradient, given, largest),
        partial(_sums_of_pulls, shape, bound, _SLACK * blocks.block_rows, blocks.n_blocks),
        (shape, bound, largest, COLUMNS_TILE),
        sums_bytes=8 * math.prod(shape),
        threads_a_piece=-(-len(points) // COLUMNS_TILE),
    )


def _sums_of_pulls(shape: tuple[int, int], of_rows: float, of_pulls: float, n_terms: int) -> ExactSums:
    return ExactSums({"rows": ExactSum(shape, of_rows, n_terms), "pulls": ExactSum(shape[:1], of_pulls, n_terms)})


def _middle(rows: RowTask, points: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the middle (d,) of points (m, d), from which rows are measured: far off, products would cancel."""
    return points.mean(axis=0, dtype=np.float64).astype(rows.precision)


def gradient_of(rows: RowTask, sums: ExactSums, given: Values, largest: RowBounds) -> NDArray[np.float64]:
    """Return the derivative of half the squared error by every number of every center, (m, d) f8."""
    points = given["points"]
    scale = scales(given["weights"], given["intercept"], largest)[1] * largest.weight
    pulled = sums["pulls"].values()[:, None] * (points - _middle(rows, points)).astype(np.float64)
    return np.asarray((sums["rows"].values() - pulled) * (-scale / rows.sigma2))


def scales(
    weights: NDArray[np.float64], intercept: NDArray[np.float64], largest: RowBounds
) -> tuple[NDArray[np.float64], float]:
    """Return a bound of the residuals of each output (T,), and one of |Σ_t r_it w_mt|; columns are within [0, 1].

    Both are of rows times their weights, parts of the largest.
    """
    residual = np.array(largest.targets) / largest.weight + np.abs(intercept) + np.abs(weights).sum(axis=0)
    return np.maximum(residual, 1e-300), max(float((np.abs(weights) @ residual).max()), 1e-300)


def _opened_gradient(given: Stored, largest: RowBounds, rows: RowTask) -> Add[ExactSums]:
    arrays = given.read()
    points, weights, intercept = (arrays[name] for name in ("points", "weights", "intercept"))
    generator, (residual_bound, scale) = rows.generator_of(points), scales(weights, intercept, largest)
    middle = _middle(rows, points)

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
        away = np.subtract(X, middle, dtype=middle.dtype)

        def add_tile(tile: slice) -> None:
            pulls = residuals @ (weights[tile] * (residual_bound / scale)).T
            pulls *= columns[:, tile]
            sums["rows"].add(pulls.astype(away.dtype).T @ away, tile)
            sums["pulls"].add(pulls.sum(axis=0), tile)

        n = len(points)
        each(add_tile, [slice(first, min(first + COLUMNS_TILE, n)) for first in range(0, n, COLUMNS_TILE)])

    return add
