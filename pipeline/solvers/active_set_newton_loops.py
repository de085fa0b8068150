"""The compiled loops of the active-set Newton method on w, a step of which minimises on a face of the orthant.

On support P with signs s the Lasso objective is the quadratic 1/2 w^T A w - (kty_P - tau s_P)^T w with
A = gram_PP, whose minimiser is one Cholesky solve away (mathematics.md, eq. 53); `active_set_newton` takes the steps.
Shapes: gram (M, M), kty, weights and signs (M,), active (cap,) int64 of which n are used, target (cap,) in their order.
"""

from __future__ import annotations

import math

from pipeline.kernels.jit import compiled


@compiled()
def face_system(gram, kty, tau, ridge, weights, signs, active, n, A, target):
    """Write the system of a face to ``A`` (cap, cap), the lower triangle of its first n rows, and ``target``.

    A = gram_PP + ridge I and kty_P - tau s_P + ridge w_P: mathematics.md, eq. 54, with ridge for ρ.
    """
    for i in range(n):
        m = active[i]
        for j in range(i + 1):
            A[i, j] = gram[m, active[j]]
        A[i, i] += ridge
        target[i] = kty[m] - tau * signs[m] + ridge * weights[m]


@compiled()
def substitute(L, x, n):
    """Solve L L^T x = b in place of b, the first n entries of ``x``; L is the lower triangle of its argument."""
    for i in range(n):
        total = x[i]
        for j in range(i):
            total -= x[j] * L[i, j]
        x[i] = total / L[i, i]
    for i in range(n - 1, -1, -1):
        total = 0.0
        for j in range(i + 1, n):
            total += L[j, i] * x[j]
        x[i] = (x[i] - total) / L[i, i]


@compiled()
def drop_blocked(target, weights, signs, active, n):
    """Remove the zero weights that the way to the target moves against their sign; return the new n."""
    kept = 0
    for i in range(n):
        m = active[i]
        if weights[m] != 0.0 or (target[i] - weights[m]) * signs[m] > 0.0:
            active[kept] = m
            kept += 1
    return kept


@compiled()
def move_to(target, weights, signs, active, n, ridge, smallest):
    """Move the weights to the target and drop those that cross zero on the way.

    Return (n, whether the pull of the ridge on every weight was at most ``smallest``).
    """
    kept, settled = 0, True
    for i in range(n):
        m = active[i]
        move = target[i] - weights[m]
        if not ridge * math.fabs(move) <= smallest:
            settled = False
        weights[m] += move
        if weights[m] * signs[m] <= 0.0:
            weights[m] = 0.0
        else:
            active[kept] = m
            kept += 1
    return kept, settled


_LISTS = "f8[::1], f8[::1], i8[::1]"  # weights, signs, active
SIGNATURES = {
    "face_system": f"(Array(f8, 2, 'C', True), f8[::1], f8, f8, {_LISTS}, i8, f8[:, ::1], f8[::1])",
    "substitute": "(f8[:, ::1], f8[::1], i8)",
    "drop_blocked": f"(f8[::1], {_LISTS}, i8)",
    "move_to": f"(f8[::1], {_LISTS}, i8, f8, f8)",
}
