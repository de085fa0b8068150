"""The compiled inner loop of the active-set Newton method on w: minimise on a face of the orthant.

On support P with signs s the Lasso objective is the quadratic 1/2 w^T A w - (kty_P - tau s)^T w with
A = gram_PP, whose minimiser is one Cholesky solve away (mathematics.md, eq. 53). Along the segment towards it
the true objective is piecewise quadratic and convex, so its exact minimum is found by walking the zero
crossings in order.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels.jit import compiled


@compiled()
def minimise_faces(gram, kty, tau, ridge, max_steps, drop_all, weights, signs, active, n):
    """Move weights to the minimiser of the face they end on; return (n, Newton steps, settled, scores evaluated).

    Parameters: gram (M, M), kty (M,), weights (M,), signs (M,), active (cap,) with n used; the last three
    change in place. With ``drop_all`` every weight that crosses zero on the way to the target is dropped at
    once, which is several times faster and lowers the objective of a settled face almost always; without it
    each step ends at the exact minimum of its segment, and the objective falls at every step. ``ridge`` is a
    proximal term: it bounds the pivots from below where columns are duplicates, and vanishes from the fixed
    point since it pulls towards the current weights.
    The target of a step needs no score: mathematics.md, eq. 54, with ridge for ρ. Only the exact minimum of
    a segment does, for its slope. Raises LinAlgError where gram + ridge is not positive definite; the arrays stay
    consistent.
    """
    evaluated = 0
    for step in range(max_steps):
        if n == 0:
            return n, step, True, evaluated
        A, w, s, b = gather(gram, kty, tau, weights, signs, active, n)
        d = solve_definite(A, b + ridge * w, ridge) - w
        kept = drop_blocked(d, weights, signs, active, n)
        if kept < n:
            n = kept
            continue
        if not np.any((w + d) * s <= 0.0):
            weights[active[:n]] = w + d
            if ridge * np.abs(d).max() <= 1e-9 * tau:
                return n, step + 1, True, evaluated
            continue
        if drop_all:
            w = np.where((w + d) * s <= 0.0, 0.0, w + d)
        else:
            evaluated += n
            w = exact_point(A, w, s, b - np.dot(A, w), d, tau)
        n = keep_nonzero(w, weights, signs, active, n)
    return n, max_steps, False, evaluated


@compiled()
def gather(gram, kty, tau, weights, signs, active, n):
    """Return A = gram_PP, w_P, s_P and b = kty_P - tau s_P, which A w meets at the minimum. Cost: n^2 copies."""
    A = np.empty((n, n))
    w, s, b = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        w[i], s[i] = weights[active[i]], signs[active[i]]
    for i in range(n):
        for j in range(n):
            A[i, j] = gram[active[i], active[j]]
    for i in range(n):
        b[i] = kty[active[i]] - tau * s[i]
    return A, w, s, b


@compiled()
def solve_definite(A, b, ridge):
    """Return (A + ridge I)^-1 b by Cholesky. Cost: n^3 / 3."""
    n = b.size
    B = A.copy()
    for i in range(n):
        B[i, i] += ridge
    U = np.linalg.cholesky(B).T  # LAPACK's factor is column-major: its transpose has contiguous rows
    x = b.copy()
    for i in range(n):
        x[i] /= U[i, i]
        for j in range(i + 1, n):
            x[j] -= x[i] * U[i, j]
    for i in range(n - 1, -1, -1):
        total = 0.0
        for j in range(i + 1, n):
            total += U[i, j] * x[j]
        x[i] = (x[i] - total) / U[i, i]
    return x


@compiled()
def drop_blocked(d, weights, signs, active, n):
    """Remove the zero weights that the direction moves against their sign; return the new n."""
    kept = 0
    for i in range(n):
        m = active[i]
        if weights[m] != 0.0 or d[i] * signs[m] > 0.0:
            active[kept] = m
            kept += 1
    return kept


@compiled()
def exact_point(A, w, s, g, d, tau):
    """Return the exact minimum of P on the segment from w to w + d, with what reaches zero set to zero."""
    length = segment_minimum(A, w, s, g, d, tau)
    point = w + length * d
    for i in range(w.size):
        if point[i] * s[i] <= 0.0 and (d[i] == 0.0 or length == -w[i] / d[i]):
            point[i] = 0.0
    return point


@compiled()
def segment_minimum(A, w, s, g, d, tau):
    """Return the length t in (0, 1] of the exact minimum of P(w + t d), convex and piecewise quadratic.

    Its slope is -g^T d + t d^T A d, plus 2 tau |d_i| behind each zero crossing t_i (mathematics.md, eq. 55).
    """
    crossing = np.full(w.size, np.inf)
    for i in range(w.size):
        if (w[i] + d[i]) * s[i] <= 0.0:
            crossing[i] = -w[i] / d[i]
    downhill, bend = np.dot(g, d), np.dot(d, np.dot(A, d))
    for i in np.argsort(crossing):
        if crossing[i] > 1.0 or crossing[i] * bend >= downhill:
            break
        downhill -= 2.0 * tau * abs(d[i])
        if crossing[i] * bend >= downhill:
            return crossing[i]
    return min(1.0, downhill / bend) if bend > 0.0 else 1.0


@compiled()
def keep_nonzero(w, weights, signs, active, n):
    """Store w, with its signs, and remove the zeros from the active list; return the new n."""
    kept = 0
    for i in range(n):
        m = active[i]
        weights[m] = w[i]
        if w[i] != 0.0:
            signs[m] = np.sign(w[i])
            active[kept] = m
            kept += 1
    return kept
