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
from pipeline.stages.one_vs_all import solve_groups, start_name
from pipeline.stages.out_of_core import grown_gram
from pipeline.stages.out_of_core import working_set_rounds as rounds
from pipeline.stages.out_of_core.candidate_scores import (
    ActiveWeights,
    BoundedScores,
    CandidateProblem,
    certify_all_candidates,
    clean,
    evaluated_now,
    gram_scores,
    moved_to,
    residuals_at,
    screened_scores,
    with_values,
)
from pipeline.stages.out_of_core.grown_gram import WorkingSet
from pipeline.stages.out_of_core.kept_columns import nothing_kept
from pipeline.stages.out_of_core.residuals import compute_residuals, residual_pass
from pipeline.stages.out_of_core.round_names import committed_rounds, round_index, round_name
from pipeline.stages.out_of_core.score_pass import score_candidates, score_pass
from pipeline.stages.out_of_core.working_set_rounds import Change, PassRecord, RoundsResult, ScoredRound
from pipeline.stages.run_state import Run
from pipeline.stages.target_facts import row_weights
from storage.arrays import read_dataclass, write_dataclass
from storage.errors import ANEW
from storage.files import make_folder
from storage.folders import remove_folder

START = "at-zero"  # the scores of the first block, at zero weights
BLOCKS = 10  # in which all candidates are scored for the first time
LEAST_BLOCK, MOST_BLOCK = 256, 2048  # candidates of a block
GROWTH = 4  # of a block, over the one before it at the same weights


def solve_on_demand(run: Run, candidates: NDArray[np.int64], capacity: int) -> RoundsResult:
    """Find the weights over all candidates, given by name, with a Gram of those that enter (mathematics.md, eq. 99).

    At most `capacity` are kept at once; where there are more, those at zero leave. Ends when the relative gap of every
    solve over all candidates is within the tolerance, or when nothing is left to admit. Raises CorruptDataError where
    a resumed run lacks something of its earlier rounds.
    """
    problem, current, passes = _latest(run, candidates, capacity)
    tolerance = run.config.solver.tolerance
    while True:
        index = round_index(current.name)
        warm = index > 0 or initial_weights.load(run) is not None
        inner = rounds.INNER_TOLERANCE * tolerance
        summaries = solve_groups(
            run, current.name, [problem.penalty], tolerance=inner, start=start_name(current.name) if warm else None
        )
        scored, known = _scored(run, current, problem)
        change = _change(scored, problem, capacity, tolerance)
        scored = scored if known else replace(scored, certificates=[unproved(one) for one in scored.certificates])
        passes.append(rounds.record_round(run, scored, problem, change))
        if not len(change.admitted):
            updated = rounds.summaries_over_all(summaries, scored.certificates, tolerance)
            return RoundsResult(current, scored.weights, problem.penalty, updated, passes)
        before = current.name
        current = rounds.grown(run, scored, change)
        del scored  # with it the last working set: a file that is mapped may not go
        rounds.drop_round(run, before)


def unproved(certificate: Certificate) -> Certificate:
    """Return what is known before all candidates are scored: the gap to the dual value 0, of θ = 0.

    mathematics.md, eq. 101.
    """
    return replace(certificate, dual=0.0, gap=certificate.primal, relative_gap=1.0, theta_scale=0.0)


def _latest(
    run: Run, candidates: NDArray[np.int64], capacity: int
) -> tuple[CandidateProblem, WorkingSet, list[PassRecord]]:
    """Return the problem, the last whole round of the run, or a first one, and the records of the rounds before it."""
    shared, names = run.config.solver.coupling == "shared", committed_rounds(run)
    if names:
        current, passes = rounds.latest_round(run, names)
        problem = CandidateProblem(candidates, rounds.penalty_of(run, current, candidates), shared)
        return problem, current, passes
    start, name, nothing = initial_weights.load(run), round_name(0), np.empty(0, np.int64)
    if start is not None:
        largest = np.argsort(-np.linalg.norm(start.weights, axis=1), kind="stable")[:capacity]
        members = np.sort(start.candidates[largest])
        initial_weights.start_of(run, name, members)
        current = grown_gram.grow(run, name, None, nothing, members)
        return CandidateProblem(candidates, rounds.penalty_of(run, current, candidates), shared), current, []
    scored = _scores_at_zero(run, candidates)
    problem = CandidateProblem(candidates, _penalty(run, scored, shared=shared), shared)
    violations = rules.violations(scored.scores, problem.tau, shared=shared)
    entering = violations * (violations > 1.0)
    entering[_others(len(candidates), run.config.seed)] = 0.0  # scored for the largest penalty alone
    members = rules.nearest(entering, np.zeros(len(candidates), bool), capacity, capacity)
    if not len(members):  # the first block has no violator: the solves need some column
        members = np.argsort(-violations.max(axis=1), kind="stable")[:1]
    return problem, grown_gram.grow(run, name, None, nothing, candidates[members]), []


