"""The weights of the model, from the statistics alone: penalty path, solves and refit, or least squares.

A path is solved on the fit rows and scored on the held-out ones. Then the solves run on all rows, and the centers they
select may be refitted by least squares; without a penalty all candidates are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.config.train_config import NO_PENALTY, penalty_fraction
from pipeline.errors import InvalidDataError
from pipeline.fit.grow_candidates import RIDGE_ERRORS
from pipeline.fit.rounds import count_columns, generate_columns, summaries_over_all
from pipeline.fit.solves import largest_penalty_of, load_weights, search_penalty, solve_outputs
from pipeline.fit.statistics import ALL, FIT, HELD_OUT, name_of, statistics_at, statistics_of
from pipeline.fit.workspace import FinalWeights, Workspace
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.ridge import (
    CalibrationWeights,
    SplitStatistics,
    Weights,
    intercept_of,
    refit,
    ridge_summary,
    with_ridge,
)


def solve_weights(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Return the penalised weights, refitted where that is asked for, and those for the held-out rows."""
    if work.config.solver.penalty == NO_PENALTY:
        return _unpenalised(work)
    solved = _solved_in_rounds(work) if work.in_rounds else _solved_at_once(work)
    active, weights, statistics = solved.active, solved.weights, solved.statistics
    parts = _parts(work, solved) if work.config.solver.refit != "none" and len(active) else None
    with _with_advice():
        best = None if parts is None else refit(*parts, statistics, intercept=work.intercept)
    before = intercept_of(statistics, weights, intercept=work.intercept)
    refitted = Weights(active, weights, before) if best is None else best.weights.named(active)
    summary = {"selection": None, **solved.summary} | ridge_summary(best)
    final = FinalWeights(active, refitted.weights, refitted.intercept, weights, before, summary=summary)
    if best is not None:
        tried = CalibrationWeights(best.of_fit.weights.named(active), fit=best.of_fit)
    elif solved.of_fit is not None:  # The weights are from a path.
        tried = CalibrationWeights(solved.of_fit)
    else:
        tried = CalibrationWeights(refitted, everything=statistics)
    return final, replace(tried, weights=tried.weights.named(work.candidates))


def _unpenalised(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    with work.events.status("least squares on all candidates"), _with_advice():
        fit, held_out, everything = (statistics_of(work, name_of(part)) for part in (FIT, HELD_OUT, ALL))
        errors = [(fraction, error) for fraction, error in work.choices.get(RIDGE_ERRORS, np.empty((0, 2))).tolist()]
        if not errors:
            best = refit(fit, held_out, everything, intercept=work.intercept)
        else:
            best = with_ridge(fit, everything, errors, intercept=work.intercept)
    is_constant = work.intercept and bool(work.choice.get("constant"))  # Else signs of tiny weights tell classes.
    summary: dict[str, Any] = {
        **dict.fromkeys(("penalty", "path", "rounds", "selection")),
        "solves": [],
    } | ridge_summary(None if is_constant else best)
    tried = CalibrationWeights(best.of_fit.weights.named(work.candidates), fit=best.of_fit)
    n_centers = 0 if is_constant else everything.n_centers
    final = replace(best.weights, weights=best.weights.weights[:n_centers])
    return FinalWeights.of(np.arange(n_centers), final, summary), tried


@dataclass(frozen=True)
class Solved:
    """The penalised weights, before a refit: active candidates (a,), weights (a, T), statistics cut to them."""

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    statistics: GramStatistics
    of_fit: Weights | None  # weights of the fit rows at this penalty, from a path
    summary: dict[str, Any]  # for the report


def _solved_at_once(work: Workspace) -> Solved:
    path, of_fit, penalty = list[dict[str, Any]](), None, work.config.solver.penalty
    assert penalty is not None  # the plan has filled it in
    if penalty == "auto":
        penalty, weights, path = search_penalty(work)
        of_fit = Weights.of_support(weights, statistics_of(work, name_of(FIT)), intercept=work.intercept)
    elif isinstance(penalty, str):
        penalty = penalty_fraction(penalty) * largest_penalty_of(work, ALL)
    solves = solve_outputs(work, ALL, float(penalty))
    weights = load_weights(work, ALL, work.n_candidates)
    active = np.flatnonzero(weights.any(axis=1))
    everything = statistics_of(work, name_of(ALL)).cut(active)
    summary = {"penalty": penalty, "solves": solves, "path": path or None, "rounds": None}
    return Solved(active, weights[active], everything, of_fit, summary)


def _solved_in_rounds(work: Workspace) -> Solved:
    last, rounds = generate_columns(work)
    active = last.inside[last.weights.columns]
    ordered = np.argsort(active)
    columns = count_columns(rounds, work.n_candidates)
    solves: dict[str, Any] = {"penalty": last.penalty, "solves": summaries_over_all(last), "path": None}
    statistics = last.working_set.statistics.cut(last.weights.columns[ordered])
    summary = solves | {"rounds": rounds, "columns": columns}
    return Solved(active[ordered], last.weights.weights[ordered], statistics, None, summary)


def _parts(work: Workspace, solved: Solved) -> SplitStatistics:
    if work.in_rounds:
        centers, words = work.candidates[solved.active], "held-out rows at the centers"
        held_out = statistics_at(work, "final-held-out", (HELD_OUT,), words, columns=centers)[HELD_OUT]
        return solved.statistics - held_out, held_out
    fit, held_out = (statistics_of(work, name_of(part)).cut(solved.active) for part in (FIT, HELD_OUT))
    return fit, held_out


@contextmanager
def _with_advice() -> Iterator[None]:
    try:
        yield
    except LinAlgError as error:
        raise InvalidDataError(f"refit: {error}; use a larger `solver.penalty`, or `solver.refit=none`") from None
