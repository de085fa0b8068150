"""Stage 4: the weights of the model, from the statistics alone: penalty path, solves, refit; or a greedy selection.

Where a penalty path is asked for, it comes first: solved on the fit rows and scored on the held-out ones. Then the
solves run on all rows, and the centers they select may be refitted by least squares.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.errors import InvalidDataError
from pipeline.solvers.refit import Refit, refit
from pipeline.stages import (
    all_scores,
    candidates,
    final_weights,
    group_solve,
    held_out,
    initial_weights,
    path,
    selection,
    selection_rounds,
    statistics,
    working_set,
)
from pipeline.stages.all_scores import Problem
from pipeline.stages.final_weights import FinalWeights
from pipeline.stages.run import Run
from pipeline.statistics import GramStatistics
from storage.commit import remove_folder
from storage.layout import RunLayout
from storage.markers import read_markers, write_marker

STAGE = group_solve.STAGE
FINAL = final_weights.NAME
TILE_ROWS = 4096  # of the tiles that score all candidates


def run(run: Run) -> None:
    """Find the weights and commit them, with a summary of every solve.

    Raises InvalidDataError for statistics that no solver may start from, CorruptDataError for damaged ones.
    """
    with run.stage(STAGE) as cost:
        if FINAL in run.done(run.layout.markers(STAGE)):
            return
        cost.items = 0
        final, found = _selected(run) if run.config.solver.select != "none" else _solved(run)
        final_weights.save(run.layout, final)
        write_marker(run.layout.markers(STAGE), FINAL, found)
        remove_folder(run.layout.statistics_parts, durable=False)  # of the held-out rows


def summary(layout: RunLayout) -> dict[str, Any]:
    """Return the committed summary: penalty, solves, path, ridge."""
    return dict(read_markers(layout.markers(STAGE))[FINAL])


def _selected(run: Run) -> tuple[FinalWeights, dict[str, Any]]:
    """Choose the centers one by one; return the weights and the summary."""
    passes: list[selection_rounds.SelectionRound] = []
    if statistics.in_rounds(run):
        found, passes = selection_rounds.run(run)
    else:
        found = selection.run(run)
    summary: dict[str, Any] = {"penalty": None, "solves": [], "path": None, "selection": found.summary()}
    return found.weights, summary | {"passes": [asdict(record) for record in passes] or None} | _ridge(found.refit)


def _solved(run: Run) -> tuple[FinalWeights, dict[str, Any]]:
    """Solve for the penalised weights and refit them where that is asked for; return the weights and the summary."""
    found = _solved_in_rounds(run) if statistics.in_rounds(run) else _solved_at_once(run)
    final, refitted = _final(run, found)
    summary: dict[str, Any] = {
        "penalty": found.penalty,
        "solves": [_summary(solve) for solve in found.summaries],
        "path": [asdict(point) for point in found.path] or None,
        "passes": [asdict(record) for record in found.passes] or None,
        "selection": None,
    }
    return final, summary | _ridge(refitted)


def _ridge(refitted: Refit | None) -> dict[str, Any]:
    if refitted is None:
        return {"ridge": None, "ridges": None}
    return {"ridge": refitted.ridge, "ridges": [list(pair) for pair in refitted.hold_out_errors]}


@dataclass(frozen=True)
class Solved:
    """What the solves found, before a refit: active candidates (a,), weights (a, T), statistics cut to them."""

    penalty: float
    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    statistics: GramStatistics
    summaries: list[dict[str, Any]]
    path: list[path.PathPoint]
    passes: list[working_set.PassRecord]


def _solved_at_once(run: Run) -> Solved:
    """Solve with the Gram of all candidates, at the end of a penalty path where one is asked for."""
    points: list[path.PathPoint] = []
    penalty = run.config.solver.penalty
    if isinstance(penalty, str):
        penalty, points = path.run(run, penalty)
    start = initial_weights.load(run)
    if start is not None:
        initial_weights.commit_start(run, "all", candidates.names(run.layout, run.shape.n_train), start)
    summaries = group_solve.solve_all(run, "all", [penalty], warm_start=start is not None)
    weights = group_solve.weights(run, "all", statistics.n_centers(run))[-1]
    active = np.flatnonzero(weights.any(axis=1))
    everything = statistics.load(run.layout, "all").cut(active)
    return Solved(penalty, active, weights[active], everything, summaries, points, [])


def _solved_in_rounds(run: Run) -> Solved:
    """Solve on a working set that grows until no candidate is missing."""
    penalty, names = run.config.solver.penalty, candidates.names(run.layout, run.shape.n_train)
    assert isinstance(penalty, float)  # the plan refuses a path here
    shared = run.config.solver.coupling == "shared"
    problem = Problem(names, penalty, shared, TILE_ROWS)
    sizes = working_set.sizes(run.config.centers.working_set, len(group_solve.groups(run)))
    result = working_set.run(run, problem, sizes)
    rows = result.working_set.rows[result.weights.columns]
    active = all_scores.places(names, rows)
    ordered = np.argsort(active)
    cut = result.working_set.statistics.cut(result.weights.columns[ordered])
    weights = result.weights.weights[ordered]
    return Solved(penalty, active[ordered], weights, cut, result.summaries, [], result.passes)


def _final(run: Run, found: Solved) -> tuple[FinalWeights, Refit | None]:
    solver, everything, weights = run.config.solver, found.statistics, found.weights
    intercept = everything.intercept(weights) if solver.intercept else np.zeros(run.shape.n_outputs)
    if solver.refit == "none" or not len(found.active):
        return FinalWeights(found.active, weights, intercept, weights, intercept), None
    if statistics.in_rounds(run):
        names = candidates.names(run.layout, run.shape.n_train)
        hold_out = held_out.accumulate(run, names[found.active], FINAL)
        fit = everything - hold_out
    else:
        fit, hold_out = (statistics.load(run.layout, part).cut(found.active) for part in ("fit", "hold_out"))
    try:
        again = refit(fit, hold_out, everything, intercept=solver.intercept)
    except LinAlgError as error:
        raise InvalidDataError(f"refit: {error}; use a larger --penalty, or --refit none") from None
    return FinalWeights(found.active, again.weights, again.intercept, weights, intercept), again


def _summary(solve: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a solve at its one penalty, flat."""
    return {"outputs": solve["outputs"], **solve["points"][-1], "wall_seconds": solve["wall_seconds"]}
