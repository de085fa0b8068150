"""Orthogonal least squares over the candidates, forward and back: the centers that lower the refitted error most.

Forward: with P the chosen centers, W_P their least-squares weights and

    q_m = kty_m - gram_mP W_P                      residual scores (T,), shared by the outputs
    s_m = gram_mm - gram_mP gram_PP⁻¹ gram_Pm      what of c_m the chosen columns do not span

adding m lowers Σ‖y - C w‖² by exactly ‖q_m‖² / s_m (mathematics.md, eqs. 62 and 63). A growing Cholesky factor of
gram_PP, kept as the rows V = L⁻¹ gram_P: over all candidates, gives both by one rank-1 step per center:

    v = (gram_m - V[:j, m]ᵀ V[:j]) / √s_m,    s ← s - v²,    q ← q - v q_m / v_m

It is the λ → 0 relative of the coordinate step, and needs nothing but the statistics.

Back: what was chosen early, with few others beside it, is not what one would keep in the end. So more than enough are
chosen, and then dropped one by one, each the one whose loss raises the error least: with H = gram_PP⁻¹, by exactly
‖w_m‖² / H_mm. Their order, from the last one left, is the order of the model: any prefix of it is a model.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri

from pipeline.kernels.gram_statistics import GramStatistics

# Added to the diagonal of the Gram, as a share of its mean: far above rounding (1e-15), far below what is left of a
# column that says anything new (on MNIST 1e-8 after thousands of centers). A candidate of which no more is left is
# refused, and so is a copy of a chosen one: columns at an angle whose squared sine is below COPY.
DAMPING, COPY = 1e-11, 1e-12
BACK_LEAST, BACK_SHARE, BACK_MOST = 2000, 3, 4000  # a third of the candidates, between these, are dropped again
LEAST_GAIN = 1e-14  # of Σ‖y‖²; a smaller decrease of the error is rounding
BACK_BLOCK = 64  # centers dropped between two updates of H
SLAB_ROWS = 256  # rows of V that are allocated at once, and made anew from the Gram when they are all there
STRIPE = 1536  # candidates that a thread updates at once; fixed, since the bits depend on it


@dataclass(frozen=True)
class Selection:
    """What was chosen.

    Attributes
    ----------
    chosen : (k,) int64
        Columns in the order of the model. Any prefix is what a selection of that size chooses.
    reductions : (k,) float64
        By how much each lowers the squared error of the fit rows beside those before it, summed over the outputs.
    refused : int
        Candidates left out since the chosen columns span them, or one of these is the same.
    drift : float
        Largest difference between rows of V from rank-1 steps and the same made anew, relative to √gram_mm.
    """

    chosen: NDArray[np.int64]
    reductions: NDArray[np.float64]
    refused: int
    drift: float


class _Factor:
    """V (j, M), its candidates' s (M,) and q (M, T), and the chosen columns; changed in place."""

    def __init__(self, statistics: GramStatistics, *, intercept: bool) -> None:
        self._gram, self._n = statistics.gram, statistics.weight_sum
        self._sums = statistics.column_sums if intercept else None
        self.diagonal = np.array(np.diagonal(statistics.gram))
        self.damping = damping(statistics)
        self._kty = np.array(statistics.kty)
        if self._sums is not None:
            self.diagonal -= self._sums**2 / self._n
            self._kty -= np.outer(self._sums, statistics.target_sums) / self._n
        self.diagonal += self.damping
        self.copies = np.zeros(len(self.diagonal), bool)
        self._slabs: list[NDArray[np.float64]] = []
        self.chosen: list[int] = []
        self.s, self.q = self.diagonal.copy(), self._kty.copy()

    def row(self, m: int) -> NDArray[np.float64]:
        """Return gram_m: over all candidates, damped, and centred where an intercept is fitted."""
        row = np.array(self._gram[m])
        row[m] += self.damping
        if self._sums is not None:
            row -= self._sums * (self._sums[m] / self._n)
        return row

    def rows(self) -> list[NDArray[np.float64]]:
        """Return V as slabs of rows."""
        full, rest = divmod(len(self.chosen), SLAB_ROWS)
        return [*self._slabs[:full], *([self._slabs[full][:rest]] if rest else [])]

    def append(self, m: int, threads: Executor) -> None:
        """Add a center: one new row of V, and the rank-1 steps of s and q (mathematics.md, eq. 64). Costs 2·j·M
        operations."""
        v, slabs = self.row(m), self.rows()
        self._mark_copies(m, v)

        def subtract(start: int) -> None:
            stripe = slice(start, start + STRIPE)
            for slab in slabs:
                v[stripe] -= slab[:, m] @ slab[:, stripe]

        for _ in threads.map(subtract, range(0, len(v), STRIPE)):
            pass
        v /= np.sqrt(v[m])
        self._store(v)
        step = self.q[m] / v[m]
        self.s -= v * v
        self.q -= v[:, None] * step
        self.chosen.append(m)

    def _mark_copies(self, m: int, row: NDArray[np.float64]) -> None:
        squares = (row[m] - self.damping) * (self.diagonal - self.damping)
        self.copies |= (row * row >= (1.0 - COPY) * squares) & (squares > 0.0)

    def _store(self, v: NDArray[np.float64]) -> None:
        slab, line = divmod(len(self.chosen), SLAB_ROWS)
        if slab == len(self._slabs):
            self._slabs.append(np.empty((SLAB_ROWS, len(v))))
        self._slabs[slab][line] = v

    def renew(self) -> float:
        """Make the last slab, which is full, anew from the Gram, and s and q from V; return the drift.

        What follows then depends on the chosen alone, not on how V came about: `restore` gives the same bits. Raises
        LinAlgError where the Gram of the chosen is not positive definite in float64.
        """
        index = len(self.chosen) // SLAB_ROWS - 1
        slab = self.chosen[index * SLAB_ROWS :]
        rows = np.stack([self.row(m) for m in slab])
        for m, row in zip(slab, rows, strict=True):
            self._mark_copies(m, row)
        for earlier in self._slabs[:index]:
            rows -= earlier[:, slab].T @ earlier
        L = cholesky(rows[:, slab], lower=True)
        fresh = solve_triangular(L, rows, lower=True, overwrite_b=True)
        scale = np.sqrt(np.maximum(self.diagonal, np.finfo(float).tiny))
        drift = float(np.max(np.abs(fresh - self._slabs[index]) / scale))
        self._slabs[index] = fresh
        self._refresh()
        return drift

    def restore(self, chosen: list[int]) -> None:
        """Take over what was chosen before, whole slabs of it. Costs j²·M operations."""
        for start in range(0, len(chosen) - SLAB_ROWS + 1, SLAB_ROWS):
            self._slabs.append(np.zeros((SLAB_ROWS, len(self.diagonal))))
            self.chosen += chosen[start : start + SLAB_ROWS]
            self.renew()

    def reductions(self) -> NDArray[np.float64]:
        """Return by how much each center lowered the error beside those before it, ‖q_m‖² / s_m, (j,).

        mathematics.md, eqs. 63 and 65.
        """
        beta = self._beta()
        return np.asarray(np.einsum("jt,jt->j", beta, beta))

    def _refresh(self) -> None:
        """Compute s and q from V, without the error that their rank-1 steps have gathered (mathematics.md, eq. 65)."""
        self.s, self.q = self.diagonal.copy(), self._kty.copy()
        beta = self._beta()
        for index, slab in enumerate(self.rows()):
            self.s -= np.einsum("jm,jm->m", slab, slab)
            self.q -= slab.T @ beta[index * SLAB_ROWS : (index + 1) * SLAB_ROWS]

    def _beta(self) -> NDArray[np.float64]:
        """Return L⁻¹ kty of the chosen, (j, T)."""
        chosen = np.array(self.chosen, np.int64)
        L = np.vstack([np.empty((0, len(chosen))), *(slab[:, chosen] for slab in self.rows())]).T
        return np.asarray(solve_triangular(L, self._kty[chosen], lower=True)) if len(chosen) else self._kty[:0]


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
    forward = _forward(statistics, max(size, n_back), n_back, intercept, first, enough, n_threads)
    dropped = forward.chosen[:n_back]
    order, reductions = _back(statistics.cut(dropped), damping(statistics), intercept=intercept)
    chosen = np.concatenate([dropped[order], forward.chosen[n_back:]])[:size]
    return replace(forward, chosen=chosen, reductions=np.concatenate([reductions, forward.reductions[n_back:]])[:size])


