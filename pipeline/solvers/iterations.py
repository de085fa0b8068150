"""One iteration of a solve, as a function from state to state: a sweep, or a polish round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.solvers import active_set_newton as newton
from pipeline.solvers.coordinate_descent import ActiveInverse, SweepReport, factorise, objective, run_sweep
from pipeline.solvers.duality_gap import Certificate, certify, gap_safe_screen, row_norms, scores_of_support
from pipeline.solvers.group_newton import newton_step
from pipeline.solvers.options import SolverOptions
from pipeline.solvers.problem import Problem
from pipeline.solvers.shrinking import (
    Shrinkage,
    after_sweep,
    restored,
    shrinking_order,
    start_shrinkage,
    uniform_order,
    with_screened,
)
from pipeline.solvers.state import Record, SolverState

# A shrinking run certifies at least every so many sweeps, even where violations are still large.
_SWEEPS_BETWEEN_CERTIFICATES = 5
# A sweep after a polish that gained nothing may cost about so many operations: with 1000 active columns that are alike
# to rounding, whole sweeps with a fresh G for every few visits took minutes and gained nothing either.
_FALLBACK_OPERATIONS = 1e9
_FALLBACK_VISITS, _FALLBACK_FACTORISATIONS = 200, 10  # at the least
# So many of them in a row end the solve, if the polish then lowers neither the gap to less than 0.9 of itself nor the
# primal value to less than 0.99.
_IDLE_CYCLES, _GAP_GAIN, _PRIMAL_GAIN = 3, 0.9, 0.99
# Rounds of dropping all at once before exact segment minima take over.
_ROUNDS_UPHILL = 6


def begin(
    problem: Problem, options: SolverOptions, generator: np.random.Generator, start: SolverState | None
) -> SolverState:
    """Return the state to start from: mu = 0, or ``start`` as it is, or warm weights to be scored here."""
    if start is not None and start.iterations > 0:
        return start
    state = start if start is not None else cold_state(problem)
    scores = scores_of_support(problem, state.weights, state.support)
    certificate = certify(problem, state.weights, scores)
    warm = state.support.size > 0
    direct = polishes(options) and problem.n_outputs == 1 and (warm or options.opening_visits == 0)
    if not np.isfinite(certificate.relative_gap):  # worse than no weights at all
        nothing = cold_state(problem)
        proof = certify(problem, nothing.weights, problem.kty)
        state = replace(state, best_weights=nothing.weights, best_primal=proof.primal, best_dual=proof.dual)
    begun = replace(
        state,
        phase="polish" if direct else "sweep",
        settled=direct and not warm,
        mu=mu_of_weights(state.weights, problem, options.lam),
        scores=scores,
        shrinkage=start_shrinkage(problem.n_candidates, options.tolerance),
        generator_state=dict(generator.bit_generator.state),
        objective=certificate.objective,
        # Zero weights have scores kty at no cost.
        evaluations=problem.n_candidates if warm else 0,
    )
    return begun.with_proof(certificate)


def cold_state(problem: Problem) -> SolverState:
    """Return the state of zero weights."""
    return warm_state(np.zeros((problem.n_candidates, problem.n_outputs)))


def warm_state(weights: np.ndarray) -> SolverState:
    """Return a state to start from ``weights``, (M, T): at another penalty, or in another working set."""
    copied = np.array(weights, dtype=np.float64)
    return SolverState(
        phase="sweep",
        mu=np.zeros(weights.shape[0]),
        weights=copied,
        best_weights=copied,
        scores=np.zeros(weights.shape),
        support=np.flatnonzero(weights.any(axis=1)),
        shrinkage=start_shrinkage(weights.shape[0], np.inf),
        generator_state={},
        objective=np.inf,
        previous_objective=np.inf,
        relative_gap=np.inf,
        certified=False,
    )


def generator_of(state: SolverState) -> np.random.Generator:
    """Return a generator that goes on where the state's left off."""
    kind = getattr(np.random, state.generator_state["bit_generator"])
    bits = kind()
    bits.state = dict(state.generator_state)
    return np.random.Generator(bits)


def mu_of_weights(weights: np.ndarray, problem: Problem, lam: float) -> np.ndarray:
    """Return mu_m = |W_m| sqrt(lambda / nu) = |W_m| lambda / tau, at which F(mu) <= 2 P(W).

    mathematics.md, eqs. 39 and 40.
    """
    return row_norms(weights) * (lam / problem.tau)


