"""Greedy selection of the centers: the choice of `solvers.greedy_choice`, checkpointed and committed.

The choices on the fit rows and on all rows are one item; a checkpoint is the list of chosen columns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import selection_size
from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime import progress, stopping
from pipeline.runtime.executors import available_processors
from pipeline.runtime.stored_arrays import Arrays, Stored, as_arrays, as_dataclass
from pipeline.solvers.forward_backward_selection import drop, select
from pipeline.solvers.forward_selection import SLAB_ROWS, Selection
from pipeline.solvers.greedy_choice import (
    ROWS,
    Enough,
    GreedyChoice,
    Part,
    choose_greedily,
    forward_most,
    prefix_weights,
)
from pipeline.solvers.ridge import Refit, refit
from pipeline.stages.accumulate_statistics import load_columns, name_of, statistics_from_arrays, statistics_of
from pipeline.stages.final_weights import FinalWeights
from pipeline.stages.workspace import SOLVE, Unfinished, Workspace
from storage.arrays import read_arrays
from storage.errors import ANEW
from storage.folder_layouts import RunLayout


class StatisticsNames(NamedTuple):
    """The names of statistics on the same candidates: of the fit rows, of the held-out rows, of all rows."""

    fit: str
    held_out: str
    everything: str


AT_ONCE = StatisticsNames("fit", "hold_out", "all")
FINALISTS = StatisticsNames("finalists-fit", "finalists-hold-out", "finalists")


@dataclass(frozen=True)
class SelectTask:
    """What a worker needs to choose: statistics of fit rows, held-out rows and all, and how many (None: by error).

    n_back : how many of them are dropped again, where the columns are finalists, in the order chosen
    """

    statistics: tuple[Stored, ...]
    size: int | None
    intercept: bool
    n_back: int | None = None


@dataclass(frozen=True)
class Chosen(GreedyChoice):
    """What was chosen, as committed, and how long it took."""

    seconds: float


@dataclass(frozen=True)
class Fitted:
    """The statistics of the chosen centers on all rows, and their least-squares weights."""

    statistics: GramStatistics
    refit: Refit


@dataclass(frozen=True)
class Selected:
    """The result of a selection: weights, the refit they are from, and how the centers were chosen.

    tried (k',) i8: the candidates, by name, chosen on the fit rows, whose weights are `refit.of_fit`.
    """

    weights: FinalWeights
    refit: Refit
    chosen: Chosen
    tried: NDArray[np.int64]

    def summary(self) -> dict[str, Any]:
        """Return what the report tells of the selection."""
        chosen = self.chosen
        curve = zip(chosen.sizes.tolist(), chosen.hold_out_errors.tolist(), strict=True)
        return {
            "n_centers": len(chosen.chosen),
            "refused": chosen.refused,
            "drift": chosen.drift,
            "wall_seconds": chosen.seconds,
            "curve": [{"size": size, "hold_out_error": error} for size, error in curve],
        }


def select_centers(work: Workspace) -> Selected:
    """Choose the centers, fit their weights, and commit what the curve of errors against sizes needs."""
    chosen = choose_centers(work, AT_ONCE)
    return finish_selection(work, chosen, chosen.chosen, work.candidates, fit_chosen(work, chosen, AT_ONCE))


def fit_chosen(work: Workspace, chosen: Chosen, names: StatisticsNames) -> Fitted:
    """Return the least-squares weights of what was chosen."""
    parts = [statistics_of(work, name_of(name)) for name in names]
    return _fitted(parts[0].cut(chosen.tried), parts[1].cut(chosen.tried), parts[2].cut(chosen.chosen), work.intercept)


def fit_prefix(layout: RunLayout, chosen: Chosen, names: StatisticsNames, size: int, *, intercept: bool) -> Fitted:
    """Return least-squares weights of the first centers, at the best ridge. Raises InvalidDataError."""
    fit, held_out = (load_columns(layout, name, chosen.tried[:size]) for name in names[:2])
    return _fitted(fit, held_out, load_columns(layout, names.everything, chosen.chosen[:size]), intercept)


def _fitted(fit: GramStatistics, held_out: GramStatistics, everything: GramStatistics, intercept: bool) -> Fitted:
    return Fitted(everything, refit_chosen(fit, held_out, everything, intercept=intercept))


def finish_selection(
    work: Workspace, chosen: Chosen, candidates: NDArray[np.int64], names: NDArray[np.int64], fitted: Fitted
) -> Selected:
    """Commit the weights of the prefixes for `evaluate`, and return the result.

    candidates: the chosen, among all; names: of the columns of the statistics.
    """
    _save_prefixes(work, chosen, fitted.statistics, fitted.refit.ridge)
    weights, intercept = fitted.refit.weights.weights, fitted.refit.weights.intercept
    final = FinalWeights(candidates, weights, intercept, weights, intercept)
    return Selected(final, fitted.refit, chosen, names[chosen.tried[: len(fitted.refit.of_fit.weights.columns)]])


def choose_centers(work: Workspace, names: StatisticsNames, n_back: int | None = None) -> Chosen:
    """Choose on the statistics of these names, or take what was chosen before; drop `n_back` of the finalists again.

    Raises CorruptDataError where the statistics or what was chosen are damaged.
    """
    with work.status(SOLVE, "checking the statistics"):
        n_candidates = [statistics_of(work, name_of(name)) for name in names][-1].n_centers
    task = SelectTask(
        statistics=tuple(work.stored(name_of(name)) for name in names),
        size=selection_size(work.config.solver.select),
        intercept=work.intercept,
        n_back=n_back,
    )
    # Choosing takes a time that grows with the square of the number, and is done twice.
    n_steps = 2 * forward_most(task.size, n_candidates) ** 2
    (found,) = work.compute(SOLVE, choose, {_name(names): task}, unit="", size=lambda task: n_steps)
    return as_dataclass(found, Chosen)


def load_chosen(layout: RunLayout, names: StatisticsNames) -> Chosen:
    """Return what was chosen on the statistics of these names."""
    return as_dataclass(read_arrays(layout.root / _name(names), remedy=ANEW), Chosen)


def _name(names: StatisticsNames) -> str:
    return f"solutions/{names.everything}-selection.npz"


def choose(task: SelectTask, unfinished: Unfinished) -> Arrays:
    """Choose the centers; may raise StoppedError, after a checkpoint."""
    fit, held_out, everything = (statistics_from_arrays(stored.read(mapped=True)) for stored in task.statistics)
    started = time.perf_counter()
    select = partial(_select, task, unfinished)
    choice = choose_greedily(fit, held_out, everything, task.size, select, intercept=task.intercept)
    if not len(choice.tried):
        raise InvalidDataError("select: no candidate lowers the error; the targets may all be zero")
    return as_arrays(Chosen(**vars(choice), seconds=time.perf_counter() - started))


def _select(
    task: SelectTask, unfinished: Unfinished, part: Part, statistics: GramStatistics, size: int, enough: Enough
) -> Selection:
    """Choose on the statistics of a part: from the last checkpoint on, or by dropping finalists."""
    most = forward_most(task.size, statistics.n_centers)
    if task.n_back is not None:
        progress.doing(f"dropping the finalists that are missed least on {ROWS[part]}")
        selection = drop(statistics, size, task.n_back, intercept=task.intercept)
        progress.advance(most**2)
    else:
        n_threads = available_processors()
        way = partial(select, statistics, size, intercept=task.intercept, n_threads=n_threads)
        selection = checkpointed(unfinished, part, ROWS[part], most, way, enough)
    if part == "fit":
        progress.doing("held-out errors of what was chosen")
    return selection


def checkpointed(
    unfinished: Unfinished,
    part: str,
    rows: str,
    most: int,
    choose: Callable[..., Selection],
    enough: Enough | None = None,
) -> Selection:
    """Choose from the last checkpoint on; a checkpoint is made after each slab.

    choose : a way forward, called with the columns chosen `first` and an optional `enough` that ends it, after which a
    way back follows
    part, rows, most : for messages: the choice, its rows, the number of centers
    """
    checkpoint, n_chosen = unfinished.load(), 0
    chosen_before = {} if checkpoint is None else dict(checkpoint.arrays)
    first = chosen_before.pop(part, None)

    def count(n: int, words: str | None = None) -> None:
        nonlocal n_chosen
        progress.advance(n**2 - n_chosen**2, words)
        n_chosen = n

    def after(chosen: list[int]) -> bool:
        count(len(chosen), f"{len(chosen)} of {most} centers chosen on {rows}")
        unfinished.chosen(part, rows, len(chosen), most)
        if len(chosen) % SLAB_ROWS == 0:
            step = len(chosen) + sum(map(len, chosen_before.values()))
            unfinished.save(step, {**chosen_before, part: np.array(chosen, np.int64)}, {})
        stopping.check()
        ended = enough is not None and enough(chosen)
        if enough is not None and (ended or len(chosen) == most):
            progress.doing(f"{len(chosen)} centers chosen on {rows}, dropping those that are missed least")
        return ended

    if first is not None:
        progress.doing(f"taking the first {len(first)} centers chosen on {rows} up again")
    selection = choose(first=first, enough=after)
    count(most)  # of which there may have been enough earlier
    return selection


def refit_chosen(
    fit: GramStatistics, held_out: GramStatistics, everything: GramStatistics, *, intercept: bool
) -> Refit:
    """Return least-squares weights on `everything`, with the ridge that the held-out rows prefer.

    `fit` and `held_out` are of the centers tried, `everything` of those of the model. Raises InvalidDataError where no
    ridge makes the Gram definite.
    """
    try:
        return refit(fit, held_out, everything, intercept=intercept)
    except np.linalg.LinAlgError as error:
        raise InvalidDataError(f"select: {error}; ask for fewer centers") from None


def _save_prefixes(work: Workspace, chosen: Chosen, everything: GramStatistics, ridge: float) -> None:
    """Commit the weights of the prefixes, at the ridge of the whole, for `evaluate`."""
    weights, intercepts = prefix_weights(everything, chosen.sizes, ridge, intercept=work.intercept)
    arrays = {"sizes": chosen.sizes, "weights": np.concatenate(weights), "intercepts": intercepts + work.facts.mean}
    work.commit("solutions/prefixes.npz", arrays)


def load_prefixes(layout: RunLayout) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return weights (size, T) and intercept (T,) of the prefixes of a selection, smallest first."""
    arrays = read_arrays(layout.solution("prefixes.npz"), remedy=ANEW)
    weights = np.split(arrays["weights"], np.cumsum(arrays["sizes"])[:-1])
    return list(zip(weights, arrays["intercepts"], strict=True))
