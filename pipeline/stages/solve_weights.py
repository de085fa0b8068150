"""Stage 4: the weights of the model, from the statistics alone: penalty path, solves, refit; or a greedy selection.

A path is solved on the fit rows and scored on the held-out ones. Then the solves run on all rows, and the centers they
select may be refitted by least squares; without a penalty all candidates are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.config.parsers import NO_PENALTY, is_searched, penalty_fraction
from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.ridge import Parts, Refit, calibration_weights, finalise, refit
from pipeline.solvers.weights import CalibrationWeights, Weights, intercept_of
from pipeline.stages import final_weights, initial_weights
from pipeline.stages.accumulate_statistics import ALL, FIT, HELD_OUT, accumulate_held_out, name_of, statistics_of
from pipeline.stages.final_weights import FinalWeights, final_of
from pipeline.stages.greedy_finalists import SelectionRound, select_among_finalists
from pipeline.stages.greedy_selection import AT_ONCE, select_centers
from pipeline.stages.one_vs_all import load_weights, solve_groups
from pipeline.stages.out_of_core.correlation_pass import has_coarse
from pipeline.stages.out_of_core.path_in_rounds import follow_path_in_rounds
from pipeline.stages.out_of_core.pricing import AllCandidates, OnDemand
from pipeline.stages.out_of_core.working_set_loop import (
    OnePenalty,
    Record,
    WorkingSetLimits,
    count_columns,
    grow_until_certified,
    summaries_over_all,
)
from pipeline.stages.penalty_path import PathPoint, follow_penalty_path, largest_penalty_of
from pipeline.stages.polish_centers import polish_centers, ridge_summary
from pipeline.stages.run_state import Run
from pipeline.stages.temperature import find_temperature
from pipeline.stages.workspace import SOLVE, Workspace


def solve_weights(work: Workspace) -> FinalWeights:
    """Return the weights, committed with a summary of every solve. Raises InvalidDataError, CorruptDataError."""
    with work.stage(SOLVE) as cost:
        found = final_of(work)
        if found is not None:
            return found
        cost.items = 0
        final, tried = _selected(work) if work.config.solver.select != "none" else _solved(work)
        if work.config.solver.polish_centers and len(final.active):
            final, tried = polish_centers(work, final, tried)
        final = final.moved_up(work.facts.mean)
        final = replace(final, summary=final.summary | {"temperature": find_temperature(work, tried)})
        work.commit(final_weights.NAME, final.arrays())
        work.drop("passes")  # the one over the held-out rows
        return final


def _selected(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Choose the centers one by one; return the weights, and those that the held-out rows try."""
    passes: list[SelectionRound] = []
    if work.preselection is not None:
        selected, passes = select_among_finalists(work, work.preselection)
    else:
        selected = select_centers(work)
    summary: dict[str, Any] = {"penalty": None, "solves": [], "path": None, "selection": selected.summary()}
    summary |= {"passes": [asdict(record) for record in passes] or None} | ridge_summary(selected.refit)
    of_fit = selected.refit.of_fit
    tried = CalibrationWeights(of_fit.weights.named(selected.tried), fit=of_fit)
    return replace(selected.weights, summary=summary), tried


