"""Which centers a greedy choice takes: tried on the fit rows, then chosen again on all rows.

The held-out rows say which ridge the weights want (`ridge.refit`), and what error to expect. The Gram of M candidates
over n rows costs n·M², most of what a selection takes: finalists are chosen first, on a sample of the fit rows, in
batches where the Gram of all does not fit (mathematics.md, eq. 67).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.forward_backward_selection import Selection, forward_size
from pipeline.solvers.ridge import RIDGES, bracketed

ROWS_EACH, FEW = 2, 500  # sampled fit rows for each finalist; twice as many for each of the first FEW
CHOSEN_GRAMS = 10  # A choice holds as many of the chosen beside a row over all candidates for each, measured.
WORTH = 2  # times as many candidates as finalists, and fit rows as sampled ones: below, it saves next to nothing
SELECTION_ROOM = 1.5  # candidates at once for each finalist, where they come in batches; with fewer, hardly any come in

RowSet = Literal["fit", "all"]
ROWS: dict[RowSet, str] = {"fit": "the fit rows", "all": "all rows"}  # in messages
# (part of the rows, its statistics): `forward_backward_selection.select`, and what a caller wants beside it:
# checkpoints, progress, a stop.
Select = Callable[[RowSet, GramStatistics], Selection]


@dataclass(frozen=True)
class GreedyChoice:
    """What was chosen; all arrays are empty where no candidate lowers the error."""

    chosen: NDArray[np.int64]  # (k,), columns of the statistics, on all rows, in the order of the model
    tried: NDArray[np.int64]  # (k',), the same on the fit rows alone
    reductions: NDArray[np.float64]
    sizes: NDArray[np.int64]  # (g,), of prefixes of `tried`
    hold_out_errors: NDArray[np.float64]  # (g,), their mean squared held-out errors


def choose_greedily(
    fit: GramStatistics,
    held_out: GramStatistics,
    everything: GramStatistics,
    select: Select,
    *,
    intercept: bool,
) -> GreedyChoice:
    """Choose some of the columns, on the fit rows and on all rows."""
    first = select("fit", fit)
    tried = first.chosen
    if not len(tried):
        return GreedyChoice(tried, tried, first.reductions, tried, np.empty(0))
    sizes = prefix_sizes(len(tried))
    errors = held_out_curve(fit.cut(tried), held_out.cut(tried), sizes, intercept=intercept)
    final = select("all", everything)
    return GreedyChoice(final.chosen, tried, final.reductions, sizes, errors)


def forward_most(size: int, n_candidates: int) -> int:
    """Return how many centers a choice of `size` takes on its way forward, where so many add something."""
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

    The Cholesky factor of a prefix is the prefix of the factor: one factorisation serves all sizes (mathematics.md, eq.
    59).
    """
    used = statistics.centred() if intercept else statistics
    L = cholesky(used.damped(ridge), lower=True, overwrite_a=True)
    z = solve_triangular(L, used.kty, lower=True)
    weights = [solve_triangular(L[:k, :k], z[:k], lower=True, trans=1) for k in sizes]
    if not intercept:
        return weights, np.zeros((len(sizes), used.kty.shape[1]))
    return weights, np.stack([statistics.intercept(w, slice(0, len(w))) for w in weights])


def held_out_curve(
    fit: GramStatistics, held_out: GramStatistics, sizes: NDArray[np.int64], *, intercept: bool
) -> NDArray[np.float64]:
    """Return the mean squared held-out error of every prefix of the columns at its best ridge, (g,) float64.

    Both are statistics of the same columns, in the order chosen. All ridges are tried at a few of the sizes, and at
    all sizes those that were best at one of these, and their neighbours. Infinite where none makes the Gram definite.
    """
    step = max(len(sizes) // 8, 1)

    def errors_of(sizes: NDArray[np.int64], fraction: float) -> NDArray[np.float64]:
        try:
            ridge = fraction * float(np.mean(np.diagonal(fit.gram)))
            models = zip(sizes, *prefix_weights(fit, sizes, ridge, intercept=intercept), strict=True)
        except LinAlgError:
            return np.full(len(sizes), np.inf)
        return np.array([held_out.prefix(k).squared_error(w, b).sum() / held_out.weight_sum for k, w, b in models])

    tried = bracketed(partial(errors_of, sizes[::-step]), RIDGES)
    best = np.unique(np.argmin([errors for _, errors in tried], axis=0))
    near = sorted({index + step for index in best.tolist() for step in (-1, 0, 1)} & set(range(len(tried))))
    errors: NDArray[np.float64] = np.min([errors_of(sizes, tried[index][0]) for index in near], axis=0)
    return errors


class Preselection(NamedTuple):
    """How many finalists are chosen, how many of these are dropped again, and the share of the fit rows sampled."""

    n_finalists: int
    n_back: int
    share: float


def preselection(n_fit: float, n_candidates: int, at_once: int, size: int) -> Preselection | None:
    """Return how the finalists of `size` centers are chosen; None: there are none.

    n_fit: how many fit rows there are, about; at_once: candidates whose Gram fits. mathematics.md, eq. 67.
    """
    n_finalists, n_back = forward_most(size, n_candidates), forward_size(n_candidates)
    if at_once < n_candidates:
        n_finalists = min(n_finalists, int(at_once / SELECTION_ROOM))
    share = ROWS_EACH * (n_finalists + min(n_finalists, FEW)) / max(n_fit, 1.0)
    if at_once >= n_candidates and (WORTH * n_finalists > n_candidates or WORTH * share > 1.0):
        return None
    return Preselection(n_finalists, min(n_back, n_finalists), min(share, 1.0))


def candidate_batches(n_candidates: int, at_once: int, n_finalists: int, seed: int) -> list[NDArray[np.int64]]:
    """Return which candidates each batch adds to the finalists of the one before, sorted (mathematics.md, eq. 71)."""
    if at_once >= n_candidates:
        return [np.arange(n_candidates)]
    order = np.random.default_rng([seed, 4]).permutation(n_candidates)
    ends = range(at_once, n_candidates, at_once - n_finalists)
    return [np.sort(batch) for batch in np.split(order, ends)]
