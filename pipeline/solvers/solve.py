"""Solve one problem to a certified gap: sweeps of the paper's method, then Newton rounds.

A sweep visits coordinates drawn uniformly with replacement, as Algorithm 2 does, or (shrinking) a random permutation of
those neither shrunk nor screened; a Newton round takes Newton steps. Either is a function from state to state: the
state between two records is a value, and going on from it gives the same bytes as never having stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from pipeline.solvers import active_set_newton as newton
from pipeline.solvers.coordinate_descent import ActiveInverse, factorise, objective, run_sweep
from pipeline.solvers.duality_gap import Certificate, certify, certify_problem, gap_safe_screen, scores_of_support
from pipeline.solvers.problem import InvalidProblemError, Problem
from pipeline.solvers.state import Record, SolverOptions, SolverState, warm_state

PAPER_EPSILON = 1e-4  # the paper's rule ends a solve whose objective falls by less in a sweep, relatively
# A sweep after a Newton round that gained nothing may cost about so many operations: with 1000 active columns that
# are alike to rounding, whole sweeps with a fresh G for every few visits took minutes and gained nothing either.
_FALLBACK_OPERATIONS = 1e9
_FALLBACK_VISITS, _FALLBACK_FACTORISATIONS = 200, 10  # at the least
# So many of them in a row end the solve, if Newton then lowers neither the gap to less than 0.9 of itself nor the
# primal value to less than 0.99.
_IDLE_CYCLES, _GAP_GAIN, _PRIMAL_GAIN = 3, 0.9, 0.99
# Rounds of dropping all at once before exact segment minima take over.
_ROUNDS_UPHILL = 6


class Status(Enum):
    """How a solve ended; the value is the advice."""

    CONVERGED = "the relative gap is within the tolerance"
    PAPER_RULE = "the objective fell by less than epsilon of itself in a sweep; the gap may exceed the tolerance"
    SWEEP_LIMIT = "the sweep limit came before the tolerance; raise --max-sweeps or --tol"
    STALLED = "no step lowers the objective in float64; use a larger penalty, or raise --tol"
    EXHAUSTED = "float64 ends before the tolerance with this Gram; use a larger penalty"
    STOPPED = "stopped on request; resume to go on"


@dataclass(frozen=True)
class Solution:
    """The answer and its proof: weights (M,) f8; mu (M,) f8, with w_m = mu_m q_m; the certificate of the weights.

    state: what a later call may start from, with the records of all iterations.
    """

    weights: np.ndarray
    mu: np.ndarray
    certificate: Certificate
    status: Status
    state: SolverState

    @property
    def converged(self) -> bool:
        """Return whether the stopping rule that was asked for was met."""
        return self.status in (Status.CONVERGED, Status.PAPER_RULE)

    @property
    def objective(self) -> float:
        """Return 2P of ``weights``."""
        return self.certificate.objective

    @property
    def n_active(self) -> int:
        """Return the number of candidates with a non-zero weight."""
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
    generator = _generator_of(state)
    clock = time.perf_counter() - (state.records[-1].seconds if state.records else 0.0)
    inverse: ActiveInverse | None = None
    while (status := _finished(options, state)) is None:
        try:
            new, inverse, record = _iteration(problem, options, state, inverse, generator)
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
    if not state.certified:
        scores = scores_of_support(problem, state.weights, state.support)
        state = replace(state, scores=scores, evaluations=state.evaluations + problem.n_candidates)
    weights, mu = state.weights, state.mu
    certificate = certify(problem, weights, state.scores)
    converged = certificate.relative_gap <= options.tolerance or status is Status.PAPER_RULE
    if not converged and state.best_gap < certificate.relative_gap:
        weights, mu = state.best_weights, _mu_of_weights(state.best_weights, problem)
        proof = certify_problem(problem, weights)
        gap = {"gap": state.best_gap * proof.primal, "relative_gap": state.best_gap}
        certificate = replace(proof, dual=state.best_dual, **gap)
    if not np.isfinite(certificate.relative_gap):
        raise _too_small(problem)
    return Solution(weights, mu, certificate, status, state)


def solve_bytes(n_columns: int) -> int:
    """Return the bytes of a solve beside its Gram: three matrices of the active set, of 3000 at most, as measured."""
    return 3 * 8 * min(n_columns, 3000) ** 2


def _iteration(
    problem: Problem,
    options: SolverOptions,
    state: SolverState,
    inverse: ActiveInverse | None,
    generator: np.random.Generator,
) -> tuple[SolverState, ActiveInverse | None, Record]:
    # What overflows is refused in words below; what divides by zero or has no factor, here.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            if state.phase == "sweep":
                new, inverse, record = _sweep(problem, options, state, inverse, generator)
            else:
                inverse, (new, record) = None, _newton_round(problem, options, state)
        except (ZeroDivisionError, np.linalg.LinAlgError):
            raise _too_small(problem) from None
    if not (np.isfinite(new.objective) and np.isfinite(record.drift)):
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
    direct = options.uses_newton and (warm or options.opening_visits == 0)
    if not np.isfinite(certificate.relative_gap):  # worse than no weights at all
        proof = certify(problem, nothing.weights, problem.kty)
        state = replace(state, best_weights=nothing.weights, best_primal=proof.primal, best_dual=proof.dual)
    begun = replace(
        state,
        phase="newton" if direct else "sweep",
        settled=direct and not warm,
        mu=_mu_of_weights(state.weights, problem),
        scores=scores,
        level=options.tolerance,
        generator_state=dict(generator.bit_generator.state),
        objective=certificate.objective,
        evaluations=problem.n_candidates if warm else 0,  # zero weights have scores kty at no cost
    )
    return begun.with_proof(certificate)


def _generator_of(state: SolverState) -> np.random.Generator:
    """Return a generator that goes on where the state's left off."""
    bits = getattr(np.random, state.generator_state["bit_generator"])()
    bits.state = dict(state.generator_state)
    return np.random.Generator(bits)


