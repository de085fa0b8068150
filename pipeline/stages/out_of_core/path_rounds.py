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
from pipeline.solvers import Certificate, certify_support
from pipeline.solvers import working_set_rules as rules
from pipeline.solvers.delivered_weights import UnseenWeights
from pipeline.solvers.output_groups import Outputs
from pipeline.solvers.regularization_path import ChosenPenalty, TriedPenalties, choose_penalty
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import groups_of, start_name
from pipeline.stages.out_of_core.column_generation import (
    Change,
    WorkingSetLimits,
    limit_working_set,
    until_certified,
)
from pipeline.stages.out_of_core.path_points import (
    PathRound,
    SolvedPoint,
    earlier_rounds,
    load_points,
    save_points,
    save_round,
)
from pipeline.stages.out_of_core.pricing import ScoresAt, intercept_of, largest_penalty, scores_at
from pipeline.stages.out_of_core.working_set import (
    PATH,
    ROUND,
    WorkingSet,
    committed_sets,
    drop_set,
    grow,
    kernel_entries,
    load,
    on_all_rows,
    part_name,
    set_name,
)
from pipeline.stages.penalty_path import PathColumns, PathPoint, try_penalties
from pipeline.stages.run_state import Run
from pipeline.stages.statistics_pass import FIT, HELD_OUT
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
        n_rounds, penalty = int(done[FOLLOWED]["rounds"]), float(done[FOLLOWED]["penalty"])
        if committed_sets(run, ROUND):
            drop_set(run, PATH, n_rounds - 1)  # left by a kill at the last moment
        return _load(run, n_rounds, penalty)
    path = PathOnFitRows(run, setting, candidates)
    last = until_certified(run, path)
    n_rounds, penalty = last.working_set.number + 1, last.chosen.penalty
    _warn(run, last.chosen, last.points, path.limits)
    write_marker(run.layout.markers(FOLLOWED), FOLLOWED, {"penalty": penalty, "rounds": n_rounds})
    return _load(run, n_rounds, penalty)


@dataclass(frozen=True)
class PricedPath:
    """A round of a path: the penalty that it would choose, its points, those with a certificate marked, the record."""

    working_set: WorkingSet
    change: Change
    is_last: bool
    chosen: ChosenPenalty
    points: list[SolvedPoint]
    record: PathRound


class PathOnFitRows:
    """The penalties of a path on the fit rows: those that might be chosen are priced together."""

    kind = PATH

    def __init__(self, run: Run, setting: str, candidates: NDArray[np.int64]) -> None:
        self._run, self._setting, self._candidates = run, setting, candidates
        self.limits = limit_working_set(run.config.centers.working_set, len(groups_of(run)))

    def first(self) -> WorkingSet:
        """Commit the first working set, a random seed."""
        drawn = rules.seed_candidates(len(self._candidates), self.limits.drawn, self._run.config.seed)
        return grow(self._run, PATH, None, np.empty(0, np.int64), self._candidates[drawn])

    def resumed(self, current: WorkingSet) -> None:
        """Do nothing: the points of the round before are read when they are needed."""

    def solved_and_priced(self, current: WorkingSet) -> PricedPath:
        """Follow the path on a working set, price the points that might be chosen, and commit what the round did."""
        run, number = self._run, current.number
        before = load_points(run, number - 1) if number else []
        largest = _largest(run, current, self._setting, self._candidates)
        chosen, points = _followed(run, current, self._setting, largest, before, self.limits)
        done = _scored(run, current, self._candidates, chosen, points, self.limits)
        save_points(run, number, done.points)
        save_round(run, done.record)
        return done

    def begin_next(self, done: PricedPath) -> None:
        """Do nothing: the points are committed."""


def path_columns(current: WorkingSet) -> PathColumns:
    """Return the columns that penalties are tried on."""
    fit, held_out = (part_name(current.name, part) for part in (FIT, HELD_OUT))
    return PathColumns(fit, held_out, current.name, current.candidates)


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


