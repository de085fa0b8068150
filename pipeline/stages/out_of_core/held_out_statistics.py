"""Statistics of the held-out rows on some centers, for a run that keeps none: one pass over the held-out rows."""

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.stages.accumulate_statistics import largest_values
from pipeline.stages.statistics_pass import HELD_OUT, MEMBERS, statistics_pass
from pipeline.stages.training_rows import row_task
from pipeline.stages.workspace import SOLVE, Workspace


def accumulate_held_out(work: Workspace, centers: NDArray[np.int64], name: str) -> GramStatistics:
    """Return the statistics of all held-out rows on the candidates `centers` (m,).

    The pass is named after `name`: other centers need another.
    """
    name = f"{name}-held-out"
    members = work.commit(f"passes/{name}/{MEMBERS}", {"members": centers})
    task = statistics_pass(row_task(work), (HELD_OUT,), len(centers), largest_values(work), members=members)
    return work.add_up(SOLVE, task, name, "held-out rows at the centers").statistics()[HELD_OUT]
