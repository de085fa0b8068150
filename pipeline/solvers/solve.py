"""Solve one problem to a certified gap: by sweeps of the paper's method, or by Newton rounds after a short sweep.

A sweep (`coordinate_descent`) or a Newton round (`active_set_newton`) is a function from state to state: the state
between two records is a value, and going on from it gives the same bytes as never having stopped. The search for a
penalty solves at many, from the one at which every weight is zero downwards, each from the weights of the last.

A sweep visits all coordinates at random, as the paper draws them, or those that do not stay at zero: shrinking (the
paper's outlook; Hsieh et al. 2008). `shrink` says from the scores of all candidates which the next sweeps need not
visit; all are looked at again once violations have fallen. `gap_safe_screen` leaves candidates out for good.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from pipeline.solvers import active_set_newton as newton
from pipeline.solvers import coordinate_descent as descent
from pipeline.solvers.problem import (
    Certificate,
    InvalidProblemError,
    Problem,
    certify,
    gap_safe_screen,
    scores_of_support,
)

SOLVE_MATRICES, LARGEST_ACTIVE_SET = 3, 3000  # Beside its Gram a solve holds three matrices of at most 3000²; measured.
LEAST_GAP = 1e-12  # A smaller difference to a dual value of other weights, relative to the primal, is rounding.
PAPER_EPSILON = 1e-4  # By the paper's rule a solve ends when a sweep lowers its objective by less, relatively.
# A sweep and the Newton rounds after it have to lower the objective, or the gap, below this share, or the solve stalls.
_OBJECTIVE_GAIN, _GAP_GAIN = 0.999, 0.9
# A sweep after Newton rounds may spend these operations on factorising G, or ten factorisations if these are more.
# Columns that are alike to rounding may need a fresh G at each visit, and gain nothing by it.
_FACTORISING = 1e9
_ROUNDS_UPHILL = 6  # After these rounds of dropping all at once, exact segment minima take over.
# A coordinate at zero is left out below this share of the largest violation. It is the fastest one tried: 0 and the
# threshold of Hsieh et al. let columns in that are alike, all at once, and G becomes larger than the optimum needs.
LEAST_VIOLATION = 0.1
FALLEN, MOST_SWEEPS = 0.5, 10  # All are looked at again once violations fell to this share, or after ten sweeps.
SHORT_SWEEP = 200  # From zero, and between Newton rounds, more visits would let in far more than the optimum keeps.
STEP = 10.0**-0.5  # A path has two penalties a decade, downwards from the one at which all weights are zero.
LEAST_POINTS = 13  # Six decades are always tried and cost next to nothing: unequal classes gain nothing on the first.
MOST_POINTS = 31  # Rounding rules fifteen decades below the largest penalty.
PATIENCE = 3  # A search ends after three penalties in a row without gain.
GAIN = 1e-2  # A fall by less than this share of the lowest held-out error is no gain.
DEFAULT_PENALTY = "max:1e-7"


@dataclass(frozen=True)
class SolverOptions:
    """How to solve. λ is 1: only λν matters (mathematics.md, eq. 19)."""

    tolerance: float = 1e-3  # relative duality gap over all candidates to stop at
    max_sweeps: int = 1000  # limit on iterations, which are sweeps or Newton rounds
    # newton: a short sweep, then Newton rounds, each on the support and the worst violators; shrinking: sweeps that
    # leave out coordinates at zero (`shrink`); uniform: sweeps of M coordinates drawn with replacement;
    # paper: the same with Newton steps, where these do not lower a weight, and the paper's stopping rule, its sign
    # corrected (mathematics.md, eq. 35).
    schedule: str = "newton"


@dataclass(frozen=True)
class Record:
    """One iteration, a sweep or a Newton round."""

    iteration: int
    phase: str
    objective: float  # F(mu), computed afresh; never above the one before
    primal: float | None  # as the next two: of the weights after it, over all candidates; None where not certified
    dual: float | None
    relative_gap: float | None
    n_active: int
    visits: int  # coordinates visited, with repetitions; of a Newton round: in the support or admitted to it
    skipped_as_shrunk: int  # coordinates left out until all are looked at again
    skipped_as_screened: int  # left out for good
    not_drawn: int  # the other coordinates, which a sweep did not draw, or a Newton round did not admit
    moved: int  # coordinates changed, with repetitions; of a Newton round: to zero or from it
    evaluations: int  # scores evaluated so far, certificates included
    seconds: float = 0.0  # since the start of the solve; the only entry that differs between equal runs


class Counts(NamedTuple):
    """The counts of a record, which add up over records."""

    visits: int
    skipped_as_shrunk: int
    skipped_as_screened: int
    not_drawn: int
    moved: int


@dataclass(frozen=True)
class SolverState:
    """All that the next iteration depends on: arrays of length M, but for the support."""

    mu: np.ndarray
    weights: np.ndarray
    best_weights: np.ndarray  # the certified weights of the smallest primal value so far
    scores: np.ndarray  # c_m^T r at ``weights``, meaningful where ``certified``
    support: np.ndarray  # (m0,) i8, in the order of G and of the factorisations, on which the bits depend
    left_out: np.ndarray  # bool: coordinates that no sweep visits until all are looked at again
    screened: np.ndarray  # bool: zero in every solution by the Gap Safe test, for good at this penalty
    phase: str = "sweep"  # or "newton"
    largest_violation: float = float("inf")  # over all candidates, when they were last looked at
    sweeps_since: int = 0  # sweeps since that look
    generator_state: Mapping[str, Any] = field(default_factory=dict)
    objective: float = float("inf")
    previous_objective: float = float("inf")
    relative_gap: float = float("inf")
    certified: bool = False  # whether ``relative_gap`` belongs to ``weights``
    best_primal: float = float("inf")  # their primal value, with what rounding may have taken
    best_dual: float = float("-inf")  # the largest dual value so far
    settled: bool = False  # whether ``weights`` minimise the objective on their face (Newton)
    stalled: bool = False
    cycle_objective: float = float("inf")  # as the next: at the end of the last Newton rounds that gained nothing more
    cycle_gap: float = float("inf")
    evaluations: int = 0
    records: tuple[Record, ...] = ()

    @property
    def iterations(self) -> int:
        return len(self.records)

    @property
    def totals(self) -> dict[str, int]:
        return {name: sum(getattr(record, name) for record in self.records) for name in Counts._fields}

    @property
    def best_gap(self) -> float:
        """Return the relative gap of ``best_weights``: a dual value bounds the optimum whatever weights it is from."""
        if not np.isfinite(self.best_dual):
            return np.inf
        return max((self.best_primal - self.best_dual) / self.best_primal, LEAST_GAP) if self.best_primal else 0.0

    def with_proof(self, certificate: Certificate) -> "SolverState":
        state = replace(self, certified=True, relative_gap=certificate.relative_gap)
        if not np.isfinite(certificate.gap):
            return state
        primal = certificate.primal + certificate.primal_rounding  # the dual value may be that of other weights
        if primal < self.best_primal:
            state = replace(state, best_weights=self.weights, best_primal=primal)
        return replace(state, best_dual=max(certificate.dual, self.best_dual))

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return (arrays, scalars): plain numpy arrays, and scalars that json can write."""
        arrays = {name: np.array(getattr(self, name)) for name in _ARRAYS}
        arrays["floats"] = np.array([getattr(self, name) for name in _FLOATS])  # infinities are no JSON
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*_ARRAYS, *_FLOATS)}
        others["generator_state"] = json.loads(json.dumps(self.generator_state, default=lambda value: value.tolist()))
        return arrays, others | {"records": [asdict(record) for record in self.records]}

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> "SolverState":
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in _ARRAYS}
        values |= dict(zip(_FLOATS, arrays["floats"].tolist(), strict=True))
        records = tuple(Record(**record) for record in scalars["records"])
        return SolverState(**{**values, **scalars, "records": records})


