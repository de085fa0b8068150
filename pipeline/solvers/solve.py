"""Solve one problem to a certified gap: sweeps of the paper's method, then a Newton polish, as `iterations` has them.

The state between two records is a value: going on from it gives the same bytes as never having stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from pipeline.solvers.coordinate_descent import ActiveInverse
from pipeline.solvers.duality_gap import Certificate, certify, certify_problem, scores_of_support
from pipeline.solvers.iterations import begin, generator_of, mu_of_weights, polish_iteration, sweep_iteration
from pipeline.solvers.problem import InvalidProblemError, Problem
from pipeline.solvers.state import Record, SolverOptions, SolverState

PAPER_EPSILON = 1e-4  # the paper's rule ends a solve whose objective falls by less in a sweep, relatively


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
    """Minimise F over mu >= 0, to a certified relative gap (mathematics.md, eqs. 13 and 46).

    problem : already validated (`Problem.validate`), once per Gram.
    generator : draws the visits; left untouched where ``start`` holds a generator state, which is used instead.
    start : from `Solution.state` or ``on_record``, to go on to the same bytes; or `warm_state` of known weights.
    on_record : gets each record and the state behind it.
    should_stop : called after each record; True ends the solve with `Status.STOPPED`.

    Where the tolerance is not reached (``converged``, ``status``), the weights are those of the smallest primal value
    on the way; of the last sweep where the paper's rule ended it. Raises InvalidOptionsError for options that make no
    sense, and InvalidProblemError where the objective, its gap or G leaves float64 before there are any weights: mu
    grows as 1 / sqrt(penalty). Independent of the number of rows. Memory: about 3 m0^2 float64 beside the Gram.
    """
    options.validate()
    state = begin(problem, options, generator, start)
    generator = generator_of(state)
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
                new, inverse, record = sweep_iteration(problem, options, state, inverse, generator)
            else:
                inverse, (new, record) = None, polish_iteration(problem, options, state)
        except (ZeroDivisionError, np.linalg.LinAlgError):
            raise _too_small(problem) from None
    if not (np.isfinite(new.objective) and np.isfinite(record.drift)):
        raise _too_small(problem)
    return new, inverse, record


def _finished(options: SolverOptions, state: SolverState) -> Status | None:
    """Return why to stop before another iteration, or None (mathematics.md, eqs. 36 and 46)."""
    if (state.certified and state.relative_gap <= options.tolerance) or state.best_gap <= options.tolerance:
        return Status.CONVERGED
    if options.stop == "paper" and state.iterations > 1:
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
        weights, mu = state.best_weights, mu_of_weights(state.best_weights, problem)
        proof = certify_problem(problem, weights)
        gap = {"gap": state.best_gap * proof.primal, "relative_gap": state.best_gap}
        certificate = replace(proof, dual=state.best_dual, **gap)
    if not np.isfinite(certificate.relative_gap):
        raise _too_small(problem)
    return Solution(weights, mu, certificate, status, state)


def solve_bytes(n_columns: int) -> int:
    """Return the bytes of a solve beside its Gram: three matrices of the active set, of 3000 at most, as measured."""
    return 3 * 8 * min(n_columns, 3000) ** 2
