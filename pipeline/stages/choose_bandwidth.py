"""Which kernel widths a run has: those asked for, or one from the data (`median`, `auto`). Items of the centers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_held_out
from pipeline.config.parsers import selection_size
from pipeline.datasets.feature_request import FeatureShape, encoded_targets
from pipeline.datasets.features_on_the_fly import FeatureAccess, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.bandwidth import MEDIAN_POINTS, default_sigma2
from pipeline.kernels.kernel_forms import Kernel
from pipeline.runtime import progress
from pipeline.solvers.bandwidth_choice import TRIAL_CENTERS, centers_used, choose_width, held_out_errors, trial_rows
from pipeline.stages.run_state import CENTERS, Run, RunData
from pipeline.stages.target_facts import TargetFacts
from storage.arrays import read_arrays, write_arrays
from storage.files import make_folder

_READ_ROWS = 65_536  # targets that are read at once


@dataclass(frozen=True)
class BandwidthTask:
    """What a worker needs to find a width: candidates (training rows), drawn, and how widths are tried."""

    features: FeatureAccess
    shape: FeatureShape
    kernel: Kernel
    candidates: tuple[int, ...]
    seed: int
    facts: TargetFacts

    def points(self, count: int) -> NDArray[np.float32]:
        """Return the features of the first candidates."""
        return open_features(self.features).take(np.array(self.candidates[:count], np.int64))


@dataclass(frozen=True)
class WidthTrial:
    """Widths that are tried together, on so many of the candidates, and the file of their held-out errors."""

    widths: tuple[float, ...]
    n_centers: int
    file: Path


def choose_bandwidth(run: Run, index: NDArray[np.int64], facts: TargetFacts) -> dict[str, NDArray[Any]]:
    """Return what is committed with the candidates at training rows `index`: their widths `sigma2` (widths,) f8.

    Where they were tried on held-out rows, on targets less their mean, also `sigma2_tried` and `hold_out_errors`,
    one each, at the number of centers that is used. Raises InvalidDataError where no width has a finite error.
    """
    asked = run.config.kernel.sigma2
    if not isinstance(asked, str):
        return {"sigma2": np.atleast_1d(np.asarray(asked, np.float64))}
    n_used, folder = centers_of_trials(run), run.layout.row_pass("widths")
    task = bandwidth_task(run, run.features, index, facts)
    typical = typical_width(run, task)
    if asked == "median":
        return {"sigma2": np.array([typical])}
    n_tried = min(TRIAL_CENTERS, len(task.candidates))

    def try_together(widths: list[float]) -> tuple[list[float], int]:
        return errors_of(run, task, n_tried, [tuple(widths)], folder)[0]

    def try_each(widths: list[float]) -> list[float]:
        return [error for (error,), _ in errors_of(run, task, n_used, [(width,) for width in widths], folder)]

    best = choose_width(typical, try_together, try_each, same_size=n_used == n_tried)
    if best is None:
        raise InvalidDataError(
            "--sigma2 auto: no width gives a Gram that least squares can be fitted with; give a number"
        )
    sigma2, errors = best
    descending = sorted(errors, reverse=True)
    return {
        "sigma2": np.array([sigma2]),
        "sigma2_tried": np.array(descending),
        "hold_out_errors": np.array([errors[width] for width in descending]),
    }


def kernel_of(run: RunData) -> Kernel:
    """Return the kernel of a run."""
    return Kernel(run.config.kernel.name, run.config.kernel.degree)


def centers_of_trials(run: Run) -> int:
    """Return on how many candidates a run refines its width."""
    config = run.config
    chosen = None if config.solver.select == "none" else selection_size(config.solver.select)
    return centers_used(min(run.n_candidates, config.centers.working_set or run.n_candidates), chosen)


def bandwidth_task(run: Run, features: FeatureAccess, index: NDArray[np.int64], facts: TargetFacts) -> BandwidthTask:
    """Return the task of a run whose candidates are the training rows `index`, on some features of it."""
    # Drawn, since listed candidates, or all rows, may be sorted by class.
    drawn = np.random.default_rng([run.config.seed, 7]).permutation(np.sort(index))
    return BandwidthTask(
        features=features,
        shape=run.shape,
        kernel=kernel_of(run),
        candidates=tuple(drawn[: max(MEDIAN_POINTS, centers_of_trials(run))].tolist()),
        seed=run.config.seed,
        facts=facts,
    )


def typical_width(run: Run, task: BandwidthTask) -> float:
    """Return the typical width of the candidates, found by a worker."""
    found: list[float] = []
    words = "distances between candidates"
    run.run_items(
        CENTERS, find_typical, [task], unit="", words=words, on_value=lambda _, typical: found.append(typical)
    )
    return found[0]


def find_typical(task: BandwidthTask) -> float:
    """Return the typical width of the candidates."""
    return default_sigma2(task.points(MEDIAN_POINTS), task.kernel)


def errors_of(
    run: Run, task: BandwidthTask, n_centers: int, tried: list[tuple[float, ...]], folder: Path
) -> list[tuple[list[float], int]]:
    """Return the errors of widths that are tried together, and the number of held-out rows; trials are committed."""
    make_folder(folder)
    trials = [
        WidthTrial(widths, n_centers, folder / f"{n_centers}-{widths[0]!r}-{len(widths)}.npz") for widths in tried
    ]
    words = f"trying widths on {n_centers} candidates"
    run.run_items(CENTERS, partial(try_widths, task), trials, part=lambda trial: trial.file, unit="", words=words)
    found = [read_arrays(trial.file) for trial in trials]
    return [(arrays["errors"].tolist(), int(arrays["n_held_out"])) for arrays in found]


def try_widths(task: BandwidthTask, trial: WidthTrial) -> None:
    """Commit the held-out errors of some widths. Raises InvalidDataError where all rows are held out, or none."""
    rows = trial_rows(task.seed, task.shape.n_train, trial.n_centers)
    targets, weights, held_out, keys = _targets(task, rows)
    if held_out.all() or not held_out.any():
        raise InvalidDataError(
            f"--sigma2 auto: {int(held_out.sum())} of the {len(rows)} rows it tries widths on are held out; set "
            "statistics.hold_out to 0.1, or give a number"
        )
    progress.doing(f"reading {len(rows)} rows")
    X, points = open_features(task.features).take(rows), task.points(trial.n_centers)
    words = f"trying {len(trial.widths)} widths on {len(rows)} rows and {trial.n_centers} candidates"
    errors = held_out_errors(
        points,
        trial.widths,
        task.kernel,
        X,
        targets,
        held_out,
        on_rows=lambda n: progress.advance(n / len(rows), words),
        weights=weights,
    )
    write_arrays(trial.file, {"errors": errors, "n_held_out": np.array(len(np.unique(keys[held_out])))})


def _targets(
    task: BandwidthTask, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, NDArray[np.bool_], NDArray[np.uint64]]:
    """Return the targets (rows, T) of some training rows in ascending order, weights, who is held out, keys."""
    store, targets, weights, held_out, keys = open_features(task.features), [], [], [], []
    limit = task.facts.held_out_limit
    for start in range(0, task.shape.n_train, _READ_ROWS):
        stop = min(start + _READ_ROWS, task.shape.n_train)
        inside = rows[slice(*np.searchsorted(rows, (start, stop)))] - start
        y, of_rows = store.targets("train", start, stop)[inside], store.weights("train", start, stop)
        targets.append(encoded_targets(y, task.shape) - task.facts.mean)
        of_all, groups = store.keys(start, stop)
        held_out.append(draw_held_out(task.seed, limit, groups[inside]))
        keys.append(of_all[inside])
        weights.append(task.facts.weights(y, None if of_rows is None else of_rows[inside]))
    known = [of_block for of_block in weights if of_block is not None]
    of_rows = np.concatenate(known) if known else None
    return np.concatenate(targets), of_rows, np.concatenate(held_out), np.concatenate(keys)
