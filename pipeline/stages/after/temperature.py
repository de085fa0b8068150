"""The temperature of the probabilities, from rows that weights were not fitted to: those of fitted rows are too sure.

Weights of the fit rows are tried on the held-out rows; where these are few, the fit rows join with their leave-one-out
values.
"""

from functools import partial, reduce
from typing import Any

import numpy as np

from pipeline.kernels.exact_sums import ForEach
from pipeline.prediction.scores import Sums, add_sums, best_temperature, loss_slopes
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.ridge import FEW_ROWS, CalibrationWeights, LeftOut, RidgeFit
from pipeline.stages.training_rows import (
    RowBlock,
    RowTask,
    RunSize,
    block_pass,
    block_pass_bytes,
    count_held_out,
    row_grid,
    run_length,
    stream_blocks,
)
from pipeline.stages.workspace import SOLVE, Workspace

TEMPERATURE, WORDS = "temperature", "temperature of the probabilities"


def find_temperature(work: Workspace, tried: CalibrationWeights) -> dict[str, Any] | None:
    """Return temperature, number of rows, whether the weights were fitted to them; None for a regression."""
    if work.shape.task == "regression" or not work.config.statistics.hold_out:
        return None
    if tried.fit is not None and _has_few_rows(work):
        with work.status(SOLVE, WORDS):
            sums = _slopes_of_few(work.row_task, tried, tried.fit)
    else:
        sums = _slopes_of_held_out(work, tried)
    temperature = best_temperature(sums)
    return None if temperature is None else {"temperature": temperature, "n_rows": sums["rows"], "seen": tried.seen}


def _slopes_of_held_out(work: Workspace, tried: CalibrationWeights) -> Sums:
    """Return the slopes of the log loss of the held-out rows: a pass over the rows."""
    arrays: Arrays = vars(tried.weights) | ({} if tried.points is None else {"points": tried.points})
    given = work.commit(f"passes/{TEMPERATURE}/weights.npz", arrays)
    grid, rows = row_grid("train", work.shape.n_train, len(tried.weights.columns)), work.row_task
    slopes = partial(_block_of_slopes, rows, given)
    task = block_pass(rows, grid, slopes, BlockValues, (TEMPERATURE,), features="held-out")
    values = work.add_up(SOLVE, task, TEMPERATURE, WORDS)
    return reduce(add_sums, values.by_block()) | {"rows": count_held_out(work, work.facts)}


def temperature_bytes(run: RunSize) -> int:
    """Return the memory of the pass over the held-out rows; 0 where there is none."""
    has_pass = run.shape.task != "regression" and run.config.statistics.hold_out > 0
    return block_pass_bytes(run, run.n_columns) if has_pass else 0


def _has_few_rows(work: Workspace) -> bool:
    """Return whether the fit rows join the held-out ones: not of groups, whose rows tell of each other."""
    return work.shape.n_train < FEW_ROWS and work.config.data.groups is None


def _slopes_of_few(task: RowTask, tried: CalibrationWeights, fit: RidgeFit) -> Sums:
    """Return the slopes of the log loss of all rows, each without itself, of few: here and now."""
    left_out, kernel = LeftOut(fit), task.kernel_of(tried.weights.columns)
    grid = row_grid("train", task.shape.n_train, len(tried.weights.columns))
    step = run_length(task, grid)
    for first in range(0, grid.n_blocks, step):
        for _, block in stream_blocks(task, grid, range(first, min(first + step, grid.n_blocks))):
            counts = np.ones(len(block.X)) if block.weights is None else block.weights
            counted = np.flatnonzero(counts > 0)
            columns = kernel.block(block.X[counted], out_dtype=np.float64)
            left_out.add(block.keys[counted], columns, block.y[counted], counts[counted], block.held_out[counted])
    return loss_slopes(*left_out.values())


def _block_of_slopes(rows: RowTask, given: Stored) -> AddPiece[BlockValues]:
    """Return what gives the slopes of the log loss of a block's held-out rows; other rows cost no columns."""
    arrays, kernel = given.read(), None
    if "points" in arrays:
        kernel = rows.kernel_at(arrays["points"])
    elif len(arrays["columns"]):
        kernel = rows.kernel_of(arrays["columns"])
    weights = np.ascontiguousarray(arrays["weights"])  # as from a file: bits depend on the order in memory

    def slopes(values: BlockValues, block: RowBlock, each: ForEach) -> None:
        X = block.X[block.held_out]
        decision = np.tile(arrays["intercept"], (len(X), 1))
        if kernel is not None and len(X):
            decision += kernel.block(X, out_dtype=np.float64, each=each) @ weights
        counts = None if block.weights is None else block.weights[block.held_out]
        sums = loss_slopes(decision, block.y[block.held_out], counts)
        values.put(block.number, {name: np.asarray(value) for name, value in sums.items()})

    return slopes
