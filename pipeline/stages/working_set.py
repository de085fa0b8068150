"""Candidates beyond memory: solve on a working set, score all candidates by streaming, admit violators, repeat.

The gap that ends the loop is over all candidates. Every round is committed under its own name (round-000, …), so
that a resumed run goes on with the last whole one.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import working_set as rules
from pipeline.solvers import Certificate
from pipeline.stages import all_scores, group_solve, grown_gram, initial_weights
from pipeline.stages.all_scores import Problem, Scored, Weights
from pipeline.stages.grown_gram import WorkingSet
from pipeline.stages.rounds import MARKERS, committed_rounds, earlier_records, round_index, round_name
from pipeline.stages.run import Run
from storage.commit import check_folder, make_folder, read_arrays, remove_folder, write_arrays
from storage.markers import write_marker
from storage.remedies import ANEW

STAGE = "solve"
INNER_TOLERANCE = 0.3  # of the tolerance, on the working set: what is left is for the candidates outside
LEAST_ROOM = 0.05  # of the capacity; with less, a pass over all candidates serves too few of them
SEED = 6000  # random candidates in the first working set, and at most as many come in at once


@dataclass(frozen=True)
class Sizes:
    """Sizes chosen from the memory limit, frozen in the run: columns with a Gram, seed, admission of each solve."""

    capacity: int
    seed: int
    per_solve: int


def sizes(capacity: int | None, n_solves: int) -> Sizes:
    """Return the sizes for a working set of at most `capacity` columns, half of which at most come in at once."""
    assert capacity is not None  # the plan has filled it in
    at_once = min(SEED, max(capacity // 2, 1))
    return Sizes(capacity, at_once, max(at_once // n_solves, 1))


@dataclass(frozen=True)
class PassRecord:
    """What one round did; `relative_gaps` are over all candidates, one for each solve; counts are of candidates."""

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


@dataclass(frozen=True)
class Result:
    """What the loop ends with: the last working set, the weights on it, summaries of the solves, and the passes.

    The gaps of the summaries are over all candidates, not over the working set.
    """

    working_set: WorkingSet
    weights: Weights
    summaries: list[dict[str, Any]]
    passes: list[PassRecord]


def run(run: Run, problem: Problem, sizes: Sizes) -> Result:
    """Find the weights over all candidates.

    Ends when the relative gap of every solve over all candidates is within the tolerance, or when nothing is left to
    admit; the summaries say whether it converged. Raises CorruptDataError where a resumed run lacks something of its
    earlier rounds.
    """
    current, passes = _latest(run, problem, sizes)
    while True:
        inner, later = INNER_TOLERANCE * run.config.solver.tolerance, round_index(current.name) > 0
        warm = later or initial_weights.load(run) is not None
        summaries = group_solve.solve_all(run, current.name, [problem.penalty], tolerance=inner, warm_start=warm)
        weights = _weights(run, current)
        previous = round_name(round_index(current.name) - 1) if later else None
        scored = all_scores.score(run, current, weights, problem, previous)
        certificates = all_scores.certify(run, current, weights, scored, problem)
        gaps = np.array([certificate.relative_gap for certificate in certificates])
        places, new = _next(run, current, weights, scored, gaps, problem, sizes)
        passes.append(_record(run, current, weights, scored, gaps, problem, places, new))
        if gaps.max() <= run.config.solver.tolerance or not len(new):
            return Result(current, weights, _summaries(run, summaries, certificates), passes)
        current = _grown(run, current, weights, places, new)


def _latest(run: Run, problem: Problem, sizes: Sizes) -> tuple[WorkingSet, list[PassRecord]]:
    """Return the last whole round of the run, or a first one, and the records of the rounds before it."""
    names = committed_rounds(run)
    if not names:
        new = _first(run, problem, sizes)
        return grown_gram.grow(run, round_name(0), None, np.empty(0, np.int64), new), []
    found = earlier_records(run, names[-1])
    records = [PassRecord(**{**record, "relative_gaps": tuple(record["relative_gaps"])}) for record in found]
    _check(run, names[-1])
    for name in names[:-1]:  # left by a kill at the last moment
        _drop(run, name)
    return grown_gram.load(run, names[-1]), records


def _first(run: Run, problem: Problem, sizes: Sizes) -> NDArray[np.int64]:
    """Return the candidates of the first working set: a random seed, and those that the solves start from.

    Where there are some of those, their weights are committed for the round.
    """
    n, start = len(problem.candidates), initial_weights.load(run)
    kept = np.empty(0, np.int64)
    if start is not None:
        largest = np.argsort(-np.linalg.norm(start.weights, axis=1), kind="stable")[: sizes.capacity]
        kept = all_scores.places(problem.candidates, start.candidates[largest])
    drawn = rules.seed_candidates(n, min(sizes.seed, sizes.capacity - len(kept)), run.config.seed)
    new = problem.candidates[np.union1d(kept, drawn)]
    if start is not None:
        initial_weights.commit_start(run, round_name(0), new, start)
    return np.asarray(new)


def _check(run: Run, name: str) -> None:
    """Check the scores that a resumed round takes up, and the sizes of its statistics, before either is read."""
    check_folder(run.layout.statistics_file(name), remedy=ANEW, contents=False)  # the solves check every byte
    own = run.layout.score_found(name)
    if own.exists():
        read_arrays(own, remedy=ANEW)
    elif round_index(name):
        read_arrays(run.layout.score_found(round_name(round_index(name) - 1)), remedy=ANEW)


def _weights(run: Run, current: WorkingSet) -> Weights:
    table = group_solve.weights(run, current.name, len(current.rows))[-1]
    columns = np.flatnonzero(table.any(axis=1))
    intercept = np.zeros(table.shape[1])
    if run.config.solver.intercept:
        intercept = current.statistics.intercept(table[columns], columns)
    return Weights(columns, table[columns], intercept)


def _next(
    run: Run,
    current: WorkingSet,
    weights: Weights,
    scored: Scored,
    gaps: NDArray[np.float64],
    problem: Problem,
    sizes: Sizes,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the columns that stay in the working set and the training rows that come in.

    Columns at zero that are not near to violating leave: they are scored with all others, so what is missed comes back.
    """
    unsolved = gaps > run.config.solver.tolerance
    sizes_now = rules.sizes(scored.scores, problem.tau, shared=problem.shared) * unsolved
    sizes_now[~all_scores.fresh(scored)] = 0.0  # what was large before may not be so now
    at = all_scores.places(problem.candidates, current.rows)
    active = np.zeros(len(problem.candidates), bool)
    active[at[weights.columns]] = True
    near = np.zeros_like(active)
    near[rules.nearest(sizes_now, active, sizes.per_solve, _room(weights, sizes))] = True
    stay = np.flatnonzero((active | near)[at])
    near[at] = sizes_now[at] = 0
    if not (sizes_now > 1.0).any():  # nothing violates for a solve that needs it: the solver fell short, not the set
        near[:] = False
    return stay, problem.candidates[near]


