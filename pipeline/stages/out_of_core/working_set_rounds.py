"""Candidates beyond memory: solve on a working set, score all candidates by streaming, admit violators, repeat.

The gap that ends the loop is over all candidates. Every round is committed under its own name (round-000, …), so
that a resumed run goes on with the last whole one.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_fraction
from pipeline.solvers import Certificate
from pipeline.solvers import working_set_rules as rules
from pipeline.stages import initial_weights
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import load_weights, solve_groups, start_name
from pipeline.stages.out_of_core import grown_gram
from pipeline.stages.out_of_core.candidate_scores import (
    ActiveWeights,
    BoundedScores,
    CandidateProblem,
    certify_all_candidates,
    clean,
    coarse_scores,
    evaluated_now,
    score_all_candidates,
)
from pipeline.stages.out_of_core.grown_gram import WorkingSet
from pipeline.stages.out_of_core.path_scores import largest_penalty
from pipeline.stages.out_of_core.round_names import MARKERS, committed_rounds, earlier_records, round_index, round_name
from pipeline.stages.out_of_core.score_pass import has_coarse_scores
from pipeline.stages.run_state import Run
from pipeline.stages.workspace import SOLVE
from storage.arrays import read_arrays, write_arrays
from storage.errors import ANEW, CorruptDataError
from storage.files import make_folder
from storage.folders import check_folder, remove_folder
from storage.records import write_marker

PENALTY = "penalty"  # the marker of a penalty that is a fraction of the largest
INNER_TOLERANCE = 0.3  # of the tolerance, on the working set: what is left is for the candidates outside
MOST_COARSE = 12  # rounds with coarse scores: estimates that have not reached the tolerance by then never may
FEW_VIOLATORS = 0.005  # of the candidates: where the last coarse pass found fewer, another one would be the last
LARGEST_ERROR = 0.05  # of τ, of coarse scores; with larger ones they take the wrong candidates for violators
LEAST_ROOM = 0.05  # of the capacity; with less, a pass over all candidates serves too few of them
DRAWN = 6000  # random candidates in the first working set, and at most as many come in at once
DRAWN_COARSE = 3000  # the same where scores are coarse: a pass more costs less than the larger Grams


@dataclass(frozen=True)
class WorkingSetLimits:
    """How many columns have a Gram at most, how many are drawn first, how many each solve admits at once."""

    capacity: int
    drawn: int
    per_solve: int

    def room(self, n_active: int) -> int:
        """Return how many candidates may come in beside the active; none where too few for a pass."""
        room = self.capacity - n_active
        return room if room >= self.capacity * LEAST_ROOM else 0


def limit_working_set(capacity: int | None, n_solves: int, *, coarse: bool = False) -> WorkingSetLimits:
    """Return the limits of a working set of at most `capacity` columns, half of which at most come in at once."""
    assert capacity is not None  # the plan has filled it in
    at_once = min(DRAWN_COARSE if coarse else DRAWN, max(capacity // 2, 1))
    return WorkingSetLimits(capacity=capacity, drawn=at_once, per_solve=max(at_once // n_solves, 1))


@dataclass(frozen=True)
class ScoredRound:
    """A round whose working set is solved: its weights, the scores of all candidates, and a certificate of each solve.

    The certificates are over all candidates, not over the working set; of coarse scores they are estimates.
    """

    working_set: WorkingSet
    weights: ActiveWeights
    scored: BoundedScores
    certificates: list[Certificate]
    exact: bool = True

    @property
    def gaps(self) -> NDArray[np.float64]:
        """The relative gaps, (solves,) f8."""
        return np.array([certificate.relative_gap for certificate in self.certificates])


class Change(NamedTuple):
    """How the working set changes: columns of the present one that stay, and candidates, by name, that come in."""

    stay: NDArray[np.int64]
    admitted: NDArray[np.int64]


@dataclass(frozen=True)
class PassRecord:
    """What one round did; `relative_gaps` are over all candidates, one for each solve; counts are of candidates.

    exact: whether the gaps are certified, by scores with all features and bounds; of coarse scores, they are estimates.
    coarse_entries: of the kernel_entries, those of coarse features, which cost a quarter.
    """

    round: int
    working_set: int
    n_active: int
    relative_gaps: tuple[float, ...]
    violators: int
    admitted: int
    dropped: int
    evaluated: int
    skipped: int
    screened: int
    kernel_entries: int
    exact: bool = True
    coarse_entries: int = 0


@dataclass(frozen=True)
class RoundsResult:
    """What the loop ends with: the last working set, the weights on it, the penalty, summaries of the solves, passes.

    The gaps of the summaries are over all candidates, not over the working set.
    """

    working_set: WorkingSet
    weights: ActiveWeights
    penalty: float
    summaries: list[dict[str, Any]]
    passes: list[PassRecord]


@dataclass(frozen=True)
class Beginning:
    """What a path has found: the penalty, and what commits the first working set, and its weights, under a name."""

    penalty: float
    first: Callable[[str], WorkingSet]


def solve_in_rounds(
    run: Run, candidates: NDArray[np.int64], limits: WorkingSetLimits, beginning: Beginning | None = None
) -> RoundsResult:
    """Find the weights over all candidates, given by name: column generation (mathematics.md, eq. 70).

    Each round solves on the working set, scores all candidates, and admits those that violate their optimality
    condition. Ends when the relative gap of every solve over all candidates is within the tolerance, or when nothing
    is left to admit; the summaries say whether it converged. Raises CorruptDataError where a resumed run lacks
    something of its earlier rounds.
    """
    current, passes = _latest(run, candidates, limits, beginning)
    penalty = beginning.penalty if beginning is not None else penalty_of(run, current, candidates)
    problem = CandidateProblem(candidates, penalty, run.config.solver.coupling == "shared")
    while True:
        inner, later = INNER_TOLERANCE * run.config.solver.tolerance, round_index(current.name) > 0
        warm = later or beginning is not None or initial_weights.load(run) is not None
        summaries = solve_groups(
            run, current.name, [problem.penalty], tolerance=inner, start=start_name(current.name) if warm else None
        )
        scored = _scored(run, current, problem, limits, passes)
        change = _change(scored, problem, limits, run.config.solver.tolerance)
        passes.append(record_round(run, scored, problem, change))
        if scored.exact and _is_last(scored, change, run.config.solver.tolerance):
            updated = summaries_over_all(summaries, scored.certificates, run.config.solver.tolerance)
            return RoundsResult(current, scored.weights, problem.penalty, updated, passes)
        before = current.name
        current = grown(run, scored, change)
        del scored  # with it the last working set: a file that is mapped may not go
        drop_round(run, before)


def _is_last(scored: ScoredRound, change: Change, tolerance: float) -> bool:
    return bool(scored.gaps.max() <= tolerance or not len(change.admitted))


def _scored(
    run: Run, current: WorkingSet, problem: CandidateProblem, limits: WorkingSetLimits, passes: list[PassRecord]
) -> ScoredRound:
    """Return the round of a working set that is solved, with the scores of all candidates at its weights.

    The first rounds take coarse scores where these pay off. When they would end the loop or are too coarse, exact ones
    follow, and in the next round where they find few violators; from then on all are.
    """
    weights, index = active_weights(run, current), round_index(current.name)
    before = round_name(index - 1) if index else None
    previous = before if before is not None and run.layout.round_scores(before).exists() else None
    coarse_entries, few = 0, bool(passes) and passes[-1].violators < FEW_VIOLATORS * len(problem.candidates)
    if previous is None and not few and index < MOST_COARSE and has_coarse_scores(run, problem.candidates):
        coarse = coarse_scores(run, current, weights, problem, before)
        coarse_entries, tolerance = coarse.kernel_entries, run.config.solver.tolerance
        estimated = _certified(run, current, weights, coarse.as_if_exact, problem, exact=False)
        if coarse.error <= LARGEST_ERROR * problem.tau and not _is_last(
            estimated, _change(estimated, problem, limits, tolerance), tolerance
        ):
            clean(run, current)
            return estimated
    scored = score_all_candidates(run, current, weights, problem, previous)
    entries, coarse_entries = scored.kernel_entries + coarse_entries, scored.coarse_entries + coarse_entries
    scored = replace(scored, kernel_entries=entries, coarse_entries=coarse_entries)
    return _certified(run, current, weights, scored, problem, exact=True)


def _certified(
    run: Run, current: WorkingSet, weights: ActiveWeights, scored: BoundedScores, problem: CandidateProblem, exact: bool
) -> ScoredRound:
    certificates = certify_all_candidates(run, current, weights, scored, problem)
    return ScoredRound(current, weights, scored, certificates, exact)


def penalty_of(run: Run, current: WorkingSet, candidates: NDArray[np.int64]) -> float:
    """Return the penalty of the run; a fraction of the largest, which takes a pass over all candidates, is committed.

    Only the first working set, of all rows, is asked for the mean of the targets.
    """
    asked = run.config.solver.penalty
    if not isinstance(asked, str):
        assert asked is not None  # the plan has filled it in
        return asked
    done = run.done(run.layout.markers(PENALTY))
    if PENALTY not in done:
        if round_index(current.name):
            folder = run.layout.markers(PENALTY)
            raise CorruptDataError(f"{folder}: the penalty of the run is damaged or missing; {ANEW}", file=str(folder))
        largest = largest_penalty(run, PENALTY, candidates, current.statistics, fit_only=False)
        return commit_penalty(run, penalty_fraction(asked) * largest)
    return float(done[PENALTY]["penalty"])


def commit_penalty(run: Run, value: float) -> float:
    """Commit the penalty that a fraction of the largest stands for, and return it."""
    write_marker(run.layout.markers(PENALTY), PENALTY, {"penalty": value})
    return value


def _latest(
    run: Run, candidates: NDArray[np.int64], limits: WorkingSetLimits, beginning: Beginning | None
) -> tuple[WorkingSet, list[PassRecord]]:
    """Return the last whole round of the run, or a first one, and the records of the rounds before it."""
    names = committed_rounds(run)
    if not names:
        if beginning is not None:
            return beginning.first(round_name(0)), []
        new = _first(run, candidates, limits)
        return grown_gram.grow(run, round_name(0), None, np.empty(0, np.int64), new), []
    return latest_round(run, names)


def latest_round(run: Run, names: list[str]) -> tuple[WorkingSet, list[PassRecord]]:
    """Return the last of some committed rounds, and the records of those before it, of which nothing else is left."""
    records = [
        PassRecord(**{**record, "relative_gaps": tuple(record["relative_gaps"])})
        for record in earlier_records(run, names[-1])
    ]
    _check(run, names[-1])
    for name in names[:-1]:  # left by a kill at the last moment
        drop_round(run, name)
    return grown_gram.load(run, names[-1]), records


def _first(run: Run, candidates: NDArray[np.int64], limits: WorkingSetLimits) -> NDArray[np.int64]:
    """Return the candidates of the first working set: a random seed, and those that the solves start from.

    Where there are some of those, their weights are committed for the round.
    """
    n, start = len(candidates), initial_weights.load(run)
    start_positions = np.empty(0, np.int64)
    if start is not None:
        largest = np.argsort(-np.linalg.norm(start.weights, axis=1), kind="stable")[: limits.capacity]
        start_positions = positions_of(candidates, start.candidates[largest])
    drawn = rules.seed_candidates(n, min(limits.drawn, limits.capacity - len(start_positions)), run.config.seed)
    members = candidates[np.union1d(start_positions, drawn)]
    if start is not None:
        initial_weights.start_of(run, round_name(0), members)
    return np.asarray(members)


def _check(run: Run, name: str) -> None:
    """Check the statistics and the scores that a resumed round takes up, before either is read."""
    check_folder(run.layout.statistics_file(name), remedy=ANEW)
    for earlier in (name, round_name(round_index(name) - 1)) if round_index(name) else (name,):
        for path in (run.layout.round_scores(earlier), run.layout.coarse_scores(earlier)):
            if path.exists():
                read_arrays(path, remedy=ANEW)
                return
    if round_index(name):
        read_arrays(run.layout.round_scores(round_name(round_index(name) - 1)), remedy=ANEW)


def active_weights(run: Run, current: WorkingSet) -> ActiveWeights:
    """Return the committed weights of a round's solves, with the intercept that goes with them."""
    table = load_weights(run, current.name, len(current.candidates))[-1]
    columns = np.flatnonzero(table.any(axis=1))
    intercept = np.zeros(table.shape[1])
    if run.config.solver.intercept:
        intercept = current.statistics.intercept(table[columns], columns)
    return ActiveWeights(columns, table[columns], intercept)


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


