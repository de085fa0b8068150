"""A penalty path over more candidates than the Gram may hold (mathematics.md, eqs. 96, 97 and 98).

The first round follows the whole path on a random working set, as if at once, and one pass over the rows scores all
candidates at the penalties that might be chosen: their certificates are over all candidates. What violates comes in,
and the next round solves again where a certificate is missing. The rounds end when nothing that might be chosen lacks
one. The solve on all rows then goes on with the last working set.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import penalty_path
from pipeline.solvers import working_set_rules as rules
from pipeline.solvers.delivered_weights import UnseenWeights
from pipeline.solvers.regularization_path import ChosenPenalty, TriedPenalties, choose_penalty
from pipeline.stages.accumulate_statistics import load_statistics
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import groups_of, start_name
from pipeline.stages.out_of_core import path_working_set
from pipeline.stages.out_of_core.grown_gram import WorkingSet
from pipeline.stages.out_of_core.path_scores import certify, intercept_of, largest_penalty, score_solutions
from pipeline.stages.out_of_core.path_working_set import PathSet
from pipeline.stages.out_of_core.round_names import committed_rounds
from pipeline.stages.out_of_core.solved_points import (
    PathRound,
    SolvedPoint,
    earlier_rounds,
    load_points,
    save_points,
    save_round,
)
from pipeline.stages.out_of_core.working_set_rounds import WorkingSetLimits, limit_working_set
from pipeline.stages.penalty_path import PathPoint, try_penalties
from pipeline.stages.run_state import Run
from storage.arrays import write_arrays
from storage.files import make_folder
from storage.records import write_marker

SCORED = 6  # penalties that a pass scores at most: those of the lowest held-out error, one of which will be chosen
ROOM = 0.75  # of the working set for what is active at a penalty; others need the rest, or there is no certificate
MOST_ROUNDS = 12
TOLERANCE = 10.0  # times that of the solves, over all candidates: what chooses a penalty need not be the final answer
FOLLOWED = "path"  # the marker of a path that is done: the penalty, and of which round the points are
LARGEST = "largest"


@dataclass(frozen=True)
class FollowedPath:
    """What a path comes to: the penalty, the points that were tried, the record of each round."""

    penalty: float
    points: list[PathPoint]
    rounds: list[PathRound]
    chosen: SolvedPoint

    def unseen(self, candidates: NDArray[np.int64]) -> UnseenWeights:
        """Return the weights of the fit rows at the penalty, as the held-out rows are tried with them."""
        return UnseenWeights(positions_of(candidates, self.chosen.names), self.chosen.weights, self.chosen.intercept)


def follow_path_in_rounds(run: Run, setting: str, candidates: NDArray[np.int64]) -> FollowedPath:
    """Choose the penalty of a path over all candidates, given by name; see `penalty_path.follow_penalty_path`."""
    done = run.done(run.layout.markers(FOLLOWED))
    if FOLLOWED in done:
        if committed_rounds(run):
            path_working_set.drop(run, int(done[FOLLOWED]["rounds"]) - 1)  # left by a kill at the last moment
        return _load(run, int(done[FOLLOWED]["rounds"]), float(done[FOLLOWED]["penalty"]))
    limits = limit_working_set(run.config.centers.working_set, len(groups_of(run)))
    current = path_working_set.latest(run) or _first(run, candidates, limits)
    largest = _largest(run, current, setting, candidates)
    while True:
        before = load_points(run, current.round - 1) if current.round else []
        chosen, points = _followed(run, current, setting, largest, before, limits)
        scored = _scored(run, current, candidates, chosen, points, limits)
        save_points(run, current.round, scored.points)
        save_round(run, scored.record)
        if not len(scored.admitted) or current.round + 1 == MOST_ROUNDS:
            break
        grown = path_working_set.grow(run, current, scored.stay, scored.admitted)
        path_working_set.drop(run, current.round)
        current = grown
    _warn(run, chosen, scored.points, limits)
    write_marker(run.layout.markers(FOLLOWED), FOLLOWED, {"penalty": chosen.penalty, "rounds": current.round + 1})
    return _load(run, current.round + 1, chosen.penalty)


def _is_full(point: SolvedPoint, limits: WorkingSetLimits) -> bool:
    """Tell whether a working set has no room for others beside what is active at a point."""
    return len(point.names) > ROOM * limits.capacity


def _warn(run: Run, chosen: ChosenPenalty, points: list[SolvedPoint], limits: WorkingSetLimits) -> None:
    """Tell what the user should know of the penalty that was chosen."""
    if chosen.warning is not None:
        run.events.warn(f"--penalty auto: {chosen.warning}")
    if any(_is_full(point, limits) for point in points):
        run.events.warn(
            f"--penalty {run.config.solver.penalty}: smaller penalties have more centers than the working set of "
            f"{limits.capacity} has room for; raise --memory-limit to try them"
        )


def begin_on_all_rows(run: Run, followed: FollowedPath, name: str) -> WorkingSet:
    """Commit the first working set of the solve on all rows, the last of the path, with the weights to start from."""
    current = path_working_set.latest(run)
    assert current is not None  # it is dropped below, once
    make_folder(run.layout.solutions)
    start = {"weights": followed.chosen.on(current.candidates)}
    write_arrays(run.path(start_name(name)), start)
    everything = path_working_set.on_all_rows(run, current, name)
    path_working_set.drop(run, current.round)
    return everything


def _load(run: Run, n_rounds: int, penalty: float) -> FollowedPath:
    points = load_points(run, n_rounds - 1)
    chosen = next(point for point in points if point.told.penalty == penalty)
    return FollowedPath(penalty, [point.told for point in points], earlier_rounds(run, n_rounds), chosen)


def _first(run: Run, candidates: NDArray[np.int64], limits: WorkingSetLimits) -> PathSet:
    drawn = candidates[rules.seed_candidates(len(candidates), limits.drawn, run.config.seed)]
    return path_working_set.grow(run, None, np.empty(0, np.int64), drawn)


def _largest(run: Run, current: PathSet, setting: str, candidates: NDArray[np.int64]) -> float:
    """Return the largest penalty over all candidates on the fit rows, which a path with a first penalty does not need.

    It is committed; no pass is made where it is of no use.
    """
    path = penalty_path(setting)
    if path is not None and path[0] is not None:
        return path[0]
    done = run.done(run.layout.markers(FOLLOWED))
    if LARGEST not in done:
        fit = load_statistics(run.layout, current.columns.fit)
        value = largest_penalty(run, f"{FOLLOWED}-{LARGEST}", candidates, fit, fit_only=True)
        write_marker(run.layout.markers(FOLLOWED), LARGEST, {"penalty": value})
        return value
    return float(done[LARGEST]["penalty"])


def _followed(
    run: Run,
    current: PathSet,
    setting: str,
    largest: float,
    before: list[SolvedPoint],
    limits: WorkingSetLimits,
) -> tuple[ChosenPenalty, list[SolvedPoint]]:
    """Follow the path on a working set; return the penalty it chooses, and the points that were tried.

    before: the points of the round before, which are solved again, all in one go, where they lack a certificate. What
    once had more centers than there is room for stays as it was; a search goes no further.
    """
    fit, members = load_statistics(run.layout, current.columns.fit), current.candidates
    path, full = penalty_path(setting), [place for place, point in enumerate(before) if _is_full(point, limits)]
    points = before[: full[0] + 1] if full and path is None else list(before)

    def solve(places: list[int], penalties: list[float], number: int | None) -> None:
        start = points[places[0] - 1].on(members) if places[0] else None
        tried, told = try_penalties(run, current.columns, tuple(penalties), number, start)
        for place, table, one in zip(places, tried.weights, told, strict=True):
            point = SolvedPoint.of(one, table, members, intercept_of(run, fit, table))
            one = replace(one, converged=one.converged and not _is_full(point, limits), certified=False)
            points[place : place + 1] = [replace(point, told=one)]

    def solve_at(number: int | None, penalties: tuple[float, ...]) -> TriedPenalties:
        first = number or 0
        if len(points) < first + len(penalties):
            solve(list(range(first, first + len(penalties))), list(penalties), number)
        asked = points[first : first + len(penalties)]
        tables = np.stack([point.on(members) for point in asked])
        errors = np.array([point.told.hold_out_error for point in asked])
        return TriedPenalties(tables, errors, asked[-1].told.converged)

    again = [place for place, one in enumerate(points) if not (one.told.certified or _is_full(one, limits))]
    if again:
        solve(again, [points[place].told.penalty for place in again], None)
    chosen = choose_penalty(path, largest, run.config.solver.patience, solve_at)
    return chosen, points


@dataclass(frozen=True)
class _Scored:
    """A round that was scored: its points, those with a certificate marked, how the working set changes, the record."""

    points: list[SolvedPoint]
    stay: NDArray[np.int64]
    admitted: NDArray[np.int64]
    record: PathRound


def _scored(
    run: Run,
    current: PathSet,
    candidates: NDArray[np.int64],
    chosen: ChosenPenalty,
    points: list[SolvedPoint],
    limits: WorkingSetLimits,
) -> _Scored:
    """Score all candidates at the points that might be chosen and lack a certificate; say what comes in."""
    tolerance, shared = TOLERANCE * run.config.solver.tolerance, run.config.solver.coupling == "shared"
    wanted = _wanted(points, chosen.penalty, limits)
    waiting = [place for place in wanted if not points[place].told.certified]
    nothing, entries = np.empty(0, np.int64), path_working_set.kernel_entries(run, current)
    inside = positions_of(candidates, current.candidates)
    active = np.isin(candidates, np.concatenate([points[place].names for place in wanted]))
    admitted, sizes, gaps, points = nothing, np.zeros((len(candidates), 0)), list[float](), list(points)
    if waiting:
        tables = np.stack([points[place].on(current.candidates) for place in waiting])
        result = score_solutions(run, current, candidates, tables)
        entries += result.kernel_entries
        for number, place in enumerate(waiting):
            told, scores = points[place].told, result.at(number, run.shape.n_outputs)
            certificates = certify(run, current, tables[number], scores, told.penalty, candidates)
            of_solves = np.array([one.relative_gap for one in certificates])
            gaps.append(float(of_solves.max()))
            violations = rules.violations(scores, float(np.sqrt(told.penalty)), shared=shared)
            sizes = np.hstack([sizes, violations * (of_solves > tolerance)])
            told = replace(told, relative_gap=gaps[-1], certified=gaps[-1] <= tolerance)
            points[place] = replace(points[place], told=told)
    near = np.zeros(len(candidates), bool)
    per_solve = max(limits.per_solve // max(len(waiting), 1), 1)
    near[rules.nearest(sizes, active, per_solve, limits.room(int(active[inside].sum())))] = True
    stay = np.flatnonzero((active | near)[inside])
    near[inside] = False
    violators: NDArray[np.bool_] = np.asarray((sizes > 1.0).any(axis=1))
    violators[inside] = False
    if violators.any():
        admitted = candidates[near]
    record = PathRound(
        path_round=current.round,
        working_set=len(current.candidates),
        penalty=chosen.penalty,
        penalties=tuple(points[place].told.penalty for place in waiting),
        relative_gaps=tuple(gaps),
        violators=int(violators.sum()),
        admitted=len(admitted),
        dropped=len(current.candidates) - len(stay),
        kernel_entries=entries,
    )
    return _Scored(points, stay, admitted, record)


def _wanted(points: list[SolvedPoint], penalty: float, limits: WorkingSetLimits) -> list[int]:
    """Return which points shall have a certificate: of those that might be chosen as many as there is room for.

    What is active in any of them leaves half of the working set to others.
    """
    ordered = _might_be_chosen(points, penalty)
    names, wanted = points[ordered[0]].names, ordered[:1]
    for place in ordered[1:]:
        names = np.union1d(names, points[place].names)
        if len(names) > limits.capacity // 2:
            break
        wanted.append(place)
    return wanted


def _might_be_chosen(points: list[SolvedPoint], penalty: float) -> list[int]:
    """Return the places of the point of a penalty, which would be chosen, and of those of the lowest held-out error."""
    errors = [(point.told.penalty != penalty, point.told.hold_out_error) for point in points]
    return sorted(range(len(points)), key=lambda place: errors[place])[:SCORED]
