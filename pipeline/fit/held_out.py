"""Decision values of the held-out rows by weights that were not fitted to them: a pass over these rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.fit.row_blocks import RowBlock, RowTask, block_pass, row_grid
from pipeline.fit.workspace import Workspace
from pipeline.kernels.exact_sums import ForEach
from pipeline.prediction.ranking import kept_rows, kept_share
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.solvers.ridge import CalibrationWeights, Values
from storage.arrays import Arrays, Stored

NAMES = ("decision", "truth", "weights", "groups")
# Makes values of the held-out rows of a block and of their decision values (rows, T).
ValuesOf = Callable[[RowTask, RowBlock, NDArray[np.float64]], Arrays]


def held_out_decisions(
    work: Workspace, task: RowTask, tried: CalibrationWeights, stage: str, name: str, words: str
) -> tuple[Values, NDArray[Any], Values, NDArray[np.uint64]]:
    """Return decision values (n, T) of the held-out rows, of many some, targets as stored, weights and groups (n,)."""
    arrays: Arrays = vars(tried.weights) | ({} if tried.points is None else {"points": tried.points})
    found = held_out_pass(work, task, arrays, _some_of, stage, name, words)
    decision, truth, weights, groups = map(found.in_order, NAMES)
    return decision, truth, weights, groups


def held_out_pass(
    work: Workspace, task: RowTask, weights: Arrays, values: ValuesOf, stage: str, name: str, words: str
) -> BlockValues:
    """Return what `values` makes of the held-out rows of each block; `weights`: of candidates by row, or of points."""
    given = work.store.put(f"passes/{name}/weights.npz", weights)
    grid = row_grid("train", task.shape.n_train, len(weights["columns"]))
    opened = partial(_block, task, given, values)
    return work.runner.add_up(
        stage, block_pass(task, grid, opened, BlockValues, (name,), features="held-out"), name, words
    )


def _some_of(rows: RowTask, block: RowBlock, decision: NDArray[np.float64]) -> Arrays:
    share = kept_share(rows.shape.n_train, rows.shape.n_outputs)  # the same rows, however many outputs are tried
    kept = kept_rows(share, block.start, len(decision))
    return dict(zip(NAMES, (decision[kept], *(of[kept] for of in (block.y, block.counts, block.groups))), strict=True))


def _block(rows: RowTask, given: Stored, values: ValuesOf) -> AddPiece[BlockValues]:
    """Return what gives a block's held-out rows; other rows cost no columns."""
    arrays, kernel = given.read(), None
    if "points" in arrays:
        kernel = rows.kernel_at(arrays["points"])
    elif len(arrays["columns"]):
        kernel = rows.kernel_of(arrays["columns"])
    weights = np.ascontiguousarray(arrays["weights"])  # as from a file: bits depend on the order in memory

    def decided(found: BlockValues, block: RowBlock, each: ForEach) -> None:
        held_out = block.cut(block.held_out)
        decision = np.tile(arrays["intercept"], (len(held_out.X), 1))
        if kernel is not None and len(held_out.X):
            decision += kernel.block(held_out.X, out_dtype=np.float64, each=each) @ weights
        found.put(block.number, values(rows, held_out, decision))

    return decided