_ARRAYS = [field.name for field in fields(SolverState) if field.type is np.ndarray]
_FLOATS = [field.name for field in fields(SolverState) if field.type is float]


def warm_state(weights: np.ndarray) -> SolverState:
    """Return a state to start from ``weights``, (M,): at another penalty, or in another working set."""
    copied, support = np.array(weights, dtype=np.float64), np.flatnonzero(weights)
    zeros, nothing = np.zeros(len(weights)), np.zeros(len(weights), bool)
    return SolverState(zeros, copied, copied, zeros, support, nothing, nothing)


class Status(Enum):
    """How a solve ended; the value is the advice."""

    CONVERGED = "the relative gap is within the tolerance"
    PAPER_RULE = "the objective fell by less than epsilon of itself in a sweep; the gap may exceed the tolerance"
    SWEEP_LIMIT = "the sweep limit came before the tolerance; raise `solver.max_sweeps` or `solver.tolerance`"
    STALLED = "no step lowers the objective in float64; use a larger penalty, or raise `solver.tolerance`"
    EXHAUSTED = "float64 ends before the tolerance with this Gram; use a larger penalty"
    STOPPED = "stopped on request; resume to go on"


@dataclass(frozen=True)
class Solution:
    """The answer and its proof: weights (M,) f8; mu (M,) f8, with w_m = mu_m q_m; the certificate of the weights."""

    weights: np.ndarray
    mu: np.ndarray
    certificate: Certificate
    status: Status
    state: SolverState  # what a later call may start from, with the records of all iterations

    @property
    def converged(self) -> bool:
        return self.status in (Status.CONVERGED, Status.PAPER_RULE)

    @property
    def objective(self) -> float:
        return self.certificate.objective

    @property
    def n_active(self) -> int:
        return int(np.count_nonzero(self.weights))


