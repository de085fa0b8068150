"""Statistics of the held-out rows on some centers, for a run that keeps none: one pass over the held-out rows."""

from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from pipeline.live_features import open_features
from pipeline.stages import rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run
from pipeline.statistics import GramStatistics, StatisticsAccumulator
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays

N_SPANS = 2  # fixed, since the order of summation is
ROWS_FILE, PART = "held-out-centers.npz", "held-out"


@dataclass(frozen=True)
class HeldOutTask:
    """What a worker needs to accumulate the held-out rows of any span."""

    rows: RowTask


def accumulate(run: Run, centers: NDArray[np.int64]) -> GramStatistics:
    """Return the statistics of all held-out rows on the centers at training rows `centers` (m,)."""
    make_folder(run.layout.statistics_parts)
    write_arrays(run.layout.statistics_part(ROWS_FILE), {"rows": centers})
    task = HeldOutTask(rows.task_of(run))
    grid = spans(run.shape.n_train, task.rows.read_rows, N_SPANS)
    run.run_items("solve", partial(accumulate_span, task), grid)
    paths = [run.layout.statistics_part(f"{PART}-{span.index:04d}.npz") for span in grid]
    total = reduce(add, (statistics.from_arrays(read_arrays(path)) for path in paths))
    for path in paths:
        path.unlink()
    return total


def accumulate_span(task: HeldOutTask, span: Block) -> None:
    """Accumulate the held-out rows of one span and commit their statistics."""
    part = task.rows.layout.statistics_part
    centers = open_features(task.rows.features).take(read_arrays(part(ROWS_FILE))["rows"])
    generator = task.rows.generator(centers)
    sums = StatisticsAccumulator(len(centers), task.rows.shape.n_outputs)
    for block in rows.blocks(task.rows, span):
        K: NDArray[np.float64] = generator.block(block.X[block.held_out], out_dtype=np.float64)  # type: ignore[assignment]
        sums.add(K, block.targets[block.held_out])
    write_arrays(part(f"{PART}-{span.index:04d}.npz"), statistics.to_arrays(sums.statistics()), durable=False)