def _mu_of_weights(weights: np.ndarray, problem: Problem) -> np.ndarray:
    """Return mu_m = |w_m| / tau, at which F(mu) <= 2 P(w) (mathematics.md, eqs. 38 and 39)."""
    return np.abs(weights) * (1.0 / problem.tau)


def _sweep(
    problem: Problem,
    options: SolverOptions,
    state: SolverState,
    inverse: ActiveInverse | None,
    generator: np.random.Generator,
) -> tuple[SolverState, ActiveInverse, Record]:
    """Run one sweep of the schedule; ``inverse`` is that of the state, or None to compute it."""
    if inverse is None:
        inverse = factorise(problem, state.mu, state.support)
    most_visits, most_factorisations = _limits(problem, options, state)
    threshold = np.inf
    if options.uses_newton:
        order, threshold = generator.permutation(np.flatnonzero(~(state.shrunk | state.screened))), state.threshold
        order = order[:most_visits]
    else:
        order = generator.integers(0, problem.n_candidates, size=problem.n_candidates)
    shrunk, n_screened = state.shrunk.copy(), int(np.count_nonzero(state.screened))
    inverse, report = run_sweep(
        problem, inverse, order, shrunk,
        exact=options.schedule != "paper", threshold=threshold, most_factorisations=most_factorisations,
    )  # fmt: skip
    if options.uses_newton:
        state = replace(state, shrunk=shrunk, threshold=report.worst if report.worst > 0 else np.inf)
    state = _at(
        problem,
        state,
        inverse,
        phase="newton" if options.uses_newton else "sweep",
        generator_state=dict(generator.bit_generator.state),
        visits=state.visits + report.visits,
        evaluations=state.evaluations + report.visits,
        moves=state.moves + report.moves,
    )
    state, certificate = _certified(problem, options, state, report.worst)
    skipped = problem.n_candidates - np.unique(order).size - n_screened
    counts = report.visits, skipped, n_screened, report.moves
    return state, inverse, _record("sweep", state, certificate, *counts, report.drift)


def _newton_round(problem: Problem, options: SolverOptions, state: SolverState) -> tuple[SolverState, Record]:
    """Admit the worst violators, minimise on the faces met, certify; a stalled round asks for a sweep."""
    new, certificate, steps = _newton_steps(problem, state, drop_all=True)
    if new.objective > new.previous_objective:
        # Dropping all at once ended uphill (rare): again, with exact segment minima, which cannot.
        spent, wasted = new.evaluations - state.evaluations, steps
        new, certificate, steps = _newton_steps(problem, state, drop_all=False)
        new, steps = replace(new, evaluations=new.evaluations + spent), steps + wasted
    new = _with_stall(state, replace(new, iterations=state.iterations + 1, moves=state.moves + steps))
    active, was_active = new.weights != 0.0, state.weights != 0.0
    visited = int(np.count_nonzero(active | was_active))
    screened, moved = int(np.count_nonzero(new.screened)), int(np.count_nonzero(active != was_active))
    skipped = problem.n_candidates - visited - screened
    return new, _record("newton", new, certificate, visited, skipped, screened, moved, drift=0.0)


def _at(problem: Problem, state: SolverState, inverse: ActiveInverse, **changes: Any) -> SolverState:
    """Return the state after an iteration that ended at mu of ``inverse``, not certified yet."""
    return replace(
        state,
        mu=inverse.mu.copy(),
        weights=inverse.weights(),
        support=inverse.support.copy(),
        previous_objective=state.objective,
        objective=objective(problem, inverse),
        certified=False,
        settled=False,
        iterations=state.iterations + 1,
        **changes,
    )


