"""Greedy selection of the centers of a run.

A choice on the fit rows is tried on the held-out ones: it tells how many are enough (`greedy:auto`), which ridge the
weights want, and what error to expect. The centers of the model are then chosen on all rows. Both choices are one
item, checkpointed as the lists of what is chosen: the rest of their state follows from that.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline import stopping
from pipeline.errors import InvalidDataError
from pipeline.executors import available_processors
from pipeline.setting_types import selection_size
from pipeline.solvers.greedy import SLAB_ROWS, Selection, forward_size, select
from pipeline.solvers.prefixes import hold_out_curve, prefix_sizes, prefix_weights
from pipeline.solvers.refit import Refit, refit
from pipeline.stages import statistics
from pipeline.stages.final_weights import FinalWeights
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics
from storage import checkpoints
from storage.commit import check_folder, make_folder, read_arrays, write_arrays
from storage.layout import RunLayout
from storage.remedies import ANEW

STAGE = "solve"
AUTO_GROWTH = 1.25  # of the size, between two looks of `greedy:auto` whether the held-out error still falls
AUTO_GAIN = 1e-2  # of the held-out error: centers that lower it by less are not worth having
AUTO_MOST = 4000  # centers of greedy:auto


class Names(NamedTuple):
    """The names of statistics on the same candidates: of the fit rows, of the held-out rows, of all rows."""

    fit: str
    hold_out: str
    everything: str


AT_ONCE = Names("fit", "hold_out", "all")


@dataclass(frozen=True)
class SelectTask:
    """What a worker needs to choose: the statistics to choose on and to validate on, and how many."""

    layout: RunLayout
    names: Names
    size: int
    auto: bool
    intercept: bool
    checkpoints_kept: int


@dataclass(frozen=True)
class Chosen:
    """What was chosen, as committed.

    chosen (k,) i8: columns of the statistics, on all rows, in the order of the model; tried (k',) i8: the same on the
    fit rows alone; sizes (g,) i8 and hold_out_errors (g,) f8: mean squared held-out error of the prefixes of `tried`.
    """

    chosen: NDArray[np.int64]
    tried: NDArray[np.int64]
    reductions: NDArray[np.float64]
    sizes: NDArray[np.int64]
    hold_out_errors: NDArray[np.float64]
    refused: int
    drift: float
    seconds: float


@dataclass(frozen=True)
class Fitted:
    """The statistics of the chosen centers on all rows, and their least-squares weights."""

    statistics: GramStatistics
    refit: Refit


@dataclass(frozen=True)
class Selected:
    """What a selection comes to: weights, the refit they are from, and how the centers were chosen."""

    weights: FinalWeights
    refit: Refit
    chosen: Chosen

    def summary(self) -> dict[str, Any]:
        """Return what the report tells of the selection."""
        found = self.chosen
        curve = zip(found.sizes.tolist(), found.hold_out_errors.tolist(), strict=True)
        return {
            "n_centers": len(found.chosen),
            "refused": found.refused,
            "drift": found.drift,
            "wall_seconds": found.seconds,
            "curve": [{"size": size, "hold_out_error": error} for size, error in curve],
        }


def run(run: Run) -> Selected:
    """Choose the centers, fit their weights, and commit what the curve of errors against sizes needs."""
    chosen = choose(run, AT_ONCE)
    return finish(run, chosen, chosen.chosen, fitted(run, chosen, AT_ONCE))


def fitted(run: Run, chosen: Chosen, names: Names) -> Fitted:
    """Return the least-squares weights of what was chosen."""
    return prefix(run.layout, chosen, names, len(chosen.chosen), intercept=run.config.solver.intercept)


def prefix(layout: RunLayout, chosen: Chosen, names: Names, size: int, *, intercept: bool) -> Fitted:
    """Return the least-squares weights of the first centers, with the ridge that those tried at this size want.

    Raises InvalidDataError where no ridge makes the Gram definite.
    """
    fit, hold_out = (statistics.load(layout, name).cut(chosen.tried[:size]) for name in names[:2])
    everything = statistics.load(layout, names.everything).cut(chosen.chosen[:size])
    return Fitted(everything, weights_of(fit, hold_out, everything, intercept=intercept))


def finish(run: Run, chosen: Chosen, candidates: NDArray[np.int64], found: Fitted) -> Selected:
    """Return the result, after committing the weights of the prefixes for `evaluate`; `candidates` are the chosen."""
    _save_prefixes(run, chosen, found.statistics, found.refit.ridge)
    weights, intercept = found.refit.weights, found.refit.intercept
    return Selected(FinalWeights(candidates, weights, intercept, weights, intercept), found.refit, chosen)


def choose(run: Run, names: Names) -> Chosen:
    """Choose on the statistics of these names, or take what was chosen before.

    Raises CorruptDataError where the statistics or what was chosen are damaged.
    """
    for name in names:  # the items map them unchecked
        check_folder(run.layout.statistics_file(name), remedy=ANEW)
    asked = selection_size(run.config.solver.select)
    n_candidates = statistics.load(run.layout, names.everything).n_centers
    task = SelectTask(
        run.layout,
        names,
        min(AUTO_MOST, n_candidates) if asked is None else asked,
        asked is None,
        run.config.solver.intercept,
        run.config.resources.keep,
    )
    make_folder(run.layout.solutions)
    path = _path(run.layout, names)
    if not is_whole(path):
        run.run_items(STAGE, partial(select_centers, task), [path.name])
    return committed(run.layout, names)


def committed(layout: RunLayout, names: Names) -> Chosen:
    """Return what was chosen on the statistics of these names."""
    found: dict[str, Any] = dict(read_arrays(_path(layout, names), remedy=ANEW))
    return Chosen(**{name: value if value.ndim else value.item() for name, value in found.items()})


def _path(layout: RunLayout, names: Names) -> Path:
    return layout.solution(f"{names.everything}-selection.npz")


def select_centers(task: SelectTask, file: str) -> None:
    """Choose the centers and commit them as a solution of this name; may raise StoppedError, after a checkpoint."""
    fit, hold_out, everything = (statistics.load(task.layout, name) for name in task.names)
    started = time.perf_counter()
    look = _Look(fit, hold_out, intercept=task.intercept)
    tried = _select(task, task.names.fit, fit, task.size, look.is_enough if task.auto else _never).chosen
    if not len(tried):
        raise InvalidDataError("select: no candidate lowers the error; the targets may all be zero")
    sizes = prefix_sizes(len(tried))
    errors = hold_out_curve(fit.cut(tried), hold_out.cut(tried), sizes, intercept=task.intercept)
    if task.auto:
        best = np.flatnonzero(errors <= errors.min() * (1 + AUTO_GAIN))[0]
        sizes, errors = sizes[: best + 1], errors[: best + 1]
    found = _select(task, task.names.everything, everything, int(sizes[-1]), _never)
    arrays = {
        "chosen": found.chosen,
        "tried": tried[: sizes[-1]],
        "reductions": found.reductions,
        "sizes": sizes,
        "hold_out_errors": errors,
        "refused": np.array(found.refused),
        "drift": np.array(found.drift),
        "seconds": np.array(time.perf_counter() - started),
    }
    write_arrays(task.layout.solution(file), arrays)
    for name in (task.names.fit, task.names.everything):
        checkpoints.remove(_folder(task, name))


def _select(
    task: SelectTask, name: str, found: GramStatistics, size: int, enough: Callable[[list[int]], bool]
) -> Selection:
    """Choose on some statistics, from the last checkpoint on; one is made after each slab, since it is small."""
    folder = _folder(task, name)
    checkpoint = checkpoints.load(folder)

    def after(chosen: list[int]) -> bool:
        if len(chosen) % SLAB_ROWS == 0:
            arrays = {"chosen": np.array(chosen, np.int64)}
            checkpoints.save(folder, len(chosen), arrays, {}, keep=task.checkpoints_kept)
        stopping.check()
        return enough(chosen)

    first = None if checkpoint is None else checkpoint.arrays["chosen"]
    n_threads = available_processors()
    return select(found, size, intercept=task.intercept, first=first, enough=after, n_threads=n_threads)


def _folder(task: SelectTask, name: str) -> Path:
    return task.layout.checkpoints(f"{name}-selection")


def _never(chosen: list[int]) -> bool:
    return False


class _Look:
    """Looks at fixed sizes whether the held-out error of a choice still falls."""

    def __init__(self, fit: GramStatistics, hold_out: GramStatistics, *, intercept: bool) -> None:
        self._fit, self._hold_out, self._intercept = fit, hold_out, intercept
        size, self._sizes = forward_size(fit.n_centers), set[int]()
        while size < fit.n_centers:
            self._sizes.add(size)
            size = int(size * AUTO_GROWTH) + 1

    def is_enough(self, chosen: list[int]) -> bool:
        """Tell whether the last fifth of the centers chosen so far brought next to nothing."""
        if len(chosen) not in self._sizes:
            return False
        columns = np.array(chosen)
        sizes = prefix_sizes(len(columns))
        fit, hold_out = self._fit.cut(columns), self._hold_out.cut(columns)
        errors = hold_out_curve(fit, hold_out, sizes, intercept=self._intercept)
        before = sizes <= len(columns) / AUTO_GROWTH
        return bool(errors[~before].min() > (1 - AUTO_GAIN) * errors[before].min())


def weights_of(fit: GramStatistics, hold_out: GramStatistics, everything: GramStatistics, *, intercept: bool) -> Refit:
    """Return the least-squares weights on `everything`, with the ridge that the held-out rows prefer.

    `fit` and `hold_out` are of the centers tried, `everything` of those of the model.

    Raises InvalidDataError where no ridge makes their Gram definite.
    """
    try:
        return refit(fit, hold_out, everything, intercept=intercept)
    except np.linalg.LinAlgError as error:
        raise InvalidDataError(f"select: {error}; ask for fewer centers") from None


def _save_prefixes(run: Run, chosen: Chosen, everything: GramStatistics, ridge: float) -> None:
    """Commit the weights of the prefixes, at the ridge of the whole, for `evaluate`."""
    weights, intercepts = prefix_weights(everything, chosen.sizes, ridge, intercept=run.config.solver.intercept)
    arrays = {"sizes": chosen.sizes, "weights": np.concatenate(weights), "intercepts": intercepts}
    write_arrays(run.layout.solution("prefixes.npz"), arrays)


def prefixes(layout: RunLayout) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return weights (size, T) and intercept (T,) of the prefixes of a selection, smallest first."""
    arrays = read_arrays(layout.solution("prefixes.npz"), remedy=ANEW)
    weights = np.split(arrays["weights"], np.cumsum(arrays["sizes"])[:-1])
    return list(zip(weights, arrays["intercepts"], strict=True))
