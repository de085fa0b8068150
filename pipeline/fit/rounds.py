"""Column generation: the weights over more candidates than a Gram shall hold (mathematics.md, eqs. 70 and 92).

`generate_columns` is the algorithm: solve on a working set; price candidates; admit the violators; until all candidates
are priced and the duality gap over them is below the tolerance. A round prices all candidates together, or, on demand,
blocks of them until one violates.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import penalty_fraction
from pipeline.fit.kept_columns import (
    NO_COLUMNS,
    NOTHING,
    RESIDUALS,
    WorkingSet,
    compute_residuals,
    drop,
    grow,
    latest,
    round_name,
)
from pipeline.fit.pricing import CORRELATIONS, Correlations, PricedRound, is_symmetric
from pipeline.fit.solves import REACHED, load_weights, solve_outputs, start_name
from pipeline.fit.target_facts import row_weights
from pipeline.fit.workspace import Workspace
from pipeline.solvers.ridge import Weights
from pipeline.solvers.solve import penalty_max
from pipeline.work.events import SOLVE
from storage.arrays import Arrays, as_arrays, as_dataclass, as_json, from_json

RoundRecord = dict[str, Any]  # A round, as it is committed and reported.
INNER_TOLERANCE = 0.3  # Solves on the working set have this share of the tolerance; other candidates have the rest.
MARGIN = 0.98  # Candidates with a correlation above this share of τ may come in, even if they do not violate.
MOST_DRAWN = 4000  # The first working set draws a tenth of the candidates, and no more than these.
LEAST_FREE = 0.05  # Another round pays off only if this share of the capacity is free.
BLOCKS = 10  # On demand, all candidates are priced for the first time in as many blocks.
LEAST_BLOCK, MOST_BLOCK = 256, 2048  # The first block has no fewer and no more candidates.
GROWTH = 4  # Each block at the same weights is larger than the one before by this factor.
AT_ZERO = "at-zero"  # In the round before the first, candidates are priced at zero weights.
ROUNDS = "rounds"
NO_ROOM = "the working set has no room for the candidates it lacks; raise `solver.penalty` or `resources.memory_limit`"


class Limits(NamedTuple):
    """Bounds on the columns and candidates of a round."""

    capacity: int  # the most columns of a working set
    drawn: int  # candidates that the first working set draws at random
    block: int | None  # candidates priced together; None: all of them, in every round

    @staticmethod
    def of(work: Workspace) -> "Limits":
        capacity = work.config.centers.working_set or work.n_candidates
        if work.config.centers.on_demand:
            return Limits(capacity, 0, min(max(-(-work.n_candidates // BLOCKS), LEAST_BLOCK), MOST_BLOCK))
        return Limits(capacity, max(min(work.n_candidates // 10, MOST_DRAWN, capacity // 2), 1), None)


def generate_columns(work: Workspace) -> tuple[PricedRound, list[RoundRecord]]:
    """Solve over all candidates; return the last round, and the records of all.

    Every round is committed (round-000, …): a resumed work continues from the last, to the same bytes.
    """
    penalty, current = penalty_of(work), latest(work)
    records = earlier_records(work, current.index) if current else []
    if current is None:
        current = grow(work, round_name(0), None, NOTHING, first_columns(work, penalty))
    while True:
        priced = price(solve(work, penalty, current))
        stay, admitted = choose_columns(priced)
        records.append(commit_record(priced, stay, admitted))
        if not len(admitted):  # All are priced and the gap is proved, or there is no room for more.
            return priced, records
        name = current.name
        current = grow(work, round_name(current.index + 1), current, stay, priced.candidates[admitted])
        del priced  # This closes the Gram of the round: a file that is mapped cannot be removed.
        drop(work, name)


def first_columns(work: Workspace, penalty: float) -> NDArray[np.int64]:
    """Return the candidates of the first working set: a random draw, or on demand the violators of the first block.

    The largest violators of all would be bundles of nearly equal columns; a random draw spans the data.
    """
    limits = Limits.of(work)
    if limits.block is None:
        order = np.random.default_rng([work.config.seed, 4]).permutation(work.n_candidates)
        return work.candidates[np.sort(order[: limits.drawn])]
    found = price_at_zero(work)
    violations = np.abs(found.values) / np.sqrt(penalty)
    entering = violations * (violations > 1.0)
    entering[_random_order(work) >= limits.block] = 0.0  # Others are priced for the largest penalty alone.
    chosen = largest_violations(entering, limits.capacity)
    if not len(chosen):  # The solves need some column.
        exact = np.flatnonzero(found.exact)
        chosen = exact[np.argsort(-violations[exact].max(axis=1), kind="stable")[:1]]
    return work.candidates[chosen]


def solve(work: Workspace, penalty: float, current: WorkingSet) -> PricedRound:
    """Solve on a working set, from the weights committed for it; no candidates are priced yet."""
    start, inner = start_name(current.name) if current.index else None, INNER_TOLERANCE * work.config.solver.tolerance
    summaries = solve_outputs(work, current.name, penalty, tolerance=inner, start=start)
    weights = load_weights(work, current.name, len(current.candidates))
    active = Weights.of_support(weights, current.statistics, intercept=work.intercept)
    nothing = Correlations.unknown(0, np.empty((0, work.shape.n_outputs)))
    return PricedRound(work, work.candidates, penalty, current, active, summaries, nothing)


def price(solved: PricedRound) -> PricedRound:
    """Evaluate blocks of candidates until one violates, or none is left that may."""
    work, current, block_size = solved.work, solved.working_set, Limits.of(solved.work).block

    def make() -> Arrays:
        found, size, of_gram = known_before(solved), block_size, solved.of_gram()
        found = replace(found, made=found.made | np.isin(np.arange(len(found.made)), solved.inside))
        while True:
            priced = replace(solved, correlations=found.with_values(solved.inside, of_gram))
            waiting, found = priced.waiting(), priced.correlations
            if not len(waiting):
                return as_arrays(replace(found, screened=priced.screened()))
            if len(priced.violators()):
                return as_arrays(found)
            found = found.evaluated_on(work, current.name, priced.candidates, next_block(priced, waiting, size))
            size = size and size * GROWTH

    found = as_dataclass(work.store.once(stored_name(current.name), make), Correlations)
    remove_passes(work, current.name)
    if current.index:  # The last round stays, in case this one is made again; each holds residuals of all rows.
        work.store.drop(stored_name(round_name(current.index - 2) if current.index > 1 else AT_ZERO))
    return replace(solved, correlations=found)


def known_before(solved: PricedRound) -> Correlations:
    """Return the bounds of the round before at the present residuals. Raises CorruptDataError where it is lost."""
    work, index, residuals = solved.work, solved.working_set.index, solved.residuals()
    if index:
        before = as_dataclass(work.store.stored(stored_name(round_name(index - 1))).read(), Correlations)
        return replace(before, evaluated=0, kernel_entries=0).moved_to(residuals)
    if Limits.of(work).block is None:
        return Correlations.unknown(len(solved.candidates), residuals)
    return price_at_zero(work).moved_to(residuals)  # Its cost counts for the first round.


def next_block(priced: PricedRound, waiting: NDArray[np.int64], size: int | None) -> NDArray[np.int64]:
    """Return the candidates to evaluate next, sorted (mathematics.md, eq. 93).

    At most `size` of those that wait: first those not evaluated yet, in a random order, then those with the largest
    last values, which most likely violate. Without a size all that wait; or all candidates, if their norms are unknown,
    or if a symmetric pass over all costs half and more than half of them wait.
    """
    found, n = priced.correlations, len(priced.candidates)
    if size is None:
        halved = is_symmetric(priced.work, priced.candidates) and len(waiting) > n // 2
        return np.arange(n) if halved or np.isinf(found.norm_bounds).any() else waiting
    new = waiting[np.isinf(found.errors[waiting, 0])]
    if len(new):
        return np.sort(new[np.argsort(_random_order(priced.work)[new], kind="stable")][:size])
    largest = np.argsort(-np.abs(found.values[waiting]).max(axis=1), kind="stable")[:size]
    return np.sort(waiting[largest])


def _random_order(work: Workspace) -> NDArray[np.int64]:
    """Return the rank (M,) i8 of each candidate among those that no block has had."""
    # `choose_kernel.read_sample` has the same stream: the order decides what is priced first, no result.
    return np.random.default_rng([work.config.seed, 6]).permutation(work.n_candidates)


def choose_columns(priced: PricedRound) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the columns of the working set that stay, and the candidates admitted, none if none violates.

    On demand the violators come in, and all columns stay where there is room for both. Else active columns stay, and as
    many candidates nearest to violating (at least half of the first draw) stay or come in: the residual moves as others
    come in, and on MNIST seven in ten of the candidates that became active later did not violate before.
    """
    limits, inside, active = Limits.of(priced.work), priced.inside, priced.inside[priced.weights.columns]
    violations, violators = priced.violations(), priced.violators()
    fits = len(inside) + len(violators) <= limits.capacity
    if not len(violators) or (limits.block and fits):
        return np.arange(len(inside)), violators
    if limits.block:
        violations[inside] = violations[violations <= 1.0] = 0.0
    violations[active] = 0.0
    free = limits.capacity - len(active)
    most = limits.capacity if limits.block else max(len(active), limits.drawn // 2, 1)
    near = largest_violations(violations, min(free, most) if free >= LEAST_FREE * limits.capacity else 0)
    stay = np.isin(inside, np.concatenate([active, near]))
    return np.flatnonzero(stay), np.setdiff1d(near, inside)


def largest_violations(violations: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Return the candidates above MARGIN, sorted: the largest of each solve in turn, at most `most` in all.

    violations (M, T): 0 for candidates that shall not come in. One that several solves want has its best rank.
    """
    ranks = np.full(len(violations), len(violations), np.int64)
    for of_solve in violations.T:
        largest = np.argsort(-of_solve, kind="stable")
        largest = largest[of_solve[largest] > MARGIN]
        ranks[largest] = np.minimum(ranks[largest], np.arange(len(largest)))
    wanted = np.flatnonzero(ranks < len(violations))
    return np.sort(wanted[np.argsort(ranks[wanted], kind="stable")][:most])


def penalty_of(work: Workspace) -> float:
    """Return the penalty of the settings, which may be a fraction of the largest (mathematics.md, eq. 51)."""
    asked = work.config.solver.penalty
    assert asked is not None  # The plan has filled it in.
    if not isinstance(asked, str):
        return asked

    def make() -> Arrays:
        return {"penalty": np.array(penalty_max(price_at_zero(work).values) or 1.0)}

    return penalty_fraction(asked) * float(work.store.once("correlations/largest-penalty.npz", make)["penalty"])


def price_at_zero(work: Workspace) -> Correlations:
    """Return the correlations at zero weights of the first block, or of all for a fraction of the largest penalty."""
    n, t, block_size = work.n_candidates, work.shape.n_outputs, Limits.of(work).block

    def make() -> Arrays:
        residuals = compute_residuals(work, AT_ZERO, NO_COLUMNS, np.zeros((0, t)), np.zeros(t))
        if work.intercept:
            weights = row_weights(work.features, work.shape, work.facts)
            roots = np.ones((len(residuals), 1)) if weights is None else np.sqrt(weights)[:, None]
            residuals = residuals - roots * ((roots * residuals).sum(axis=0) / (roots**2).sum())
        size = n if block_size is None or isinstance(work.config.solver.penalty, str) else block_size
        block = np.flatnonzero(_random_order(work) < size)
        return as_arrays(Correlations.unknown(n, residuals).evaluated_on(work, AT_ZERO, work.candidates, block))

    found = as_dataclass(work.store.once(stored_name(AT_ZERO), make), Correlations)
    remove_passes(work, AT_ZERO)
    return found


def stored_name(name: str) -> str:
    """Return the name under which the correlations of a round are committed."""
    return f"correlations/{name}.npz"


def remove_passes(work: Workspace, name: str) -> None:
    """Remove the leftovers of the passes of a round."""
    for each in (RESIDUALS, CORRELATIONS):
        work.store.drop(f"passes/{name}-{each}")


def commit_record(priced: PricedRound, stay: NDArray[np.int64], admitted: NDArray[np.int64]) -> RoundRecord:
    """Commit the weights that the next round starts from, and the record of this one; return and report it."""
    work, current, found, weights = priced.work, priced.working_set, priced.correlations, priced.weights
    if len(admitted):
        start = np.zeros((len(current.candidates) + len(admitted), weights.weights.shape[1]))
        start[weights.columns] = weights.weights
        start = start[np.append(stay, np.arange(len(current.candidates), len(start)))]
        work.store.put(start_name(round_name(current.index + 1)), {"weights": start})
    record: RoundRecord = {
        "round": current.index,
        "working_set": len(current.candidates),
        "n_active": len(weights.columns),
        "relative_gaps": [float(one.relative_gap) for one in priced.valid_certificates],
        "violators": len(priced.violators()),
        "admitted": len(admitted),
        "dropped": len(current.candidates) - len(stay),
        "evaluated": found.evaluated,
        "skipped_by_bound": int(np.count_nonzero(found.bounded(priced.tau) & ~priced.known)),
        "skipped_as_screened": int(np.count_nonzero(found.screened)),
        "columns_never_made": int(np.count_nonzero(~found.made)),
        "kernel_entries": found.kernel_entries + work.shape.n_train * current.columns.last_size,
    }
    work.store.once(f"{ROUNDS}/{current.name}.npz", lambda: {"record": as_json(record)})
    work.events.metric(stage=SOLVE, **record)
    words = (
        "round {round}: gap {gap:.1e} over {n} candidates; {working_set} in the working set, {n_active} active, "
        "{violators} violators, {admitted} admitted, {dropped} dropped; {evaluated} evaluated, "
        "{skipped_by_bound} skipped by bound, {skipped_as_screened} screened; "
        "{columns_never_made} columns never made, {kernel_entries:.3g} kernel entries"
    )
    work.events.log(words.format(gap=max(record["relative_gaps"]), n=len(priced.candidates), **record))
    return record


def earlier_records(work: Workspace, count: int) -> list[RoundRecord]:
    """Return the records of the first rounds. Raises CorruptDataError where one is damaged or missing."""
    names = [f"{ROUNDS}/{round_name(index)}.npz" for index in range(count)]
    return [from_json(work.store.stored(name).read()["record"]) for name in names]


def summaries_over_all(priced: PricedRound) -> list[dict[str, Any]]:
    """Return the summaries of the solves with objective and gap over all candidates."""
    updated, tolerance = [], priced.work.config.solver.tolerance or REACHED
    for summary, certificate in zip(priced.summaries, priced.valid_certificates, strict=True):
        converged = certificate.relative_gap <= tolerance
        status = NO_ROOM if summary["converged"] and not converged else summary["status"]
        proved = {"objective": certificate.objective, "relative_gap": certificate.relative_gap}
        updated.append(summary | proved | {"converged": converged, "status": status})
    return updated


def count_columns(records: list[RoundRecord], n_candidates: int) -> dict[str, int]:
    """Return the numbers of candidates, of their evaluations, and of columns made, never made, and active."""
    never = records[-1]["columns_never_made"]
    return {
        "candidates": n_candidates,
        "on_the_fly": sum(record["evaluated"] for record in records),
        "materialised": n_candidates - never,
        "columns_never_made": never,
        "active": records[-1]["n_active"],
    }