def record_round(run: Run, scored: ScoredRound, problem: CandidateProblem, change: Change) -> PassRecord:
    """Commit and tell what the round did; return the record."""
    current, scores, gaps = scored.working_set, scored.scored, scored.gaps
    outside = ~np.isin(problem.candidates, current.candidates) & evaluated_now(scores)
    violations = rules.violations(scores.scores[outside], problem.tau, shared=problem.shared)
    record = PassRecord(
        round=round_index(current.name),
        working_set=len(current.candidates),
        n_active=len(scored.weights.columns),
        relative_gaps=tuple(float(gap) for gap in gaps),
        violators=int(np.count_nonzero(violations.max(axis=1, initial=0.0) > 1.0)),
        admitted=len(change.admitted),
        dropped=len(current.candidates) - len(change.stay),
        evaluated=scores.evaluated,
        skipped=scores.skipped,
        screened=int(np.count_nonzero(scores.screened)),
        kernel_entries=scores.kernel_entries + grown_gram.kernel_entries(run, current.name),
        exact=scored.exact,
        coarse_entries=scores.coarse_entries,
    )
    write_marker(run.layout.markers(MARKERS), current.name, asdict(record))
    run.events.metric(stage=SOLVE, **asdict(record))
    run.events.say(
        f"pass {record.round}: gap {'' if record.exact else 'about '}{gaps.max():.1e} over {len(problem.candidates)} "
        f"candidates; {record.working_set} in the working set, {record.n_active} active, {record.violators} violators, "
        f"{record.admitted} admitted, {record.dropped} dropped; {record.evaluated} evaluated, "
        f"{record.skipped} skipped by bound, {record.screened} screened; {record.kernel_entries:.3g} kernel entries"
    )
    return record


