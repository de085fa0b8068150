"""Columns on demand: a candidate's column is kept, and given a row of the Gram, when its weight would become non-zero.

Blocks of candidates are scored against the residual, their columns made on the fly and dropped again. Those with
|c_mᵀr| > τ enter, the solves go on over the columns that are kept, and the next block follows: first the candidates
that no block has had, in a random order, then those whose last score was largest. Where a block has no violator, a
larger one is scored at the same weights, until all candidates are. What enters is committed under the name of its
round, as that of a working set; a kill costs no more than the block under way.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_fraction
from pipeline.solvers import Certificate
from pipeline.solvers import working_set_rules as rules
from pipeline.stages import initial_weights
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.out_of_core.column_generation import (
    LEAST_ROOM,
    Change,
    OnePenalty,
    PassRecord,
    ScoredRound,
    active_weights,
)
from pipeline.stages.out_of_core.kept_columns import compute_residuals, nothing_kept, residual_pass
from pipeline.stages.out_of_core.pricing import (
    ActiveWeights,
    BoundedScores,
    CandidateProblem,
    certify_all_candidates,
    clean,
    commit_scores,
    committed_scores,
    evaluated_now,
    gram_scores,
    moved_to,
    residuals_at,
    scores_name,
    screened_scores,
    with_values,
)
from pipeline.stages.out_of_core.score_pass import score_candidates, score_pass
from pipeline.stages.out_of_core.working_set import ROUND, WorkingSet, grow, set_name
from pipeline.stages.run_state import Run
from pipeline.stages.target_facts import row_weights

START = "at-zero"  # the scores of the first block, at zero weights
BLOCKS = 10  # in which all candidates are scored for the first time
LEAST_BLOCK, MOST_BLOCK = 256, 2048  # candidates of a block
GROWTH = 4  # of a block, over the one before it at the same weights


class OnDemand(OnePenalty):
    """Pricing in blocks: those of a block that violate enter (mathematics.md, eq. 99).

    At most `capacity` columns are kept at once; where there are more, those at zero leave. The loop ends when the
    relative gap of every solve over all candidates is within the tolerance, or when nothing is left to admit.
    """

    def __init__(self, run: Run, candidates: NDArray[np.int64], capacity: int) -> None:
        super().__init__(run, candidates)
        self._capacity = capacity

    def first(self) -> WorkingSet:
        """Commit the first working set: the violators of a block at zero weights, or another model's centers."""
        run, candidates, nothing = self._run, self._candidates, np.empty(0, np.int64)
        start = initial_weights.load(run)
        if start is not None:
            largest = np.argsort(-np.linalg.norm(start.weights, axis=1), kind="stable")[: self._capacity]
            members = np.sort(start.candidates[largest])
            initial_weights.start_of(run, set_name(ROUND, 0), members)
            return grow(run, ROUND, None, nothing, members)
        scored = _scores_at_zero(run, candidates)
        self._problem = CandidateProblem(candidates, self._penalty_from(scored), self._shared)
        violations = rules.violations(scored.scores, self._problem.tau, shared=self._shared)
        entering = violations * (violations > 1.0)
        entering[_others(len(candidates), run.config.seed)] = 0.0  # scored for the largest penalty alone
        members = rules.nearest(entering, np.zeros(len(candidates), bool), self._capacity, self._capacity)
        if not len(members):  # the first block has no violator: the solves need some column
            members = np.argsort(-violations.max(axis=1), kind="stable")[:1]
        return grow(run, ROUND, None, nothing, candidates[members])

    def _penalty_from(self, scored: BoundedScores) -> float:
        """Return the penalty of the run; a fraction is one of the largest of all candidates, and committed."""
        asked = self._run.config.solver.penalty
        if not isinstance(asked, str):
            assert asked is not None  # the plan has filled it in
            return asked
        largest = float(rules.violations(scored.scores, 1.0, shared=self._shared).max(initial=0.0)) ** 2
        return self._commit_penalty(penalty_fraction(asked) * (largest or 1.0))

    def priced(self, current: WorkingSet, problem: CandidateProblem) -> ScoredRound:
        """Return the round with the scores of as many blocks as it takes to find a violator.

        Its certificates are over all candidates where these are known, else of the dual value 0.
        """
        run, weights = self._run, active_weights(self._run, current)
        scored = committed_scores(run, current.name)
        if scored is None:
            scored = _with_blocks(run, current, weights, problem)
            commit_scores(run, current.name, scored)
            clean(run, current)
            _drop_scores_before(run, current.number)
        certificates = certify_all_candidates(run, current, weights, scored, problem)
        done = ScoredRound(current, weights, scored, certificates)
        change = _change(done, problem, self._capacity, self._tolerance)
        if len(_waiting(scored, current, problem)[0]):
            done = replace(done, certificates=[unproved(one) for one in certificates])
        return replace(done, change=change, is_last=not len(change.admitted))


