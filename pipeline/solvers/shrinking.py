"""Which coordinates a sweep visits: all at random, as the paper draws them, or those that do not stay at zero.

Shrinking (the paper's outlook; Hsieh et al. 2008): most visits find a coordinate at zero that stays there. `left_out`
says from the scores of all which the next sweeps need not visit; all are looked at again once violations have fallen.
"""

from dataclasses import replace

import numpy as np

from pipeline.solvers.coordinate_descent import SweepReport
from pipeline.solvers.problem import Problem
from pipeline.solvers.state import Counts, SolverOptions, SolverState

# Share of the largest violation below which a coordinate at zero is left out. The fastest of those tried: 0 and the
# threshold of Hsieh et al. let columns in that are alike, all at once, and G becomes larger than the optimum needs.
LEAST_VIOLATION = 0.1
# All are looked at again when the violations met in a sweep have fallen to this share, or after so many sweeps.
FALLEN, MOST_SWEEPS = 0.5, 10
# Visits of a sweep from zero, and of one between Newton rounds: all would let in far more than the optimum keeps.
SHORT_SWEEP = 200


def violations(problem: Problem, mu: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return how far each coordinate is from its optimality condition, (M,): |ν - q²|, at zero q² - ν if above 0."""
    excess = scores**2 - problem.penalty
    return np.where(mu > 0.0, np.abs(excess), np.maximum(excess, 0.0))


def left_out(mu: np.ndarray, violation: np.ndarray) -> np.ndarray:
    """Return which coordinates sweeps leave out, (M,) bool: those at zero without a large violation.

    mathematics.md, eq. 50. This proves nothing, since moves change scores: the next look at all scores decides anew.
    """
    return (mu == 0.0) & (violation < LEAST_VIOLATION * violation.max())


def shrink(problem: Problem, state: SolverState) -> SolverState:
    """Return the state with what the next sweeps leave out, by scores of all candidates at its weights."""
    found = np.where(state.screened, 0.0, violations(problem, state.mu, state.scores))
    largest = float(found.max())
    return replace(state, left_out=left_out(state.mu, found), largest_violation=largest, sweeps_since=0)


def must_look_at_all(state: SolverState, report: SweepReport) -> bool:
    """Return whether the scores of all candidates are due after a sweep, whose state and report these are."""
    fallen = report.largest_violation <= FALLEN * state.largest_violation
    return fallen or report.moves == 0 or state.sweeps_since >= MOST_SWEEPS


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