def begin_on_all_rows(run: Run, followed: FollowedPath) -> WorkingSet:
    """Commit the first working set of the solve on all rows, the last of the path, with the weights to start from."""
    number = committed_sets(run, PATH)[-1]  # it is dropped below, once
    current = load(run, PATH, number)
    run.commit(start_name(set_name(ROUND, 0)), {"weights": followed.chosen.on(current.candidates)})
    everything = on_all_rows(run, current)
    del current
    drop_set(run, PATH, number)
    return everything


def _load(run: Run, n_rounds: int, penalty: float) -> FollowedPath:
    points = load_points(run, n_rounds - 1)
    chosen = next(point for point in points if point.described.penalty == penalty)
    return FollowedPath(penalty, [point.described for point in points], earlier_rounds(run, n_rounds), chosen)


def _largest(run: Run, current: WorkingSet, setting: str, candidates: NDArray[np.int64]) -> float:
    """Return the largest penalty over all candidates on the fit rows, which a path with a first penalty does not need.

    It is committed; no pass is made where it is of no use.
    """
    path = penalty_path(setting)
    if path is not None and path[0] is not None:
        return path[0]
    done = run.done(run.layout.markers(FOLLOWED))
    if LARGEST not in done:
        value = largest_penalty(run, f"{FOLLOWED}-{LARGEST}", candidates, current.statistics, fit_only=True)
        write_marker(run.layout.markers(FOLLOWED), LARGEST, {"penalty": value})
        return value
    return float(done[LARGEST]["penalty"])


def _followed(
    run: Run,
    current: WorkingSet,
    setting: str,
    largest: float,
    before: list[SolvedPoint],
    limits: WorkingSetLimits,
) -> tuple[ChosenPenalty, list[SolvedPoint]]:
    """Follow the path on a working set; return the penalty it chooses, and the points that were tried.

    before: the points of the round before, which are solved again, all in one go, where they lack a certificate. What
    once had more centers than there is room for stays as it was; a search goes no further.
    """
    fit, members = current.statistics, current.candidates
    path, full = penalty_path(setting), [place for place, point in enumerate(before) if _is_full(point, limits)]
    points = before[: full[0] + 1] if full and path is None else list(before)

    def solve(places: list[int], penalties: list[float], number: int | None) -> None:
        start = points[places[0] - 1].on(members) if places[0] else None
        tried, described = try_penalties(run, path_columns(current), tuple(penalties), number, start)
        for place, table, one in zip(places, tried.weights, described, strict=True):
            point = SolvedPoint.of(one, table, members, intercept_of(run, fit, table))
            one = replace(one, converged=one.converged and not _is_full(point, limits), certified=False)
            points[place : place + 1] = [replace(point, described=one)]

    def solve_at(number: int | None, penalties: tuple[float, ...]) -> TriedPenalties:
        first = number or 0
        if len(points) < first + len(penalties):
            solve(list(range(first, first + len(penalties))), list(penalties), number)
        asked = points[first : first + len(penalties)]
        tables = np.stack([point.on(members) for point in asked])
        errors = np.array([point.described.hold_out_error for point in asked])
        return TriedPenalties(tables, errors, asked[-1].described.converged)

    again = [place for place, one in enumerate(points) if not (one.described.certified or _is_full(one, limits))]
    if again:
        solve(again, [points[place].described.penalty for place in again], None)
    chosen = choose_penalty(path, largest, run.config.solver.patience, solve_at)
    return chosen, points