def unproved(certificate: Certificate) -> Certificate:
    """Return what is known before all candidates are scored: the gap to the dual value 0, of θ = 0.

    mathematics.md, eq. 101.
    """
    return replace(certificate, dual=0.0, gap=certificate.primal, relative_gap=1.0, theta_scale=0.0)


def _scores_at_zero(run: Run, candidates: NDArray[np.int64]) -> BoundedScores:
    """Return the scores of the first block at zero weights: committed ones, or a pass over it.

    For a penalty that is a fraction of the largest, all candidates are scored.
    """
    found, n, t = committed_scores(run, START), len(candidates), run.shape.n_outputs
    if found is not None:
        return found
    residuals = compute_residuals(run, START, nothing_kept(), np.zeros((0, t)), np.zeros(t))
    if run.config.solver.intercept:
        weights = row_weights(run, run.facts)
        roots = np.ones((len(residuals), 1)) if weights is None else np.sqrt(weights)[:, None]
        residuals = residuals - roots * ((roots * residuals).sum(axis=0) / (roots**2).sum())
    scored = BoundedScores(
        scores=np.zeros((n, t)),
        norm_bounds=np.full(n, np.inf),
        residuals=residuals,
        errors=np.full((n, t), np.inf),
        screened=np.zeros(n, bool),
        evaluated=0,
        skipped=0,
        kernel_entries=0,
    )
    size = n if isinstance(run.config.solver.penalty, str) else block_size(n)  # the largest penalty is one of all
    block = next_block(scored, np.arange(n), size, run.config.seed)
    scored = _with_block(run, START, scored, block, candidates)
    commit_scores(run, START, scored)
    run.drop(residual_pass(START))
    return scored


def _others(n_candidates: int, seed: int) -> NDArray[np.int64]:
    """Return the candidates that are not in the first block, of a random order."""
    return np.flatnonzero(_random_order(n_candidates, seed) >= block_size(n_candidates))


def _random_order(n_candidates: int, seed: int) -> NDArray[np.int64]:
    """Return the place (M,) i8 of each candidate among those that no block has had."""
    return np.random.default_rng([seed, 6]).permutation(n_candidates)


def count_columns(passes: Sequence[PassRecord], n_candidates: int) -> dict[str, int]:
    """Return how many candidates there are, how many columns were made on the fly and materialised, how many active."""
    return {
        "candidates": n_candidates,
        "on_the_fly": sum(record.evaluated for record in passes),
        "materialised": passes[0].working_set + sum(record.admitted for record in passes),
        "active": passes[-1].n_active,
    }


