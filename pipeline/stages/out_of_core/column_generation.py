"""Column generation beyond memory: solve on a working set → price all candidates → admit and drop → until certified.

One loop (`until_certified`) serves one penalty, where pricing is of all candidates (coarse first), or on demand in
blocks (`on_demand`), and a path of penalties (`path_rounds`). The gap that ends it is over all candidates. Every round
is committed under its own name, so that a resumed run goes on with the last whole one.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_fraction
from pipeline.solvers import Certificate
from pipeline.solvers import working_set_rules as rules
from pipeline.stages import initial_weights
from pipeline.stages.one_vs_all import load_weights, solve_groups, start_name
from pipeline.stages.out_of_core.pricing import (
    ActiveWeights,
    BoundedScores,
    CandidateProblem,
    coarse_name,
    evaluated_now,
    largest_penalty,
    scores_name,
)
from pipeline.stages.out_of_core.working_set import (
    ROUND,
    WorkingSet,
    committed_sets,
    drop_set,
    grow,
    kernel_entries,
    load,
    set_name,
)
from pipeline.stages.run_state import Run
from pipeline.stages.workspace import SOLVE
from storage.errors import ANEW, CorruptDataError
from storage.records import read_markers, write_marker

PENALTY = "penalty"  # the marker of a penalty that is a fraction of the largest
MARKERS = "passes"  # one for each round of one penalty, with its record
INNER_TOLERANCE = 0.3  # of the tolerance, on the working set: what is left is for the candidates outside
LEAST_ROOM = 0.05  # of the capacity; with less, a pass over all candidates serves too few of them
DRAWN = 6000  # random candidates in the first working set, and at most as many come in at once
DRAWN_COARSE = 3000  # the same where scores are coarse: a pass more costs less than the larger Grams


class Change(NamedTuple):
    """How the working set changes: columns of the present one that stay, and candidates, by name, that come in."""

    stay: NDArray[np.int64]
    admitted: NDArray[np.int64]


class Priced(Protocol):
    """A working set that was solved on, with what the pricing of all candidates says of it."""

    @property
    def working_set(self) -> WorkingSet:
        """The working set."""

    @property
    def change(self) -> Change:
        """How it is to change."""

    @property
    def is_last(self) -> bool:
        """Whether the loop ends here: all is certified, or nothing is left to admit."""


R = TypeVar("R", bound=Priced)


class Method(Protocol[R]):
    """What is solved for on a working set, and how candidates are priced."""

    kind: str

    def first(self) -> WorkingSet:
        """Commit the first working set."""

    def resumed(self, current: WorkingSet) -> None:
        """Take up what the rounds before the last committed one have left. Raises CorruptDataError for damage."""

    def solved_and_priced(self, current: WorkingSet) -> R:
        """Solve on a working set, price the candidates, and commit what the round did."""

    def begin_next(self, done: R) -> None:
        """Commit what the next round starts from."""


def until_certified(run: Run, method: Method[R]) -> R:
    """Go through rounds until one is the last, and return it; those that are committed are not done again."""
    numbers = committed_sets(run, method.kind)
    if numbers:
        current = load(run, method.kind, numbers[-1])
        method.resumed(current)
        for number in range(numbers[-1]):  # left by a kill at the last moment
            drop_set(run, method.kind, number)
    else:
        current = method.first()
    while True:
        done = method.solved_and_priced(current)
        if done.is_last:
            return done
        method.begin_next(done)
        number, current = current.number, grow(run, method.kind, done.working_set, *done.change)
        del done  # with it the last working set: a file that is mapped may not go
        drop_set(run, method.kind, number)


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
class ScoredRound:
    """A round of one penalty: weights on the working set, scores of all candidates, a certificate of each solve.

    The certificates are over all candidates, not over the working set; of coarse scores they are estimates. passes:
    the records of the rounds so far; summaries: of the solves.
    """

    working_set: WorkingSet
    weights: ActiveWeights
    scored: BoundedScores
    certificates: list[Certificate]
    exact: bool = True
    change: Change = field(default_factory=lambda: Change(np.empty(0, np.int64), np.empty(0, np.int64)))
    is_last: bool = False
    penalty: float = 0.0
    summaries: list[dict[str, Any]] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)

    @property
    def gaps(self) -> NDArray[np.float64]:
        """The relative gaps, (solves,) f8."""
        return np.array([certificate.relative_gap for certificate in self.certificates])


class OnePenalty:
    """The problem of one penalty on all rows; subclasses say where it begins, and how candidates are priced."""

    kind = ROUND

    def __init__(self, run: Run, candidates: NDArray[np.int64]) -> None:
        self._run, self._candidates, self._passes = run, candidates, list[PassRecord]()
        self._tolerance, self._shared = run.config.solver.tolerance, run.config.solver.coupling == "shared"
        self._problem: CandidateProblem | None = None
        self._warm = initial_weights.load(run) is not None

    def first(self) -> WorkingSet:
        """Commit the first working set."""
        raise NotImplementedError

    def priced(self, current: WorkingSet, problem: CandidateProblem) -> ScoredRound:
        """Return the round of a working set that is solved on, with how it changes and whether it is the last."""
        raise NotImplementedError

    def penalty(self, current: WorkingSet) -> float:
        """Return the penalty of the run; a fraction of the largest, which takes a pass, is committed.

        Only the first working set, of all rows, is asked for the mean of the targets.
        """
        asked = self._run.config.solver.penalty
        if not isinstance(asked, str):
            assert asked is not None  # the plan has filled it in
            return asked
        done = self._run.done(self._run.layout.markers(PENALTY))
        if PENALTY not in done:
            if current.number:
                folder = self._run.layout.markers(PENALTY)
                raise CorruptDataError(f"{folder}: the penalty of the run is damaged or missing; {ANEW}")
            largest = largest_penalty(self._run, PENALTY, self._candidates, current.statistics, fit_only=False)
            return self._commit_penalty(penalty_fraction(asked) * largest)
        return float(done[PENALTY]["penalty"])

    def _commit_penalty(self, value: float) -> float:
        """Commit the penalty that a fraction of the largest stands for, and return it."""
        write_marker(self._run.layout.markers(PENALTY), PENALTY, {"penalty": value})
        return value

    def resumed(self, current: WorkingSet) -> None:
        """Take up the records of the rounds before, of which nothing else is left, and check the last scores."""
        self._passes = earlier_records(self._run, current.number)
        for number in (current.number, current.number - 1):
            for name in (scores_name(set_name(ROUND, number)), coarse_name(set_name(ROUND, number))):
                if number >= 0 and self._run.committed(name) is not None:
                    return
        if current.number:
            self._run.stored(scores_name(set_name(ROUND, current.number - 1))).read()  # says what is missing

    def solved_and_priced(self, current: WorkingSet) -> ScoredRound:
        """Solve on a working set, price the candidates, and commit what the round did."""
        if self._problem is None:
            self._problem = CandidateProblem(self._candidates, self.penalty(current), self._shared)
        problem, inner = self._problem, INNER_TOLERANCE * self._tolerance
        start = start_name(current.name) if current.number or self._warm else None
        summaries = solve_groups(self._run, current.name, [problem.penalty], tolerance=inner, start=start)
        done = self.priced(current, problem)
        self._passes.append(_record(self._run, done, problem))
        updated = _summaries_over_all(summaries, done.certificates, self._tolerance)
        return replace(done, penalty=problem.penalty, summaries=updated, passes=self._passes)

    def begin_next(self, done: ScoredRound) -> None:
        """Commit the weights that the next round starts from: of the columns that stay, zeros for those admitted."""
        current, weights, change = done.working_set, done.weights, done.change
        dense = np.zeros((len(current.candidates), weights.weights.shape[1]))
        dense[weights.columns] = weights.weights
        start = np.vstack([dense[change.stay], np.zeros((len(change.admitted), dense.shape[1]))])
        self._run.commit(start_name(set_name(ROUND, current.number + 1)), {"weights": start})


def active_weights(run: Run, current: WorkingSet) -> ActiveWeights:
    """Return the committed weights of a round's solves, with the intercept that goes with them."""
    table = load_weights(run, current.name, len(current.candidates))[-1]
    columns = np.flatnonzero(table.any(axis=1))
    intercept = np.zeros(table.shape[1])
    if run.intercept:
        intercept = current.statistics.intercept(table[columns], columns)
    return ActiveWeights(columns, table[columns], intercept)


