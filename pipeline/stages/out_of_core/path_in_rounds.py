"""A penalty path over more candidates than the Gram may hold (mathematics.md, eqs. 96, 97 and 98).

A round follows the path on its working set, on the fit rows, from the weights of the round before; one pass prices all
candidates at the penalties that might be chosen. The loop ends when each of these has a certificate over all
candidates. The solve on all rows starts with the last working set.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_path
from pipeline.runtime.stored_arrays import Arrays
from pipeline.solvers import working_set_rules as rules
from pipeline.solvers.regularization_path import ChosenPenalty, TriedPenalties, choose_penalty
from pipeline.solvers.weights import Weights, intercept_of
from pipeline.stages.accumulate_statistics import ALL, FIT, HELD_OUT, name_of, statistics_from_arrays
from pipeline.stages.one_vs_all import start_name
from pipeline.stages.out_of_core.correlations import Correlations, SolvedSet
from pipeline.stages.out_of_core.working_set import (
    NOTHING,
    WorkingSet,
    commit,
    drop,
    grow,
    latest,
    load,
    round_name,
)
from pipeline.stages.out_of_core.working_set_loop import (
    Change,
    Priced,
    PricingRule,
    Record,
    WorkingSetLimits,
    earlier_records,
    grow_until_certified,
)
from pipeline.stages.penalty_path import PathColumns, PathPoint, try_penalties
from pipeline.stages.run_workspace import Run
from pipeline.stages.task_checkpoints import REACHED
from pipeline.stages.training_rows import positions_of
from pipeline.stages.workspace import STATISTICS

PRICED = 6  # penalties that a pass prices at most: those of the lowest held-out error, one of which will be chosen
ROOM = 0.75  # of the working set for what is active at a penalty; others need the rest, or there is no certificate
MOST_ROUNDS = 12
TOLERANCE = 10.0  # times that of the solves, over all candidates: what chooses a penalty need not be the final answer
FOLLOWED = "solutions/path.npz"  # of a path that is done: the penalty, and how many rounds it took
POINTS = "points"


@dataclass(frozen=True)
class SolvedPoint:
    """A penalty that was tried, and its weights on the fit rows, on candidates by row, in rising order.

    facts.certified: the gap over all candidates is small enough.
    """

    facts: PathPoint
    weights: Weights

    def on(self, members: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights on the columns of a working set, (members, T); those of other candidates are left out."""
        table = np.zeros((len(members), len(self.weights.intercept)))
        _, here, there = np.intersect1d(members, self.weights.columns, assume_unique=True, return_indices=True)
        table[here] = self.weights.weights[there]
        return table


@dataclass(frozen=True)
class FollowedPath:
    """What a path comes to: the penalty, the points that were tried, the record of each round."""

    penalty: float
    points: list[PathPoint]
    rounds: list[Record]
    chosen: SolvedPoint

    def of_fit(self, candidates: NDArray[np.int64]) -> Weights:
        """Return the weights of the fit rows at the penalty."""
        return replace(self.chosen.weights, columns=positions_of(candidates, self.chosen.weights.columns))


