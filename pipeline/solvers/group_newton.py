"""Newton polish of mu on its support, for several outputs sharing one kernel (the group Lasso).

The row norms |W_m| are not piecewise linear, so the finite active-set method does not carry over. F in mu
stays smooth, with gradient nu - lambda |q_m|^2 and Hessian 2 lambda <q_m, q_k> s_mk (mathematics.md, eqs. 15
and 17; s_mk = c_m^T K~^-1 c_k), an m0 x m0 matrix whatever the number of outputs.
"""

from __future__ import annotations

import numpy as np

from pipeline.solvers.coordinate_descent import ActiveInverse, factorise, objective
from pipeline.solvers.problem import Problem

_HALVINGS = 12
_SUFFICIENT = 1e-4


def derivatives(problem: Problem, lam: float, inverse: ActiveInverse) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient (m0,) and Hessian (m0, m0) of F on the support, in the order of G.

    mathematics.md, eqs. 15 and 17, with q and S from eq. 25, without the cancellation of the form in the columns.
    Cost: O(m0^2 T).
    """
    n, mu = inverse.n_active, inverse.mu[inverse.support]
    q = inverse.u[:, :n] / (lam * mu)
    S = -inverse.G[:n, :n] / np.outer(mu, mu)
    S[np.diag_indices(n)] += 1.0 / mu
    gradient = problem.penalty / lam - lam * np.einsum("tm,tm->m", q, q)
    return gradient, 2.0 * lam * (q.T @ q) * S


def newton_step(problem: Problem, lam: float, inverse: ActiveInverse) -> tuple[ActiveInverse, bool]:
    """Return the state after one projected Newton step with backtracking on F, and whether F fell.

    The step is taken in the relative change of mu, d = mu e (mathematics.md, eqs. 56 and 57): the scaling
    makes the diagonal comparable between coordinates of very different sizes. Weights that reach
    zero leave the support. Cost: a few Cholesky factorisations of order m0.
    """
    support = inverse.support.copy()
    if support.size == 0:
        return inverse, False
    mu = inverse.mu[support]
    gradient, hessian = derivatives(problem, lam, inverse)
    direction = _scaled_direction(mu, gradient, hessian)
    before = objective(problem, lam, inverse)
    length = 1.0
    for _ in range(_HALVINGS):
        new = inverse.mu.copy()
        new[support] = np.maximum(0.0, mu + length * direction)
        trial = factorise(problem, lam, new, support[new[support] > 0.0], inverse.active.size)
        promised = float(gradient @ (new[support] - mu))
        after = objective(problem, lam, trial)
        if after < before + _SUFFICIENT * min(promised, 0.0):
            return trial, True
        length *= 0.5
    return inverse, False


def _scaled_direction(mu: np.ndarray, gradient: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Return D e with (D H D + ridge) e = -D gradient; the ridge rises until a Cholesky factor exists.

    mathematics.md, eq. 56.
    """
    scaled = hessian * np.outer(mu, mu)
    right = -mu * gradient
    ridge = 1e-12 * float(np.trace(scaled)) / mu.size + 1e-300
    while True:
        try:
            factor = np.linalg.cholesky(scaled + ridge * np.eye(mu.size))
            break
        except np.linalg.LinAlgError:
            ridge *= 100.0
    return mu * np.linalg.solve(factor.T, np.linalg.solve(factor, right))
