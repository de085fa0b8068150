"""Bounds of what a training row adds to the sums, which fix the units of all of them before the first block."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.gram_statistics import RowBounds, largest_terms
from pipeline.kernels.kernel_forms import column_bounds
from pipeline.runtime.stored_arrays import Arrays
from pipeline.stages.block_values import BlockPass, OfBlock
from pipeline.stages.target_facts import RowData, TargetFacts, target_blocks
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from pipeline.stages.workspace import STATISTICS, Workspace

NAME, TERMS = "largest-terms", "terms"


def largest_values(work: Workspace, batch: range | None = None) -> RowBounds:
    """Return the bounds for a batch of training rows (None: all).

    From targets and weights alone for a Gaussian, else from a pass over the rows, committed.
    """
    task, rows = row_task(work), range(work.shape.n_train) if batch is None else batch
    if task.kernel.is_bounded:
        return largest_of_bounded(work, task.facts, rows)
    name = NAME if len(rows) == work.shape.n_train else f"{NAME}-{rows.start}"

    def make() -> Arrays:
        blocks = replace(row_grid("train", len(rows), 1), first=rows.start)
        values = work.add_up(STATISTICS, BlockPass(task, blocks, _of_rows), name, "bounding the sums")
        return {TERMS: values.in_order(TERMS).max(axis=0)}

    terms = work.once(f"statistics/{name}.npz", make)[TERMS]
    work.drop(f"passes/{name}")
    return RowBounds.of([terms])


def largest_of_bounded(run: RowData, facts: TargetFacts, rows: range | None = None) -> RowBounds:
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