class PenaltyPath(PricingRule):
    """The rule of a path: several penalties are priced in one pass, their residuals beside each other."""

    kind, markers, parts = "path", "path-rounds", (FIT, HELD_OUT)

    def __init__(self, run: Run, setting: str, candidates: NDArray[np.int64], limits: WorkingSetLimits) -> None:
        super().__init__(run, candidates)
        self.tolerance = TOLERANCE * (self.tolerance or REACHED)
        self._path, self._limits = penalty_path(setting), limits
        # Of the last round: the penalty that it would choose, its points, which are to have a certificate, are priced.
        self.chosen, self.points = ChosenPenalty(np.nan, np.empty(0)), list[SolvedPoint]()
        self._wanted, self._priced = list[int](), list[int]()

    def first(self) -> WorkingSet:
        """Commit the first working set: a random draw."""
        drawn = rules.seed_candidates(len(self.candidates), self._limits.drawn, self.run.config.seed)
        return grow(self.run, round_name(self.kind, 0), None, NOTHING, self.candidates[drawn], self.parts)

    def price(self, current: WorkingSet) -> Priced:
        """Follow the path on a working set; evaluate all candidates at the points that might be chosen."""
        before = load_points(self.run, current.index - 1) if current.index else []
        self.chosen, self.points = self._followed(current, before)
        self._wanted = self._certifiable()
        self._priced = [position for position in self._wanted if not self.points[position].facts.certified]
        points = [self.points[position] for position in self._priced]
        penalties = tuple(point.facts.penalty for point in points)
        solved = SolvedSet(self.run, self.candidates, penalties, current, _beside(points, current))
        if not points:
            return Priced(solved, Correlations.unknown(len(self.candidates), np.empty((0, 0))), [])
        found = solved.correlations(None)
        priced = Priced(solved, found, solved.certify(found))
        for position, point, gaps in zip(self._priced, points, np.split(priced.gaps, len(points)), strict=True):
            gap = float(gaps.max())
            facts = replace(point.facts, relative_gap=gap, certified=gap <= self.tolerance)
            self.points[position] = replace(point, facts=facts)
        return priced

    def propose(self, priced: Priced) -> Change:
        """Return how the working set changes: what is active at a point that might be chosen stays."""
        active = np.isin(self.candidates, np.concatenate([self.points[p].weights.columns for p in self._wanted]))
        if not self._priced:
            return Change(np.flatnonzero(active[priced.solved.inside]), NOTHING)
        per_solve = max(self._limits.per_solve // len(self._priced), 1)
        change = priced.change(priced.violations(self.tolerance), active, per_solve, self._limits)
        return change if priced.solved.working_set.index + 1 < MOST_ROUNDS else change._replace(admitted=NOTHING)

    def record(self, priced: Priced, change: Change) -> tuple[Record, str]:
        """Commit the points; return the record of a round, and a line for the log.

        penalty: that would be chosen; penalties: that were priced, and their largest gaps; the rest as in a pass of the
        solve.
        """
        current = priced.solved.working_set
        self.run.commit(points_name(current.index), _as_arrays(self.points))
        gaps = [self.points[position].facts.relative_gap for position in self._priced]
        violations = priced.violations(self.tolerance) if gaps else np.zeros((len(self.candidates), 1))
        violations[priced.solved.inside] = 0.0
        record: Record = {
            "path_round": current.index,
            "working_set": len(current.candidates),
            "penalty": self.chosen.penalty,
            "penalties": priced.solved.penalties,
            "relative_gaps": gaps,
            "violators": int(np.count_nonzero(violations.max(axis=1) > 1.0)),
            "admitted": len(change.admitted),
            "dropped": len(current.candidates) - len(change.stay),
            "kernel_entries": current.kernel_entries + priced.correlations.kernel_entries,
        }
        gap = f"gap {max(gaps):.1e} over all candidates at " if gaps else "no gap of "
        sizes = "path, round {path_round}: penalty {penalty:.4g}; " + gap + f"{len(gaps)} penalties; "
        words = "{working_set} in the working set, {violators} violators, {admitted} admitted, {dropped} dropped; "
        return record, (sizes + words + "{kernel_entries:.3g} kernel entries").format(**record)

    def is_full(self, point: SolvedPoint) -> bool:
        """Return whether a working set has no room for others beside what is active at a point."""
        return len(point.weights.columns) > ROOM * self._limits.capacity

    def _followed(self, current: WorkingSet, before: list[SolvedPoint]) -> tuple[ChosenPenalty, list[SolvedPoint]]:
        """Follow the path on a working set; return the penalty it chooses, and the points that were tried.

        before: the points of the round before; those without a certificate are solved again, except those with more
        centers than there is room for, where a search ends.
        """
        run, members = self.run, current.candidates
        columns = PathColumns(current.part(FIT), current.part(HELD_OUT), current.name, members)
        full = [position for position, point in enumerate(before) if self.is_full(point)]
        points = before[: full[0] + 1] if full and self._path is None else list(before)

        def solve(positions: Sequence[int], penalties: tuple[float, ...], number: int | None) -> None:
            start = points[positions[0] - 1].on(members) if positions[0] else None
            tried, found = try_penalties(run, columns, penalties, number, start)
            for position, table, facts in zip(positions, tried.weights, found, strict=True):
                active = np.argsort(members)
                active = active[table[active].any(axis=1)]
                intercept = intercept_of(current.statistics, table, intercept=run.intercept)
                point = SolvedPoint(facts, Weights(members[active], table[active], intercept))
                facts = replace(facts, converged=facts.converged and not self.is_full(point), certified=False)
                points[position : position + 1] = [replace(point, facts=facts)]

        def solve_at(number: int | None, penalties: tuple[float, ...]) -> TriedPenalties:
            first = number or 0
            if len(points) < first + len(penalties):
                solve(range(first, first + len(penalties)), penalties, number)
            asked = points[first : first + len(penalties)]
            errors = np.array([point.facts.hold_out_error for point in asked])
            return TriedPenalties(np.stack([point.on(members) for point in asked]), errors, asked[-1].facts.converged)

        again = [position for position, one in enumerate(points) if not (one.facts.certified or self.is_full(one))]
        if again:
            solve(again, tuple(points[position].facts.penalty for position in again), None)
        largest = None if self._path is None else self._path[0]
        if largest is None:
            largest = self.largest_penalty(current)
        return choose_penalty(self._path, largest, solve_at), points

    def _certifiable(self) -> list[int]:
        """Return which points shall have a certificate: the one that would be chosen, and those of the lowest errors.

        Their active candidates take at most half of the working set.
        """
        ranks = [(point.facts.penalty != self.chosen.penalty, point.facts.hold_out_error) for point in self.points]
        ordered = sorted(range(len(self.points)), key=lambda position: ranks[position])[:PRICED]
        names, wanted = self.points[ordered[0]].weights.columns, ordered[:1]
        for position in ordered[1:]:
            names = np.union1d(names, self.points[position].weights.columns)
            if len(names) > self._limits.capacity // 2:
                break
            wanted.append(position)
        return wanted


def follow_path_in_rounds(
    run: Run, setting: str, candidates: NDArray[np.int64], limits: WorkingSetLimits
) -> FollowedPath:
    """Choose the penalty of a path over all candidates, given by row; see `penalty_path.follow_penalty_path`."""
    rule = PenaltyPath(run, setting, candidates, limits)

    def make() -> Arrays:
        records = grow_until_certified(rule)[1]
        if rule.chosen.warning is not None:
            run.warn(f"--penalty auto: {rule.chosen.warning}")
        if any(map(rule.is_full, rule.points)):
            run.warn(
                f"--penalty {setting}: smaller penalties have more centers than the working set of {limits.capacity} "
                "has room for; raise --memory-limit to try them"
            )
        return {"penalty": np.array(rule.chosen.penalty), "rounds": np.array(len(records))}

    done = run.once(FOLLOWED, make)
    penalty, n_rounds = float(done["penalty"]), int(done["rounds"])
    if latest(run, "round", (ALL,)) is not None:  # left by a kill at the last moment
        drop(run, round_name(rule.kind, n_rounds - 1), rule.parts)
    points, records = load_points(run, n_rounds - 1), earlier_records(rule, n_rounds)
    chosen = next(point for point in points if point.facts.penalty == penalty)
    return FollowedPath(penalty, [point.facts for point in points], records, chosen)


def begin_on_all_rows(run: Run, followed: FollowedPath, name: str) -> WorkingSet:
    """Commit the first working set of the solve on all rows, the last of the path, with the weights to start from."""
    kind, parts = PenaltyPath.kind, PenaltyPath.parts
    current = latest(run, kind, parts)
    assert current is not None  # it is dropped below
    run.commit(start_name(name), {"weights": followed.chosen.on(current.candidates)})
    with run.timed_as(STATISTICS), run.status(STATISTICS, "adding up both parts"):
        fit = statistics_from_arrays(run.stored(name_of(current.part(FIT))).read())  # in memory: it is added to
        commit(run, name, current.columns, fit.absorbing(current.parts[HELD_OUT]), 0)
    last = current.name
    del current, fit
    drop(run, last, parts)
    return load(run, name)


def _beside(points: list[SolvedPoint], current: WorkingSet) -> Weights:
    """Return the weights of some points on a working set, beside each other."""
    nothing = np.zeros((len(current.candidates), 0))
    table = np.hstack([nothing, *(point.on(current.candidates) for point in points)])
    columns = np.flatnonzero(table.any(axis=1))
    return Weights(columns, table[columns], np.concatenate([nothing[0], *(one.weights.intercept for one in points)]))


def points_name(index: int) -> str:
    """Return the name under which the points of a round are committed."""
    return f"solutions/{round_name(PenaltyPath.kind, index)}-points.npz"


def _as_arrays(points: list[SolvedPoint]) -> Arrays:
    facts = json.dumps([asdict(point.facts) for point in points])
    arrays: Arrays = {POINTS: np.frombuffer(facts.encode(), np.uint8)}
    for position, point in enumerate(points):
        arrays |= {f"{name}-{position}": values for name, values in vars(point.weights).items()}
    return arrays


def load_points(run: Run, index: int) -> list[SolvedPoint]:
    """Return the points of a round. Raises CorruptDataError where they are damaged or missing."""
    arrays = run.stored(points_name(index)).read()
    return [
        SolvedPoint(
            PathPoint(**{**facts, "n_active": tuple(facts["n_active"])}),
            Weights(*(arrays[f"{name}-{position}"] for name in ("columns", "weights", "intercept"))),
        )
        for position, facts in enumerate(json.loads(arrays[POINTS].tobytes()))
    ]
