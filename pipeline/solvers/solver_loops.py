"""The compiled loops of the solvers. No fastmath: sums keep their order, and a resumed run repeats their bits.

Coordinate descent, Algorithm 2 of the paper with lambda = 1: `sweep` is the algorithm, what it calls its equations.
gram (M, M), kty (M,), active (cap,) i8 of which n count, position (M,) i8, -1 for a zero coordinate, G (cap, cap),
u (cap,) = G kty[active]. Scratch: a and b (cap,).
"""

import numpy as np

from pipeline.kernels.jit import compiled, inner

# Below DOUBT gram_mm a curvature is the small difference of two large numbers: it is believed only from a
# fresh G. Below CURVATURE_FLOOR gram_mm it is rounding even then.
DOUBT = 1e-7
CURVATURE_FLOOR = 1e-11


@compiled()
def sweep(order, gram, kty, nu, is_exact, mu, active, position, n, G, u, fresh, a, b):
    """Visit the coordinates of ``order``; return (visits, n, moves, worst violation).

    Stops early, before a visit, when ``active`` is full or a curvature is in doubt and G not ``fresh``:
    the caller makes room or computes G afresh, and comes back. A coordinate at zero whose gradient is not below 0 stays
    there (mathematics.md, eqs. 15 and 18).
    """
    moves, worst = 0, 0.0
    for k in range(order.size):
        if n == active.size:
            return k, n, moves, worst
        m = order[k]
        q = score(m, gram, kty, active, n, u, a)
        q_squared = q * q
        gradient = nu - q_squared
        if mu[m] == 0.0 and gradient >= 0.0:  # stays at zero: s_m is not needed
            continue
        worst = max(worst, abs(gradient))
        s = curvature(m, gram, mu[m], position[m], G, n, a, b)
        if mu[m] == 0.0 and s < DOUBT * gram[m, m] and (moves > 0 or not fresh):
            return k, n, moves, worst
        new = coordinate_step(mu[m], q_squared, s, nu, is_exact)
        if new == mu[m]:
            continue
        if mu[m] == 0.0:
            n = enter(m, new, s, q, active, position, n, G, u, b)
        else:
            change(position[m], mu[m], new, n, G, u, a)
            if new == 0.0:
                n = leave(position[m], active, position, n, G, u)
        mu[m] = new
        moves += 1
    return order.size, n, moves, worst


@inner()
def score(m, gram, kty, active, n, u, a):
    """Fill a = C^T c_m and return q_m = y^T K~^-1 c_m (mathematics.md, eq. 22)."""
    for i in range(n):
        a[i] = gram[m, active[i]]
    total = 0.0
    for i in range(n):
        total += a[i] * u[i]
    return kty[m] - total


@inner()
def curvature(m, gram, mu, p, G, n, a, b):
    """Return s_m = c_m^T K~^-1 c_m, filling b = G a, unless G_pp gives it (mathematics.md, eqs. 23 and 24).

    For an active coordinate s_m = (mu_m - G_pp) / mu_m^2 costs nothing, and cancels less where s_m << gram_mm.
    """
    if mu > 0.0 and mu - G[p, p] > 1e-6 * mu:
        return (mu - G[p, p]) / (mu * mu)
    for j in range(n):
        b[j] = 0.0
    for i in range(n):
        for j in range(n):  # row by row: G is symmetric, and this order vectorises
            b[j] += a[i] * G[i, j]
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return max(gram[m, m] - total, CURVATURE_FLOOR * gram[m, m])


@inner()
def coordinate_step(mu, q_squared, s, nu, is_exact):
    """Return the new mu_m >= 0: the Newton step or the exact one (mathematics.md, eqs. 29 and 30).

    A Newton step that lowers mu_m can raise F (mathematics.md, eq. 31): the safeguarded step is the exact one there.
    """
    if q_squared <= 0.0 or s <= 0.0:
        return 0.0
    exact = (np.sqrt(q_squared / nu) - 1.0) / s
    if is_exact or exact < 0.0:
        return max(0.0, mu + exact)
    return max(0.0, mu + (q_squared - nu) / (2.0 * q_squared * s))


@inner()
def change(p, mu, new, n, G, u, g):
    """Update G and u for a weight mu -> new at row p (mathematics.md, eqs. 32 and 33), with g (cap,) to work in.

    G loses factor g_p g_p^T, u = G kty the same, whose entry p is g_p^T kty.
    """
    if new > 0.0:
        delta = 1.0 / new - 1.0 / mu
        factor = delta / (1.0 + delta * G[p, p])
    else:
        factor = 1.0 / G[p, p]
    for i in range(n):
        g[i] = G[p, i]
    scale = factor * u[p]
    for i in range(n):
        u[i] -= scale * g[i]
    for i in range(n):
        scale = factor * g[i]
        for j in range(n):
            G[i, j] -= scale * g[j]


@inner()
def leave(p, active, position, n, G, u):
    """Remove coordinate p of G, whose row is now 0 (mathematics.md, eq. 33); the last takes its row. Return n."""
    last = n - 1
    position[active[p]] = -1
    if p != last:
        for j in range(n):
            G[p, j] = G[last, j]
        for j in range(n):
            G[j, p] = G[j, last]
        active[p] = active[last]
        position[active[p]] = p
        u[p] = u[last]
    return last


@inner()
def enter(m, mu, s, q, active, position, n, G, u, b):
    """Append coordinate m with weight mu to G and u (mathematics.md, eq. 34), b = G a. Return n."""
    corner = 1.0 / (1.0 / mu + s)
    for i in range(n):
        factor = b[i] * corner
        for j in range(n):  # A = G + v v^T / s, v = -s G a
            G[i, j] += factor * b[j]
        G[i, n] = -b[i] * corner
        G[n, i] = G[i, n]
    G[n, n] = corner
    for i in range(n):
        u[i] += G[n, i] * q
    u[n] = corner * q
    active[n] = m
    position[m] = n
    return n + 1


@compiled()
def residual_scores(gram, kty, weights, active, scores):
    """Write kty - gram w, the scores C^T r, to ``scores`` (M,); reads the Gram rows of ``active`` only."""
    for j in range(scores.size):
        scores[j] = 0.0
    for i in active:
        w = weights[i]
        if w != 0.0:
            for j in range(scores.size):
                scores[j] += w * gram[i, j]
    for j in range(scores.size):
        scores[j] = kty[j] - scores[j]


@compiled()
def scaled_system(gram, mu, active, B):
    """Write the upper triangle of B = I + D^1/2 C^T C D^1/2 (n, n); G = D^1/2 B^-1 D^1/2 (mathematics.md, eq. 27)."""
    for i in range(active.size):
        for j in range(i, active.size):
            B[i, j] = np.sqrt(mu[active[i]] * mu[active[j]]) * gram[active[i], active[j]]
        B[i, i] += 1.0


@compiled()
def inverse_rows(R, X, start, stop):
    """Write rows start … stop - 1 of X = R^-T, lower triangular; columns before ``start`` hold -R^T X of rows above."""
    for i in range(start, stop):
        X[i, i] += 1.0
        for k in range(start, i):
            for j in range(k + 1):
                X[i, j] -= R[k, i] * X[k, j]
        for j in range(i + 1):
            X[i, j] /= R[i, i]


@compiled()
def upper_part(gram, active, ridge, A):
    """Write the upper triangle of gram_PP + ridge I to the first rows and columns of ``A`` (mathematics.md, eq. 54)."""
    for i in range(active.size):
        row = gram[active[i]]
        for j in range(i, active.size):
            A[i, j] = row[active[j]]
        A[i, i] += ridge
