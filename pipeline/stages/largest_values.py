"""The largest values of columns and targets, which fix the units of all exact sums before the first block."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.kernel_forms import largest_column
from pipeline.stages.block_values import BlockPass, OfBlock
from pipeline.stages.run_state import STATISTICS, Run
from pipeline.stages.target_facts import TargetFacts, target_blocks
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from storage.atomic_writes import make_folder, read_arrays, remove_folder, write_arrays

FILE = "largest-values"


@dataclass(frozen=True)
class LargestValues:
    """Bounds of |c_m(x)| of any candidate and training row, of |y| of each output (less the mean), of row weights."""

    column: float
    targets: tuple[float, ...]
    weight: float = 1.0


def largest_values(run: Run, batch: range | None = None) -> LargestValues:
    """Return the bounds for a batch of training rows (None: all).

    From the targets alone for a Gaussian, else from a pass over the rows, committed.
    """
    task, rows = row_task(run), range(run.shape.n_train) if batch is None else batch
    if task.kernel.is_bounded:
        return largest_of_bounded(run, task.facts, rows)
    path = run.layout.statistics_file(f"{FILE}.npz" if len(rows) == run.shape.n_train else f"{FILE}-{rows.start}.npz")
    if not path.exists():
        folder = run.layout.row_pass(path.stem)
        blocks = replace(row_grid("train", len(rows), 1), first=rows.start)
        values = run.row_pass(STATISTICS, BlockPass(task, blocks, _of_rows), folder, words="bounding the sums")
        arrays = {name: values.in_order(name).max(axis=0) for name in ("column", "targets")}
        make_folder(path.parent)
        write_arrays(path, arrays)
        remove_folder(folder, durable=False)
    arrays = read_arrays(path, remedy="delete it and resume: it is made again")
    return LargestValues(float(arrays["column"]), tuple(arrays["targets"].tolist()), task.facts.heaviest)


def largest_of_bounded(run: Run, facts: TargetFacts, rows: range | None = None) -> LargestValues:
    """Return the bounds where columns are at most 1, from the targets alone."""
    if run.shape.task != "regression":
        return LargestValues(1.0, (1.0,) * run.shape.n_outputs, facts.heaviest)
    largest = max(float(np.abs(y - facts.mean).max(initial=0.0)) for y, _ in target_blocks(run, rows))
    return LargestValues(1.0, (largest,), facts.heaviest)


def _of_rows(task: RowTask) -> OfBlock:
    return partial(_largest_of, task)


def _largest_of(task: RowTask, block: RowBlock, _: Each) -> dict[str, NDArray[np.float64]]:
    """Return the largest values of one block: column (1,) and targets (1, T)."""
    column = largest_column(task.kernel, block.X, min(task.sigma2))
    return {"column": np.array([column]), "targets": np.abs(block.targets).max(axis=0, keepdims=True)}
