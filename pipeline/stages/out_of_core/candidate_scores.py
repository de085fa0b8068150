"""Scores of all candidates round after round: evaluated where they might matter, bounded where they cannot."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import working_set as rules
from pipeline.solvers import Certificate, certify_support, gap_safe_screen
from pipeline.stages import group_solve, residual, scores
from pipeline.stages.grown_gram import WorkingSet
from pipeline.stages.run import Run
from storage.commit import read_arrays, write_arrays


@dataclass(frozen=True)
class Weights:
    """Weights on a working set: the columns that are active (a,), their weights (a, T), the intercept (T,)."""

    columns: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """What all rounds share: the candidates (by name), the penalty, who shares a kernel, the tiles."""

    candidates: NDArray[np.int64]
    penalty: float
    shared: bool
    tile_rows: int

    @property
    def tau(self) -> float:
        """√penalty."""
        return float(np.sqrt(self.penalty))


@dataclass(frozen=True)
class Scored:
    """Scores (M, T) of all candidates as last evaluated, with what bounds them until they are evaluated again.

    norm_bounds (M,) ≥ ‖c_m‖; residuals (n, T) of the last pass; moved (M, T): how far the residuals have moved since
    each candidate was evaluated, 0 where it is evaluated at these weights (the others are bounded by τ); screened
    (M,): zero in every solution, never evaluated again. evaluated, skipped (outside the working set, for their bound)
    count candidates of the last pass.
    """

    scores: NDArray[np.float64]
    norm_bounds: NDArray[np.float64]
    residuals: NDArray[np.float64]
    moved: NDArray[np.float64]
    screened: NDArray[np.bool_]
    evaluated: int
    skipped: int
    kernel_entries: int


def fresh(scored: Scored) -> NDArray[np.bool_]:
    """Return which candidates' scores are those of the present weights, (M,) bool."""
    return np.asarray(scored.moved.max(axis=1) == 0.0)


def score(run: Run, current: WorkingSet, weights: Weights, problem: Problem, previous: str | None) -> Scored:
    """Return the scores of all candidates at the weights: committed ones, or a pass over those that need one.

    `previous` names the round before, whose scores bound those of now.
    """
    path = run.layout.score_found(current.name)
    if path.exists():
        _clean(run, current)
        return _read(path)
    active = current.rows[weights.columns]
    residuals, entries = residual.run(run, current.name, active, weights.weights, weights.intercept)
    if previous is None:
        scored = _first_pass(run, current, problem, residuals)
    else:
        scored = _next_pass(run, current, problem, residuals, _read(run.layout.score_found(previous)))
    # Inside the working set the Gram gives the scores. Tiles of another shape round their float32 columns otherwise,
    # and the gap of weights that are exact for the Gram would end at that rounding instead of near zero.
    scored = _with_values(scored, places(problem.candidates, current.rows), _gram_scores(current, weights))
    scored = _screened(run, current, weights, scored, problem)
    scored = replace(scored, kernel_entries=scored.kernel_entries + entries)
    write_arrays(path, {name: np.asarray(value) for name, value in vars(scored).items()})
    _clean(run, current)
    return scored


def _clean(run: Run, current: WorkingSet) -> None:
    scores.clean(run, current.name)
    residual.clean(run, current.name)


def certify(run: Run, current: WorkingSet, weights: Weights, scored: Scored, problem: Problem) -> list[Certificate]:
    """Return the certificate of every solve over all candidates.

    A candidate that was not evaluated is bounded by τ, so that it does not scale the dual point.
    """
    at = places(problem.candidates, current.rows[weights.columns])
    found = current.statistics
    kty, yty = found.centred_targets() if run.config.solver.intercept else (found.kty, found.yty)
    certificates = []
    for group in group_solve.groups(run):
        outputs = list(group)
        sizes = np.linalg.norm(scored.scores[:, outputs], axis=1)
        fresh = ~(scored.moved[:, outputs] > 0).any(axis=1)
        certificates.append(
            certify_support(
                weights.weights[:, outputs],
                scored.scores[at][:, outputs],
                kty[weights.columns][:, outputs],
                float(yty[outputs].sum()),
                problem.tau,
                float(sizes[fresh].max(initial=0.0)),
            )
        )
    return certificates


