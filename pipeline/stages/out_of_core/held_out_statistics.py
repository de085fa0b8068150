"""Statistics of the held-out rows on some centers, for a run that keeps none: one pass over the held-out rows."""

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.stages.largest_values import largest_values
from pipeline.stages.run_state import SOLVE, Run
from pipeline.stages.statistics_pass import HELD_OUT, MEMBERS, StatisticsPass
from pipeline.stages.training_rows import row_task
from storage.arrays import write_arrays
from storage.files import make_folder


def accumulate_held_out(run: Run, centers: NDArray[np.int64], name: str) -> GramStatistics:
    """Return the statistics of all held-out rows on the candidates `centers` (m,).

    The pass is named after `name`: other centers need another.
    """
    folder = run.layout.row_pass(f"{name}-held-out")
    make_folder(folder)
    write_arrays(folder / MEMBERS, {"members": centers})
    task = StatisticsPass(row_task(run), (HELD_OUT,), len(centers), largest_values(run), members=folder / MEMBERS)
    return run.row_pass(SOLVE, task, folder, words="held-out rows at the centers").statistics()[HELD_OUT]
