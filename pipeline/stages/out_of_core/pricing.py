"""Pricing of all candidates: correlations c_mᵀr, evaluated where they might matter, bounded where they cannot."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime.stored_arrays import as_arrays, as_dataclass
from pipeline.solvers import Certificate, certify_support, gap_safe_screen
from pipeline.solvers import working_set_rules as rules
from pipeline.solvers.regularization_path import penalty_max
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import groups_of
from pipeline.stages.out_of_core.coarse_features import coarse_deviations
from pipeline.stages.out_of_core.kept_columns import (
    KeptColumns,
    compute_residuals,
    nothing_kept,
    residual_pass,
)
from pipeline.stages.out_of_core.score_pass import (
    has_coarse_scores,
    is_symmetric,
    score_candidates,
    score_errors,
    score_pass,
)
from pipeline.stages.out_of_core.working_set import WorkingSet
from pipeline.stages.run_state import Run
from pipeline.stages.target_facts import held_out_rows


@dataclass(frozen=True)
class ActiveWeights:
    """Weights on a working set: the columns that are active (a,), their weights (a, T), the intercept (T,)."""

    columns: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]


@dataclass(frozen=True)
class CandidateProblem:
    """What all rounds share: the candidates (by name), the penalty, who shares a kernel."""

    candidates: NDArray[np.int64]
    penalty: float
    shared: bool

    @property
    def tau(self) -> float:
        """√penalty."""
        return float(np.sqrt(self.penalty))


@dataclass(frozen=True)
class BoundedScores:
    """Scores (M, T) of all candidates as far as they are known, with what bounds them until they are evaluated again.

    norm_bounds (M,) ≥ ‖c_m‖; residuals (n, T) of the last pass; errors (M, T): how far each score may be off, 0 where
    it is evaluated at these weights (the others are bounded by τ); screened (M,): zero in every solution, never
    evaluated again. evaluated, skipped (outside the working set, for their bound) count candidates of the last pass;
    of the kernel_entries, coarse_entries are those of coarse features.
    """

    scores: NDArray[np.float64]
    norm_bounds: NDArray[np.float64]
    residuals: NDArray[np.float64]
    errors: NDArray[np.float64]
    screened: NDArray[np.bool_]
    evaluated: int
    skipped: int
    kernel_entries: int
    coarse_entries: int = 0


@dataclass(frozen=True)
class CoarseScores:
    """Scores (M, T) of all candidates, exact in the working set and about right outside; they prove nothing.

    corrections (M, T): what the exact score of each candidate was above its coarse one when it was last in a working
    set, else 0. error: of the coarse ones in the working set, root mean square.
    """

    scores: NDArray[np.float64]
    corrections: NDArray[np.float64]
    error: float
    kernel_entries: int

    @property
    def as_if_exact(self) -> BoundedScores:
        """The scores as if they were exact, without anything that would bound later ones."""
        n, t = self.scores.shape
        return BoundedScores(
            scores=self.scores,
            norm_bounds=np.full(n, np.inf),
            residuals=np.empty((0, t)),
            errors=np.zeros((n, t)),
            screened=np.zeros(n, bool),
            evaluated=n,
            skipped=0,
            kernel_entries=self.kernel_entries,
            coarse_entries=self.kernel_entries,
        )


def evaluated_now(scored: BoundedScores) -> NDArray[np.bool_]:
    """Return which candidates' scores are those of the present weights, (M,) bool."""
    return np.asarray(scored.errors.max(axis=1) == 0.0)