def block_size(n_candidates: int) -> int:
    """Return how many candidates a block has: a tenth of all, within bounds."""
    return min(max(-(-n_candidates // BLOCKS), LEAST_BLOCK), MOST_BLOCK)


def next_block(scored: BoundedScores, waiting: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return which of the candidates that wait are scored next, at most `size`, sorted.

    First those that no block has had, in a random order; then those of the largest last scores, which most likely
    violate (mathematics.md, eq. 100).
    """
    new = waiting[np.isinf(scored.errors[waiting, 0])]
    if len(new):
        order = _random_order(len(scored.scores), seed)
        return np.sort(new[np.argsort(order[new], kind="stable")][:size])
    largest = np.argsort(-np.abs(scored.scores[waiting]).max(axis=1), kind="stable")[:size]
    return np.sort(waiting[largest])


def _with_block(
    run: Run, name: str, scored: BoundedScores, block: NDArray[np.int64], candidates: NDArray[np.int64]
) -> BoundedScores:
    """Return the scores, those of a block evaluated at the residuals; its columns are made and dropped again."""
    result = score_candidates(run, name, scored.residuals, candidates[block])
    run.drop(score_pass(name))
    norms = scored.norm_bounds.copy()
    norms[block] = np.minimum(norms[block], np.sqrt(result.square_bounds))
    return replace(
        with_values(scored, block, result.scores),
        norm_bounds=norms,
        evaluated=scored.evaluated + len(block),
        kernel_entries=scored.kernel_entries + result.kernel_entries,
    )


def _with_blocks(run: Run, current: WorkingSet, weights: ActiveWeights, problem: CandidateProblem) -> BoundedScores:
    scored = _moved(run, current, weights, problem)
    size, tolerance = block_size(len(problem.candidates)), run.config.solver.tolerance
    while True:
        waiting, skipped = _waiting(scored, current, problem)
        scored = replace(scored, skipped=skipped)
        if not len(waiting):  # the certificates are over all candidates
            return screened_scores(run, current, weights, scored, problem)
        certificates = certify_all_candidates(run, current, weights, scored, problem)
        if _violations(ScoredRound(current, weights, scored, certificates), problem, tolerance).any():
            return scored
        block = next_block(scored, waiting, size, run.config.seed)
        scored, size = _with_block(run, current.name, scored, block, problem.candidates), size * GROWTH


def _moved(run: Run, current: WorkingSet, weights: ActiveWeights, problem: CandidateProblem) -> BoundedScores:
    """Return the scores of the round before, with how far the residuals have moved since; those kept are exact."""
    residuals = residuals_at(run, current, weights)
    inside = positions_of(problem.candidates, current.candidates)
    before = committed_scores(run, set_name(ROUND, current.number - 1) if current.number else START)
    if before is not None:
        scored = moved_to(residuals, before, before.norm_bounds)
        if not current.number:  # what was evaluated at zero weights counts for the first round
            scored = replace(scored, evaluated=before.evaluated, kernel_entries=before.kernel_entries)
    else:  # the run starts from the weights of another
        shape = (len(problem.candidates), residuals.shape[1])
        infinite, none = np.full(shape, np.inf), np.zeros(shape[0], bool)
        scored = BoundedScores(np.zeros(shape), infinite[:, 0].copy(), residuals, infinite, none, 0, 0, 0)
    scored = with_values(scored, inside, gram_scores(current, weights))
    norms = scored.norm_bounds.copy()
    norms[inside] = np.minimum(norms[inside], np.sqrt(np.diagonal(current.statistics.gram)))
    return replace(scored, norm_bounds=norms)


def _waiting(scored: BoundedScores, current: WorkingSet, problem: CandidateProblem) -> tuple[NDArray[np.int64], int]:
    """Return the candidates of whom it is not known that they stay at zero, and how many a bound leaves out.

    Known are those that are kept, screened, or scored at these weights, and those that a bound holds at zero
    (mathematics.md, eq. 48): their blocks are not visited.
    """
    bounded = rules.cannot_be_active(scored.scores, scored.errors, problem.tau, shared=problem.shared)
    known = scored.screened | evaluated_now(scored)
    known[positions_of(problem.candidates, current.candidates)] = True
    return np.flatnonzero(~(bounded | known)), int(np.count_nonzero(bounded & ~known))


def _violations(scored: ScoredRound, problem: CandidateProblem, tolerance: float) -> NDArray[np.float64]:
    """Return |c_mᵀr| / τ, (M, solves), of those that enter: scored now, not kept, above 1 for a solve not within it."""
    violations = rules.violations(scored.scored.scores, problem.tau, shared=problem.shared)
    violations = np.where((violations > 1.0) & (scored.gaps > tolerance), violations, 0.0)
    violations[~evaluated_now(scored.scored)] = 0.0
    violations[positions_of(problem.candidates, scored.working_set.candidates)] = 0.0
    return violations


def _change(scored: ScoredRound, problem: CandidateProblem, capacity: int, tolerance: float) -> Change:
    """Return which columns stay, all where there is room for them and for those that enter, and which enter."""
    violations, kept = _violations(scored, problem, tolerance), len(scored.working_set.candidates)
    entering = int(np.count_nonzero(violations.any(axis=1)))
    stay = np.arange(kept) if kept + entering <= capacity else scored.weights.columns
    room = capacity - len(stay)
    if kept + entering > capacity and room < capacity * LEAST_ROOM:
        room = 0
    nobody = np.zeros(len(problem.candidates), bool)
    return Change(stay, problem.candidates[rules.nearest(violations, nobody, max(room, 1), room)])


def _drop_scores_before(run: Run, number: int) -> None:
    """Drop the scores of earlier rounds but the last: residuals of all rows are in each."""
    for old in (START, *(set_name(ROUND, k) for k in range(number - 1))) if number else ():
        run.drop(scores_name(old))
