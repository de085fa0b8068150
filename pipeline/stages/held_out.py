"""Statistics of the held-out rows on some centers, for a run that keeps none: one pass over the held-out rows."""

from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.stages import rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics, StatisticsAccumulator
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays

N_SPANS = 2  # fixed, since the order of summation is


@dataclass(frozen=True)
class HeldOutTask:
    """What a worker needs: the rows to stream, and the name under which the centers are."""

    rows: RowTask
    name: str

    @property
    def centers(self) -> Path:
        """The file of the candidates that are centers."""
        return self.rows.layout.statistics_part(f"{self.name}-held-out-centers.npz")

    def part(self, span: Block) -> Path:
        """Return the file of the sums over one span."""
        return self.rows.layout.statistics_part(f"{self.name}-held-out-{span.index:04d}.npz")


def accumulate(run: Run, centers: NDArray[np.int64], name: str) -> GramStatistics:
    """Return the statistics of all held-out rows on the candidates `centers` (m,).

    What its items commit is named after `name`: other centers need another.
    """
    task = HeldOutTask(rows.task_of(run), name)
    make_folder(run.layout.statistics_parts)
    write_arrays(task.centers, {"rows": centers})
    grid = spans(run.shape.n_train, task.rows.read_rows, N_SPANS)
    waiting = [span for span in grid if not is_whole(task.part(span))]
    run.run_items("solve", partial(accumulate_span, task), waiting)
    return reduce(add, (statistics.from_arrays(read_arrays(task.part(span))) for span in grid))


def accumulate_span(task: HeldOutTask, span: Block) -> None:
    """Accumulate the held-out rows of one span and commit their statistics."""
    centers = read_arrays(task.centers)["rows"]
    generator = task.rows.generator(centers)
    sums = StatisticsAccumulator(len(centers), task.rows.shape.n_outputs)
    for block in rows.blocks(task.rows, span):
        K: NDArray[np.float64] = generator.block(block.X[block.held_out], out_dtype=np.float64)  # type: ignore[assignment]
        sums.add(K, block.targets[block.held_out])
    write_arrays(task.part(span), statistics.to_arrays(sums.statistics()), durable=False)
