"""Forward-backward selection: more centers than enough, chosen one by one, then dropped one by one.

Forward, orthogonal least squares adds the candidate that lowers the refitted error most (mathematics.md, eqs. 60 and
61). It keeps the rows V = L⁻¹ gram_P: over all candidates, L being the growing Cholesky factor of gram_PP, and P the
chosen centers. Blocks of rows are added as products of matrices; within a block only the candidates of the largest
gains are followed.

What was chosen early, with few others beside it, is not what one would keep in the end. So, backward, the center whose
loss raises the error least is dropped (eq. 65), one after the other. In the order from the last one left, any prefix is
a model. First centers that are clearly better than the last ones left are settled before.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.blas import dgemm
from scipy.linalg.lapack import dpotrf, dpotri

from pipeline.kernels.gram_statistics import GramStatistics

Index = NDArray[np.int64]
BACK_LEAST, BACK_SHARE, BACK_MOST = 2000, 3, 4000  # A third of the candidates, within these bounds, are dropped again.
BACK_BLOCK = 64  # H is updated once for this number of dropped centers.
ROUNDING = 1e-9  # Choices that lower the error equally up to this share cannot be told apart.
# First centers may be settled up to one of these, where they leave less error than those left in the end by this share.
# On 60 problems of 500 candidates 5, 10, 20, 50, 100 and 200 centers leave .97, .96, .97, .94, .98 and .96 times the
# error of the way forward; without settled ones 1.15, 1.10, 1.06, 1.01, .99 and .96 times.
LEVELS, CLEARLY = (5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50), 0.05

# Added to the diagonal of the Gram, relative to its mean: far above rounding (1e-15), far below what is left of a
# column that adds anything new (on MNIST 1e-8 after thousands of centers). A candidate of which no more is left is
# refused, and so is a copy of a chosen one: columns at an angle whose squared sine is below COPY. LEAST_DAMPING is
# relative to the largest of the diagonal: with less, rounding would decide which of dependent columns are chosen.
DAMPING, LEAST_DAMPING, COPY = 1e-11, 1e-13, 1e-12
LEAST_GAIN = 1e-14  # A smaller decrease of the error, relative to Σ‖y‖², is rounding.
SLAB_ROWS = 256  # Rows of V are allocated by slabs; a complete slab is recomputed from the Gram.
BLOCK, FOLLOWED = 64, 512  # A block of centers is chosen among the followed candidates; then all are updated.
STRIPE = 1536  # A thread updates these candidates at once; the number is fixed, since the bits depend on it.
CHOSEN_GRAMS = 10  # A choice holds these Grams of the chosen centers, and a row over all candidates for each; measured.


def select(statistics: GramStatistics, size: int, *, intercept: bool, **of_forward: Any) -> Index:
    """Return up to `size` candidates, fewer where the others add nothing; any prefix is a choice.

    The first `forward_size` chosen on the way forward are dropped again, except the settled centers where these leave
    less error. The others follow in the order chosen.

    Parameters as in `forward`. Memory: 8·f·(M + 3 f) bytes with f = max(size, `forward_size`). Costs f²·M operations,
    no pass over the rows.
    """
    n_back, added = forward_size(statistics.n_centers), damping(statistics)
    chosen = forward(statistics, max(size, n_back), intercept=intercept, **of_forward)
    statistics, n = statistics.cut(chosen), len(chosen)
    used, n_back = statistics.centred() if intercept else statistics, min(n_back, n)
    order = _back(used, np.empty(0, np.int64), np.arange(n_back), added)
    first = _settled(used, np.arange(min(n_back, 2 * LEVELS[-1])), order, added)
    until = np.max(np.flatnonzero(np.isin(order, first)), initial=-1) + 1  # Earlier drops are the same.
    beside = np.concatenate([_back(used, first, order[:until], added), order[until:]])
    ways = [np.concatenate([way, np.arange(n_back, n)])[:size] for way in (order, beside)]
    plain, settled = (_reductions(used, way, added) for way in ways)
    # Of the same centers in two orders, settled ones come first: fewer of them may be taken in the end.
    is_plain = plain.sum() > settled.sum() * (1.0 + ROUNDING)
    return chosen[ways[int(not is_plain)]]


def forward(
    statistics: GramStatistics,
    size: int,
    *,
    intercept: bool,
    after: Callable[[list[int]], None] = lambda chosen: None,
    n_threads: int = 1,
) -> Index:
    """Return up to `size` candidates, chosen one by one; fewer where the others add nothing.

    statistics : of all candidates; the Gram is read by rows and never copied.
    intercept : an unpenalised one is fitted beside the weights.
    after : called with the columns chosen so far, after each.
    n_threads : the bits do not depend on them.
    Memory: 8·size·M bytes. Costs 2·size²·M operations, no pass over the rows.
    """
    least_gain = LEAST_GAIN * float(statistics.yty.sum())
    with ThreadPoolExecutor(n_threads) as threads:
        factor = _Factor(statistics, threads, intercept=intercept)
        while len(factor.chosen) < size:
            before, block = len(factor.chosen), list[int]()
            for m in factor.best(min(BLOCK, size - before, SLAB_ROWS - before % SLAB_ROWS), least_gain):
                block.append(m)
                after(factor.chosen + block)
            if not block:
                break
            factor.append(block)
            if len(factor.chosen) % SLAB_ROWS == 0 and len(factor.chosen) > before:
                factor.renew()
            if len(factor.chosen) < before + len(block):
                factor.copies[:] = False
                for m in factor.chosen:
                    factor.mark_copies(m)
        return np.array(factor.chosen, np.int64)


def damping(statistics: GramStatistics) -> float:
    """Return what is added to the diagonal of the Gram while centers are chosen."""
    diagonal = np.diagonal(statistics.gram)
    mean = float(np.mean(diagonal)) if len(diagonal) else 0.0
    return max(DAMPING * mean, LEAST_DAMPING * float(diagonal.max(initial=0.0)), float(np.finfo(float).tiny))


def _gains(q: NDArray[np.float64], s: NDArray[np.float64], left: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return ‖q_m‖² / s_m of the candidates left, -1 of others, (M,)."""
    return np.where(left, np.einsum("mt,mt->m", q, q) / np.where(left, s, 1.0), -1.0)