def grown(run: Run, scored: ScoredRound, change: Change) -> WorkingSet:
    """Commit the working set of the next round with the weights to start from, and return it."""
    name = round_name(round_index(scored.working_set.name) + 1)
    commit_start_weights(run, name, scored, change)
    return grown_gram.grow(run, name, scored.working_set, change.stay, change.admitted)


def commit_start_weights(run: Run, name: str, scored: ScoredRound, change: Change) -> None:
    """Commit the weights that a round starts from: those of the columns that stay, zeros for those admitted."""
    current, weights = scored.working_set, scored.weights
    dense = np.zeros((len(current.candidates), weights.weights.shape[1]))
    dense[weights.columns] = weights.weights
    start = np.vstack([dense[change.stay], np.zeros((len(change.admitted), dense.shape[1]))])
    make_folder(run.layout.solutions)
    write_arrays(run.path(start_name(name)), {"weights": start})


def drop_round(run: Run, name: str) -> None:
    """Remove the statistics of an earlier round; they are the largest files of a run."""
    for old in (name, f"{name}-centred"):
        remove_folder(run.layout.statistics_file(old), durable=False)


def summaries_over_all(
    summaries: list[dict[str, Any]], certificates: list[Certificate], tolerance: float
) -> list[dict[str, Any]]:
    """Return the summaries of the solves with objective and gap over all candidates."""
    updated = []
    for summary, certificate in zip(summaries, certificates, strict=True):
        converged = certificate.relative_gap <= tolerance
        status = summary["points"][-1]["status"]
        if not converged and summary["points"][-1]["converged"]:
            status = "the working set has no room for the candidates it lacks; raise --memory-limit or --penalty"
        facts = {"objective": certificate.objective, "relative_gap": certificate.relative_gap}
        point = {**summary["points"][-1], **facts, "converged": converged, "status": status}
        updated.append({**summary, "points": [point]})
    return updated