def _record(
    phase: str, state: SolverState, certificate: Certificate,
    visited: int, skipped: int, screened: int, moved: int, drift: float,
) -> Record:  # fmt: skip
    """Return the record of an iteration that ended in ``state``; a certificate that proves nothing is left out."""
    proof: tuple[float | None, float | None, float | None] = (None, None, None)
    if np.isfinite(certificate.gap):
        proof = certificate.primal, certificate.dual, certificate.relative_gap
    counts = int(state.support.size), visited, skipped, screened, moved, state.evaluations
    return Record(state.iterations, phase, state.objective, *proof, *counts, drift)


def _limits(problem: Problem, options: SolverOptions, state: SolverState) -> tuple[int, float]:
    """Return how many coordinates a sweep visits, and how often it may compute G afresh.

    Few before Newton rounds; after one that gained nothing, what costs about so many operations.
    """
    if not options.uses_newton:
        return problem.n_candidates, np.inf
    if state.iterations == 0:
        return options.opening_visits, np.inf
    n = state.support.size + 1
    visits, factorisations = int(_FALLBACK_OPERATIONS / n**2), _FALLBACK_OPERATIONS / n**3
    return max(visits, _FALLBACK_VISITS), max(factorisations, _FALLBACK_FACTORISATIONS)


def _certified(
    problem: Problem, options: SolverOptions, state: SolverState, worst: float
) -> tuple[SolverState, Certificate]:
    """Score all candidates, screen, and restore the shrunk ones where their absence has converged."""
    scores = scores_of_support(problem, state.weights, state.support)
    certificate = certify(problem, state.weights, scores)
    state = replace(state, scores=scores, evaluations=state.evaluations + problem.n_candidates)
    if options.uses_newton:
        state = _screened(problem, state, certificate)
        if worst <= state.level * problem.penalty:
            state = replace(state, shrunk=np.zeros_like(state.shrunk), threshold=np.inf, level=state.level / 10.0)
    return state.with_proof(certificate), certificate


def _screened(problem: Problem, state: SolverState, certificate: Certificate) -> SolverState:
    """Return the state with the zero coordinates screened that the Gap Safe test excludes."""
    rounding = problem.rounding.each + problem.rounding.units  # centring may have cancelled more
    norms = np.sqrt(np.maximum(np.diagonal(problem.gram), 0.0) + rounding)
    safe = gap_safe_screen(state.scores, norms, certificate, problem.tau)
    return replace(state, screened=state.screened | (safe & (state.mu == 0.0)))


def _newton_steps(problem: Problem, state: SolverState, *, drop_all: bool) -> tuple[SolverState, Certificate, int]:
    """Admit and minimise, until the objective is below the one before; return the Newton steps too.

    With ``drop_all``, what was dropped too eagerly comes back in the next rounds; the one that ends lower is recorded.
    """
    start = certify(problem, state.weights, state.scores)
    steps, evaluations = 0, state.evaluations
    weights, support, scores, settled = state.weights, state.support, state.scores, state.settled
    for _ in range(_ROUNDS_UPHILL if drop_all else 1):
        admitted = np.zeros(0, dtype=np.int64)
        if settled:
            admitted = newton.admit(scores, support, problem.tau, state.screened)
        weights, support, report = newton.minimise(problem, weights, support, admitted, scores, drop_all=drop_all)
        steps, settled = steps + report.steps, report.settled
        scores = scores_of_support(problem, weights, support)
        evaluations += report.evaluations + problem.n_candidates
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
    return _screened(problem, new.with_proof(certificate), certificate), certificate, steps


def _with_stall(state: SolverState, new: SolverState) -> SolverState:
    """Send a round that gained nothing back to a sweep, and give up when whole cycles gained nothing.

    A round that ended uphill (by rounding only: its steps were exact) is undone; what its certificate proved stays.
    """
    gained = new.objective < new.previous_objective
    if gained or (new.settled and not state.settled and new.objective == new.previous_objective):
        return new
    if new.objective > new.previous_objective:
        kept = ("iterations", "evaluations", "moves", "best_weights", "best_primal", "best_dual")
        new = replace(state, **{name: getattr(new, name) for name in kept})
    closer = new.best_gap < _GAP_GAIN * state.cycle_gap or new.best_primal < _PRIMAL_GAIN * state.cycle_primal
    idle = 0 if closer else state.idle_cycles + 1
    new = replace(
        new,
        phase="sweep",
        stalled=new.objective >= state.cycle_objective or idle >= _IDLE_CYCLES,
        cycle_objective=new.objective,
        idle_cycles=idle,
    )
    return replace(new, cycle_primal=new.best_primal, cycle_gap=new.best_gap) if closer else new