def _solved(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Solve for the penalised weights and refit them where that is asked for; return what `_selected` does."""
    if work.config.solver.penalty == NO_PENALTY:
        return _unpenalised(work)
    solved = _solved_in_rounds(work) if work.in_rounds else _solved_at_once(work)
    refitted, best = _finalised(work, solved)
    active, weights = solved.active, solved.weights
    before = intercept_of(solved.statistics, weights, intercept=work.intercept)
    summary: dict[str, Any] = {
        "penalty": solved.penalty,
        "solves": [_summary(solve) for solve in solved.summaries],
        "path": [asdict(point) for point in solved.path] or None,
        "passes": solved.passes or None,
        "path_rounds": solved.path_rounds or None,
        "selection": None,
        "columns": solved.columns,
    }
    summary |= ridge_summary(best)
    final = FinalWeights(active, refitted.weights, refitted.intercept, weights, before, summary=summary)
    tried = calibration_weights(refitted, best, solved.of_fit)
    return final, replace(tried, weights=tried.weights.named(work.candidates))


def _unpenalised(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Fit all candidates by least squares, with the ridge that the held-out rows prefer."""
    with work.status(SOLVE, "least squares on all candidates"), _with_advice():
        fit, held_out, everything = (statistics_of(work, name_of(part)) for part in AT_ONCE)
        best = refit(fit, held_out, everything, intercept=work.intercept)
    nothing = dict.fromkeys(("penalty", "path", "passes", "selection"))
    everyone = np.arange(everything.n_centers)
    summary: dict[str, Any] = {**nothing, "solves": []} | ridge_summary(best)
    weights, intercept = best.weights.weights, best.weights.intercept
    final = FinalWeights(everyone, weights, intercept, weights, intercept, summary=summary)
    return final, CalibrationWeights(best.of_fit.weights.named(work.candidates), fit=best.of_fit)


@dataclass(frozen=True)
class Solved:
    """The penalised weights, before a refit: active candidates (a,), weights (a, T), statistics cut to them.

    of_fit: weights of the fit rows at this penalty, from a path. columns: how many were made and kept on demand.
    """

    penalty: float
    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    statistics: GramStatistics
    summaries: list[dict[str, Any]]
    path: list[PathPoint]
    passes: list[Record]
    of_fit: Weights | None = None
    path_rounds: Sequence[Record] = ()
    columns: dict[str, int] | None = None


def _solved_at_once(work: Workspace) -> Solved:
    """Solve with the Gram of all candidates, at the end of a penalty path where one is asked for."""
    points, of_fit = list[PathPoint](), None
    penalty = work.config.solver.penalty
    assert penalty is not None  # the plan has filled it in
    if is_searched(penalty):
        chosen, points = follow_penalty_path(work, str(penalty))
        penalty, fit = chosen.penalty, statistics_of(work, name_of(FIT))
        of_fit = Weights.of_support(chosen.weights, fit, intercept=work.intercept)
    elif isinstance(penalty, str):
        penalty = penalty_fraction(penalty) * largest_penalty_of(work, ALL)
    start = initial_weights.start_of(work, ALL, work.candidates)
    summaries = solve_groups(work, ALL, [penalty], start=start)
    weights = load_weights(work, ALL, work.n_candidates)[-1]
    active = np.flatnonzero(weights.any(axis=1))
    everything = statistics_of(work, name_of(ALL)).cut(active)
    return Solved(penalty, active, weights[active], everything, summaries, points, [], of_fit)


def _solved_in_rounds(run: Workspace) -> Solved:
    """Solve on a working set that grows until no candidate is missing, at the end of a path where one is asked for."""
    assert isinstance(run, Run)
    names, setting, on_demand = run.candidates, run.config.solver.penalty, run.config.centers.on_demand
    path, searched = None, is_searched(setting)
    if on_demand:
        rule: OnePenalty = OnDemand(run, names, run.config.centers.working_set or len(names))
    else:
        limits = WorkingSetLimits.of(run, coarse=not searched and has_coarse(run, names))
        path = follow_path_in_rounds(run, str(setting), names, limits) if searched else None
        rule = AllCandidates(run, names, limits, path)
    last, passes = grow_until_certified(rule)
    solved = last.solved
    active = solved.inside[solved.weights.columns]
    ordered = np.argsort(active)
    cut = solved.working_set.statistics.cut(solved.weights.columns[ordered])
    return Solved(
        penalty=solved.penalties[0],
        active=active[ordered],
        weights=solved.weights.weights[ordered],
        statistics=cut,
        summaries=summaries_over_all(last, run.config.solver.tolerance),
        path=path.points if path else [],
        passes=passes,
        of_fit=path.of_fit(names) if path else None,
        path_rounds=path.rounds if path else (),
        columns=count_columns(passes, len(names)) if on_demand else None,
    )


def _finalised(work: Workspace, solved: Solved) -> tuple[Weights, Refit | None]:
    """Return the final weights, refitted where that is asked for."""
    parts = _parts(work, solved) if work.config.solver.refit != "none" and len(solved.active) else None
    with _with_advice():
        return finalise(solved.active, solved.weights, solved.statistics, parts, intercept=work.intercept)


def _parts(work: Workspace, solved: Solved) -> Parts:
    """Return the statistics of the active columns on the fit rows and on the held-out rows."""
    if work.in_rounds:
        held_out = accumulate_held_out(work, work.candidates[solved.active], "final")
        return solved.statistics - held_out, held_out
    fit, held_out = (statistics_of(work, name_of(part)).cut(solved.active) for part in (FIT, HELD_OUT))
    return fit, held_out


@contextmanager
def _with_advice() -> Iterator[None]:
    """Say what to do where no ridge makes the Gram of a refit definite."""
    try:
        yield
    except LinAlgError as error:
        raise InvalidDataError(f"refit: {error}; use a larger --penalty, or --refit none") from None


def _summary(solve: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a solve at its one penalty, flat."""
    return {"outputs": solve["outputs"], **solve["points"][-1], "wall_seconds": solve["wall_seconds"]}
