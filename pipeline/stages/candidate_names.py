"""The candidates of a run: every training row that was drawn or listed, at every kernel width.

One number names each, over all rows and widths there could be: training row + n_train · index of the width. With one
width it is the training row.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import selection_size
from pipeline.config.train_config import TrainConfig
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.greedy_choice import Preselection, preselection
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout


def count_candidates(config: TrainConfig, n_train: int) -> int:
    """Return how many candidates a run has, whose data have `n_train` training rows."""
    asked, widths = config.centers.count, config.kernel.sigma2
    assert asked is not None  # the plan has filled it in
    return (n_train if asked == "all" else int(asked)) * (len(widths) if isinstance(widths, tuple) else 1)


def is_in_rounds(config: TrainConfig, n_train: int) -> bool:
    """Tell whether a working set grows: there is no room for the Gram of all candidates, or they enter on demand."""
    return config.centers.on_demand or (config.centers.working_set or 0) < count_candidates(config, n_train)


def preselection_of(config: TrainConfig, n_train: int) -> Preselection | None:
    """Return how the finalists of a run's selection are chosen; None where it has none, or is none.

    A run that adds rows has none: it takes the statistics of all candidates of the run before.
    """
    if config.solver.select == "none" or config.data.add_rows is not None:
        return None
    n_candidates = count_candidates(config, n_train)
    n_fit = n_train * (1.0 - config.statistics.hold_out)
    return preselection(n_fit, n_candidates, config.centers.working_set or 0, selection_size(config.solver.select))


def names_of(centers: Arrays, n_rows: int) -> NDArray[np.int64]:
    """Return all candidates of committed ones, (candidates,) i8: all rows at the first width, then all at the next."""
    return np.asarray((centers["index"] + n_rows * np.arange(len(centers["sigma2"]))[:, None]).ravel())


def read_widths(layout: RunLayout) -> NDArray[np.float64]:
    """Return the kernel widths σ² of a run, (widths,) f8."""
    return np.asarray(read_arrays(layout.centers, mapped=True)["sigma2"])


def read_candidates(layout: RunLayout, n_train: int) -> NDArray[np.int64]:
    """Return all candidates of a run; see `names_of`."""
    return names_of(read_arrays(layout.centers, mapped=True), n_train)


def points_of_candidates(centers: Stored | None, rows: NDArray[np.int64]) -> NDArray[np.floating] | None:
    """Return the features (k, d) of candidates at some training rows, where those of all are committed together."""
    if centers is None:  # they are not drawn yet
        return None
    arrays = centers.read(mapped=True)
    order = np.argsort(arrays["index"])
    place = order[np.minimum(np.searchsorted(arrays["index"], rows, sorter=order), len(order) - 1)]
    if "X" not in arrays or not np.array_equal(arrays["index"][place], rows):
        return None
    return np.asarray(arrays["X"][place])


def rows_and_widths(candidates: NDArray[np.int64], n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row of each candidate and the index of its width; the candidates of two widths are `n_rows` apart."""
    return candidates % n_rows, candidates // n_rows


def distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the distinct rows (k,), and for each entry its index among them, or None where no row comes twice."""
    distinct, index = np.unique(rows, return_inverse=True)
    return (rows, None) if len(distinct) == len(rows) else (distinct, index)


def positions_of(candidates: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where some of the candidates stand among all, (rows,) i8."""
    order = np.argsort(candidates)
    return order[np.searchsorted(candidates, rows, sorter=order)]
