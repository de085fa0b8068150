"""How candidates are priced: what differs between the ways to solve beyond memory (`working_set_loop`).

A rule says where the loop starts, which candidates are evaluated at the weights of a working set, and which of them
come in. `AllCandidates` starts from a random draw (or given weights) and evaluates all, coarsely first where that pays
off; other rules are in `on_demand` and `path_in_rounds`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_fraction
from pipeline.runtime.stored_arrays import as_dataclass
from pipeline.solvers import Certificate
from pipeline.solvers import working_set_rules as rules
from pipeline.stages import initial_weights
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.initial_weights import InitialWeights
from pipeline.stages.one_vs_all import solve_groups, start_name
from pipeline.stages.out_of_core.correlation_pass import has_coarse
from pipeline.stages.out_of_core.correlations import Correlations, SolvedSet, clean, largest_penalty, stored_name
from pipeline.stages.out_of_core.working_set import (
    NOTHING,
    WorkingSet,
    active_weights,
    grow,
    round_name,
)
from pipeline.stages.run_state import Run
from pipeline.stages.statistics_pass import ALL

Record = dict[str, Any]  # of a round, as it is committed and reported
INNER_TOLERANCE = 0.3  # of the tolerance, on the working set: what is left is for the candidates outside
MOST_COARSE = 12  # coarse rounds: estimates that have not reached the tolerance by then never may
FEW_VIOLATORS = 0.005  # of the candidates: where the last coarse pass found fewer, another one would be the last
LARGEST_ERROR = 0.05  # of τ, of coarse values; with larger ones they take the wrong candidates for violators
LEAST_ROOM = 0.05  # of the capacity; with less, a pass over all candidates serves too few of them
DRAWN = 6000  # random candidates in the first working set, and at most as many come in at once
DRAWN_COARSE = 3000  # the same where values are coarse: a pass more costs less than the larger Grams
PENALTY = "penalty"  # the largest, of which that of the run is a fraction


@dataclass(frozen=True)
class WorkingSetLimits:
    """How many columns have a Gram at most, how many are drawn first, how many each solve admits at once."""

    capacity: int
    drawn: int
    per_solve: int

    @staticmethod
    def of(capacity: int | None, n_solves: int, *, coarse: bool = False) -> "WorkingSetLimits":
        """Return the limits of a working set of at most `capacity` columns, half of which at most come in at once."""
        assert capacity is not None  # the plan has filled it in
        at_once = min(DRAWN_COARSE if coarse else DRAWN, max(capacity // 2, 1))
        return WorkingSetLimits(capacity=capacity, drawn=at_once, per_solve=max(at_once // n_solves, 1))

    def room(self, n_active: int) -> int:
        """Return how many candidates may come in beside the active; none where too few for a pass."""
        room = self.capacity - n_active
        return room if room >= self.capacity * LEAST_ROOM else 0


class Change(NamedTuple):
    """How the working set changes: columns of the present one that stay, and candidates, by name, that come in."""

    stay: NDArray[np.int64]
    admitted: NDArray[np.int64]


@dataclass(frozen=True)
class Priced:
    """A round: a working set that was solved on, and the candidates priced.

    certificates: of each solve, over all candidates, not over the working set; of coarse correlations (not `exact`)
    they are estimates, and where not all candidates are known (`complete`) they are over those that are.
    """

    solved: SolvedSet
    correlations: Correlations
    certificates: list[Certificate]
    exact: bool = True
    complete: bool = True
    summaries: Sequence[dict[str, Any]] = ()

    @property
    def proofs(self) -> list[Certificate]:
        """The certificates; before all candidates are known, those of the dual value 0, of θ = 0.

        mathematics.md, eq. 101.
        """
        nothing = {"dual": 0.0, "relative_gap": 1.0, "theta_scale": 0.0}
        known, found = self.complete, self.certificates
        return [one if known else replace(one, gap=one.primal, **nothing) for one in found]

    @property
    def gaps(self) -> NDArray[np.float64]:
        """The relative gaps, (solves,) f8."""
        return np.array([certificate.relative_gap for certificate in self.certificates])

    def violations(self, tolerance: float) -> NDArray[np.float64]:
        """Return |c_mᵀr| / τ, (M, solves), of the candidates evaluated now, for solves whose gap is above a tolerance.

        All else is 0: what was large before may not be so now.
        """
        violations = self.solved.violations(self.correlations.values) * (self.gaps > tolerance)
        violations[~self.correlations.exact] = 0.0
        return violations

    def change(
        self,
        violations: NDArray[np.float64],
        active: NDArray[np.bool_],
        per_solve: int,
        limits: WorkingSetLimits,
        margin: float = rules.MARGIN,
    ) -> Change:
        """Return which columns stay in the working set and which candidates come in.

        active (M,): what stays in any case. Other columns that are not near to violating leave: they are evaluated with
        all others, so what is missed comes back.
        """
        inside, near = self.solved.inside, np.zeros_like(active)
        near[rules.nearest(violations, active, per_solve, limits.room(int(active[inside].sum())), margin)] = True
        stay = np.flatnonzero((active | near)[inside])
        near[inside] = violations[inside] = 0
        if not (violations > 1.0).any():  # nothing violates for a solve that needs it: the solver fell short
            near[:] = False
        return Change(stay, self.solved.candidates[near])


class PricingRule(ABC):
    """One way to solve over all candidates, given by name.

    kind : under which the rounds are committed; parts : of the rows, whose statistics a working set has, that of the
    solves first; markers : the folder of the records
    """

    kind, markers = "round", "passes"
    parts: tuple[str, ...] = (ALL,)

    def __init__(self, run: Run, candidates: NDArray[np.int64]) -> None:
        self.run, self.candidates = run, candidates
        self.tolerance, self.shared = run.config.solver.tolerance, run.config.solver.coupling == "shared"

    @abstractmethod
    def first(self) -> WorkingSet:
        """Commit the first working set, with the weights to start from, and return it."""

    @abstractmethod
    def price(self, current: WorkingSet, records: Sequence[Record]) -> Priced:
        """Solve on a working set and evaluate candidates. Records are those of the rounds before."""

    @abstractmethod
    def admit(self, priced: Priced) -> Change:
        """Return how the working set changes; the loop ends where nothing is admitted."""

    @abstractmethod
    def record(self, priced: Priced, change: Change) -> tuple[Record, str]:
        """Commit what the next round starts from; return what this one did, with a line for people."""


class OnePenalty(PricingRule):
    """Solves at one penalty, on all rows."""

    starts_warm = False

    def price(self, current: WorkingSet, records: Sequence[Record]) -> Priced:
        """Solve on a working set and evaluate candidates."""
        warm = current.index > 0 or self.starts_warm or initial_weights.load(self.run) is not None
        penalties, inner = (self.penalty(current),), INNER_TOLERANCE * self.tolerance
        start = start_name(current.name) if warm else None
        summaries = solve_groups(self.run, current.name, penalties, tolerance=inner, start=start)
        solved = SolvedSet(self.run, self.candidates, penalties, current, active_weights(self.run, current))
        return replace(self.evaluate(solved, records), summaries=summaries)

    @abstractmethod
    def evaluate(self, solved: SolvedSet, records: Sequence[Record]) -> Priced:
        """Return the round with the correlations of candidates and the certificates."""

    def largest_penalty(self, current: WorkingSet | None) -> float:
        """Return the penalty at which the weights of all candidates are zero: a pass over them, committed."""
        assert current is not None
        return largest_penalty(self.run, PENALTY, self.candidates, current.statistics, fit_only=False)

    def penalty(self, current: WorkingSet | None) -> float:
        """Return the penalty of the run, which may be asked for as a fraction of the largest."""
        asked = self.run.config.solver.penalty
        if isinstance(asked, str):
            return penalty_fraction(asked) * self.largest_penalty(current)
        assert asked is not None  # the plan has filled it in
        return asked

    def earlier(self, current: WorkingSet) -> Correlations:
        """Return the exact correlations of the round before. Raises CorruptDataError where they are lost."""
        name = stored_name(round_name(self.kind, current.index - 1))
        return as_dataclass(self.run.stored(name).read(), Correlations)

    def record(self, priced: Priced, change: Change) -> tuple[Record, str]:
        """Commit the weights that the next round starts from; return what this one did, with a line for people.

        Counts are of candidates. relative_gaps: one for each solve, over all candidates. exact: whether they are
        certified, by correlations with all features and bounds; else they are estimates. coarse_entries: of the
        kernel_entries, those of coarse features, which cost a quarter.
        """
        solved, found = priced.solved, priced.correlations
        current, weights, outside = solved.working_set, solved.weights, found.exact
        outside[solved.inside] = False
        violations = solved.violations(found.values[outside])
        gaps = [float(one.relative_gap) for one in priced.proofs]
        if len(change.admitted):
            table = np.zeros((len(current.candidates), weights.weights.shape[1]))
            table[weights.columns] = weights.weights
            start = np.vstack([table[change.stay], np.zeros((len(change.admitted), table.shape[1]))])
            self.run.commit(start_name(round_name(self.kind, current.index + 1)), {"weights": start})
        record: Record = {
            "round": current.index,
            "working_set": len(current.candidates),
            "n_active": len(weights.columns),
            "relative_gaps": gaps,
            "violators": int(np.count_nonzero(violations.max(axis=1, initial=0.0) > 1.0)),
            "admitted": len(change.admitted),
            "dropped": len(current.candidates) - len(change.stay),
            "evaluated": found.evaluated,
            "skipped": found.skipped,
            "screened": int(np.count_nonzero(found.screened)),
            "kernel_entries": found.kernel_entries + current.kernel_entries,
            "exact": priced.exact,
            "coarse_entries": found.coarse_entries,
        }
        words = "{violators} violators, {admitted} admitted, {dropped} dropped; {evaluated} evaluated, "
        words += "{skipped} skipped by bound, {screened} screened; {kernel_entries:.3g} kernel entries"
        gap = f"gap {'' if priced.exact else 'about '}{max(gaps):.1e} over {len(self.candidates)} candidates; "
        sizes = "pass {round}: " + gap + "{working_set} in the working set, {n_active} active, "
        return record, (sizes + words).format(**record)


class AllCandidates(OnePenalty):
    """Every round evaluates all candidates that a bound does not hold at zero (mathematics.md, eq. 70).

    begin : commits the first working set under a name, with weights to start from, where a path came before
    penalty : what that path chose
    """

    def __init__(
        self,
        run: Run,
        candidates: NDArray[np.int64],
        limits: WorkingSetLimits,
        begin: Callable[[str], WorkingSet] | None = None,
        penalty: float | None = None,
    ) -> None:
        super().__init__(run, candidates)
        self._limits, self._begin, self._penalty = limits, begin, penalty
        self.starts_warm = begin is not None

    def penalty(self, current: WorkingSet | None) -> float:
        """Return the penalty of the run."""
        return super().penalty(current) if self._penalty is None else self._penalty

    def first(self) -> WorkingSet:
        """Commit the first working set: a random draw, and the candidates that the solves start from."""
        name, given, limits = round_name(self.kind, 0), initial_weights.load(self.run), self._limits
        if self._begin is not None:
            return self._begin(name)
        positions = NOTHING if given is None else positions_of(self.candidates, largest_of(given, limits.capacity))
        n_drawn = min(limits.drawn, limits.capacity - len(positions))
        drawn = rules.seed_candidates(len(self.candidates), n_drawn, self.run.config.seed)
        members = self.candidates[np.union1d(positions, drawn)]
        initial_weights.start_of(self.run, name, members)
        return grow(self.run, name, None, NOTHING, members)

    def evaluate(self, solved: SolvedSet, records: Sequence[Record]) -> Priced:
        """Return the round with the correlations of all candidates.

        Those of the first rounds are coarse where that pays off. When they would end the loop or are too coarse, exact
        ones follow, and in the next round where they find few violators; from then on all are.
        """
        current, entries = solved.working_set, 0
        before = self.earlier(current) if records and records[-1]["exact"] else None
        few = bool(records) and records[-1]["violators"] < FEW_VIOLATORS * len(self.candidates)
        if before is None and not few and current.index < MOST_COARSE and has_coarse(self.run, self.candidates):
            earlier = round_name(self.kind, current.index - 1) if current.index else None
            found, error = solved.coarse_correlations(earlier)
            estimated = Priced(solved, found, solved.certify(found), exact=False)
            if error <= LARGEST_ERROR * solved.tau and len(self.admit(estimated).admitted):
                clean(self.run, current.name)
                return estimated
            entries = found.kernel_entries
        found = solved.correlations(before)
        coarse_entries, entries = found.coarse_entries + entries, found.kernel_entries + entries
        found = replace(found, kernel_entries=entries, coarse_entries=coarse_entries)
        return Priced(solved, found, solved.certify(found))

    def admit(self, priced: Priced) -> Change:
        """Return how the working set changes: the candidates nearest to violating come in, those far from it leave."""
        active = np.zeros(len(self.candidates), bool)
        active[priced.solved.inside[priced.solved.weights.columns]] = True
        margin = rules.MARGIN if priced.exact else rules.COARSE_MARGIN
        return priced.change(priced.violations(self.tolerance), active, self._limits.per_solve, self._limits, margin)


def largest_of(given: InitialWeights, count: int) -> NDArray[np.int64]:
    """Return the candidates, by name, of the largest given weights."""
    largest = np.argsort(-np.linalg.norm(given.weights, axis=1), kind="stable")[:count]
    return given.candidates[largest]
