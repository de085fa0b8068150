"""Decision values of the held-out rows by weights that were not fitted to them: a pass over these rows."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_sample
from pipeline.kernels.exact_sums import ForEach
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.ridge import CalibrationWeights
from pipeline.stages.training_rows import RowBlock, RowTask, block_pass, row_grid
from pipeline.stages.workspace import Workspace

MOST_KEPT = 2**21  # values, 16 MiB, that are kept of all rows
NAMES = ("decision", "truth", "weights")
Values = NDArray[np.float64]
Rows = tuple[Values, NDArray[np.int64], Values]  # decision values (n, T), true classes (n,) and weights (n,)


def held_out_decisions(
    work: Workspace, task: RowTask, tried: CalibrationWeights, stage: str, name: str, words: str
) -> Rows:
    """Return decision values (n, T) of the held-out rows, of many some, their targets as stored and weights (n,)."""
    arrays: Arrays = vars(tried.weights) | ({} if tried.points is None else {"points": tried.points})
    given = work.commit(f"passes/{name}/weights.npz", arrays)
    grid = row_grid("train", task.shape.n_train, len(tried.weights.columns))
    rows = block_pass(task, grid, partial(_block, task, given), BlockValues, (name,), features="held-out")
    found = work.add_up(stage, rows, name, words)
    decision, truth, weights = map(found.in_order, NAMES)
    return decision, truth, weights


def kept_share(n_rows: int, n_outputs: int) -> float:
    """Return the share of rows that are kept: all, if their numbers are at most MOST_KEPT."""
    return min(1.0, MOST_KEPT / (n_rows * (n_outputs + 2)))


def _block(rows: RowTask, given: Stored) -> AddPiece[BlockValues]:
    """Return what gives a block's held-out rows, of many some; other rows cost no columns."""
    arrays, kernel = given.read(), None
    if "points" in arrays:
        kernel = rows.kernel_at(arrays["points"])
    elif len(arrays["columns"]):
        kernel = rows.kernel_of(arrays["columns"])
    weights = np.ascontiguousarray(arrays["weights"])  # as from a file: bits depend on the order in memory

    def decided(values: BlockValues, block: RowBlock, each: ForEach) -> None:
        X = block.X[block.held_out]
        decision = np.tile(arrays["intercept"], (len(X), 1))
        if kernel is not None and len(X):
            decision += kernel.block(X, out_dtype=np.float64, each=each) @ weights
        counts = np.ones(len(X)) if block.weights is None else block.weights[block.held_out]
        share = kept_share(rows.shape.n_train, rows.shape.n_outputs)  # the same rows, however many outputs are tried
        # Drawn by their numbers, and not every other one: classes may take turns.
        kept = draw_sample(0, share, np.arange(block.start, block.start + len(X), dtype=np.uint64))
        found = decision[kept], block.y[block.held_out][kept], counts[kept]
        values.put(block.number, dict(zip(NAMES, found, strict=True)))

    return decided
