"""Greedy selection of the centers of a run: chosen on all rows, its ridge tried on the held-out ones.

`greedy:auto` chooses on the fit rows alone, since the held-out ones tell it how many are enough.

The choice is one item, checkpointed as the list of what is chosen: the rest of its state follows from that.
"""

import time
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
from pipeline.solvers.greedy import SLAB_ROWS, forward_size, hold_out_curve, prefix_sizes, prefix_weights, select
from pipeline.solvers.refit import Refit, refit
from pipeline.stages import statistics
from pipeline.stages.final_weights import FinalWeights
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics
from storage import checkpoints
from storage.commit import make_folder, read_arrays, write_arrays
from storage.layout import RunLayout

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

    chosen (k,) i8: columns of the statistics, in order; reductions (k,) f8: of the squared error of the fit rows;
    sizes (g,) i8 and hold_out_errors (g,) f8: mean squared error of the prefixes.
    """

    chosen: NDArray[np.int64]
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
    parts = [statistics.load(run.layout, name).cut(chosen.chosen) for name in names]
    return Fitted(parts[2], weights_of(*parts, intercept=run.config.solver.intercept))


def finish(run: Run, chosen: Chosen, candidates: NDArray[np.int64], found: Fitted) -> Selected:
    """Return the result, after committing the weights of the prefixes for `evaluate`; `candidates` are the chosen."""
    _save_prefixes(run, chosen, found.statistics, found.refit.ridge)
    weights, intercept = found.refit.weights, found.refit.intercept
    return Selected(FinalWeights(candidates, weights, intercept, weights, intercept), found.refit, chosen)


def choose(run: Run, names: Names) -> Chosen:
    """Choose on the statistics of these names, or take what was chosen before."""
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
    found: dict[str, Any] = dict(read_arrays(_path(layout, names)))
    return Chosen(**{name: value if value.ndim else value.item() for name, value in found.items()})


def _path(layout: RunLayout, names: Names) -> Path:
    return layout.solution(f"{names.everything}-selection.npz")


def select_centers(task: SelectTask, file: str) -> None:
    """Choose the centers and commit them as a solution of this name; may raise StoppedError, after a checkpoint."""
    fit, hold_out, everything = (statistics.load(task.layout, name) for name in task.names)
    progress = _Progress(task, fit, hold_out)
    started = time.perf_counter()
    found = select(
        fit if task.auto else everything,
        task.size,
        intercept=task.intercept,
        first=progress.chosen,
        enough=progress.after,
        n_threads=available_processors(),
    )
    chosen = found.chosen
    if not len(chosen):
        raise InvalidDataError("select: no candidate lowers the error; the targets may all be zero")
    sizes = prefix_sizes(len(chosen))
    errors = hold_out_curve(fit.cut(chosen), hold_out.cut(chosen), sizes, intercept=task.intercept)
    if task.auto:
        best = np.flatnonzero(errors <= errors.min() * (1 + AUTO_GAIN))[0]
        sizes, errors = sizes[: best + 1], errors[: best + 1]
    arrays = {
        "chosen": chosen[: sizes[-1]],
        "reductions": found.reductions[: sizes[-1]],
        "sizes": sizes,
        "hold_out_errors": errors,
        "refused": np.array(found.refused),
        "drift": np.array(found.drift),
        "seconds": np.array(time.perf_counter() - started),
    }
    write_arrays(task.layout.solution(file), arrays)
    checkpoints.remove(progress.folder)


class _Progress:
    """Checkpoints of a selection under way, and when `auto` has enough."""

    def __init__(self, task: SelectTask, fit: GramStatistics, hold_out: GramStatistics) -> None:
        self._task, self._fit, self._hold_out = task, fit, hold_out
        self.folder = task.layout.checkpoints(f"{task.names.everything}-selection")
        found = checkpoints.load(self.folder)
        self.chosen = None if found is None else found.arrays["chosen"]
        self._next_look = forward_size(fit.n_centers)

    def after(self, chosen: list[int]) -> bool:
        """Save what is chosen, after each slab: it is small; tell whether `auto` has enough."""
        if len(chosen) % SLAB_ROWS == 0:
            arrays = {"chosen": np.array(chosen, np.int64)}
            checkpoints.save(self.folder, len(chosen), arrays, {}, keep=self._task.checkpoints_kept)
        stopping.check()
        return self._task.auto and self._is_enough(chosen)

    def _is_enough(self, chosen: list[int]) -> bool:
        """Tell whether the last fifth of the centers chosen so far brought next to nothing."""
        if len(chosen) < self._next_look:
            return False
        before = int(self._next_look / AUTO_GROWTH)
        self._next_look = int(self._next_look * AUTO_GROWTH)
        columns = np.array(chosen)
        sizes = prefix_sizes(len(columns))
        fit, hold_out = self._fit.cut(columns), self._hold_out.cut(columns)
        errors = hold_out_curve(fit, hold_out, sizes, intercept=self._task.intercept)
        return bool(errors[sizes > before].min() > (1 - AUTO_GAIN) * errors[sizes <= before].min())


def weights_of(fit: GramStatistics, hold_out: GramStatistics, everything: GramStatistics, *, intercept: bool) -> Refit:
    """Return the least-squares weights of chosen centers, with the ridge that the held-out rows prefer.

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
    arrays = read_arrays(layout.solution("prefixes.npz"))
    weights = np.split(arrays["weights"], np.cumsum(arrays["sizes"])[:-1])
    return list(zip(weights, arrays["intercepts"], strict=True))