def score_all_candidates(
    run: Run, current: WorkingSet, weights: ActiveWeights, problem: CandidateProblem, previous: str | None
) -> BoundedScores:
    """Return the scores of all candidates at the weights: committed ones, or a pass over those that need one.

    `previous` names the round before, whose scores bound those of now.
    """
    found = committed_scores(run, current.name)
    if found is not None:
        clean(run, current)
        return found
    residuals = residuals_at(run, current, weights)
    if previous is None:
        scored = _first_pass(run, current, problem, residuals)
    else:
        before = committed_scores(run, previous)
        assert before is not None
        scored = _next_pass(run, current, problem, residuals, before)
    # Inside the working set the Gram gives the scores. Tiles of another shape round their float32 columns otherwise,
    # and the gap of weights that are exact for the Gram would end at that rounding instead of near zero.
    scored = with_values(scored, positions_of(problem.candidates, current.candidates), gram_scores(current, weights))
    scored = screened_scores(run, current, weights, scored, problem)
    commit_scores(run, current.name, scored)
    clean(run, current)
    return scored


def scores_name(name: str) -> str:
    """Return the name under which the scores of a round are committed."""
    return f"scores/{name}-scores.npz"


def committed_scores(run: Run, name: str) -> BoundedScores | None:
    """Return the committed scores of a round; None where there are none. Raises CorruptDataError."""
    found = run.committed(scores_name(name))
    return None if found is None else as_dataclass(found, BoundedScores)


def commit_scores(run: Run, name: str, scored: BoundedScores) -> None:
    """Commit the scores of a round."""
    run.commit(scores_name(name), as_arrays(scored))


def coarse_scores(
    run: Run, current: WorkingSet, weights: ActiveWeights, problem: CandidateProblem, previous: str | None
) -> CoarseScores:
    """Return the coarse scores of all candidates at the weights (mathematics.md, eqs. 92 and 93), or committed ones.

    `previous` names the round before, whose corrections are taken over.
    """
    found = run.committed(coarse_name(current.name))
    if found is not None:
        return as_dataclass(found, CoarseScores)
    name, residuals = _coarse(current), residuals_at(run, current, weights)
    result = score_candidates(run, name, residuals, problem.candidates, coarse=True)
    corrections = np.zeros_like(result.scores)
    if previous is not None:
        corrections = np.array(run.stored(coarse_name(previous)).read()["corrections"])
    inside, exact = positions_of(problem.candidates, current.candidates), gram_scores(current, weights)
    corrections[inside] = exact - result.scores[inside]
    scores = result.scores + corrections
    scores[inside] = exact
    error = float(np.sqrt(np.mean(corrections[inside] ** 2)))
    scored = CoarseScores(scores, corrections, error, result.kernel_entries)
    run.commit(coarse_name(current.name), as_arrays(scored))
    run.drop(score_pass(name))
    return scored


def coarse_name(name: str) -> str:
    """Return the name under which the coarse scores of a round are committed."""
    return f"scores/{name}-coarse.npz"


def residuals_at(run: Run, current: WorkingSet, weights: ActiveWeights) -> NDArray[np.float64]:
    """Return the residuals (n, T) of all training rows at the weights; their pass is to be removed."""
    active = current.columns.cut(weights.columns)
    return compute_residuals(run, current.name, active, weights.weights, weights.intercept)


def _coarse(current: WorkingSet) -> str:
    """Return the name of a round's pass of coarse scores."""
    return f"{current.name}-coarse"


def clean(run: Run, current: WorkingSet) -> None:
    """Remove what the passes of a round have left."""
    for name in (score_pass(current.name), score_pass(_coarse(current)), residual_pass(current.name)):
        run.drop(name)


def certify_all_candidates(
    run: Run, current: WorkingSet, weights: ActiveWeights, scored: BoundedScores, problem: CandidateProblem
) -> list[Certificate]:
    """Return the certificate of every solve over all candidates (mathematics.md, eqs. 43 and 44).

    A candidate that was not evaluated is bounded by τ, so that it does not scale the dual point.
    """
    statistics, errors = current.statistics, np.zeros(run.shape.n_outputs)
    kty, yty = statistics.centred_targets() if run.intercept else (statistics.kty, statistics.yty)
    positions = positions_of(problem.candidates, current.candidates[weights.columns])
    if len(current.candidates) < len(problem.candidates):
        errors = score_errors(run, scored.residuals)
    certificates, rounding = [], statistics.rounding()
    for group in groups_of(run):
        outputs = list(group)
        largest = np.linalg.norm(scored.scores[:, outputs], axis=1)
        evaluated = ~(scored.errors[:, outputs] > 0).any(axis=1)
        certificates.append(
            certify_support(
                weights.weights[:, outputs],
                scored.scores[positions][:, outputs],
                kty[weights.columns][:, outputs],
                float(yty[outputs].sum()),
                problem.tau,
                float(largest[evaluated].max(initial=0.0)),
                rounding.beside(errors[outputs]),
            )
        )
    return certificates


