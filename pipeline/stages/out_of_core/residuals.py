"""Residuals of the training rows at given weights: R = Y - K w - b, in one pass over kept columns.

Those of rows with weights s are times √s, since the norms are weighted (mathematics.md, eq. 9).
"""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.block_pass import Add, BlockPass, BlockValues, Values
from pipeline.stages.out_of_core.kept_columns import (
    INPUT,
    KeptColumns,
    KeptFiles,
    OpenedColumns,
    columns_from_arrays,
    columns_to_arrays,
    kept_files,
)
from pipeline.stages.run_state import Run
from pipeline.stages.training_rows import RowBlock, RowTask
from pipeline.stages.workspace import SOLVE


def residual_pass(run: Run, name: str) -> Path:
    """Return the folder of the pass, to be removed when what the residuals are for is committed."""
    return run.layout.row_pass(f"{name}-residuals")


def compute_residuals(
    run: Run, name: str, columns: KeptColumns, weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the residuals (n, T) f8 of all training rows (mathematics.md, eq. 26).

    columns (a,): those of the active candidates; weights (a, T); intercept (T,). Weights (a, k·T) of k solutions, one
    beside the other, have residuals (n, k·T). They are committed until the scores are: they take long.
    """
    folder, files = f"passes/{name}-residuals", kept_files(run)

    def make() -> Values:
        arrays = columns_to_arrays(columns) | {"weights": weights, "intercept": intercept}
        given = run.commit(f"{folder}/{INPUT}", arrays)
        opened, key = partial(_opened, files, given), (len(columns.members),)
        task = BlockPass(files.rows, files.blocks, opened, BlockValues, key, reads_features=False)
        values = run.add_up(SOLVE, task, f"{name}-residuals", "residuals")
        return {"residuals": values.in_order("residuals")}

    return np.asarray(run.once(f"{folder}/residuals.npz", make)["residuals"])


def _opened(files: KeptFiles, given: Stored, _: RowTask) -> Add[BlockValues]:
    arrays = given.read()
    columns, weights = OpenedColumns(files, columns_from_arrays(arrays)), arrays["weights"]

    def add(values: BlockValues, number: int, block: RowBlock, each: Each) -> None:
        targets = np.tile(block.targets, weights.shape[1] // block.targets.shape[1])
        residuals = targets - columns.block(number, each) @ weights - arrays["intercept"]
        if block.weights is not None:
            residuals *= np.sqrt(block.weights)[:, None]
        values.put(number, {"residuals": residuals})

    return add