def _scored(
    run: Run,
    current: WorkingSet,
    candidates: NDArray[np.int64],
    chosen: ChosenPenalty,
    points: list[SolvedPoint],
    limits: WorkingSetLimits,
) -> PricedPath:
    """Score all candidates at the points that might be chosen and lack a certificate; say what comes in."""
    tolerance, shared = TOLERANCE * run.config.solver.tolerance, run.config.solver.coupling == "shared"
    wanted = _wanted(points, chosen.penalty, limits)
    waiting = [place for place in wanted if not points[place].described.certified]
    nothing, entries = np.empty(0, np.int64), kernel_entries(run, current)
    inside = positions_of(candidates, current.candidates)
    active = np.isin(candidates, np.concatenate([points[place].names for place in wanted]))
    admitted, sizes, gaps, points = nothing, np.zeros((len(candidates), 0)), list[float](), list(points)
    if waiting:
        tables = np.stack([points[place].on(current.candidates) for place in waiting])
        result = score_solutions(run, current, candidates, tables)
        entries += result.kernel_entries
        for number, place in enumerate(waiting):
            described, scores = points[place].described, result.at(number, run.shape.n_outputs)
            certificates = certify(run, current, tables[number], scores, described.penalty, candidates)
            of_solves = np.array([one.relative_gap for one in certificates])
            gaps.append(float(of_solves.max()))
            violations = rules.violations(scores, float(np.sqrt(described.penalty)), shared=shared)
            sizes = np.hstack([sizes, violations * (of_solves > tolerance)])
            described = replace(described, relative_gap=gaps[-1], certified=gaps[-1] <= tolerance)
            points[place] = replace(points[place], described=described)
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
        path_round=current.number,
        working_set=len(current.candidates),
        penalty=chosen.penalty,
        penalties=tuple(points[place].described.penalty for place in waiting),
        relative_gaps=tuple(gaps),
        violators=int(violators.sum()),
        admitted=len(admitted),
        dropped=len(current.candidates) - len(stay),
        kernel_entries=entries,
    )
    is_last = not len(admitted) or current.number + 1 == MOST_ROUNDS
    return PricedPath(current, Change(stay, admitted), is_last, chosen, points, record)


def score_solutions(
    run: Run, current: WorkingSet, candidates: NDArray[np.int64], tables: NDArray[np.float64]
) -> ScoresAt:
    """Return the scores at weights (k, columns, T) of a working set: committed ones, or those of one pass."""
    fit = current.statistics
    columns = np.flatnonzero(tables.any(axis=(0, 2)))
    weights = tables[:, columns].transpose(1, 0, 2).reshape(len(columns), -1)
    intercept = np.concatenate([intercept_of(run, fit, table) for table in tables])
    scored = scores_at(run, current.name, candidates, current.columns.cut(columns), weights, intercept)
    # Of the working set the Gram gives the scores, see `pricing.score_all_candidates`.
    kty = np.tile(fit.kty, len(tables))
    inside = kty - np.outer(fit.column_sums, intercept) - fit.gram[:, columns] @ weights
    scored.scores[positions_of(candidates, current.candidates)] = inside
    return scored


def certify(
    run: Run,
    current: WorkingSet,
    table: NDArray[np.float64],
    scores: NDArray[np.float64],
    penalty: float,
    candidates: NDArray[np.int64],
) -> list[Certificate]:
    """Return the certificates, over all candidates, of the solves at a penalty (mathematics.md, eqs. 43 and 44).

    table (columns, T): weights on the working set; scores (M, T) of all candidates.
    """
    fit = current.statistics
    kty, yty = fit.centred_targets() if run.intercept else (fit.kty, fit.yty)
    inside, rounding = positions_of(candidates, current.candidates), fit.rounding()

    def of_group(group: Outputs) -> Certificate:
        outputs = list(group)
        of_outputs = scores[:, outputs]
        largest = float(np.linalg.norm(of_outputs, axis=1).max(initial=0.0))
        inputs = table[:, outputs], of_outputs[inside], kty[:, outputs], float(yty[outputs].sum())
        return certify_support(*inputs, float(np.sqrt(penalty)), largest, rounding)

    return [of_group(group) for group in groups_of(run)]


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
    errors = [(point.described.penalty != penalty, point.described.hold_out_error) for point in points]
    return sorted(range(len(points)), key=lambda place: errors[place])[:SCORED]
