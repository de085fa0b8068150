"""Column generation (mathematics.md, eq. 70), for more candidates than a Gram in memory can hold.

A round solves on a working set, evaluates the correlations of candidates outside it (prices them), adds violators and
drops columns far from violating. Rounds follow until the duality gap over all candidates is below the tolerance. A
`PricingRule` (in `pricing`) says where the loop starts, which candidates are evaluated and which come in. Every round
is committed (round-000, …); a resumed run continues from the last, to the same bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_fraction
from pipeline.runtime.stored_arrays import Arrays, as_dataclass
from pipeline.solvers.duality_gap import Certificate
from pipeline.solvers.regularization_path import penalty_max
from pipeline.stages.out_of_core.correlation_pass import correlate
from pipeline.stages.out_of_core.correlations import Correlations, SolvedSet, clean, stored_name
from pipeline.stages.out_of_core.kept_columns import nothing_kept
from pipeline.stages.out_of_core.working_set import (
    WorkingSet,
    active_weights,
    compute_residuals,
    drop,
    grow,
    latest,
    round_name,
)
from pipeline.stages.penalised_solves import REACHED, solve_outputs, start_name
from pipeline.stages.run_workspace import Run
from pipeline.stages.workspace import SOLVE
from storage.errors import ANEW, CorruptDataError
from storage.records import read_markers, write_marker

Record = dict[str, Any]  # of a round, as it is committed and reported
INNER_TOLERANCE = 0.3  # share of the tolerance for the solves on the working set; the rest is for other candidates
LEAST_ROOM = 0.05  # share of the capacity that must be free for another pass over all candidates to pay off
DRAWN = 6000  # random candidates in the first working set, and at most as many come in at once
MARKERS = "passes"  # the folder of the records
LARGEST = "round-largest"  # the name of the largest penalty


class WorkingSetLimits(NamedTuple):
    """The most columns of a working set, how many the first one draws, and how many come in at most for each solve."""

    capacity: int
    drawn: int
    per_solve: int

    @staticmethod
    def of(run: Run) -> "WorkingSetLimits":
        """Return the limits of a run: at most half of the working set comes in at once."""
        capacity = run.config.centers.working_set
        assert capacity is not None  # the plan has filled it in
        at_once = min(DRAWN, max(capacity // 2, 1))
        return WorkingSetLimits(capacity, at_once, max(at_once // run.shape.n_outputs, 1))

    def room(self, n_active: int) -> int:
        """Return how many candidates may come in beside the active; none where too few for a pass."""
        room = self.capacity - n_active
        return room if room >= self.capacity * LEAST_ROOM else 0


class Change(NamedTuple):
    """How the working set changes: the positions of its columns that stay, and the candidates that come in."""

    stay: NDArray[np.int64]
    admitted: NDArray[np.int64]


@dataclass(frozen=True)
class Priced:
    """A round: a working set that was solved on, the correlations of candidates, and a certificate of each solve.

    complete: the certificates cover all candidates.
    """

    solved: SolvedSet
    correlations: Correlations
    certificates: list[Certificate]
    complete: bool = True
    summaries: Sequence[dict[str, Any]] = ()

    @property
    def valid_certificates(self) -> list[Certificate]:
        """The certificates that hold: of the dual point 0 while candidates are unknown (mathematics.md, eq. 101)."""
        nothing = {"dual": 0.0, "relative_gap": 1.0, "theta_scale": 0.0}
        known, found = self.complete, self.certificates
        return [one if known else replace(one, gap=one.primal, **nothing) for one in found]

    @property
    def gaps(self) -> NDArray[np.float64]:
        """The relative gaps, (solves,) f8."""
        return np.array([certificate.relative_gap for certificate in self.certificates])

    def violations(self, tolerance: float) -> NDArray[np.float64]:
        """Return |c_mᵀr| / τ (M, solves); 0 for candidates not evaluated now and solves within the tolerance."""
        violations = self.solved.violations(self.correlations.values) * (self.gaps > tolerance)
        violations[~self.correlations.exact] = 0.0
        return violations


class PricingRule(ABC):
    """One way to solve over all candidates, given by row."""

    starts_warm = False

    def __init__(self, run: Run, candidates: NDArray[np.int64]) -> None:
        self.run, self.candidates = run, candidates
        self.tolerance = run.config.solver.tolerance

    def largest_penalty(self, current: WorkingSet) -> float:
        """Return the smallest penalty at which all weights are zero (mathematics.md, eq. 51), from a committed pass.

        1 where all correlations are zero.
        """
        run, t = self.run, self.run.shape.n_outputs

        def make() -> Arrays:
            statistics = current.statistics
            mean = statistics.target_sums / statistics.weight_sum if run.intercept else np.zeros(t)
            residuals = compute_residuals(run, LARGEST, nothing_kept(), np.empty((0, t)), mean)
            values = correlate(run, LARGEST, residuals, self.candidates).values
            return {"penalty": np.array(penalty_max(values) or 1.0)}

        found = run.once(f"scores/{LARGEST}.npz", make)["penalty"]
        clean(run, LARGEST)
        return float(found)

    @abstractmethod
    def first(self) -> WorkingSet:
        """Commit the first working set, with the weights to start from, and return it."""

    @abstractmethod
    def propose(self, priced: Priced) -> Change:
        """Return how the working set changes; the loop ends where nothing is admitted."""

    def price(self, current: WorkingSet) -> Priced:
        """Solve on a working set and evaluate candidates."""
        warm = current.index > 0 or self.starts_warm
        penalty, inner = self.penalty(partial(self.largest_penalty, current)), INNER_TOLERANCE * self.tolerance
        start = start_name(current.name) if warm else None
        summaries = solve_outputs(self.run, current.name, [penalty], tolerance=inner, start=start)
        solved = SolvedSet(self.run, self.candidates, penalty, current, active_weights(self.run, current))
        return replace(self.evaluate(solved), summaries=summaries)

    @abstractmethod
    def evaluate(self, solved: SolvedSet) -> Priced:
        """Return the round with the correlations of candidates and the certificates."""

    def penalty(self, largest: Callable[[], float]) -> float:
        """Return the penalty of the run, which may be asked for as a fraction of the largest."""
        asked = self.run.config.solver.penalty
        assert asked is not None  # the plan has filled it in
        return penalty_fraction(asked) * largest() if isinstance(asked, str) else asked

    def earlier(self, current: WorkingSet) -> Correlations:
        """Return the exact correlations of the round before. Raises CorruptDataError where they are lost."""
        name = stored_name(round_name(current.index - 1))
        return as_dataclass(self.run.stored(name).read(), Correlations)

    def record(self, priced: Priced, change: Change) -> tuple[Record, str]:
        """Commit the weights that the next round starts from; return the record of this one, and a line for the log."""
        solved, found = priced.solved, priced.correlations
        current, weights, outside = solved.working_set, solved.weights, found.exact
        outside[solved.inside] = False
        violations = solved.violations(found.values[outside])
        gaps = [float(one.relative_gap) for one in priced.valid_certificates]
        if len(change.admitted):
            table = np.zeros((len(current.candidates), weights.weights.shape[1]))
            table[weights.columns] = weights.weights
            start = np.vstack([table[change.stay], np.zeros((len(change.admitted), table.shape[1]))])
            self.run.commit(start_name(round_name(current.index + 1)), {"weights": start})
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
        }
        words = "{violators} violators, {admitted} admitted, {dropped} dropped; {evaluated} evaluated, "
        words += "{skipped} skipped by bound, {screened} screened; {kernel_entries:.3g} kernel entries"
        gap = f"gap {max(gaps):.1e} over {len(self.candidates)} candidates; "
        sizes = "pass {round}: " + gap + "{working_set} in the working set, {n_active} active, "
        return record, (sizes + words).format(**record)


def grow_until_certified(rule: PricingRule) -> tuple[Priced, list[Record]]:
    """Return the last round of the loop, and the records of all.

    The loop ends when every gap over all candidates is within the tolerance, or nothing is left to admit. Raises
    CorruptDataError where earlier rounds are incomplete.
    """
    run, current = rule.run, latest(rule.run)
    records = [] if current is None else earlier_records(run, current.index)
    current = current or rule.first()
    while True:
        priced = rule.price(current)
        change = rule.propose(priced)
        record, words = rule.record(priced, change)
        write_marker(run.layout.markers(MARKERS), current.name, record)
        run.metric(stage=SOLVE, **record)
        run.log(words)
        records.append(record)
        if not len(change.admitted):
            return priced, records
        before, name = current.name, round_name(current.index + 1)
        current = grow(run, name, current, change.stay, change.admitted)
        del priced  # with it the last working set: a file that is mapped may not go
        drop(run, before)


def earlier_records(run: Run, count: int) -> list[Record]:
    """Return the records of the first rounds. Raises CorruptDataError where one is damaged or missing."""
    folder = run.layout.markers(MARKERS)
    done = read_markers(folder)
    names = [round_name(index) for index in range(count)]
    for name in names:
        if name not in done:
            raise CorruptDataError(f"{folder}: the marker of {name} is damaged or missing; {ANEW}")
    for warning in done.warnings:  # of the marker of the round that is done again
        run.warn(warning)
    return [dict(done[name]) for name in names]


def summaries_over_all(priced: Priced, tolerance: float) -> list[dict[str, Any]]:
    """Return the summaries of the solves with objective and gap over all candidates."""
    updated = []
    for summary, certificate in zip(priced.summaries, priced.valid_certificates, strict=True):
        converged, point = certificate.relative_gap <= (tolerance or REACHED), summary["points"][-1]
        status = point["status"]
        if not converged and point["converged"]:
            status = (
                "the working set has no room for the candidates it lacks; raise --penalty, --memory-limit or its size"
            )
        facts = {"objective": certificate.objective, "relative_gap": certificate.relative_gap}
        updated.append({**summary, "points": [{**point, **facts, "converged": converged, "status": status}]})
    return updated


def count_columns(records: Sequence[Record], n_candidates: int) -> dict[str, int]:
    """Return the counts of candidates, of columns computed and dropped, of columns with a Gram, of active ones."""
    return {
        "candidates": n_candidates,
        "on_the_fly": sum(record["evaluated"] for record in records),
        "materialised": records[0]["working_set"] + sum(record["admitted"] for record in records),
        "active": records[-1]["n_active"],
    }