def _room(weights: Weights, sizes: Sizes) -> int:
    """Return how many candidates may come in; none where there is room for too few to be worth a pass."""
    room = sizes.capacity - len(weights.columns)
    return room if room >= sizes.capacity * LEAST_ROOM else 0


def _record(
    run: Run,
    current: WorkingSet,
    weights: Weights,
    scored: Scored,
    gaps: NDArray[np.float64],
    problem: Problem,
    places: NDArray[np.int64],
    new: NDArray[np.int64],
) -> PassRecord:
    """Commit and tell what the round did."""
    outside = ~np.isin(problem.candidates, current.rows) & all_scores.fresh(scored)
    sizes_outside = rules.sizes(scored.scores[outside], problem.tau, shared=problem.shared)
    record = PassRecord(
        round=round_index(current.name),
        working_set=len(current.rows),
        n_active=len(weights.columns),
        relative_gaps=tuple(float(gap) for gap in gaps),
        violators=int(np.count_nonzero(sizes_outside.max(axis=1, initial=0.0) > 1.0)),
        admitted=len(new),
        dropped=len(current.rows) - len(places),
        evaluated=scored.evaluated,
        skipped=scored.skipped,
        screened=int(np.count_nonzero(scored.screened)),
        kernel_entries=scored.kernel_entries + grown_gram.kernel_entries(run, current.name),
    )
    write_marker(run.layout.markers(MARKERS), current.name, asdict(record))
    run.events.metric(stage=STAGE, **asdict(record))
    run.events.say(
        f"pass {record.round}: gap {gaps.max():.1e} over {len(problem.candidates)} candidates; "
        f"{record.working_set} in the working set, {record.n_active} active, {record.violators} violators, "
        f"{record.admitted} admitted, {record.dropped} dropped; {record.evaluated} evaluated, "
        f"{record.skipped} skipped by bound, {record.screened} screened; {record.kernel_entries:.3g} kernel entries"
    )
    return record


def _grown(
    run: Run, current: WorkingSet, weights: Weights, places: NDArray[np.int64], new: NDArray[np.int64]
) -> WorkingSet:
    """Commit the next round with the weights to start from, and drop what the last one took on disk."""
    name = round_name(round_index(current.name) + 1)
    dense = np.zeros((len(current.rows), weights.weights.shape[1]))
    dense[weights.columns] = weights.weights
    start = np.vstack([dense[places], np.zeros((len(new), dense.shape[1]))])
    make_folder(run.layout.solutions)
    write_arrays(run.layout.solution(group_solve.start_name(name)), {"weights": start})
    grown = grown_gram.grow(run, name, current, places, new)
    _drop(run, current.name)
    return grown


def _drop(run: Run, name: str) -> None:
    """Remove the statistics of an earlier round; they are the largest files of a run."""
    for old in (name, f"{name}-centred"):
        remove_folder(run.layout.statistics_file(old), durable=False)


def _summaries(run: Run, summaries: list[dict[str, Any]], certificates: list[Certificate]) -> list[dict[str, Any]]:
    """Return the summaries of the solves with objective and gap over all candidates."""
    tolerance = run.config.solver.tolerance
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
