"""Pricing of all candidates in each round: by coarse scores first, where these pay off (mathematics.md, eq. 70)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.solvers import working_set_rules as rules
from pipeline.stages import initial_weights
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import groups_of
from pipeline.stages.out_of_core.column_generation import (
    Change,
    OnePenalty,
    ScoredRound,
    WorkingSetLimits,
    active_weights,
    limit_working_set,
)
from pipeline.stages.out_of_core.pricing import (
    ActiveWeights,
    BoundedScores,
    CandidateProblem,
    certify_all_candidates,
    clean,
    coarse_scores,
    evaluated_now,
    score_all_candidates,
    scores_name,
)
from pipeline.stages.out_of_core.score_pass import has_coarse_scores
from pipeline.stages.out_of_core.working_set import ROUND, WorkingSet, grow, set_name
from pipeline.stages.run_state import Run

MOST_COARSE = 12  # rounds with coarse scores: estimates that have not reached the tolerance by then never may
FEW_VIOLATORS = 0.005  # of the candidates: where the last coarse pass found fewer, another one would be the last
LARGEST_ERROR = 0.05  # of τ, of coarse scores; with larger ones they take the wrong candidates for violators


class AllCandidates(OnePenalty):
    """Pricing of all candidates in each round: by coarse scores first, where these pay off.

    beginning : commits the first working set and its weights, where a path has found the penalty
    """

    def __init__(
        self,
        run: Run,
        candidates: NDArray[np.int64],
        penalty: float | None = None,
        beginning: Callable[[], WorkingSet] | None = None,
    ) -> None:
        super().__init__(run, candidates)
        coarse = beginning is None and has_coarse_scores(run, candidates)
        self._limits = limit_working_set(run.config.centers.working_set, len(groups_of(run)), coarse=coarse)
        self._beginning, self._warm = beginning, self._warm or beginning is not None
        if penalty is not None:
            self._problem = CandidateProblem(candidates, penalty, self._shared)

    def first(self) -> WorkingSet:
        """Commit the first working set: a random seed, and the candidates that the solves start from."""
        if self._beginning is not None:
            return self._beginning()
        candidates, start, limits = self._candidates, initial_weights.load(self._run), self._limits
        positions = np.empty(0, np.int64)
        if start is not None:
            largest = np.argsort(-np.linalg.norm(start.weights, axis=1), kind="stable")[: limits.capacity]
            positions = positions_of(candidates, start.candidates[largest])
        seed, n_drawn = self._run.config.seed, min(limits.drawn, limits.capacity - len(positions))
        members = candidates[np.union1d(positions, rules.seed_candidates(len(candidates), n_drawn, seed))]
        initial_weights.start_of(self._run, set_name(ROUND, 0), members)
        return grow(self._run, ROUND, None, np.empty(0, np.int64), members)

    def priced(self, current: WorkingSet, problem: CandidateProblem) -> ScoredRound:
        """Return the round of a working set that is solved on, with the scores of all candidates at its weights.

        The first rounds take coarse scores where these pay off. When they would end the loop or are too coarse, exact
        ones follow, and in the next round where they find few violators; from then on all are.
        """
        run, weights, passes = self._run, active_weights(self._run, current), self._passes
        before = set_name(ROUND, current.number - 1) if current.number else None
        previous = before if before is not None and run.path(scores_name(before)).exists() else None
        coarse_entries, few = 0, bool(passes) and passes[-1].violators < FEW_VIOLATORS * len(problem.candidates)
        if previous is None and not few and current.number < MOST_COARSE and has_coarse_scores(run, problem.candidates):
            coarse = coarse_scores(run, current, weights, problem, before)
            coarse_entries = coarse.kernel_entries
            estimated = self._certified(current, weights, coarse.as_if_exact, problem, exact=False)
            if coarse.error <= LARGEST_ERROR * problem.tau and not estimated.is_last:
                clean(run, current)
                return estimated
        scored = score_all_candidates(run, current, weights, problem, previous)
        entries, coarse_entries = scored.kernel_entries + coarse_entries, scored.coarse_entries + coarse_entries
        scored = replace(scored, kernel_entries=entries, coarse_entries=coarse_entries)
        return self._certified(current, weights, scored, problem, exact=True)

    def _certified(
        self,
        current: WorkingSet,
        weights: ActiveWeights,
        scored: BoundedScores,
        problem: CandidateProblem,
        *,
        exact: bool,
    ) -> ScoredRound:
        certificates = certify_all_candidates(self._run, current, weights, scored, problem)
        done = ScoredRound(current, weights, scored, certificates, exact)
        change = _change(done, problem, self._limits, self._tolerance)
        is_last = bool(done.gaps.max() <= self._tolerance or not len(change.admitted))
        return replace(done, change=change, is_last=is_last)


def _change(scored: ScoredRound, problem: CandidateProblem, limits: WorkingSetLimits, tolerance: float) -> Change:
    """Return which columns stay in the working set and which candidates come in.

    Columns at zero that are not near to violating leave: they are scored with all others, so what is missed comes back.
    """
    unsolved = scored.gaps > tolerance
    violations = rules.violations(scored.scored.scores, problem.tau, shared=problem.shared) * unsolved
    violations[~evaluated_now(scored.scored)] = 0.0  # what was large before may not be so now
    inside = positions_of(problem.candidates, scored.working_set.candidates)
    active = np.zeros(len(problem.candidates), bool)
    active[inside[scored.weights.columns]] = True
    near = np.zeros_like(active)
    margin = rules.MARGIN if scored.exact else rules.COARSE_MARGIN
    room = limits.room(len(scored.weights.columns))
    near[rules.nearest(violations, active, limits.per_solve, room, margin)] = True
    stay = np.flatnonzero((active | near)[inside])
    near[inside] = violations[inside] = 0
    if not (violations > 1.0).any():  # nothing violates for a solve that needs it: the solver fell short, not the set
        near[:] = False
    return Change(stay, problem.candidates[near])
