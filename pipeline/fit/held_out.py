"""Decision values of the held-out rows by weights that were not fitted to them: a pass over these rows."""

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


def held_out_decisions(
    work: Workspace, task: RowTask, tried: CalibrationWeights, name: str, words: str
) -> tuple[Values, NDArray[Any], Values, NDArray[np.uint64]]:
    """Return decision values (n, T) of held-out rows (some of many), targets as stored, weights and groups (n,)."""
    arrays: Arrays = vars(tried.weights) | ({} if tried.points is None else {"points": tried.points})
    given = work.store.put(f"passes/{name}/weights.npz", arrays)
    grid = row_grid("train", task.shape.n_train, len(tried.weights.columns))
    rows = block_pass(task, grid, partial(_block, task, given), BlockValues, (name,), features="held-out")
    found = work.runner.add_up(rows, name, words)
    decision, truth, weights, groups = map(found.in_order, NAMES)
    return decision, truth, weights, groups


def _block(rows: RowTask, given: Stored) -> AddPiece[BlockValues]:
    """Return what gives a block's held-out rows; other rows cost no columns."""
    arrays = given.read()
    kernel = rows.kernel_in(arrays) if len(arrays["columns"]) else None
    weights = np.ascontiguousarray(arrays["weights"])  # as from a file: bits depend on the order in memory
    share = kept_share(rows.shape.n_train, rows.shape.n_outputs)  # the same rows, however many outputs are tried

    def decided(found: BlockValues, block: RowBlock, each: ForEach) -> None:
        held_out = block.cut(block.held_out)
        decision = np.tile(arrays["intercept"], (len(held_out.X), 1))
        if kernel is not None and len(held_out.X):
            decision += kernel.block(held_out.X, out_dtype=np.float64, each=each) @ weights
        kept = kept_rows(share, block.start, len(decision))
        values = (of[kept] for of in (decision, held_out.y, held_out.counts, held_out.groups))
        found.put(block.number, dict(zip(NAMES, values, strict=True)))

    return decided
