"""Active-set Newton polish of the weights, for one output: it ends at the optimum, not near it.

A round admits the worst violators of |c_m^T r| <= tau in one batch and minimises the Lasso objective

    P(w) = 1/2 |y - C w|^2 + tau |w|_1

on the faces it meets, w_P = gram_PP^-1 (kty_P - tau s_P) (mathematics.md, eq. 53). At a settled face
w_m = mu_m q_m with mu_m = |w_m| / tau, so that F(mu) = 2 P(w) there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.solvers import active_set_newton_loops as loop
from pipeline.solvers.duality_gap import read_only
from pipeline.solvers.problem import Problem

# The proximal term bounds pivots by this fraction of the largest gram_mm; rounding in a Cholesky pivot is
# about n eps gram_mm, so that duplicates keep a factor. Where it still fails, it is raised.
RIDGE = 1e-12
_RIDGE_RISE, _RIDGE_MOST = 100.0, 1e-5
_SMALLEST_BATCH = 20


@dataclass(frozen=True)
class FaceReport:
    """Say how a face minimisation went: Newton steps, scores evaluated, and whether its minimiser was reached."""

    steps: int
    settled: bool
    evaluations: int


def admit(scores: np.ndarray, support: np.ndarray, tau: float, blocked: np.ndarray) -> np.ndarray:
    """Return the candidates to add: the worst violators, at most as many as the support has (at least 20).

    They violate mathematics.md, eq. 41.

    Doubling the support at most was the fastest rule tried on MNIST; equal scores go by index.
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
) -> tuple[np.ndarray, np.ndarray, FaceReport]:
    """Return (weights, support, report) at the minimiser of the face reached from ``weights``.

    Parameters
    ----------
    weights : (M, 1) float64
    support : (m0,) int64
        Its non-zero entries, in the order of the factorisation.
    admitted : (k,) int64
        Candidates added with weight 0 and the sign of their score.
    drop_all : bool
        See `active_set_newton_loops.minimise_faces`.

    Notes
    -----
    mathematics.md, eq. 54. Cost: one Cholesky factorisation of the support per Newton step.
    """
    kty = np.ascontiguousarray(problem.kty[:, 0])
    n = support.size + admitted.size
    active = np.concatenate([support, admitted])
    new = weights[:, 0].copy()
    signs = np.sign(new)
    signs[admitted] = np.sign(scores[admitted, 0])
    ridge = RIDGE * float(np.diagonal(problem.gram).max(initial=0.0))
    limit = 20 + (n if drop_all else 10 * n)
    while True:
        try:
            n, steps, settled, evaluations = loop.minimise_faces(
                read_only(problem.gram), kty, problem.tau, ridge, limit, drop_all, new, signs, active, n
            )
            break
        except np.linalg.LinAlgError:
            ridge *= _RIDGE_RISE
            if ridge > _RIDGE_MOST * float(np.diagonal(problem.gram).max()):
                steps, settled, evaluations = 0, False, 0
                break
    kept = active[:n]
    kept = kept[new[kept] != 0.0]
    return new[:, None], kept, FaceReport(steps, settled, evaluations)