def places(candidates: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where some of the candidates stand among all, (rows,) i8."""
    order = np.argsort(candidates)
    return order[np.searchsorted(candidates, rows, sorter=order)]


def _gram_scores(current: WorkingSet, weights: Weights, stripe: int = 512) -> NDArray[np.float64]:
    """Return c_mᵀr of the working set, (W, T), from its statistics; a stripe of the Gram at a time."""
    found = current.statistics
    scores = found.kty - np.outer(found.column_sums, weights.intercept)
    for start in range(0, len(scores), stripe):
        scores[start : start + stripe] -= found.gram[start : start + stripe][:, weights.columns] @ weights.weights
    return scores


def _first_pass(run: Run, current: WorkingSet, problem: Problem, residuals: NDArray[np.float64]) -> Scored:
    found = scores.run_pass(run, current.name, residuals, problem.candidates, problem.tile_rows, "solve")
    n = len(problem.candidates)
    return Scored(
        scores=found.scores,
        norm_bounds=np.sqrt(found.square_bounds),
        residuals=residuals,
        moved=np.zeros_like(found.scores),
        screened=np.zeros(n, bool),
        evaluated=n,
        skipped=0,
        kernel_entries=found.kernel_entries,
    )


def _next_pass(
    run: Run, current: WorkingSet, problem: Problem, residuals: NDArray[np.float64], before: Scored
) -> Scored:
    """Return the last scores, evaluated again where the bound on how far they have moved leaves them above τ."""
    moved = before.moved + np.linalg.norm(residuals - before.residuals, axis=0)
    inside, symmetric = places(problem.candidates, current.rows), scores.is_symmetric(run, problem.candidates)
    needed, skipped = _needed(replace(before, moved=moved), inside, problem, symmetric=symmetric)
    found = scores.run_pass(run, current.name, residuals, problem.candidates[needed], problem.tile_rows, "solve")
    scored = replace(before, residuals=residuals, moved=moved)
    scored = replace(scored, evaluated=len(needed), skipped=skipped, kernel_entries=found.kernel_entries)
    return _with_values(scored, needed, found.scores)


def _with_values(scored: Scored, which: NDArray[np.int64], values: NDArray[np.float64]) -> Scored:
    """Return the scores with some of them replaced by those of now."""
    all_scores, moved = scored.scores.copy(), scored.moved.copy()
    all_scores[which], moved[which] = values, 0.0
    return replace(scored, scores=all_scores, moved=moved)


def _needed(
    scored: Scored, inside: NDArray[np.int64], problem: Problem, *, symmetric: bool
) -> tuple[NDArray[np.int64], int]:
    """Return which candidates a certificate needs evaluated, and how many their bound alone leaves out.

    The working set needs none; neither does what a bound or the screening holds at zero. `symmetric`: a pass over all
    costs half.
    """
    n = len(problem.candidates)
    bounded = rules.cannot_be_active(
        scored.scores, scored.moved, scored.norm_bounds, problem.tau, shared=problem.shared
    )
    known = scored.screened.copy()
    known[inside] = True
    waiting = np.flatnonzero(~(bounded | known))
    if symmetric and len(waiting) > n // 2:  # leaving out a few candidates would cost more
        return np.arange(n), 0
    return waiting, int(np.count_nonzero(bounded & ~known))


def _screened(run: Run, current: WorkingSet, weights: Weights, scored: Scored, problem: Problem) -> Scored:
    """Return the scores with the candidates marked that the Gap Safe test excludes for every solve."""
    excluded = np.ones(len(scored.scores), bool)
    pairs = zip(group_solve.groups(run), certify(run, current, weights, scored, problem), strict=True)
    for group, certificate in pairs:
        values = np.abs(scored.scores[:, list(group)])
        fresh = ~(scored.moved[:, list(group)] > 0).any(axis=1)
        safe = gap_safe_screen(values, scored.norm_bounds, certificate.theta_scale, certificate.gap, problem.tau)
        excluded &= safe & fresh
    return replace(scored, screened=scored.screened | excluded)


def _read(path: Path) -> Scored:
    arrays = read_arrays(path)
    counts = {name: int(arrays.pop(name)) for name in ("evaluated", "skipped", "kernel_entries")}
    return Scored(**arrays, **counts)  # type: ignore[arg-type]