def damping(statistics: GramStatistics) -> float:
    """Return what is added to the diagonal of the Gram while centers are chosen."""
    return max(DAMPING * float(np.mean(np.diagonal(statistics.gram))), float(np.finfo(float).tiny))


def forward_size(n_candidates: int) -> int:
    """Return how many are chosen and dropped again; of the candidates alone, so that prefixes agree."""
    return min(n_candidates, max(BACK_LEAST, min(n_candidates // BACK_SHARE, BACK_MOST)))


def _forward(
    statistics: GramStatistics,
    size: int,
    least: int,
    intercept: bool,
    first: NDArray[np.int64] | None,
    enough: Callable[[list[int]], bool],
    n_threads: int,
) -> Selection:
    """Choose one by one; `enough` may end it from `least` on."""
    factor = _Factor(statistics, intercept=intercept)
    factor.restore([] if first is None else [int(m) for m in first])
    drift = 0.0
    least_gain = LEAST_GAIN * float(statistics.yty.sum())
    with ThreadPoolExecutor(n_threads) as threads:
        while len(factor.chosen) < size:
            left = (factor.s > factor.damping) & ~factor.copies
            left[factor.chosen] = False
            gains = np.where(left, np.einsum("mt,mt->m", factor.q, factor.q) / np.where(left, factor.s, 1.0), -1.0)
            best = int(np.argmax(gains))
            if gains[best] <= least_gain:
                break
            factor.append(best, threads)
            if len(factor.chosen) % SLAB_ROWS == 0:
                try:
                    drift = max(drift, factor.renew())
                except LinAlgError:
                    break  # the last slab is spanned by the others to rounding
            if enough(factor.chosen) and len(factor.chosen) >= least:
                break
    spanned = (factor.s <= factor.damping) | factor.copies
    spanned[factor.chosen] = False
    chosen = np.array(factor.chosen, np.int64)
    return Selection(chosen, factor.reductions(), int(np.count_nonzero(spanned)), drift)


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