def sweep_iteration(
    problem: Problem,
    options: SolverOptions,
    state: SolverState,
    inverse: ActiveInverse | None,
    generator: np.random.Generator,
) -> tuple[SolverState, ActiveInverse, Record]:
    """Run one sweep of the schedule; ``inverse`` is that of the state, or None to compute it."""
    if inverse is None:
        inverse = factorise(problem, options.lam, state.mu, state.support)
    shrinkage = state.shrinkage
    if options.schedule == "uniform":
        order, threshold = uniform_order(generator, problem.n_candidates), np.inf
    else:
        order, threshold = shrinking_order(generator, shrinkage), shrinkage.threshold
        if polishes(options) and problem.n_outputs == 1:
            order = order[: _most_visits(options, state)]
    shrunk = shrinkage.shrunk.copy()
    n_screened = int(np.count_nonzero(shrinkage.screened))
    inverse, report = run_sweep(
        problem, inverse, order, shrunk,
        lam=options.lam, step=options.step, threshold=threshold, refactor_every=options.refactor_every,
        most_factorisations=_most_factorisations(problem, options, state),
    )  # fmt: skip
    if options.schedule == "shrinking":
        shrinkage = after_sweep(shrinkage, shrunk, report.worst)
    state = replace(
        state,
        mu=inverse.mu.copy(),
        weights=inverse.weights(options.lam),
        support=inverse.support.copy(),
        shrinkage=shrinkage,
        generator_state=dict(generator.bit_generator.state),
        previous_objective=state.objective,
        objective=objective(problem, options.lam, inverse),
        certified=False,
        settled=False,
        iterations=state.iterations + 1,
        visits=state.visits + report.visits,
        evaluations=state.evaluations + report.visits,
        moves=state.moves + report.moves,
        phase="polish" if polishes(options) else "sweep",
    )
    certificate = None
    if _certificate_is_due(problem, options, state, report):
        state, certificate = _certified(problem, options, state, report.worst)
    proof = _proving(certificate)
    record = Record(
        iteration=state.iterations,
        phase="sweep",
        objective=state.objective,
        primal=proof.primal if proof else None,
        dual=proof.dual if proof else None,
        relative_gap=proof.relative_gap if proof else None,
        n_active=int(state.support.size),
        visited=report.visits,
        skipped=problem.n_candidates - np.unique(order).size - n_screened,
        screened=n_screened,
        moved=report.moves,
        evaluations=state.evaluations,
        drift=report.drift,
    )
    return state, inverse, record


def polish_iteration(problem: Problem, options: SolverOptions, state: SolverState) -> tuple[SolverState, Record]:
    """Admit the worst violators, minimise on the faces met, certify; a stalled round asks for a sweep."""
    if problem.n_outputs > 1:
        return _group_iteration(problem, options, state)
    new, certificate, steps = _polish(problem, options, state, drop_all=True)
    if new.objective > new.previous_objective:
        # Dropping all at once ended uphill (rare): again, with exact segment minima, which cannot.
        spent, wasted = new.evaluations, steps
        new, certificate, steps = _polish(problem, options, state, drop_all=False)
        new = replace(new, evaluations=new.evaluations + spent - state.evaluations)
        steps += wasted
    new = replace(new, iterations=state.iterations + 1, moves=state.moves + steps)
    new = _with_stall(state, new)
    return new, _polish_record(problem, state, new, certificate)


def _group_iteration(problem: Problem, options: SolverOptions, state: SolverState) -> tuple[SolverState, Record]:
    """Take a Newton step on the support's mu and certify; the next iteration is a sweep."""
    inverse = factorise(problem, options.lam, state.mu, state.support)
    inverse, fell = newton_step(problem, options.lam, inverse)
    new = replace(
        state,
        phase="sweep",
        mu=inverse.mu.copy(),
        weights=inverse.weights(options.lam),
        support=inverse.support.copy(),
        previous_objective=state.objective,
        objective=objective(problem, options.lam, inverse),
        iterations=state.iterations + 1,
        moves=state.moves + int(fell),
    )
    new, certificate = _certified(problem, options, new, new.shrinkage.threshold)
    # A sweep and a Newton step that both gain nothing end it, where the sweep had all candidates in the game: what the
    # certificate has restored just now has not been tried.
    idle = not fell and new.objective >= state.cycle_objective and not state.shrinkage.shrunk.any()
    new = replace(new, cycle_objective=new.objective, stalled=idle)
    return new, _polish_record(problem, state, new, certificate)


def _polish_record(problem: Problem, state: SolverState, new: SolverState, certificate: Certificate) -> Record:
    """Return the record of a polish iteration that led from ``state`` to ``new``."""
    proof = _proving(certificate)
    active, was_active = new.weights.any(axis=1), state.weights.any(axis=1)
    visited = int(np.count_nonzero(active | was_active))
    n_screened = int(np.count_nonzero(new.shrinkage.screened))
    return Record(
        iteration=new.iterations,
        phase="polish",
        objective=new.objective,
        primal=proof.primal if proof else None,
        dual=proof.dual if proof else None,
        relative_gap=proof.relative_gap if proof else None,
        n_active=int(new.support.size),
        visited=visited,
        skipped=problem.n_candidates - visited - n_screened,
        screened=n_screened,
        moved=int(np.count_nonzero(active != was_active)),
        evaluations=new.evaluations,
        drift=0.0,
    )


