"""Stochastic coordinate Newton descent on mu, minimising F (mathematics.md, eq. 13), with lambda = 1.

The compiled loop is in `solver_loops`. G is factorised afresh at fixed points of the visit sequence: rank-one updates
alone lose it at small penalties.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.kernels.jit import factorise_definite, read_only
from pipeline.solvers import solver_loops as loop
from pipeline.solvers.problem import Problem

RISE = 5e-13  # By rounding, F computed afresh may exceed its last value by this, relatively.
REFACTOR_EVERY = 200  # G is factorised afresh after this number of visits (mathematics.md, eq. 27).
_FIRST_CAPACITY = 128


@dataclass
class ActiveInverse:
    """Own mu, the active list and G = (D^-1 + C^T C)^-1 on it (mathematics.md, eqs. 20 and 21); changed by sweeps."""

    mu: np.ndarray  # (M,) f8, at least 0
    active: np.ndarray  # (capacity,) i8, in the order of the rows of G; the first ``n_active`` count
    position: np.ndarray  # (M,) i8: the row of each coordinate in G, -1 where mu is 0
    n_active: int
    G: np.ndarray  # (capacity, capacity) f8
    u: np.ndarray  # (capacity,) f8: G C^T y = w

    @property
    def support(self) -> np.ndarray:
        """Return the active coordinates, (m0,) int64, in the order of G."""
        return self.active[: self.n_active]

    def weights(self) -> np.ndarray:
        """Return w = D q = u, (M,) (mathematics.md, eq. 25)."""
        weights = np.zeros(self.mu.size)
        weights[self.support] = self.u[: self.n_active]
        return weights


class SweepReport(NamedTuple):
    """What one sweep did: counts, the largest violation |nu - q^2| met, and F(mu) at its end."""

    visits: int
    moves: int
    largest_violation: float
    objective: float


def factorise(problem: Problem, mu: np.ndarray, support: np.ndarray, capacity: int = 0) -> ActiveInverse:
    """Compute G and u afresh by Cholesky from (mu, gram) (mathematics.md, eqs. 20, 27 and 28).

    Cost: about 4/3 m0^3 operations. Raises LinAlgError where the Gram is too far from positive semi-definite.
    """
    n = support.size
    capacity = min(max(capacity, n + 1, _FIRST_CAPACITY), max(problem.n_candidates + 1, n + 1))
    active = np.full(capacity, -1, dtype=np.int64)
    active[:n] = support
    position = np.full(problem.n_candidates, -1, dtype=np.int64)
    position[support] = np.arange(n)
    G, u = np.zeros((capacity, capacity)), np.zeros(capacity)
    if n:
        roots, B = np.sqrt(mu[support]), np.empty((n, n))
        loop.scaled_system(read_only(problem.gram), mu, active[:n], B)
        compact, kty = _inverse_of_definite(B) * np.outer(roots, roots), problem.kty[support]
        solved = compact @ kty  # refined once for (D^-1 + gram) u = kty (eq. 28)
        solved += compact @ (kty - solved / mu[support] - problem.gram[np.ix_(support, support)] @ solved)
        u[:n], G[:n, :n] = solved, compact
    return ActiveInverse(mu.copy(), active, position, n, G, u)


def _inverse_of_definite(B: np.ndarray) -> np.ndarray:
    """Return B^-1 = X^T X with X = R^-T, by blocks of 64 rows; R overwrites the upper triangle of B."""
    n = len(B)
    factorise_definite(B, n)
    X = np.zeros((n, n))
    for start in range(0, n, 64):
        stop = min(start + 64, n)
        if start:
            np.negative(B[:start, start:stop].T @ X[:start, :start], out=X[start:stop, :start])
        loop.inverse_rows(B, X, start, stop)
    return X.T @ X.copy()  # X.T @ X takes dsyrk, whose last bits differ.


def objective(problem: Problem, inverse: ActiveInverse) -> float:
    """Return F(mu), in the first form of mathematics.md, eq. 26, at w = u.

    The shorter form yty - <u, kty> passes on rounding that hides the falls near the optimum. |y - C w|^2 cancels from
    yty down to a percent of it, hence the extended precision. Cost: O(m0^2).
    """
    support = inverse.support
    weights = inverse.u[: inverse.n_active].astype(np.longdouble)
    fitted = problem.gram[np.ix_(support, support)].astype(np.longdouble) @ weights
    residual = problem.yty - (weights * (2.0 * problem.kty[support] - fitted)).sum()
    mu = inverse.mu[support]
    return float(residual + (weights**2 / mu).sum() + problem.penalty * mu.sum())


def run_sweep(
    problem: Problem,
    inverse: ActiveInverse,
    order: np.ndarray,
    *,
    exact: bool = True,
    most_factorisations: float = np.inf,
) -> tuple[ActiveInverse, SweepReport]:
    """Visit ``order`` and return the state with G computed afresh, and the report.

    order (visits,) i8 : coordinates in the order of their visits.
    exact : steps go to the minimum, else they are the paper's.
    most_factorisations : the sweep ends early after this number.
    A factorisation of G ends the sweep, so that a resumed run repeats its bits. Costs O(m0) to test a zero coordinate,
    O(m0^2) to move one.
    """
    moves, worst, done, span, factorisations = 0, 0.0, 0, REFACTOR_EVERY, 0
    lowest = objective(problem, inverse)
    while done < order.size and factorisations < most_factorisations:
        segment = order[done : min(done + span, REFACTOR_EVERY * (done // REFACTOR_EVERY + 1))]
        mu, support = inverse.mu.copy(), inverse.support.copy()
        visits, moved, largest = _visit(problem, inverse, segment, exact)
        if moved == 0:
            done, worst = done + visits, max(worst, largest)
            continue
        capacity, factorisations = inverse.active.size, factorisations + 1
        try:
            fresh = factorise(problem, inverse.mu, inverse.support, capacity)
            value = objective(problem, fresh)
        except np.linalg.LinAlgError:
            value = np.inf
        if not value <= lowest * (1.0 + RISE):
            # G drifted until a step went uphill, or out of float64: take the segment back and repeat it in shorter
            # ones; a single visit that still goes uphill is rounding, and is left out.
            inverse, span = factorise(problem, mu, support, capacity), max(1, visits // 4)
            factorisations += 1
            done += visits == 1
            continue
        inverse, lowest, span = fresh, value, min(4 * span, REFACTOR_EVERY)
        done, moves, worst = done + visits, moves + moved, max(worst, largest)
    return inverse, SweepReport(done, moves, worst, lowest)


def _visit(problem: Problem, inverse: ActiveInverse, order: np.ndarray, exact: bool) -> tuple[int, int, float]:
    """Visit ``order`` in place from a fresh G, until it must be computed afresh; return (visits, moves, worst)."""
    gram, done, moves, worst = read_only(problem.gram), 0, 0, 0.0
    while True:
        a, b = np.empty((2, inverse.active.size))
        visits, inverse.n_active, moved, largest = loop.sweep(
            order[done:], gram, problem.kty, problem.penalty, exact, inverse.mu,
            inverse.active, inverse.position, inverse.n_active, inverse.G, inverse.u, moves == 0, a, b,
        )  # fmt: skip
        done, moves, worst = done + visits, moves + moved, max(worst, largest)
        if done == order.size or inverse.n_active < inverse.active.size:
            return done, moves, worst
        more = min(inverse.active.size, inverse.mu.size + 1 - inverse.active.size)  # room for twice as many
        inverse.active = np.pad(inverse.active, (0, more), constant_values=-1)
        inverse.G, inverse.u = np.pad(inverse.G, (0, more)), np.pad(inverse.u, (0, more))
