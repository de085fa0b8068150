"""Active-set Newton steps on the weights: they end at the optimum, not near it.

A round admits the worst violators of |c_m^T r| <= tau in one batch and minimises P(w) = 1/2 |y - C w|^2 + tau |w|_1 on
the faces it meets, w_P = gram_PP^-1 (kty_P - tau s_P) (mathematics.md, eq. 53). At a settled face F(mu) = 2 P(w).
"""

import numpy as np

from pipeline.kernels.jit import factorise_definite, read_only, solve_factorised
from pipeline.solvers import solver_loops as loop
from pipeline.solvers.problem import Problem

# The proximal term bounds pivots by this fraction of the largest gram_mm; rounding in a Cholesky pivot is
# about n eps gram_mm, so that duplicates keep a factor. Where it still fails, it is raised.
RIDGE = 1e-12
_RIDGE_RISE, _RIDGE_MOST = 100.0, 1e-5
_SMALLEST_BATCH = 20
_MOST_REFACTORED = 0.6  # Where more of the rows of a factor change, all of it is computed anew.


def admit(scores: np.ndarray, support: np.ndarray, tau: float, blocked: np.ndarray) -> np.ndarray:
    """Return the candidates to add: the worst violators (mathematics.md, eq. 40), equal scores by index.

    The support at most doubles, from 20 at the least: the fastest rule tried on MNIST.
    """
    violation = np.abs(scores) - tau
    violation[support] = -np.inf
    violation[blocked] = -np.inf
    worst_first = np.argsort(-violation, kind="stable")
    n_admitted = min(int((violation > 0.0).sum()), max(_SMALLEST_BATCH, support.size))
    return worst_first[:n_admitted]


def minimise(
    problem: Problem,
    weights: np.ndarray,
    support: np.ndarray,
    admitted: np.ndarray,
    scores: np.ndarray,
    *,
    drop_all: bool,
) -> tuple[np.ndarray, np.ndarray, bool, int]:
    """Return the minimiser of the face reached from ``weights`` and its support (mathematics.md, eq. 54).

    Return too whether it was reached, and how many scores were evaluated. weights (M,) f8; support (m0,) i8: where they
    are not zero; admitted (k,) i8: added with weight 0 and the sign of their score; drop_all: drop all weights that
    cross zero in a step, or end each step at the exact minimum of its segment.

    Dropping all is several times faster and lowers the objective of a settled face almost always; without it the
    objective falls at every step. The ridge is a proximal term: it bounds the pivots where columns are duplicates, and
    vanishes from the fixed point since it pulls towards the current weights.
    """
    gram, kty, tau = read_only(problem.gram), problem.kty, problem.tau
    weights, signs, face = weights.copy(), np.sign(weights), np.concatenate([support, admitted])
    signs[admitted] = np.sign(scores[admitted])
    ridge, largest = 0.0, float(np.diagonal(gram).max(initial=0.0))
    R, is_factor = np.zeros((face.size, face.size)), False  # Its first rows and columns are a factor of the face.
    settled, evaluated = False, 0
    for _ in range(20 + (1 if drop_all else 10) * face.size):
        if not is_factor:
            face = face[np.argsort(-np.abs(weights[face]), kind="stable")]  # Small weights are dropped first.
            ridge = _factorise(gram, face, max(ridge, RIDGE * largest), _RIDGE_MOST * largest, R)
        if not face.size or not 0.0 < ridge <= _RIDGE_MOST * largest:
            settled = not face.size
            break
        w, s = weights[face], signs[face]
        target = solve_factorised(R, kty[face] - tau * s + ridge * w)
        point = w + (target - w)
        crosses = point * s <= 0.0
        kept = (w != 0.0) | ~crosses
        if kept.all():  # Else some cannot move: the others move without them.
            if drop_all or not crosses.any():
                settled = not crosses.any() and bool((ridge * np.abs(target - w) <= 1e-9 * tau).all())
                point[crosses] = 0.0
            else:
                evaluated += face.size
                point = _segment_point(problem, face, w, s, target)
            weights[face], kept = point, point != 0.0
            signs[face[kept]] = np.sign(point[kept])
        if settled:
            break
        is_factor = bool(kept.all()) or _drop(R, kept)
        face = face[kept]
    return weights, face[weights[face] != 0.0], settled, evaluated


def _factorise(gram: np.ndarray, face: np.ndarray, ridge: float, most: float, R: np.ndarray) -> float:
    """Write the factor of gram_PP + ridge I to ``R``, and return the ridge, raised where that is not definite."""
    while 0.0 < ridge <= most:
        try:
            loop.upper_part(gram, face, ridge, R)
            factorise_definite(R, face.size)
            break
        except np.linalg.LinAlgError:
            ridge *= _RIDGE_RISE
    return ridge


def _drop(R: np.ndarray, kept: np.ndarray) -> bool:
    """Drop columns of a factor in place, and return whether it is one: else a new one is less work, or more exact.

    kept (n,) bool: of the first n columns, not all. Rows above the first that is dropped stay; with T the columns kept
    of the rows below, these become the factor of T^T T.
    """
    n, columns, first = kept.size, np.flatnonzero(kept), int(np.argmin(kept))
    if n - first > _MOST_REFACTORED * n:
        return False
    columns, stop = columns[first:], columns.size
    T = R[first:n, columns]
    below = T.T @ T
    try:
        factorise_definite(below, stop - first)
    except np.linalg.LinAlgError:
        return False
    R[:first, first:stop], R[first:stop, first:stop] = R[:first, columns], np.triu(below)
    return True


def _segment_point(problem: Problem, face: np.ndarray, w: np.ndarray, s: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the exact minimum of P on the way from w to the target, all (n,), with zeros where that crosses zero."""
    A, d, tau = problem.gram[np.ix_(face, face)], target - w, problem.tau
    length = segment_minimum(A, w, s, problem.kty[face] - tau * s - A @ w, d, tau)
    point = w + length * d
    with np.errstate(divide="ignore", invalid="ignore"):
        point[(point * s <= 0.0) & ((d == 0.0) | (length == -w / d))] = 0.0
    return point


def segment_minimum(A: np.ndarray, w: np.ndarray, s: np.ndarray, g: np.ndarray, d: np.ndarray, tau: float) -> float:
    """Return the length t in (0, 1] of the exact minimum of P(w + t d), convex and piecewise quadratic.

    Its slope is -g^T d + t d^T A d, plus 2 tau |d_i| behind each zero crossing t_i (mathematics.md, eq. 55), in whose
    order they are walked. Shapes: A (n, n), the others (n,).
    """
    crossed = np.flatnonzero((w + d) * s <= 0.0)
    crossing = -w[crossed] / d[crossed]
    downhill, bend = float(g @ d), float(d @ (A @ d))
    for i in np.argsort(crossing, kind="stable"):
        if crossing[i] > 1.0 or crossing[i] * bend >= downhill:
            break
        downhill -= 2.0 * tau * abs(float(d[crossed[i]]))
        if crossing[i] * bend >= downhill:
            return float(crossing[i])
    return min(1.0, downhill / bend) if bend > 0.0 else 1.0