def _proving(certificate: Certificate | None) -> Certificate | None:
    """Return a certificate that proves something, for a record; None where there is none."""
    return certificate if certificate is not None and np.isfinite(certificate.gap) else None


def _most_visits(options: SolverOptions, state: SolverState) -> int:
    """Return how many coordinates the sweep before a polish visits, or one after a polish that gained nothing."""
    if state.iterations == 0:
        return options.opening_visits
    return max(int(_FALLBACK_OPERATIONS / (state.support.size + 1) ** 2), _FALLBACK_VISITS)


def _most_factorisations(problem: Problem, options: SolverOptions, state: SolverState) -> float:
    """Return how often a sweep may compute G afresh: as often as it likes, but after a polish that gained nothing."""
    if state.iterations == 0 or problem.n_outputs > 1 or not polishes(options):
        return np.inf
    return max(_FALLBACK_OPERATIONS / (state.support.size + 1) ** 3, _FALLBACK_FACTORISATIONS)


def polishes(options: SolverOptions) -> bool:
    """Return whether the solve ends in Newton steps."""
    return options.polish and options.schedule == "shrinking"


def _certificate_is_due(problem: Problem, options: SolverOptions, state: SolverState, report: SweepReport) -> bool:
    """Return whether to spend M evaluations on a certificate after this sweep."""
    if polishes(options):  # a group's Newton step follows, and certifies
        return problem.n_outputs == 1 or state.iterations >= options.max_sweeps
    if options.schedule == "uniform":
        return True
    nu = problem.penalty / options.lam
    return (
        report.worst <= state.shrinkage.level * nu
        or state.iterations % _SWEEPS_BETWEEN_CERTIFICATES == 0
        or state.iterations >= options.max_sweeps
    )


def _certified(
    problem: Problem, options: SolverOptions, state: SolverState, worst: float
) -> tuple[SolverState, Certificate]:
    """Score all candidates, screen, and restore the shrunk ones where their absence has converged."""
    scores = scores_of_support(problem, state.weights, state.support)
    certificate = certify(problem, state.weights, scores)
    shrinkage = state.shrinkage
    if options.schedule == "shrinking":
        shrinkage = _screened(problem, state, scores, certificate)
        level = shrinkage.level
        if worst <= level * problem.penalty / options.lam:
            shrinkage = restored(shrinkage, level / 10.0)
    state = replace(
        state,
        scores=scores,
        shrinkage=shrinkage,
        evaluations=state.evaluations + problem.n_candidates,
    )
    return state.with_proof(certificate), certificate


def _screened(problem: Problem, state: SolverState, scores: np.ndarray, certificate: Certificate) -> Shrinkage:
    """Return the shrinkage with the zero coordinates discarded that the Gap Safe test excludes."""
    squares = np.maximum(np.diagonal(problem.gram), 0.0) + problem.rounding.of_entry  # centring may have cancelled more
    norms = np.sqrt(squares)
    safe = gap_safe_screen(scores, norms, certificate, problem.tau)
    return with_screened(state.shrinkage, safe & (state.mu == 0.0))


def _polish(
    problem: Problem, options: SolverOptions, state: SolverState, *, drop_all: bool
) -> tuple[SolverState, Certificate, int]:
    """Admit and minimise, until the objective is below the one before; return the Newton steps too.

    One round does, but for ``drop_all`` from a support far too large: what was dropped too eagerly comes
    back in the next rounds, and only the round that ends lower makes a record.
    """
    start = certify(problem, state.weights, state.scores)
    steps, evaluations = 0, state.evaluations
    weights, support, scores, settled = state.weights, state.support, state.scores, state.settled
    for _ in range(_ROUNDS_UPHILL if drop_all else 1):
        admitted = np.zeros(0, dtype=np.int64)
        if settled:
            admitted = newton.admit(scores[:, 0], support, problem.tau, state.shrinkage.screened)
        weights, support, report = newton.minimise(problem, weights, support, admitted, scores, drop_all=drop_all)
        steps, settled = steps + report.steps, report.settled
        evaluations += report.evaluations
        scores = scores_of_support(problem, weights, support)
        evaluations += problem.n_candidates
        certificate = certify(problem, weights, scores)
        if certificate.primal <= start.primal and settled:
            break
    new = replace(
        state,
        weights=weights,
        support=support,
        mu=mu_of_weights(weights, problem, options.lam),
        scores=scores,
        previous_objective=start.objective,
        objective=certificate.objective,  # F(mu) = 2P, which the weights of a settled face meet
        settled=settled,
        evaluations=evaluations,
    ).with_proof(certificate)
    return replace(new, shrinkage=_screened(problem, new, scores, certificate)), certificate, steps


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