def solve(
    problem: Problem,
    options: SolverOptions,
    generator: np.random.Generator,
    *,
    start: SolverState | None = None,
    on_record: Callable[[Record, SolverState], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Solution:
    """Minimise F over mu >= 0, to a certified relative gap (mathematics.md, eqs. 13 and 45).

    problem : already validated (`Problem.validate`), once per Gram.
    generator : draws the visits; left untouched where ``start`` holds a generator state, which is used instead.
    start : from `Solution.state` or ``on_record``, to go on to the same bytes; or `warm_state` of known weights.
    on_record : gets each record and the state behind it.
    should_stop : called after each record; True ends the solve with `Status.STOPPED`.

    Where the tolerance is not reached (``converged``, ``status``), the weights are those of the smallest primal value
    on the way; of the last sweep where the paper's rule ended it. Raises InvalidProblemError where the objective, its
    gap or G leaves float64 before there are any weights: mu grows as 1 / sqrt(penalty). Independent of the number of
    rows. Memory: about 3 m0^2 float64 beside the Gram.
    """
    state = _begin(problem, options, generator, start)
    clock = time.perf_counter() - (state.records[-1].seconds if state.records else 0.0)
    inverse: descent.ActiveInverse | None = None
    while (status := _finished(options, state)) is None:
        try:
            new, inverse, record = _iteration(problem, options, state, inverse)
        except InvalidProblemError:
            if not state.best_weights.any():
                raise
            status = Status.EXHAUSTED
            break
        record = replace(record, seconds=time.perf_counter() - clock)
        state = replace(new, records=(*state.records, record))
        if on_record is not None:
            on_record(record, state)
        if should_stop is not None and should_stop():
            status = _finished(options, state) or Status.STOPPED
            break
    return _solution(problem, options, state, status)


def _finished(options: SolverOptions, state: SolverState) -> Status | None:
    """Return why to stop before another iteration, or None (mathematics.md, eqs. 35 and 45)."""
    if (state.certified and state.relative_gap <= options.tolerance) or state.best_gap <= options.tolerance:
        return Status.CONVERGED
    if options.schedule == "paper" and state.iterations > 1:
        fall = state.previous_objective - state.objective
        if fall < PAPER_EPSILON * state.previous_objective:
            return Status.PAPER_RULE
    if state.stalled:
        return Status.STALLED
    return Status.SWEEP_LIMIT if state.iterations >= options.max_sweeps else None


def _too_small(problem: Problem) -> InvalidProblemError:
    return InvalidProblemError(
        f"the penalty {problem.penalty:g} is too small for float64 with this Gram: the objective, its gap or the"
        " inverse is no finite number; use a larger penalty"
    )


def _solution(problem: Problem, options: SolverOptions, state: SolverState, status: Status) -> Solution:
    """Return the best weights, by the paper's rule those of its last sweep, certified over all candidates."""
    proved = state
    if not state.certified:  # the state stays as it is, for a solve that goes on from it
        proved = replace(state, scores=scores_of_support(problem, state.weights, state.support))
        proved = proved.with_proof(certify(problem, proved.weights, proved.scores))
        if status is Status.SWEEP_LIMIT:
            status = _finished(options, proved) or status
    weights, mu = proved.weights, proved.mu
    certificate = certify(problem, weights, proved.scores)
    converged = certificate.relative_gap <= options.tolerance or status is Status.PAPER_RULE
    if not converged and proved.best_gap < certificate.relative_gap:
        weights, mu = proved.best_weights, _mu_of_weights(proved.best_weights, problem)
        proof = certify(problem, weights)
        gap = {"gap": proved.best_gap * proof.primal, "relative_gap": proved.best_gap}
        certificate = replace(proof, dual=proved.best_dual, **gap)
    if not np.isfinite(certificate.relative_gap):
        raise _too_small(problem)
    return Solution(weights, mu, certificate, status, state)


def _iteration(
    problem: Problem, options: SolverOptions, state: SolverState, inverse: descent.ActiveInverse | None
) -> tuple[SolverState, descent.ActiveInverse | None, Record]:
    # What overflows is refused in words below; what divides by zero or has no factor, here.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            if state.phase == "sweep":
                new, inverse, record = _sweep(problem, options, state, inverse)
            else:
                inverse, (new, record) = None, _newton_round(problem, state)
        except (ZeroDivisionError, np.linalg.LinAlgError):
            raise _too_small(problem) from None
    if not np.isfinite(new.objective):
        raise _too_small(problem)
    return new, inverse, record


def _begin(
    problem: Problem, options: SolverOptions, generator: np.random.Generator, start: SolverState | None
) -> SolverState:
    """Return the state to start from: mu = 0, or ``start`` as it is, or warm weights to be scored here."""
    if start is not None and start.iterations > 0:
        return start
    nothing = warm_state(np.zeros(problem.kty.shape))
    state = nothing if start is None else start
    scores = scores_of_support(problem, state.weights, state.support)
    certificate = certify(problem, state.weights, scores)
    warm = state.support.size > 0
    if not np.isfinite(certificate.relative_gap):  # worse than no weights at all
        proof = certify(problem, nothing.weights, problem.kty)
        state = replace(state, best_weights=nothing.weights, best_primal=proof.primal, best_dual=proof.dual)
    state = replace(
        state,
        phase="newton" if warm and options.schedule == "newton" else "sweep",
        mu=_mu_of_weights(state.weights, problem),
        scores=scores,
        generator_state=dict(generator.bit_generator.state),
        objective=certificate.objective,
        evaluations=problem.n_candidates if warm else 0,  # zero weights have scores kty at no cost
    )
    if warm and options.schedule == "shrinking":
        state = shrink(problem, state)
    return state.with_proof(certificate)


def _mu_of_weights(weights: np.ndarray, problem: Problem) -> np.ndarray:
    """Return mu_m = |w_m| / tau, at which F(mu) <= 2 P(w) (mathematics.md, eqs. 38 and 39)."""
    return np.abs(weights) * (1.0 / problem.tau)


def _sweep(
    problem: Problem, options: SolverOptions, state: SolverState, inverse: descent.ActiveInverse | None
) -> tuple[SolverState, descent.ActiveInverse, Record]:
    if inverse is None:
        inverse = descent.factorise(problem, state.mu, state.support)
    bits = getattr(np.random, state.generator_state["bit_generator"])()
    bits.state = dict(state.generator_state)
    order, counts = draw_visits(problem, options, state, np.random.Generator(bits))
    after_newton, exact = options.schedule == "newton" and state.iterations > 0, options.schedule != "paper"
    most = max(_FACTORISING / (state.support.size + 1) ** 3, 10) if after_newton else np.inf
    inverse, report = descent.run_sweep(problem, inverse, order, exact=exact, most_factorisations=most)
    state = replace(
        state,
        mu=inverse.mu.copy(),
        weights=inverse.weights(),
        support=inverse.support.copy(),
        previous_objective=state.objective,
        objective=report.objective,
        certified=False,
        settled=False,
        sweeps_since=state.sweeps_since + 1,
        generator_state=dict(bits.state),
        evaluations=state.evaluations + report.visits,
    )
    certificate, fallen = None, report.largest_violation <= FALLEN * state.largest_violation
    must_look_at_all = fallen or report.moves == 0 or state.sweeps_since >= MOST_SWEEPS
    if options.schedule != "shrinking" or must_look_at_all:
        scores = scores_of_support(problem, state.weights, state.support)
        certificate = certify(problem, state.weights, scores)
        state = replace(state, scores=scores, evaluations=state.evaluations + problem.n_candidates)
        state = state.with_proof(certificate)
        if options.schedule in ("newton", "shrinking"):
            state = _screened(problem, state, certificate)
        if options.schedule == "shrinking":
            state = shrink(problem, state)
    if options.schedule == "newton":
        state = replace(state, phase="newton")
    not_drawn = counts.not_drawn + len(order) - report.visits  # a sweep may end early
    counts = counts._replace(visits=report.visits, not_drawn=not_drawn, moved=report.moves)
    return state, inverse, _record("sweep", state, certificate, counts)


def shrink(problem: Problem, state: SolverState) -> SolverState:
    """Return the state with what the next sweeps leave out, by scores of all candidates (mathematics.md, eq. 50).

    A coordinate violates its optimality condition by |ν - q²|, at zero by q² - ν if that is above 0. Those at zero
    without a large violation are left out. This proves nothing, since moves change scores: the next look decides anew.
    """
    at_zero, excess = state.mu == 0.0, state.scores**2 - problem.penalty
    violations = np.where(at_zero, np.maximum(excess, 0.0), np.abs(excess))
    violations[state.screened] = 0.0
    largest = float(violations.max())
    left_out = at_zero & (violations < LEAST_VIOLATION * largest)
    return replace(state, left_out=left_out, largest_violation=largest, sweeps_since=0)


def draw_visits(
    problem: Problem, options: SolverOptions, state: SolverState, generator: np.random.Generator
) -> tuple[np.ndarray, Counts]:
    """Return what the next sweep of a schedule visits, (visits,) i8 in its order, and the counts of that."""
    n = problem.n_candidates
    if options.schedule in ("uniform", "paper"):
        order = generator.integers(0, n, size=n)
        return order, Counts(n, 0, 0, n - np.unique(order).size, 0)
    order = generator.permutation(n)
    screened, shrunk = state.screened, state.left_out & ~state.screened
    order = order[~(screened | shrunk)[order]]
    visits = order[: SHORT_SWEEP if options.schedule == "newton" or not state.support.size else None]
    return visits, Counts(len(visits), int(shrunk.sum()), int(screened.sum()), len(order) - len(visits), 0)


def _newton_round(problem: Problem, state: SolverState) -> tuple[SolverState, Record]:
    new, certificate, visited = _newton_steps(problem, state, drop_all=True)
    if new.objective > new.previous_objective:
        # Dropping all at once ended uphill (rare): again, with exact segment minima, which cannot.
        spent, before = new.evaluations - state.evaluations, visited
        new, certificate, visited = _newton_steps(problem, state, drop_all=False)
        new, visited = replace(new, evaluations=new.evaluations + spent), visited | before
    gained = new.objective < new.previous_objective
    if not (gained or (new.settled and not state.settled and new.objective == new.previous_objective)):
        new = _back_to_sweeps(state, new)
    visits, screened = int(visited.sum()), int(np.count_nonzero(state.screened & ~visited))
    moved = int(np.count_nonzero((new.weights != 0.0) != (state.weights != 0.0)))
    counts = Counts(visits, 0, screened, problem.n_candidates - visits - screened, moved)
    return new, _record("newton", new, certificate, counts)


def _record(phase: str, state: SolverState, certificate: Certificate | None, counts: Counts) -> Record:
    """Return the record of an iteration that ended in ``state``; a certificate that proves nothing is left out."""
    proof: tuple[float | None, float | None, float | None] = (None, None, None)
    if certificate is not None and np.isfinite(certificate.gap):
        proof = certificate.primal, certificate.dual, certificate.relative_gap
    size = int(state.support.size)
    return Record(state.iterations + 1, phase, state.objective, *proof, size, *counts, state.evaluations)


def _screened(problem: Problem, state: SolverState, certificate: Certificate) -> SolverState:
    rounding = problem.rounding.each + problem.rounding.units  # centring may have cancelled more
    norms = np.sqrt(np.maximum(np.diagonal(problem.gram), 0.0) + rounding)
    safe = gap_safe_screen(state.scores, norms, certificate, problem.tau)
    return replace(state, screened=state.screened | (safe & (state.mu == 0.0)))


def _newton_steps(
    problem: Problem, state: SolverState, *, drop_all: bool
) -> tuple[SolverState, Certificate, np.ndarray]:
    """Admit and minimise, until the objective is below the one before; return too which were visited, (M,) bool.

    With ``drop_all``, what was dropped too eagerly comes back in the next rounds; the one that ends lower is recorded.
    """
    start = certify(problem, state.weights, state.scores)
    evaluations, visited = state.evaluations, state.weights != 0.0
    weights, support, scores, settled = state.weights, state.support, state.scores, state.settled
    for _ in range(_ROUNDS_UPHILL if drop_all else 1):
        admitted = np.zeros(0, dtype=np.int64)
        if settled:
            admitted = newton.admit(scores, support, problem.tau, state.screened)
        visited[admitted] = True
        weights, support, settled, evaluated = newton.minimise(
            problem, weights, support, admitted, scores, drop_all=drop_all
        )
        scores = scores_of_support(problem, weights, support)
        evaluations += evaluated + problem.n_candidates
        certificate = certify(problem, weights, scores)
        if certificate.primal <= start.primal and settled:
            break
    new = replace(
        state,
        weights=weights,
        support=support,
        mu=_mu_of_weights(weights, problem),
        scores=scores,
        previous_objective=start.objective,
        objective=certificate.objective,  # F(mu) = 2P, which the weights of a settled face meet
        settled=settled,
        evaluations=evaluations,
    )
    return _screened(problem, new.with_proof(certificate), certificate), certificate, visited


def _back_to_sweeps(state: SolverState, new: SolverState) -> SolverState:
    """Return the state after a Newton round that gained nothing: a sweep is next, or the solve has stalled.

    A round that ended uphill (by rounding only: its steps were exact) is undone; what its certificate proved stays.
    """
    if new.objective > new.previous_objective:
        kept = ("evaluations", "best_weights", "best_primal", "best_dual")
        new = replace(state, **{name: getattr(new, name) for name in kept})
    lower, closer = new.objective < _OBJECTIVE_GAIN * state.cycle_objective, new.best_gap < _GAP_GAIN * state.cycle_gap
    new = replace(new, phase="sweep", stalled=not (lower or closer))
    return replace(new, cycle_objective=new.objective, cycle_gap=new.best_gap)


def search_penalties(largest: float, attempt: Callable[[int, float], tuple[float, bool]]) -> tuple[int, str | None]:
    """Look for the penalty of the lowest held-out error, from `largest` downwards; return its number and a warning.

    Ends after `PATIENCE` penalties in a row that lower the lowest error by less than `GAIN`, once `LEAST_POINTS` are
    tried, where solves no longer converge, or at `MOST_POINTS`. attempt(number, penalty), in order from number 0,
    returns the held-out error, and whether the solves converged; the best is among those that did, if any but the first
    did, at which all weights are zero. The warning is for a best at an edge of what was tried and converged.
    """
    trials = list[tuple[float, bool]]()  # held-out errors, and whether the solves converged
    lowest, idle = math.inf, 0
    for number in range(MOST_POINTS):
        error, converged = attempt(number, largest * STEP**number)
        trials.append((error, converged))
        idle, lowest = (0, error) if error < (1.0 - GAIN) * lowest else (idle + 1, lowest)
        if (number + 1 >= LEAST_POINTS and idle >= PATIENCE) or not converged:
            break
    some_converged = any(converged for _, converged in trials[1:])  # at the first all weights are zero: no solve at all
    order = [(some_converged and not converged, error, number) for number, (error, converged) in enumerate(trials)]
    best, warning = min(order)[2], None
    if best == 0:
        warning = (
            "no penalty tried is better than weights that are all zero: the inputs tell nothing of the held-out rows"
        )
    elif not idle and not any(converged for _, converged in trials[best + 1 :]):
        which = "tried" if best == len(trials) - 1 else "whose solve converged"
        warning = (
            f"the held-out error still falls at the last and smallest penalty {which}, {largest * STEP**best:.3g}; "
            "more candidates, another kernel width, or a least-squares refit may lower it further"
        )
    return best, warning


def penalty_max(kty: np.ndarray) -> float:
    """Return the smallest penalty λν at which every weight is zero, for kty (M, T) (mathematics.md, eq. 51)."""
    return float((kty**2).max(initial=0.0))
