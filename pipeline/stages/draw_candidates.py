"""Stage 2: which training points are candidates, at which kernel widths, and their features in one small file."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.center_list import read_center_list
from pipeline.errors import InvalidDataError
from pipeline.live_features import open_features
from pipeline.stages import chosen_widths, statistics
from pipeline.stages.run import Run
from storage.commit import check_folder, write_arrays
from storage.manifest import MANIFEST_NAME


def choose(n_train: int, count: int | str, seed: int) -> np.ndarray:
    """Return the training rows of the candidates, i8, in the order drawn.

    Drawn without replacement: the first k of a larger draw are the draw of size k. `all` gives every row in order.
    """
    if count == "all":
        return np.arange(n_train)
    return np.random.default_rng([seed, 1]).permutation(n_train)[: int(count)]


def run(run: Run) -> None:
    """Draw the centers, find their kernel widths where the data decide, and commit both with their features."""
    with run.stage("centers") as cost:
        if (run.layout.centers / MANIFEST_NAME).exists():
            check_folder(run.layout.centers, remedy="delete the folder and resume: they are drawn again, the same")
            return
        index = _candidates(run)
        arrays: dict[str, NDArray[Any]] = {"index": index, **chosen_widths.run(run, index)}
        if not statistics.in_rounds(run):  # else the candidates may be all rows: tasks take what they need of them
            arrays["X"] = open_features(run.features).take(index)
        write_arrays(run.layout.centers, arrays)
        cost.items = 1


def _candidates(run: Run) -> NDArray[np.int64]:
    centers = run.config.centers
    if centers.list is None:
        return choose(run.shape.n_train, centers.count, run.config.seed)
    listed = read_center_list(centers.list, run.shape.n_train)
    if len(listed) != centers.count:
        raise InvalidDataError(
            f"--center-list {centers.list}: lists {len(listed)} rows, {centers.count} when the run was started; "
            "restore it, or start a new run"
        )
    return listed
