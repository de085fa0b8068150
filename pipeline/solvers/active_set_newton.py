"""Active-set Newton steps on the weights: they end at the optimum, not near it.

A round admits the worst violators of |c_m^T r| <= tau in one batch and minimises P(w) = 1/2 |y - C w|^2 + tau |w|_1 on
the faces it meets, w_P = gram_PP^-1 (kty_P - tau s_P) (mathematics.md, eq. 53). At a settled face F(mu) = 2 P(w).
"""

import numpy as np

from pipeline.kernels.jit import factorise_definite, read_only
from pipeline.solvers import solver_loops as loop
from pipeline.solvers.problem import Problem

# The proximal term bounds pivots by this fraction of the largest gram_mm; rounding in a Cholesky pivot is
# about n eps gram_mm, so that duplicates keep a factor. Where it still fails, it is raised.
RIDGE = 1e-12
_RIDGE_RISE, _RIDGE_MOST = 100.0, 1e-5
_SMALLEST_BATCH = 20


def admit(scores: np.ndarray, support: np.ndarray, tau: float, blocked: np.ndarray) -> np.ndarray:
    """Return the candidates to add: the worst violators (mathematics.md, eq. 40), equal scores by index.

    At most as many as the support has (at least 20): doubling it was the fastest rule tried on MNIST.
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

    And whether it was reached, and how many scores were evaluated. weights (M,) f8; support (m0,) i8: where they are
    not zero, in the order of the factorisations; admitted (k,) i8: added with weight 0 and the sign of their score;
    drop_all: drop all weights that cross zero in a step, or end each step at the exact minimum of its segment. Costs
    one Cholesky factorisation of the support per step.

    Dropping all is several times faster and lowers the objective of a settled face almost always; without it the
    objective falls at every step. The ridge is a proximal term: it bounds the pivots where columns are duplicates, and
    vanishes from the fixed point since it pulls towards the current weights.
    """
    gram, kty, tau = read_only(problem.gram), problem.kty, problem.tau
    face = weights, signs, active = weights.copy(), np.sign(weights), np.concatenate([support, admitted])
    signs[admitted] = np.sign(scores[admitted])
    n, settled, evaluated = active.size, False, 0  # the first n of `active` count
    system, target, largest = np.empty((n, n)), np.empty(n), float(np.diagonal(gram).max(initial=0.0))
    ridge = RIDGE * largest
    for _ in range(20 + (n if drop_all else 10 * n)):
        if n == 0:
            settled = True
            break
        try:
            loop.face_system(gram, kty, tau, ridge, *face, n, system, target)
            factorise_definite(system, n)
        except np.linalg.LinAlgError:
            ridge *= _RIDGE_RISE
            if ridge > _RIDGE_MOST * largest:
                break
            continue
        loop.substitute(system, target, n)
        before, n = n, loop.drop_blocked(target, *face, n)
        if n < before:
            continue
        w = weights[active[:n]]
        if drop_all or not ((w + (target[:n] - w)) * signs[active[:n]] <= 0.0).any():  # no weight crosses zero
            n, still = loop.move_to(target, *face, n, ridge, 1e-9 * tau)
            if still and n == before:
                settled = True
                break
        else:
            evaluated += n
            n = _move_to_minimum(problem, *face, target[:n])
    kept = active[:n]
    return weights, kept[weights[kept] != 0.0], settled, evaluated


def _move_to_minimum(
    problem: Problem, weights: np.ndarray, signs: np.ndarray, face: np.ndarray, target: np.ndarray
) -> int:
    """Move to the exact minimum of P on the way to the target (n,), drop what is zero there; return the new n."""
    active, tau = face[: target.size].copy(), problem.tau
    A, w, s = problem.gram[np.ix_(active, active)], weights[active], signs[active]
    d = target - w
    length = segment_minimum(A, w, s, problem.kty[active] - tau * s - A @ w, d, tau)
    point = w + length * d
    with np.errstate(divide="ignore", invalid="ignore"):
        point[(point * s <= 0.0) & ((d == 0.0) | (length == -w / d))] = 0.0
    weights[active] = point
    kept = active[point != 0.0]
    signs[kept] = np.sign(weights[kept])
    face[: kept.size] = kept
    return kept.size


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
