"""The kernel widths of a fit: those asked for, or one from the data (`median`, `auto`)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_held_out
from pipeline.config.parsers import selection_size
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import FeatureAccess, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.kernel_forms import MEDIAN_POINTS, Kernel, default_sigma2
from pipeline.runtime import progress
from pipeline.runtime.stored_arrays import Arrays
from pipeline.solvers.bandwidth_choice import TRIAL_CENTERS, centers_used, choose_width, held_out_errors, trial_rows
from pipeline.stages.target_facts import TargetFacts
from pipeline.stages.workspace import CENTERS, TaskCheckpoints, Workspace

WIDTHS = "widths"  # the pass of their trials
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

    def points(self, count: int) -> NDArray[np.floating]:
        """Return the features of the first candidates."""
        return open_features(self.features).take(np.array(self.candidates[:count], np.int64))


def choose_bandwidth(work: Workspace, index: NDArray[np.int64], facts: TargetFacts) -> dict[str, NDArray[Any]]:
    """Return the widths `sigma2` (widths,) f8 of candidates at training rows `index`, to be committed with them.

    Where widths were tried, also `sigma2_tried` and their `hold_out_errors`. Raises InvalidDataError where none is
    finite.
    """
    asked = work.config.kernel.sigma2
    if not isinstance(asked, str):
        return {"sigma2": np.atleast_1d(np.asarray(asked, np.float64))}
    task, n_used = bandwidth_task(work, work.features, index, facts), centers_of_trials(work)
    typical = typical_width(work, task)
    if asked == "median":
        return {"sigma2": np.array([typical])}
    n_tried = min(TRIAL_CENTERS, len(task.candidates))

    def try_together(widths: list[float]) -> tuple[list[float], int]:
        return errors_of(work, task, n_tried, [tuple(widths)], WIDTHS)[0]

    def try_each(widths: list[float]) -> list[float]:
        return [error for (error,), _ in errors_of(work, task, n_used, [(width,) for width in widths], WIDTHS)]

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


def centers_of_trials(work: Workspace) -> int:
    """Return on how many candidates a width is refined."""
    config = work.config
    chosen = None if config.solver.select == "none" else selection_size(config.solver.select)
    return centers_used(min(work.n_candidates, config.centers.working_set or work.n_candidates), chosen)


def bandwidth_task(
    work: Workspace, features: FeatureAccess, index: NDArray[np.int64], facts: TargetFacts
) -> BandwidthTask:
    """Return the task for candidates at the training rows `index`, on some features."""
    # Drawn, since listed candidates, or all rows, may be sorted by class.
    drawn = np.random.default_rng([work.config.seed, 7]).permutation(np.sort(index))
    return BandwidthTask(
        features=features,
        shape=work.shape,
        kernel=work.kernel,
        candidates=tuple(drawn[: max(MEDIAN_POINTS, centers_of_trials(work))].tolist()),
        seed=work.config.seed,
        facts=facts,
    )


def typical_width(work: Workspace, task: BandwidthTask, folder: str = WIDTHS) -> float:
    """Return the width at which kernel values of the candidates are neither all alike nor all different."""
    items = {f"passes/{folder}/typical.npz": task}
    (found,) = work.compute(CENTERS, find_typical, items, unit="", words="distances between candidates")
    return float(found["sigma2"])


def find_typical(task: BandwidthTask, _: TaskCheckpoints) -> Arrays:
    """Return the typical width of the candidates, "sigma2"."""
    return {"sigma2": np.array(default_sigma2(task.points(MEDIAN_POINTS), task.kernel))}


def errors_of(
    work: Workspace, task: BandwidthTask, n_centers: int, tried: list[tuple[float, ...]], folder: str
) -> list[tuple[list[float], int]]:
    """Return the errors of widths that are tried together, and the number of held-out rows; trials are committed."""
    trials = {f"passes/{folder}/{n_centers}-{widths[0]!r}-{len(widths)}.npz": widths for widths in tried}
    words = f"trying widths on {n_centers} candidates"
    found = work.compute(CENTERS, partial(try_widths, task, n_centers), trials, unit="", words=words)
    return [(arrays["errors"].tolist(), int(arrays["n_held_out"])) for arrays in found]


def try_widths(task: BandwidthTask, n_centers: int, widths: tuple[float, ...], _: TaskCheckpoints) -> Arrays:
    """Return the held-out errors of some widths. Raises InvalidDataError where all rows are held out, or none."""
    rows = trial_rows(task.seed, task.shape.n_train, n_centers)
    targets, weights, held_out, keys = _targets(task, rows)
    if held_out.all() or not held_out.any():
        raise InvalidDataError(
            f"--sigma2 auto: {int(held_out.sum())} of the {len(rows)} rows it tries widths on are held out; set "
            "statistics.hold_out to 0.1, or give a number"
        )
    store = open_features(task.features)
    words = f"trying {len(widths)} widths on {len(rows)} rows and {n_centers} candidates"
    errors = held_out_errors(
        task.points(n_centers),
        widths,
        task.kernel,
        lambda part: store.take(rows[part]),
        targets,
        held_out,
        on_rows=lambda n: progress.advance(n / len(rows), words),
        weights=weights,
    )
    return {"errors": errors, "n_held_out": np.array(len(np.unique(keys[held_out])))}


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
        targets.append(task.facts.encoded(y, task.shape))
        of_all, groups = store.keys(start, stop)
        held_out.append(draw_held_out(task.seed, limit, groups[inside]))
        keys.append(of_all[inside])
        weights.append(task.facts.weights(y, None if of_rows is None else of_rows[inside]))
    known = [of_block for of_block in weights if of_block is not None]
    of_rows = np.concatenate(known) if known else None
    return np.concatenate(targets), of_rows, np.concatenate(held_out), np.concatenate(keys)
