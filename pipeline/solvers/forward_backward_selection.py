"""Forward-backward selection: more centers than enough, chosen one by one, then dropped one by one.

What was chosen early, with few others beside it, is not what one would keep in the end. So more than enough are chosen,
and then dropped, each the one whose loss raises the error least: with H = gram_PP⁻¹, by exactly ‖w_m‖² / H_mm. From the
last one left, any prefix is a model. Where first ones are clearly better than the last left, they are settled before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.forward_selection import Selection, damping, forward

Columns = NDArray[np.int64]
BACK_LEAST, BACK_SHARE, BACK_MOST = 2000, 3, 4000  # a third of the candidates, between these, are dropped again
BACK_BLOCK = 64  # centers dropped between two updates of H
ROUNDING = 1e-9  # of what columns lower the error by: less does not tell two choices apart
# First centers may be settled up to one of these, where they leave less error than those left in the end by this share.
# On 60 problems of 500 candidates 5, 10, 20, 50, 100 and 200 centers leave .97, .96, .97, .94, .98 and .96 times the
# error of the way forward; without settled ones 1.15, 1.10, 1.06, 1.01, .99 and .96 times.
LEVELS, CLEARLY = (5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50), 0.05


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

    Parameters as in `forward`; `enough` ends the way forward, though not before there are as many as are dropped again.
    Memory: 8·f·(M + 3 f) bytes with f = max(size, `forward_size`). Costs f²·M operations, no pass over the rows. Raises
    ValueError where `size` is not between 1 and the number of candidates.
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

    First centers are settled beforehand where so many leave less error. The others follow as they were chosen. added :
    to the diagonal of the Gram (default: `damping`). Costs 4 n_back³ operations at most and 16·n_back² bytes.
    """
    added = damping(statistics) if added is None else added
    n, n_back = statistics.n_centers, min(n_back, statistics.n_centers)
    early = statistics.cut(np.arange(n_back))  # finalists come in the order that a sample chose
    ahead = forward(early, min(n_back, 2 * LEVELS[-1]), intercept=intercept).chosen
    del early
    used = statistics.centred() if intercept else statistics
    order = _back(used, np.empty(0, np.int64), np.arange(n_back), added)
    first = _settled(used, ahead, order, added)
    until = np.max(np.flatnonzero(np.isin(order, first)), initial=-1) + 1  # what is dropped before is the same
    beside = np.concatenate([_back(used, first, order[:until], added), order[until:]])
    ways = [np.concatenate([way, np.arange(n_back, n)])[:size] for way in (order, beside)]
    plain, settled = (_reductions(used, way, added) for way in ways)
    # Of the same centers in two orders, settled ones come first: fewer of them may be taken in the end.
    is_plain = plain.sum() > settled.sum() * (1.0 + ROUNDING)
    return Selection(ways[int(not is_plain)], plain if is_plain else settled, 0, 0.0)


def dropping_bytes(n_columns: int) -> int:
    """Return the bytes of `drop`: measured, with what the allocator keeps of the statistics."""
    return 13 * 8 * n_columns**2


def forward_size(n_candidates: int) -> int:
    """Return how many are chosen and dropped again; of the candidates alone, so that prefixes agree."""
    return min(n_candidates, max(BACK_LEAST, min(n_candidates // BACK_SHARE, BACK_MOST)))


def _settled(used: GramStatistics, ahead: Columns, order: Columns, damping: float) -> Columns:
    """Return the most settled centers that leave clearly less error than as many of `order`."""

    def error(columns: Columns) -> float:
        return float(used.yty.sum() - _reductions(used, columns, damping).sum())

    settled = clear = order[:0]
    for level in (level for level in LEVELS if 2 * level <= len(ahead)):
        pool = ahead[: 2 * level]
        forth = np.concatenate([settled, pool[~np.isin(pool, settled)]])[:level]
        back = _back(used, settled, pool, damping)[:level]
        settled = forth if error(forth) < (1.0 - CLEARLY) * error(back) else back
        clear = settled if error(settled) < (1.0 - CLEARLY) * error(order[:level]) else clear
    return clear


def _reductions(used: GramStatistics, order: Columns, damping: float) -> NDArray[np.float64]:
    """Return by how much each column lowers the squared error beside those before it, (k,); mathematics.md, eq. 65."""
    beta = solve_triangular(_cholesky(used.gram[np.ix_(order, order)], damping), used.kty[order], lower=True)
    return np.asarray(np.einsum("jt,jt->j", beta, beta))


def _back(used: GramStatistics, kept: Columns, columns: Columns, damping: float) -> Columns:
    """Drop the columns one by one that are not `kept`; return those kept, and the others from the last one left.

    H and W are made anew whenever half of the columns are gone, and H is updated by blocks in between: 2/3 p³
    operations and little traffic.
    """
    left = np.concatenate([kept, columns[~np.isin(columns, kept)]])
    order: list[int] = []
    while len(left) > len(kept):
        L = _cholesky(used.gram[np.ix_(left, left)], damping)
        H, W = np.tril(dpotri(L, lower=True)[0]), cho_solve((L, True), used.kty[left])
        H += np.tril(H, -1).T
        del L
        goal = max(len(left) // 2, len(kept))
        while len(left) > goal:
            dropped, H, W = _drop_block(H, W, min(BACK_BLOCK, len(left) - goal), len(kept))
            order += left[dropped].tolist()
            left = np.delete(left, dropped)
    return np.concatenate([kept, np.array(order[::-1], np.int64)])


def _cholesky(gram: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """Return the lower factor of gram + damping; more is added while there is none."""
    while True:
        try:
            return np.asarray(cholesky(gram + damping * np.eye(len(gram)), lower=True))
        except LinAlgError:
            damping *= 10.0


def _drop_block(
    H: NDArray[np.float64], W: NDArray[np.float64], count: int, n_kept: int
) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Drop `count` columns, none of the first `n_kept`; return which, and H and W of those that are left.

    mathematics.md, eqs. 66 and 67.
    """
    steps = np.empty((count, len(H)))
    diagonal, alive = np.diagonal(H).copy(), np.ones(len(H), bool)
    dropped: list[int] = []
    for t in range(count):
        losses = np.where(alive, np.einsum("mt,mt->m", W, W) / diagonal, np.inf)
        m = n_kept + int(np.argmin(losses[n_kept:]))
        column = H[:, m] - steps[:t].T @ steps[:t, m]
        steps[t] = column / np.sqrt(diagonal[m])
        W = W - np.outer(column, W[m] / diagonal[m])
        dropped.append(m)
        alive[m] = False
        diagonal = np.where(alive, np.maximum(diagonal - steps[t] ** 2, np.finfo(float).tiny), 1.0)
    kept = steps[:, alive]
    return dropped, H[np.ix_(alive, alive)] - kept.T @ kept, W[alive]