def forward_size(n_candidates: int) -> int:
    """Return how many centers are dropped again; it depends on the candidates alone, so that prefixes agree."""
    return min(n_candidates, max(BACK_LEAST, min(n_candidates // BACK_SHARE, BACK_MOST)))


def _settled(used: GramStatistics, ahead: Index, order: Index, damping: float) -> Index:
    """Return the longest settled prefix that leaves clearly less error than the prefix of `order` of its length."""

    def error(columns: Index) -> float:
        return float(used.yty.sum() - _reductions(used, columns, damping).sum())

    settled = clear = order[:0]
    for level in (level for level in LEVELS if 2 * level <= len(ahead)):
        pool = ahead[: 2 * level]
        forth = np.concatenate([settled, pool[~np.isin(pool, settled)]])[:level]
        back = _back(used, settled, pool, damping)[:level]
        settled = forth if error(forth) < (1.0 - CLEARLY) * error(back) else back
        clear = settled if error(settled) < (1.0 - CLEARLY) * error(order[:level]) else clear
    return clear


def _reductions(used: GramStatistics, order: Index, damping: float) -> NDArray[np.float64]:
    """Return the fall (k,) of the squared error by each column beside those before it (mathematics.md, eq. 63)."""
    beta = solve_triangular(_cholesky(used.gram[np.ix_(order, order)], damping), used.kty[order], lower=True)
    return np.asarray(np.einsum("jt,jt->j", beta, beta))


def _back(used: GramStatistics, kept: Index, columns: Index, damping: float) -> Index:
    """Drop the columns one by one that are not `kept`; return those kept, and the others from the last one left.

    H and W are made anew whenever half of the columns are gone, and H is updated by blocks in between: 2/3 p³
    operations and little traffic.
    """
    left = np.concatenate([kept, columns[~np.isin(columns, kept)]])
    order: list[int] = []
    while len(left) > len(kept):
        L = _cholesky(used.gram[np.ix_(left, left)], damping)
        H, W = np.tril(dpotri(L, lower=True)[0]), cho_solve((L, True), used.kty[left])
        H = np.ascontiguousarray(H + np.tril(H, -1).T)  # it is changed in place
        del L
        alive, goal = np.ones(len(left), bool), max(len(left) // 2, len(kept))
        while (n_alive := int(np.count_nonzero(alive))) > goal:
            dropped, W = _drop_block(H, W, alive, min(BACK_BLOCK, n_alive - goal), len(kept))
            order += left[dropped].tolist()
        left = left[alive]
    return np.concatenate([kept, np.array(order[::-1], np.int64)])


def _cholesky(gram: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """Return the lower factor of gram + damping; more is added while there is none."""
    while True:
        try:
            return np.asarray(cholesky(gram + damping * np.eye(len(gram)), lower=True))
        except LinAlgError:
            damping *= 10.0


def _drop_block(
    H: NDArray[np.float64], W: NDArray[np.float64], alive: NDArray[np.bool_], count: int, n_kept: int
) -> tuple[list[int], NDArray[np.float64]]:
    """Drop `count` of the columns that are alive, none of the first `n_kept`; return which, and W of those left.

    H and `alive` are changed in place; rows of dropped columns become 0 (mathematics.md, eqs. 65 and 66).
    """
    steps = np.empty((count, len(H)))
    diagonal = np.where(alive, np.diagonal(H), 1.0)
    dropped: list[int] = []
    for t in range(count):
        losses = np.where(alive, np.einsum("mt,mt->m", W, W) / diagonal, np.inf)
        m = n_kept + int(np.argmin(losses[n_kept:]))
        column = H[m] - steps[:t].T @ steps[:t, m]
        steps[t] = column / np.sqrt(diagonal[m])
        W = W - np.outer(column, W[m] / diagonal[m])
        dropped.append(m)
        alive[m] = False
        diagonal = np.where(alive, np.maximum(diagonal - steps[t] ** 2, np.finfo(float).tiny), 1.0)
    dgemm(-1.0, steps.T, steps.T, beta=1.0, c=H.T, trans_b=True, overwrite_c=True)
    return dropped, W


class _Factor:
    """V (j, M) as slabs of rows, s (M,), q (M, T) and the chosen columns; changed in place, with some threads."""

    def __init__(self, statistics: GramStatistics, threads: Executor, *, intercept: bool) -> None:
        self._gram, self._n, self._threads = statistics.gram, statistics.weight_sum, threads
        self._sums = statistics.column_sums if intercept else None
        self.diagonal = np.array(np.diagonal(statistics.gram))
        self.damping = damping(statistics)
        self._kty = np.array(statistics.kty)
        if self._sums is not None:
            self.diagonal -= self._sums**2 / self._n
            self._kty -= np.outer(self._sums, statistics.target_sums) / self._n
        self.diagonal += self.damping
        self.copies, self.spanned = np.zeros((2, len(self.diagonal)), bool)
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
        full, rest = divmod(len(self.chosen), SLAB_ROWS)
        return [*self._slabs[:full], *([self._slabs[full][:rest]] if rest else [])]

    def gains(self, least: float) -> NDArray[np.float64]:
        """Return by how much each candidate lowers the error (mathematics.md, eq. 61), (M,).

        -1 where it is at most `least`, and for candidates that are chosen, spanned by the chosen, or copies of them.
        """
        left = ~((self.s <= self.damping) | self.spanned | self.copies)
        left[self.chosen] = False
        gains = _gains(self.q, self.s, left)
        return np.where(gains > least, gains, -1.0)

    def best(self, most: int, least_gain: float) -> Iterator[int]:
        """Yield the next centers, at most `most`, from the candidates of the largest gains, before V has their rows.

        Lazy greedy: gains rarely rise, so a re-evaluated gain above all stale ones is the maximum (mathematics.md, eq.
        64). Fewer where the stale gain of another candidate is larger.
        """
        gains = self.gains(least_gain)
        order = np.argsort(-gains, kind="stable")
        order = order[gains[order] > 0.0]
        if not len(order):
            return
        columns = np.sort(order[:FOLLOWED])
        others = float(gains[order[FOLLOWED]]) if len(order) > FOLLOWED else 0.0
        rest = np.stack([self.row(m)[columns] for m in columns])
        for slab in self.rows():
            part = slab[:, columns]
            rest -= part.T @ part
        q, s = self.q[columns], np.array(np.diagonal(rest))
        steps, left = np.empty((most, len(columns))), np.ones(len(columns), bool)
        for t in range(most):
            left &= (s > self.damping) & ~self.copies[columns]
            gains = _gains(q, s, left)
            first = int(np.argmax(gains))
            if gains[first] <= max(least_gain, others if t else 0.0):
                return  # but the first is the largest of all, to rounding
            m = int(columns[first])
            self.mark_copies(m)
            left[first] = False
            v = (rest[first] - steps[:t].T @ steps[:t, first]) / np.sqrt(s[first])
            steps[t] = v
            q -= np.outer(v, q[first] / v[first])
            s = s - v * v
            yield m

    def append(self, columns: list[int]) -> None:
        """Add some centers, of one slab: new rows of V, and the steps of s and q (mathematics.md, eq. 64).

        Costs 2·j·M operations each. The first that the chosen span to rounding, and all after it, are left out.
        """
        fresh = self._eliminated(columns, self.rows())
        columns = columns[: len(fresh)]
        slab, line = divmod(len(self.chosen), SLAB_ROWS)
        if slab == len(self._slabs):
            self._slabs.append(np.empty((SLAB_ROWS, fresh.shape[1])))
        self._slabs[slab][line : line + len(columns)] = fresh
        beta = solve_triangular(fresh[:, columns].T, self.q[columns], lower=True)
        self.s -= np.einsum("jm,jm->m", fresh, fresh)
        self.q -= fresh.T @ beta
        self.chosen += columns

    def _eliminated(self, columns: list[int], slabs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the rows of V of some columns, after those in the slabs, up to one that has none; refuse that one."""
        rows = np.stack([self.row(m) for m in columns])
        stripes = [slice(start, start + STRIPE) for start in range(0, rows.shape[1], STRIPE)]

        def subtract(stripe: slice) -> None:
            for slab in slabs:
                rows[:, stripe] -= slab[:, columns].T @ slab[:, stripe]

        list(self._threads.map(subtract, stripes))
        L, failed = dpotrf(rows[:, columns], lower=True)
        if failed:  # the factor of those before it is there
            self.spanned[columns[failed - 1]] = True
            rows, L = rows[: failed - 1], L[: failed - 1, : failed - 1]

        def solve(stripe: slice) -> None:
            rows[:, stripe] = solve_triangular(L, rows[:, stripe], lower=True)

        list(self._threads.map(solve, stripes))
        lost = np.flatnonzero(rows[range(len(rows)), columns[: len(rows)]] <= 0.0)  # pivots, to rounding
        if len(lost):
            self.spanned[columns[lost[0]]] = True
            rows = rows[: lost[0]]
        return rows

    def mark_copies(self, m: int) -> None:
        row = self.row(m)
        squares = (row[m] - self.damping) * (self.diagonal - self.damping)
        self.copies |= (row * row >= (1.0 - COPY) * squares) & (squares > 0.0)

    def renew(self) -> None:
        """Recompute the last slab, which is full, from the Gram, and s and q from V (mathematics.md, eq. 63).

        This keeps rounding from adding up. The first center that the others span to rounding, and all after it, are no
        longer chosen.
        """
        index = len(self.chosen) // SLAB_ROWS - 1
        fresh = self._eliminated(self.chosen[index * SLAB_ROWS :], self._slabs[:index])
        n = len(fresh)
        self._slabs[index][:n] = fresh
        del self.chosen[index * SLAB_ROWS + n :]
        if n == SLAB_ROWS:
            self.spanned[:] = False
        self.s, self.q, slabs = self.diagonal.copy(), self._kty.copy(), self.rows()
        L = np.vstack([slab[:, self.chosen] for slab in slabs]).T
        beta = solve_triangular(L, self._kty[self.chosen], lower=True)
        for index, slab in enumerate(slabs):
            self.s -= np.einsum("jm,jm->m", slab, slab)
            self.q -= slab.T @ beta[index * SLAB_ROWS : (index + 1) * SLAB_ROWS]


def forward_most(size: int, n_candidates: int) -> int:
    """Return how many centers at most a choice of `size` takes on its way forward."""
    return max(size, forward_size(n_candidates))


def prefix_sizes(size: int) -> NDArray[np.int64]:
    """Return the sizes at which prefixes of a selection are compared, (g,) int64: 1 to 10, then 6 % apart."""
    sizes, k = [], 1.0
    while k < size:
        sizes.append(int(k))
        k = max(k + 1, k * 1.06) if k >= 10 else k + 1
    return np.array([*sizes, size], np.int64)


def prefix_weights(
    statistics: GramStatistics, sizes: NDArray[np.int64], ridge: float, *, intercept: bool
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the ridge weights (size, T) of every prefix of the columns, and the intercepts (g, T).

    The Cholesky factor of a prefix is the prefix of the factor: one serves all sizes (mathematics.md, eq. 59).
    """
    used = statistics.centred() if intercept else statistics
    L = cholesky(used.damped(ridge), lower=True, overwrite_a=True)
    z = solve_triangular(L, used.kty, lower=True)
    weights = [solve_triangular(L[:k, :k], z[:k], lower=True, trans=1) for k in sizes]
    if not intercept:
        return weights, np.zeros((len(sizes), used.kty.shape[1]))
    return weights, np.stack([statistics.intercept(w, slice(0, len(w))) for w in weights])


def held_out_curve(
    fit: GramStatistics, held_out: GramStatistics, sizes: NDArray[np.int64], ridge: float, *, intercept: bool
) -> NDArray[np.float64]:
    """Return the mean squared held-out error of every prefix of the columns at a ridge, (g,) float64.

    Both are statistics of the same columns, in the order chosen.
    """
    models = zip(sizes, *prefix_weights(fit, sizes, ridge, intercept=intercept), strict=True)
    return np.array([held_out.prefix(k).squared_error(w, b).sum() / held_out.weight_sum for k, w, b in models])
