"""Greedy selection of the centers: the choice of `solvers.forward_backward_selection`, committed when it is made.

It takes little time beside its statistics: a choice that is stopped begins anew.
"""

import time
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
from pipeline.work.store import TaskCheckpoints
from storage.arrays import Arrays, Stored, as_dataclass

PARTS = (FIT, HELD_OUT, ALL)  # A choice reads the statistics of these rows.
PREFIX_WEIGHTS = "solutions/prefixes.npz"
ROWS = {FIT: "the fit rows", ALL: "all rows"}  # Messages name the rows so.


def select_centers(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Choose the centers; return their weights, and those for the held-out rows; commit those of the prefixes."""
    found = _chosen(work)
    chosen, tried = found["chosen"], found["tried"]
    sizes = greedy.prefix_sizes(len(tried))
    fit, held_out, everything = (statistics_of(work, name_of(part)) for part in PARTS)
    fit, held_out, everything = fit.cut(tried), held_out.cut(tried), everything.cut(chosen)
    try:
        best = refit(fit, held_out, everything, intercept=work.intercept)
    except np.linalg.LinAlgError as error:
        raise InvalidDataError(f"select: {error}; ask for fewer centers") from None
    weights, intercepts = greedy.prefix_weights(everything, sizes, best.ridge, intercept=work.intercept)
    prefixes = {"sizes": sizes, "weights": np.concatenate(weights), "intercepts": intercepts + work.facts.mean}
    work.store.put(PREFIX_WEIGHTS, prefixes)
    summary: dict[str, Any] = {"penalty": None, "solves": [], "path": None, "rounds": None}
    errors = greedy.held_out_curve(fit, held_out, sizes, best.ridge, intercept=work.intercept)
    curve = zip(sizes.tolist(), errors.tolist(), strict=True)
    points = [{"size": size, "hold_out_error": error} for size, error in curve]
    selection = {"n_centers": len(chosen), "wall_seconds": float(found["seconds"]), "curve": points}
    summary |= {"selection": selection} | ridge_summary(best)
    of_fit = best.of_fit.weights.named(work.candidates[tried])
    return FinalWeights.of(chosen, best.weights, summary), CalibrationWeights(of_fit, fit=best.of_fit)


def _chosen(work: Workspace) -> Arrays:
    names, size = [name_of(part) for part in (FIT, ALL)], work.config.solver.n_selected
    with work.events.status("checking the statistics"):
        n_candidates = [statistics_of(work, name) for name in names][-1].n_centers
    items = {f"solutions/{ALL}-selection.npz": tuple(work.store.stored(name) for name in names)}
    # Choosing takes a time that grows with the square of the number, and is done twice.
    n_steps = 2 * greedy.forward_most(size, n_candidates) ** 2
    choosing = partial(choose, size, work.intercept)
    (found,) = work.runner.compute(choosing, items, unit="", size=lambda _: n_steps)
    return found


def choose(size: int, intercept: bool, stored: tuple[Stored, ...], checkpoints: TaskCheckpoints) -> Arrays:
    """Choose `size` centers, with the fit rows and with all rows, from statistics of both.

    Returns columns `chosen` (k,) i8 with all rows and `tried` (k',) with the fit rows, both in the order of the model.
    """
    fit, everything = (as_dataclass(one.read(mapped=True), GramStatistics) for one in stored)
    started = time.perf_counter()

    def select_part(part: str, statistics: GramStatistics) -> NDArray[np.int64]:
        most, rows, n_before = greedy.forward_most(size, statistics.n_centers), ROWS[part], 0

        def after(chosen: list[int]) -> None:
            nonlocal n_before
            progress.advance(len(chosen) ** 2 - n_before**2, f"{len(chosen)} of {most} centers chosen on {rows}")
            n_before = len(chosen)
            checkpoints.report_selection(part, rows, n_before, most)
            stopping.check()
            if n_before == most:
                progress.status(f"{most} centers chosen on {rows}, dropping those that are missed least")

        n_threads = available_processors()
        found = greedy.select(statistics, size, intercept=intercept, after=after, n_threads=n_threads)
        progress.advance(most**2 - n_before**2)  # Fewer candidates than `most` may add anything.
        return found

    tried = select_part(FIT, fit)
    if not len(tried):
        raise InvalidDataError("select: no candidate lowers the error; the targets may all be zero")
    chosen, seconds = select_part(ALL, everything), np.array(time.perf_counter() - started)
    return {"chosen": chosen, "tried": tried, "seconds": seconds}


def load_prefixes(stored: Stored) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return weights (size, T) and intercept (T,) of the prefixes of a selection, smallest first."""
    arrays = stored.read()
    weights = np.split(arrays["weights"], np.cumsum(arrays["sizes"])[:-1])
    return list(zip(weights, arrays["intercepts"], strict=True))
