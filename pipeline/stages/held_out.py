"""Statistics of the held-out rows on some centers, for a run that keeps none: one pass over the held-out rows."""

from functools import partial, reduce
from operator import add
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.live_features import open_features
from pipeline.stages import rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics, StatisticsAccumulator
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays

N_SPANS = 2  # fixed, since the order of summation is
ROWS_FILE, PART = "held-out-centers.npz", "held-out"


def accumulate(run: Run, centers: NDArray[np.int64]) -> GramStatistics:
    """Return the statistics of all held-out rows on the centers at training rows `centers` (m,)."""
    make_folder(run.layout.statistics_parts)
    write_arrays(run.layout.statistics_part(ROWS_FILE), {"rows": centers})
    task = rows.task_of(run)
    grid = spans(run.shape.n_train, task.read_rows, N_SPANS)
    waiting = [span for span in grid if not is_whole(_part(task, span))]
    run.run_items("solve", partial(accumulate_span, task), waiting)
    return reduce(add, (statistics.from_arrays(read_arrays(_part(task, span))) for span in grid))


def _part(task: RowTask, span: Block) -> Path:
    return task.layout.statistics_part(f"{PART}-{span.index:04d}.npz")


def accumulate_span(task: RowTask, span: Block) -> None:
    """Accumulate the held-out rows of one span and commit their statistics."""
    rows_of_centers = read_arrays(task.layout.statistics_part(ROWS_FILE))["rows"]
    centers = open_features(task.features).take(rows_of_centers)
    generator = task.generator(centers)
    sums = StatisticsAccumulator(len(centers), task.shape.n_outputs)
    for block in rows.blocks(task, span):
        K: NDArray[np.float64] = generator.block(block.X[block.held_out], out_dtype=np.float64)  # type: ignore[assignment]
        sums.add(K, block.targets[block.held_out])
    write_arrays(_part(task, span), statistics.to_arrays(sums.statistics()), durable=False)