def _record(run: Run, scored: ScoredRound, problem: CandidateProblem) -> PassRecord:
    """Commit and log what the round did; return the record."""
    current, scores, gaps, change = scored.working_set, scored.scored, scored.gaps, scored.change
    outside = ~np.isin(problem.candidates, current.candidates) & evaluated_now(scores)
    violations = rules.violations(scores.scores[outside], problem.tau, shared=problem.shared)
    record = PassRecord(
        round=current.number,
        working_set=len(current.candidates),
        n_active=len(scored.weights.columns),
        relative_gaps=tuple(float(gap) for gap in gaps),
        violators=int(np.count_nonzero(violations.max(axis=1, initial=0.0) > 1.0)),
        admitted=len(change.admitted),
        dropped=len(current.candidates) - len(change.stay),
        evaluated=scores.evaluated,
        skipped=scores.skipped,
        screened=int(np.count_nonzero(scores.screened)),
        kernel_entries=scores.kernel_entries + kernel_entries(run, current),
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


def earlier_records(run: Run, count: int) -> list[PassRecord]:
    """Return the records of the first rounds; they are not done again, so none may be lost.

    Raises CorruptDataError where one is damaged or missing.
    """
    folder = run.layout.markers(MARKERS)
    done, records = read_markers(folder), []
    for number in range(count):
        record = done.get(set_name(ROUND, number))
        if record is None:
            name = set_name(ROUND, number)
            raise CorruptDataError(f"{folder}: the marker of {name} is damaged or missing; {ANEW}", file=str(folder))
        records.append(PassRecord(**{**record, "relative_gaps": tuple(record["relative_gaps"])}))
    for warning in done.warnings:  # of the marker of this round, which is done again
        run.events.warn(warning)
    return records


def _summaries_over_all(
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