def gram_scores(current: WorkingSet, weights: ActiveWeights, stripe: int = 512) -> NDArray[np.float64]:
    """Return c_mᵀr of the working set, (W, T), from its statistics; a stripe of the Gram at a time."""
    statistics = current.statistics
    scores = statistics.kty - np.outer(statistics.column_sums, weights.intercept)
    for start in range(0, len(scores), stripe):
        scores[start : start + stripe] -= statistics.gram[start : start + stripe][:, weights.columns] @ weights.weights
    return scores


def _first_pass(
    run: Run, current: WorkingSet, problem: CandidateProblem, residuals: NDArray[np.float64]
) -> BoundedScores:
    result = score_candidates(run, current.name, residuals, problem.candidates)
    n = len(problem.candidates)
    return BoundedScores(
        scores=result.scores,
        norm_bounds=np.sqrt(result.square_bounds),
        residuals=residuals,
        errors=np.zeros_like(result.scores),
        screened=np.zeros(n, bool),
        evaluated=n,
        skipped=0,
        kernel_entries=result.kernel_entries,
    )


def _next_pass(
    run: Run, current: WorkingSet, problem: CandidateProblem, residuals: NDArray[np.float64], before: BoundedScores
) -> BoundedScores:
    """Return the last scores, evaluated again where the bound on how far they have moved leaves them above τ.

    Where that would be all of them, coarse scores of what the residuals have moved by may say more.
    """
    inside = positions_of(problem.candidates, current.candidates)
    points = run.shape.n_train if is_symmetric(run, problem.candidates) else None
    scored = moved_to(residuals, before, before.norm_bounds)
    needed, skipped = _needed(scored, inside, problem, points)
    if len(needed) == len(problem.candidates) and has_coarse_scores(run, problem.candidates):
        closer = moved_to(residuals, before, coarse_deviations(run))
        if len(_needed(closer, inside, problem, points)[0]) < len(needed):
            change = residuals - before.residuals
            moved = score_candidates(run, _coarse(current), change, problem.candidates, coarse=True)
            scored = replace(closer, scores=before.scores + moved.scores, coarse_entries=moved.kernel_entries)
            needed, skipped = _needed(scored, inside, problem, points)
    result = score_candidates(run, current.name, residuals, problem.candidates[needed])
    entries = scored.coarse_entries + result.kernel_entries
    scored = replace(scored, evaluated=len(needed), skipped=skipped, kernel_entries=entries)
    return with_values(scored, needed, result.scores)


def moved_to(residuals: NDArray[np.float64], before: BoundedScores, rates: NDArray[np.float64]) -> BoundedScores:
    """Return scores with the errors that they have at other residuals (n, T): mathematics.md, eqs. 48 and 102.

    rates (M,): by how much the error of each grows where the residuals move by 1.
    """
    moved = np.linalg.norm(residuals - before.residuals, axis=0)
    with np.errstate(invalid="ignore"):  # 0 times infinity, of candidates that were never scored
        errors = np.where(np.isinf(before.errors), np.inf, before.errors + np.multiply.outer(rates, moved))
    return replace(before, residuals=residuals, errors=errors, evaluated=0, kernel_entries=0, coarse_entries=0)


def with_values(scored: BoundedScores, which: NDArray[np.int64], values: NDArray[np.float64]) -> BoundedScores:
    """Return the scores with some of them replaced by those of now."""
    scores, errors = scored.scores.copy(), scored.errors.copy()
    scores[which], errors[which] = values, 0.0
    return replace(scored, scores=scores, errors=errors)


