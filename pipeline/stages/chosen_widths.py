"""Which kernel widths a run has: those asked for, or one from the data (`median`, `auto`). One item of the centers."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.feature_store import FeatureShape, encoded_targets
from pipeline.kernels import Kernel
from pipeline.live_features import FeatureAccess, open_features
from pipeline.stages.run import Run
from pipeline.statistics import hold_out_rows
from pipeline.widths import MEDIAN_POINTS, STEPS, hold_out_errors, typical_sigma2

STAGE = "centers"
TRIAL_ROWS, TRIAL_CENTERS = 10_000, 500  # of `auto`
_READ_ROWS = 65_536  # targets that are read at once


@dataclass(frozen=True)
class WidthTask:
    """What a worker needs to find a width: some candidates (training rows), drawn, and how to try."""

    features: FeatureAccess
    shape: FeatureShape
    kernel: Kernel
    how: str
    candidates: tuple[int, ...]
    hold_out: float
    seed: int


def run(run: Run, index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return what is committed with the candidates at training rows `index`: their widths `sigma2` (widths,) f8.

    Where they were tried on held-out rows, also `sigma2_tried` and `hold_out_errors`, one each.
    """
    asked, kernel = run.config.kernel.sigma2, kernel_of(run)
    if not isinstance(asked, str):
        return {"sigma2": np.atleast_1d(np.asarray(asked, np.float64))}
    # Drawn, since listed candidates, or all rows, may be sorted by class.
    drawn = np.random.default_rng([run.config.seed, 7]).permutation(index)[:MEDIAN_POINTS]
    hold_out, seed = run.config.statistics.hold_out, run.config.seed
    task = WidthTask(run.features, run.shape, kernel, asked, tuple(drawn.tolist()), hold_out, seed)
    found: list[dict[str, NDArray[Any]]] = []
    run.run_items(STAGE, partial(find_width, task), ["sigma2"], on_value=lambda _, value: found.append(value))
    return found[0]


def kernel_of(run: Run) -> Kernel:
    """Return the kernel of a run."""
    return Kernel(run.config.kernel.name, run.config.kernel.degree)


def find_width(task: WidthTask, item: str) -> dict[str, NDArray[Any]]:
    """Return the width from the data, as `run` does.

    Raises InvalidDataError where no width that was tried has a finite error.
    """
    store = open_features(task.features)
    points = store.take(np.array(task.candidates, np.int64))
    typical = float(f"{typical_sigma2(points, task.kernel):.4g}")  # the same on machines that round otherwise
    if task.how == "median":
        return {"sigma2": np.array([typical])}
    n = task.shape.n_train
    rows = np.sort(np.random.default_rng([task.seed, 6]).permutation(n)[:TRIAL_ROWS])
    targets, held_out = _targets(task, rows)
    if held_out.all() or not held_out.any():
        raise InvalidDataError(
            f"--sigma2 auto: {int(held_out.sum())} of the {len(rows)} rows it tries widths on are held out; set "
            "statistics.hold_out to 0.1, or give a number"
        )
    tried = np.array([step * typical for step in STEPS])
    arguments = (points[:TRIAL_CENTERS], tried.tolist(), task.kernel, store.take(rows), targets, held_out)
    errors = hold_out_errors(*arguments)
    if not np.isfinite(errors).any():
        raise InvalidDataError(
            "--sigma2 auto: no width gives a Gram that least squares can be fitted with; give a number"
        )
    return {"sigma2": tried[[int(np.argmin(errors))]], "sigma2_tried": tried, "hold_out_errors": errors}


def _targets(task: WidthTask, rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the targets (rows, T) of some training rows in ascending order, and which are held out."""
    store, targets, held_out = open_features(task.features), [], []
    for start in range(0, task.shape.n_train, _READ_ROWS):
        stop = min(start + _READ_ROWS, task.shape.n_train)
        inside = rows[slice(*np.searchsorted(rows, (start, stop)))] - start
        targets.append(encoded_targets(store.targets("train", start, stop)[inside], task.shape))
        held_out.append(hold_out_rows(task.seed, task.hold_out, start, stop)[inside])
    return np.concatenate(targets), np.concatenate(held_out)
