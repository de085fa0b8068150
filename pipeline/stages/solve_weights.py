"""Stage 4: the weights of the model, from the statistics alone: penalty path, solves, refit; or a greedy selection.

Where a penalty path is asked for, it comes first: solved on the fit rows and scored on the held-out ones. Then the
solves run on all rows, and the centers they select may be refitted by least squares; without a penalty all candidates
are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.config.parsers import NO_PENALTY, is_searched, penalty_fraction
from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.delivered_weights import (
    Delivered,
    Parts,
    UnseenWeights,
    deliver,
    intercept_of,
    unseen_of,
    unseen_on_path,
)
from pipeline.solvers.ridge import Refit, refit
from pipeline.stages import final_weights, initial_weights
from pipeline.stages.accumulate_statistics import load_statistics
from pipeline.stages.candidate_names import read_candidates
from pipeline.stages.final_weights import FinalWeights
from pipeline.stages.greedy_selection import AT_ONCE, select_centers
from pipeline.stages.one_vs_all import groups_of, load_weights, solve_groups
from pipeline.stages.out_of_core.candidate_scores import positions_of
from pipeline.stages.out_of_core.columns_on_demand import count_columns, solve_on_demand
from pipeline.stages.out_of_core.greedy_rounds import SelectionRound, select_among_finalists
from pipeline.stages.out_of_core.held_out_statistics import accumulate_held_out
from pipeline.stages.out_of_core.penalty_path_in_rounds import begin_on_all_rows, follow_path_in_rounds
from pipeline.stages.out_of_core.score_pass import has_coarse_scores
from pipeline.stages.out_of_core.solved_points import PathRound
from pipeline.stages.out_of_core.working_set_rounds import Beginning, PassRecord, limit_working_set, solve_in_rounds
from pipeline.stages.penalty_path import PathPoint, follow_penalty_path, largest_penalty_of
from pipeline.stages.polish_centers import polish_centers
from pipeline.stages.run_state import SOLVE, Run
from pipeline.stages.target_facts import read_target_facts
from pipeline.stages.temperature import TriedWeights, find_temperature
from storage.files import make_folder
from storage.folders import remove_folder
from storage.records import write_marker

FINAL = final_weights.NAME


def solve_weights(run: Run) -> None:
    """Find the weights and commit them, with a summary of every solve.

    Raises InvalidDataError for statistics that no solver may start from, CorruptDataError for damaged ones.
    """
    with run.stage(SOLVE) as cost:
        if FINAL in run.done(run.layout.markers(SOLVE)):
            return
        cost.items = 0
        final, summary, tried = _selected(run) if run.config.solver.select != "none" else _solved(run)
        if run.config.solver.polish_centers and len(final.active):
            final, refitted, polished = polish_centers(run, final)
            summary |= {"polish": asdict(polished)}
            if refitted is not None:
                summary |= _ridge(refitted)
                points = final_weights.read_moved(run.layout)
                of_fit = refitted.of_fit
                tried = TriedWeights(tried.candidates, of_fit.weights, of_fit.intercept, points=points)
        summary["temperature"] = find_temperature(run, tried)
        final_weights.save(run.layout, final.moved_up(read_target_facts(run.layout).mean))
        write_marker(run.layout.markers(SOLVE), FINAL, summary)
        remove_folder(run.layout.passes, durable=False)  # the one over the held-out rows


def _selected(run: Run) -> tuple[FinalWeights, dict[str, Any], TriedWeights]:
    """Choose the centers one by one; return the weights, the summary, and those that the held-out rows try."""
    passes: list[SelectionRound] = []
    if run.preselection is not None:
        selected, passes = select_among_finalists(run)
    else:
        selected = select_centers(run)
    summary: dict[str, Any] = {"penalty": None, "solves": [], "path": None, "selection": selected.summary()}
    summary["passes"] = [asdict(record) for record in passes] or None
    of_fit = selected.refit.of_fit
    tried = TriedWeights(selected.tried, of_fit.weights, of_fit.intercept, fit=of_fit)
    return selected.weights, summary | _ridge(selected.refit), tried


def _solved(run: Run) -> tuple[FinalWeights, dict[str, Any], TriedWeights]:
    """Solve for the penalised weights and refit them where that is asked for; return what `_selected` does."""
    if run.config.solver.penalty == NO_PENALTY:
        return _unpenalised(run)
    solved = _solved_in_rounds(run) if run.in_rounds else _solved_at_once(run)
    delivered = _delivered(run, solved)
    active, weights = solved.active, solved.weights
    before = intercept_of(solved.statistics, weights, intercept=bool(run.config.solver.intercept))
    final = FinalWeights(active, delivered.weights, delivered.intercept, weights, before)
    summary: dict[str, Any] = {
        "penalty": solved.penalty,
        "solves": [_summary(solve) for solve in solved.summaries],
        "path": [asdict(point) for point in solved.path] or None,
        "passes": [asdict(record) for record in solved.passes] or None,
        "path_rounds": [asdict(record) for record in solved.path_rounds] or None,
        "selection": None,
        "columns": solved.columns,
    }
    unseen = unseen_of(active, delivered, solved.of_fit)
    names = read_candidates(run.layout, run.shape.n_train)[unseen.active]
    tried = TriedWeights(names, unseen.weights, unseen.intercept, unseen.seen, fit=unseen.fit)
    return final, summary | _ridge(delivered.refit), tried


def _unpenalised(run: Run) -> tuple[FinalWeights, dict[str, Any], TriedWeights]:
    """Fit all candidates by least squares, with the ridge that the held-out rows prefer."""
    with run.doing(SOLVE, "least squares on all candidates"), _with_advice():
        fit, held_out, everything = (load_statistics(run.layout, name) for name in AT_ONCE)
        best = refit(fit, held_out, everything, intercept=bool(run.config.solver.intercept))
    make_folder(run.layout.solutions)
    nothing = dict.fromkeys(("penalty", "path", "passes", "selection"))
    everyone = np.arange(everything.n_centers)
    final = FinalWeights(everyone, best.weights, best.intercept, best.weights, best.intercept)
    names, of_fit = read_candidates(run.layout, run.shape.n_train), best.of_fit
    tried = TriedWeights(names, of_fit.weights, of_fit.intercept, fit=of_fit)
    return final, {**nothing, "solves": []} | _ridge(best), tried


def _ridge(refitted: Refit | None) -> dict[str, Any]:
    if refitted is None:
        return {"ridge": None, "ridges": None}
    return {"ridge": refitted.ridge, "ridges": [list(pair) for pair in refitted.held_out_errors]}


@dataclass(frozen=True)
class Solved:
    """The penalised weights, before a refit: active candidates (a,), weights (a, T), statistics cut to them.

    of_fit: those of the fit rows at the same penalty, where a path has them. columns: how many were made and kept,
    where they are on demand.
    """

    penalty: float
    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    statistics: GramStatistics
    summaries: list[dict[str, Any]]
    path: list[PathPoint]
    passes: list[PassRecord]
    of_fit: UnseenWeights | None = None
    path_rounds: Sequence[PathRound] = ()
    columns: dict[str, int] | None = None


def _solved_at_once(run: Run) -> Solved:
    """Solve with the Gram of all candidates, at the end of a penalty path where one is asked for."""
    points, of_fit = list[PathPoint](), None
    penalty = run.config.solver.penalty
    assert penalty is not None  # the plan has filled it in
    if is_searched(penalty):
        chosen, points = follow_penalty_path(run, str(penalty))
        penalty, fit = chosen.penalty, load_statistics(run.layout, "fit")
        of_fit = unseen_on_path(chosen.weights, fit, intercept=bool(run.config.solver.intercept))
    elif isinstance(penalty, str):
        penalty = penalty_fraction(penalty) * largest_penalty_of(run, "all")
    start = initial_weights.load(run)
    if start is not None:
        initial_weights.commit_start(run, "all", read_candidates(run.layout, run.shape.n_train), start)
    summaries = solve_groups(run, "all", [penalty], warm_start=start is not None)
    weights = load_weights(run, "all", run.n_candidates)[-1]
    active = np.flatnonzero(weights.any(axis=1))
    everything = load_statistics(run.layout, "all").cut(active)
    return Solved(penalty, active, weights[active], everything, summaries, points, [], of_fit)


def _solved_in_rounds(run: Run) -> Solved:
    """Solve on a working set that grows until no candidate is missing, at the end of a path where one is asked for."""
    names = read_candidates(run.layout, run.shape.n_train)
    capacity, followed, setting = run.config.centers.working_set, None, run.config.solver.penalty
    if run.config.centers.on_demand:
        result = solve_on_demand(run, names, capacity or len(names))
    else:
        beginning = None
        if is_searched(setting):
            followed = follow_path_in_rounds(run, str(setting), names)
            beginning = Beginning(followed.penalty, partial(begin_on_all_rows, run, followed))
        coarse = beginning is None and has_coarse_scores(run, names)
        result = solve_in_rounds(run, names, limit_working_set(capacity, len(groups_of(run)), coarse=coarse), beginning)
    rows = result.working_set.candidates[result.weights.columns]
    active = positions_of(names, rows)
    ordered = np.argsort(active)
    cut = result.working_set.statistics.cut(result.weights.columns[ordered])
    weights = result.weights.weights[ordered]
    columns = count_columns(result.passes, len(names)) if run.config.centers.on_demand else None
    solved = Solved(result.penalty, active[ordered], weights, cut, result.summaries, [], result.passes, columns=columns)
    if followed is None:
        return solved
    return replace(solved, path=followed.points, of_fit=followed.unseen(names), path_rounds=followed.rounds)


def _delivered(run: Run, solved: Solved) -> Delivered:
    """Return what the penalised weights deliver, refitted where that is asked for."""
    solver = run.config.solver
    parts = _parts(run, solved) if solver.refit != "none" and len(solved.active) else None
    with _with_advice():
        return deliver(solved.weights, solved.statistics, parts, intercept=bool(solver.intercept))


def _parts(run: Run, solved: Solved) -> Parts:
    """Return the statistics of the active columns on the fit rows and on the held-out rows."""
    if run.in_rounds:
        names = read_candidates(run.layout, run.shape.n_train)
        held_out = accumulate_held_out(run, names[solved.active], FINAL)
        return solved.statistics - held_out, held_out
    fit, held_out = (load_statistics(run.layout, part).cut(solved.active) for part in ("fit", "hold_out"))
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