def _needed(
    scored: BoundedScores, inside: NDArray[np.int64], problem: CandidateProblem, points: int | None
) -> tuple[NDArray[np.int64], int]:
    """Return which candidates a certificate needs evaluated, and how many their bound alone leaves out.

    The working set needs none; neither does what a bound (mathematics.md, eq. 48) or the screening holds at zero.
    points: of all candidates, where a pass over all costs half; it costs as much as their inner products with the rows.
    """
    n = len(problem.candidates)
    bounded = rules.cannot_be_active(scored.scores, scored.errors, problem.tau, shared=problem.shared)
    known = scored.screened.copy()
    known[inside] = True
    waiting = np.flatnonzero(~(bounded | known))
    left = 0 if points is None else len(np.unique(problem.candidates[waiting] % points))
    if points is not None and left > points // 2:  # leaving out a few points would cost more
        return np.arange(n), 0
    return waiting, int(np.count_nonzero(bounded & ~known))


def screened_scores(
    run: Run, current: WorkingSet, weights: ActiveWeights, scored: BoundedScores, problem: CandidateProblem
) -> BoundedScores:
    """Return the scores, those marked that the Gap Safe test (mathematics.md, eq. 47) excludes for every solve."""
    excluded = np.ones(len(scored.scores), bool)
    pairs = zip(groups_of(run), certify_all_candidates(run, current, weights, scored, problem), strict=True)
    for group, certificate in pairs:
        values = np.abs(scored.scores[:, list(group)])
        evaluated = ~(scored.errors[:, list(group)] > 0).any(axis=1)
        safe = gap_safe_screen(values, scored.norm_bounds, certificate, problem.tau)
        excluded &= safe & evaluated
    return replace(scored, screened=scored.screened | excluded)


@dataclass(frozen=True)
class ScoresAt:
    """Scores c_mᵀR of all candidates (M, k·T) at k solutions on the fit rows, and the kernel entries that it took."""

    scores: NDArray[np.float64]
    kernel_entries: int

    def at(self, number: int, n_outputs: int) -> NDArray[np.float64]:
        """Return those of one solution, (M, T)."""
        return self.scores[:, number * n_outputs : (number + 1) * n_outputs]


def largest_penalty(
    run: Run, name: str, candidates: NDArray[np.int64], statistics: GramStatistics, *, fit_only: bool
) -> float:
    """Return the penalty at which the weights of all candidates are zero; 1 where they are at any: one pass.

    statistics: of any columns on the rows that count; the pass is named after `name`. mathematics.md, eq. 51.
    """
    nothing = np.empty((0, run.shape.n_outputs))
    mean = intercept_of(run, statistics, np.zeros((statistics.n_centers, run.shape.n_outputs)))
    scored = scores_at(run, name, candidates, nothing_kept(), nothing, mean, fit_only=fit_only)
    return penalty_max(scored.scores, shared=run.config.solver.coupling == "shared") or 1.0


def intercept_of(run: Run, statistics: GramStatistics, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intercept (T,) that goes with weights (columns, T), zero where none is fitted."""
    return statistics.intercept(weights) if run.intercept else np.zeros(weights.shape[1])


def scores_at(
    run: Run,
    name: str,
    candidates: NDArray[np.int64],
    columns: KeptColumns,
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    *,
    fit_only: bool = True,
) -> ScoresAt:
    """Return the scores at weights (a, k·T) of some columns: those committed under a name, or those of a pass."""
    found = run.committed(scores_name(name))
    if found is None:
        residuals = np.array(compute_residuals(run, name, columns, weights, intercept))
        if fit_only:
            residuals[held_out_rows(run, run.facts)] = 0.0
        result = score_candidates(run, name, residuals, candidates)
        found = run.commit(scores_name(name), as_arrays(ScoresAt(result.scores, result.kernel_entries))).read()
    for left in (score_pass(name), residual_pass(name)):
        run.drop(left)
    return as_dataclass(found, ScoresAt)
