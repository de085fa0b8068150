"""Forward-backward selection: more centers than enough, chosen one by one, then dropped one by one.

What was chosen early, with few others beside it (`forward_selection`), is not what one would keep in the end. So more
than enough are chosen, and then dropped, each the one whose loss raises the error least: with H = gram_PP⁻¹, by exactly
‖w_m‖² / H_mm. Their order, from the last one left, is the order of the model: any prefix of it is a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.forward_selection import Selection, damping, forward

BACK_LEAST, BACK_SHARE, BACK_MOST = 2000, 3, 4000  # a third of the candidates, between these, are dropped again
BACK_BLOCK = 64  # centers dropped between two updates of H


def select(
    statistics: GramStatistics,
    size: int,
    *,
    intercept: bool,
    first: NDArray[np.int64] | None = None,
    enough: Callable[[list[int]], bool] = lambda chosen: False,
    n_threads: int = 1,
) -> Selection:
    """Choose `size` of the candidates, or fewer where no more are left that add anything.

    Parameters
    ----------
    statistics : GramStatistics
        Of all candidates; the Gram is read by rows and never copied.
    size : int
        How many to choose, at least 1.
    intercept : bool
        Whether an unpenalised intercept is fitted beside the weights.
    first : (f,) int64 or None
        What an earlier call with these statistics had chosen on its way forward: whole slabs of it are taken over,
        and the choice goes on as if it had not been interrupted.
    enough : callable
        Called with the columns chosen so far on the way forward, after each; True ends it, though not before there
        are as many as are dropped again. May raise.
    n_threads : int
        Threads of the way forward; the bits do not depend on them.

    Returns
    -------
    Selection
        Memory: 8·f·(M + 3 f) bytes with f = max(size, `forward_size`). Costs f²·M operations, no pass over the rows.

    Raises
    ------
    ValueError
        `size` is not between 1 and the number of candidates.
    """
    if not 1 <= size <= statistics.n_centers:
        raise ValueError(f"size must be 1 to the {statistics.n_centers} candidates, found {size}")
    n_back = forward_size(statistics.n_centers)
    found = forward(
        statistics,
        max(size, n_back),
        intercept=intercept,
        first=first,
        enough=enough,
        least=n_back,
        n_threads=n_threads,
    )
    back = drop(statistics.cut(found.chosen), size, n_back, intercept=intercept, added=damping(statistics))
    return replace(found, chosen=found.chosen[back.chosen], reductions=back.reductions)


def drop(
    statistics: GramStatistics, size: int, n_back: int, *, intercept: bool, added: float | None = None
) -> Selection:
    """Choose `size` of the columns that a way forward has chosen, in its order: the first `n_back` are dropped again.

    The others follow as they were chosen. added : to the diagonal of the Gram (default: `damping`). Costs
    2 n_back³ operations and 16·n_back² bytes.
    """
    added = damping(statistics) if added is None else added
    dropped, rest = np.arange(min(n_back, statistics.n_centers)), np.arange(n_back, min(size, statistics.n_centers))
    early = statistics if len(dropped) == statistics.n_centers else statistics.cut(dropped)
    order, reductions = _back(early, added, intercept=intercept)
    if len(rest):
        used = statistics.cut(np.concatenate([dropped, rest]))
        used = used.centred() if intercept else used
        L = cholesky(used.gram + added * np.eye(used.n_centers), lower=True)
        beta = solve_triangular(L, used.kty, lower=True)[len(dropped) :]
        order = np.concatenate([order, rest])
        reductions = np.concatenate([reductions, np.einsum("jt,jt->j", beta, beta)])
    return Selection(order[:size], reductions[:size], 0, 0.0)


def forward_size(n_candidates: int) -> int:
    """Return how many are chosen and dropped again; of the candidates alone, so that prefixes agree."""
    return min(n_candidates, max(BACK_LEAST, min(n_candidates // BACK_SHARE, BACK_MOST)))


def _back(
    statistics: GramStatistics, damping: float, *, intercept: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Drop all columns one by one; return the order from the last one left, (p,), and what each had lowered, (p,).

    H and W are made anew whenever half of the columns are gone, and H is updated by blocks in between: 2/3 p³
    operations and little traffic.
    """
    used = statistics.centred() if intercept else statistics
    left = np.arange(used.n_centers)
    order: list[int] = []
    losses: list[float] = []
    while len(left):
        H, W = _inverse(used.gram[np.ix_(left, left)], used.kty[left], damping)
        fresh = len(left)
        while len(left) > fresh // 2:
            dropped, lost, H, W = _drop_block(H, W, min(BACK_BLOCK, len(left) - fresh // 2))
            order += left[dropped].tolist()
            losses += lost
            left = np.delete(left, dropped)
    return np.array(order[::-1], np.int64), np.array(losses[::-1])


def _inverse(
    gram: NDArray[np.float64], kty: NDArray[np.float64], damping: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return H = (gram + damping)⁻¹ and W = H kty; more is added while the factor does not exist."""
    while True:
        try:
            factor = cho_factor(gram + damping * np.eye(len(gram)), lower=True)
            break
        except LinAlgError:
            damping *= 10.0
    H: NDArray[np.float64] = np.tril(dpotri(factor[0], lower=True)[0])
    H += np.tril(H, -1).T
    return H, cho_solve(factor, kty)


def _drop_block(
    H: NDArray[np.float64], W: NDArray[np.float64], count: int
) -> tuple[list[int], list[float], NDArray[np.float64], NDArray[np.float64]]:
    """Drop `count` columns; return which, what each loss raises the error by, and H and W of those that are left.

    mathematics.md, eqs. 66 and 67.
    """
    steps = np.empty((count, len(H)))
    diagonal, alive = np.diagonal(H).copy(), np.ones(len(H), bool)
    dropped: list[int] = []
    lost: list[float] = []
    for t in range(count):
        losses = np.where(alive, np.einsum("mt,mt->m", W, W) / diagonal, np.inf)
        m = int(np.argmin(losses))
        column = H[:, m] - steps[:t].T @ steps[:t, m]
        steps[t] = column / np.sqrt(diagonal[m])
        W = W - np.outer(column, W[m] / diagonal[m])
        dropped.append(m)
        lost.append(float(losses[m]))
        alive[m] = False
        diagonal = np.where(alive, np.maximum(diagonal - steps[t] ** 2, np.finfo(float).tiny), 1.0)
    kept = steps[:, alive]
    return dropped, lost, H[np.ix_(alive, alive)] - kept.T @ kept, W[alive]
