"""The candidates of a run: every training row that was drawn or listed, at every kernel width.

One number names each, over all rows and widths there could be: training row + n_train · place of the width. With one
width it is the training row.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.config import TrainConfig
from storage.commit import read_arrays
from storage.layout import RunLayout


def count(config: TrainConfig, n_train: int) -> int:
    """Return how many candidates a run has, whose data have `n_train` training rows."""
    asked, widths = config.centers.count, config.kernel.sigma2
    return (n_train if asked == "all" else int(asked)) * (len(widths) if isinstance(widths, tuple) else 1)


def widths(layout: RunLayout) -> NDArray[np.float64]:
    """Return the kernel widths σ², (widths,) f8."""
    return np.asarray(read_arrays(layout.centers, mapped=True)["sigma2"])


def names(layout: RunLayout, n_train: int) -> NDArray[np.int64]:
    """Return all candidates, (candidates,) i8: all rows at the first width, then all at the next."""
    arrays = read_arrays(layout.centers, mapped=True)
    return (arrays["index"] + n_train * np.arange(len(arrays["sigma2"]))[:, None]).ravel()


def parts(candidates: NDArray[np.int64], n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row of each candidate and the place of its width, where widths lie `n_rows` apart."""
    return candidates % n_rows, candidates // n_rows


def distinct(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return each row once, and for each entry which of these it is; None where no row comes twice."""
    found, place = np.unique(rows, return_inverse=True)
    return (rows, None) if len(found) == len(rows) else (found, place)
