"""Greedy selection of the centers: the choice of `solvers.forward_backward_selection`, checkpointed and committed."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.fit.statistics import ALL, FIT, HELD_OUT, name_of, statistics_of
from pipeline.fit.workspace import FinalWeights, Workspace
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime import progress, stopping
from pipeline.runtime.executors import available_processors
from pipeline.solvers import forward_backward_selection as greedy
from pipeline.solvers.ridge import CalibrationWeights, refit, ridge_summary
from pipeline.work.events import SOLVE
from pipeline.work.store import TaskCheckpoints
from storage.arrays import Arrays, Stored, as_dataclass

PARTS = (FIT, HELD_OUT, ALL)  # of the rows, whose statistics a choice reads
PREFIX_WEIGHTS = "solutions/prefixes.npz"
ROWS = {FIT: "the fit rows", ALL: "all rows"}  # in messages


def select_centers(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Choose the centers one by one; return their weights, and those for the held-out rows; commit the prefixes'."""
    found = _chosen(work)
    chosen, tried, sizes = found["chosen"], found["tried"], found["sizes"]
    fit, held_out, everything = (statistics_of(work, name_of(part)) for part in PARTS)
    everything = everything.cut(chosen)
    try:
        best = refit(fit.cut(tried), held_out.cut(tried), everything, intercept=work.intercept)
    except np.linalg.LinAlgError as error:
        raise InvalidDataError(f"select: {error}; ask for fewer centers") from None
    weights, intercepts = greedy.prefix_weights(everything, sizes, best.ridge, intercept=work.intercept)
    prefixes = {"sizes": sizes, "weights": np.concatenate(weights), "intercepts": intercepts + work.facts.mean}
    work.store.put(PREFIX_WEIGHTS, prefixes)
    summary: dict[str, Any] = {"penalty": None, "solves": [], "path": None, "rounds": None}
    curve = zip(sizes.tolist(), found["errors"].tolist(), strict=True)
    points = [{"size": size, "hold_out_error": error} for size, error in curve]
    selection = {"n_centers": len(chosen), "wall_seconds": float(found["seconds"]), "curve": points}
    summary |= {"selection": selection} | ridge_summary(best)
    of_fit = best.of_fit.weights.named(work.candidates[tried])
    return FinalWeights.of(chosen, best.weights, summary), CalibrationWeights(of_fit, fit=best.of_fit)


def _chosen(work: Workspace) -> Arrays:
    names, size = [name_of(part) for part in PARTS], work.config.solver.n_selected
    with work.events.status(SOLVE, "checking the statistics"):
        n_candidates = [statistics_of(work, name) for name in names][-1].n_centers
    items = {f"solutions/{ALL}-selection.npz": tuple(work.store.stored(name) for name in names)}
    # Choosing takes a time that grows with the square of the number, and is done twice.
    n_steps = 2 * greedy.forward_most(size, n_candidates) ** 2
    choosing = partial(choose, size, work.intercept)
    (found,) = work.runner.compute(SOLVE, choosing, items, unit="", size=lambda _: n_steps)
    return found


def choose(size: int, intercept: bool, stored: tuple[Stored, ...], checkpoints: TaskCheckpoints) -> Arrays:
    """Choose `size` centers, with the fit rows and with all rows, from statistics of fit, held-out and all rows.

    Returns columns `chosen` (k,) i8 with all rows, `tried` (k',) with the fit rows, both in the order of the model, and
    for `sizes` (g,) of prefixes of `tried` their mean squared held-out `errors`.
    """
    fit, held_out, everything = (as_dataclass(one.read(mapped=True), GramStatistics) for one in stored)
    started = time.perf_counter()

    def select_part(part: str, statistics: GramStatistics) -> NDArray[np.int64]:
        most = greedy.forward_most(size, statistics.n_centers)
        way = partial(greedy.select, statistics, size, intercept=intercept, n_threads=available_processors())
        return checkpointed(checkpoints, part, most, way).chosen

    tried = select_part(FIT, fit)
    if not len(tried):
        raise InvalidDataError("select: no candidate lowers the error; the targets may all be zero")
    progress.status("held-out errors of what was chosen")
    sizes = greedy.prefix_sizes(len(tried))
    errors = greedy.held_out_curve(fit.cut(tried), held_out.cut(tried), sizes, intercept=intercept)
    chosen, seconds = select_part(ALL, everything), np.array(time.perf_counter() - started)
    return {"chosen": chosen, "tried": tried, "sizes": sizes, "errors": errors, "seconds": seconds}


def checkpointed(
    checkpoints: TaskCheckpoints, part: str, most: int, choose: Callable[..., greedy.Selection]
) -> greedy.Selection:
    """Choose from the last checkpoint on; a checkpoint is made after each slab.

    choose : called with the columns chosen `first` and what follows `after` each on the way forward
    part, most : which rows, and how many centers the way forward takes
    """
    checkpoint, n_chosen, rows = checkpoints.load(), 0, ROWS[part]
    chosen_before = {} if checkpoint is None else dict(checkpoint.arrays)
    first = chosen_before.pop(part, None)

    def count(n: int, words: str | None = None) -> None:
        nonlocal n_chosen
        progress.advance(n**2 - n_chosen**2, words)
        n_chosen = n

    def after(chosen: list[int]) -> None:
        count(len(chosen), f"{len(chosen)} of {most} centers chosen on {rows}")
        checkpoints.report_selection(part, rows, len(chosen), most)
        if len(chosen) % greedy.SLAB_ROWS == 0:
            step = len(chosen) + sum(map(len, chosen_before.values()))
            checkpoints.save(step, {**chosen_before, part: np.array(chosen, np.int64)}, {})
        stopping.check()
        if len(chosen) == most:
            progress.status(f"{most} centers chosen on {rows}, dropping those that are missed least")

    if first is not None:
        progress.status(f"taking the first {len(first)} centers chosen on {rows} up again")
    selection = choose(first=first, after=after)
    count(most)  # of which there may be fewer that add anything
    return selection


def load_prefixes(stored: Stored) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return weights (size, T) and intercept (T,) of the prefixes of a selection, smallest first."""
    arrays = stored.read()
    weights = np.split(arrays["weights"], np.cumsum(arrays["sizes"])[:-1])
    return list(zip(weights, arrays["intercepts"], strict=True))