def _penalty(run: Run, scored: BoundedScores, *, shared: bool) -> float:
    """Return the penalty of the run; a fraction is one of the largest of all candidates, and committed."""
    asked = run.config.solver.penalty
    if not isinstance(asked, str):
        assert asked is not None  # the plan has filled it in
        return asked
    largest = float(rules.violations(scored.scores, 1.0, shared=shared).max(initial=0.0)) ** 2
    return rounds.commit_penalty(run, penalty_fraction(asked) * (largest or 1.0))


def _scores_at_zero(run: Run, candidates: NDArray[np.int64]) -> BoundedScores:
    """Return the scores of the first block at zero weights: committed ones, or a pass over it.

    For a penalty that is a fraction of the largest, all candidates are scored.
    """
    path, n, t = run.layout.round_scores(START), len(candidates), run.shape.n_outputs
    if path.exists():
        return read_dataclass(path, BoundedScores, remedy=ANEW)
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
    make_folder(path.parent)
    write_dataclass(path, scored)
    remove_folder(residual_pass(run, START), durable=False)
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
    remove_folder(score_pass(run, name), durable=False)
    norms = scored.norm_bounds.copy()
    norms[block] = np.minimum(norms[block], np.sqrt(result.square_bounds))
    return replace(
        with_values(scored, block, result.scores),
        norm_bounds=norms,
        evaluated=scored.evaluated + len(block),
        kernel_entries=scored.kernel_entries + result.kernel_entries,
    )


def _scored(run: Run, current: WorkingSet, problem: CandidateProblem) -> tuple[ScoredRound, bool]:
    """Return the round with the scores of as many blocks as it takes to find a violator, and whether all are known.

    Its certificates are over all candidates where all are known, else over those that are.
    """
    weights, path = rounds.active_weights(run, current), run.layout.round_scores(current.name)
    if path.exists():
        scored = read_dataclass(path, BoundedScores, remedy=ANEW)
    else:
        scored = _with_blocks(run, current, weights, problem)
        make_folder(path.parent)
        write_dataclass(path, scored)
        clean(run, current)
        _drop_scores_before(run, current.name)
    certificates = certify_all_candidates(run, current, weights, scored, problem)
    known = not len(_waiting(scored, current, problem)[0])
    return ScoredRound(current, weights, scored, certificates), known


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
    index, residuals = round_index(current.name), residuals_at(run, current, weights)
    inside = positions_of(problem.candidates, current.candidates)
    before = run.layout.round_scores(round_name(index - 1) if index else START)
    if before.exists():
        scored = read_dataclass(before, BoundedScores, remedy=ANEW)
        at_zero = scored
        scored = moved_to(residuals, scored, scored.norm_bounds)
        if not index:  # what was evaluated at zero weights counts for the first round
            scored = replace(scored, evaluated=at_zero.evaluated, kernel_entries=at_zero.kernel_entries)
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
    if kept + entering > capacity and room < capacity * rounds.LEAST_ROOM:
        room = 0
    nobody = np.zeros(len(problem.candidates), bool)
    return Change(stay, problem.candidates[rules.nearest(violations, nobody, max(room, 1), room)])


def _drop_scores_before(run: Run, name: str) -> None:
    """Remove the scores of earlier rounds but the last: residuals of all rows are in each."""
    index = round_index(name)
    for old in (START, *(round_name(k) for k in range(index - 1))):
        if old != START or index > 0:
            run.layout.round_scores(old).unlink(missing_ok=True)
