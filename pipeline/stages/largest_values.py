"""Bounds of what a training row adds to the sums, which fix the units of all of them before the first block."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.gram_statistics import RowBounds, largest_terms
from pipeline.kernels.kernel_forms import column_bounds
from pipeline.stages.block_values import BlockPass, OfBlock
from pipeline.stages.run_state import STATISTICS, Run
from pipeline.stages.target_facts import TargetFacts, target_blocks
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from storage.arrays import read_arrays, write_arrays
from storage.files import make_folder
from storage.folders import remove_folder

FILE, TERMS = "largest-terms", "terms"


def largest_values(run: Run, batch: range | None = None) -> RowBounds:
    """Return the bounds for a batch of training rows (None: all).

    From targets and weights alone for a Gaussian, else from a pass over the rows, committed.
    """
    task, rows = row_task(run), range(run.shape.n_train) if batch is None else batch
    if task.kernel.is_bounded:
        return largest_of_bounded(run, task.facts, rows)
    path = run.layout.statistics_file(f"{FILE}.npz" if len(rows) == run.shape.n_train else f"{FILE}-{rows.start}.npz")
    if not path.exists():
        folder = run.layout.row_pass(path.stem)
        blocks = replace(row_grid("train", len(rows), 1), first=rows.start)
        values = run.row_pass(STATISTICS, BlockPass(task, blocks, _of_rows), folder, words="bounding the sums")
        make_folder(path.parent)
        write_arrays(path, {TERMS: values.in_order(TERMS).max(axis=0)})
        remove_folder(folder, durable=False)
    return RowBounds.of([read_arrays(path, remedy="delete it and resume: it is made again")[TERMS]])


def largest_of_bounded(run: Run, facts: TargetFacts, rows: range | None = None) -> RowBounds:
    """Return the bounds where columns are at most 1, from targets and weights alone."""
    if run.shape.task != "regression":
        return RowBounds.of([largest_terms(1.0, np.ones((1, run.shape.n_outputs)), facts.heaviest)])
    blocks = ((y - facts.mean, facts.weights(y, weights)) for y, weights in target_blocks(run, rows))
    return RowBounds.of(largest_terms(1.0, y[:, None], weights) for y, weights in blocks)


def _of_rows(task: RowTask) -> OfBlock:
    return partial(_largest_of, task)


def _largest_of(task: RowTask, block: RowBlock, _: Each) -> dict[str, NDArray[np.float64]]:
    """Return the largest terms of the rows of one block, (1, 3 + 3 T)."""
    columns = column_bounds(task.kernel, block.X, min(task.sigma2))
    return {TERMS: largest_terms(columns, block.targets, block.weights)[None]}
