"""Which centers a greedy choice takes, and how many: tried on the fit rows, then chosen again on all rows.

What is chosen on the fit rows is tried on the held-out ones: that tells how many are enough (`greedy:auto`), which
ridge the weights want (`ridge.refit`), and what error to expect. The centers of the model are then chosen on all rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers.forward_backward_selection import forward_size
from pipeline.solvers.forward_selection import Selection
from pipeline.solvers.selection_prefixes import held_out_curve, prefix_sizes

AUTO_GROWTH = 1.25  # of the size, between two looks whether the held-out error still falls
AUTO_GAIN = 1e-2  # of the held-out error: centers that lower it by less are not worth having
AUTO_MOST = 4000  # centers where their number is found

Part = Literal["fit", "all"]
ROWS: dict[Part, str] = {"fit": "the fit rows", "all": "all rows"}  # as the user is told
Enough = Callable[[list[int]], bool]


class Select(Protocol):
    """`forward_backward_selection.select`, with what a caller wants beside it: checkpoints, progress, a stop."""

    def __call__(self, part: Part, statistics: GramStatistics, size: int, enough: Enough) -> Selection:
        """Choose at most `size` centers on the statistics of a part of the rows; `enough` may end it earlier."""


@dataclass(frozen=True)
class GreedyChoice:
    """What was chosen.

    chosen (k,) i8: columns of the statistics, on all rows, in the order of the model; tried (k',) i8: the same on the
    fit rows alone; sizes (g,) i8 and hold_out_errors (g,) f8: mean squared held-out error of the prefixes of `tried`.
    All are empty where no candidate lowers the error.
    """

    chosen: NDArray[np.int64]
    tried: NDArray[np.int64]
    reductions: NDArray[np.float64]
    sizes: NDArray[np.int64]
    hold_out_errors: NDArray[np.float64]
    refused: int
    drift: float


def choose_greedily(
    fit: GramStatistics,
    held_out: GramStatistics,
    everything: GramStatistics,
    size: int | None,
    select: Select,
    *,
    intercept: bool,
) -> GreedyChoice:
    """Choose `size` of the columns, or (None) as many as lower the error of the held-out rows.

    Each of the two choices costs what `select` does, the curve of held-out errors a few factors of the Gram of the
    chosen.
    """
    enough = _never if size is not None else _HeldOutCurve(fit, held_out, intercept=intercept).is_enough
    first = select("fit", fit, most_centers(size, fit.n_centers), enough)
    tried = first.chosen
    if not len(tried):
        return GreedyChoice(tried, tried, first.reductions, tried, np.empty(0), first.refused, first.drift)
    sizes = prefix_sizes(len(tried))
    errors = held_out_curve(fit.cut(tried), held_out.cut(tried), sizes, intercept=intercept)
    if size is None:
        best = np.flatnonzero(errors <= errors.min() * (1 + AUTO_GAIN))[0]
        sizes, errors = sizes[: best + 1], errors[: best + 1]
    final = select("all", everything, int(sizes[-1]), _never)
    return GreedyChoice(final.chosen, tried[: sizes[-1]], final.reductions, sizes, errors, final.refused, final.drift)


def most_centers(size: int | None, n_candidates: int) -> int:
    """Return how many centers a choice has at most, whose size is given or is to be found."""
    return min(AUTO_MOST, n_candidates) if size is None else size


def forward_most(size: int | None, n_candidates: int) -> int:
    """Return how many centers a choice takes on its way forward, if it is not ended before."""
    return max(most_centers(size, n_candidates), forward_size(n_candidates))


def told(rows: str, n_chosen: int, most: int) -> str:
    """Return in words how far a choice on some rows is."""
    return f"{n_chosen} of {most} centers chosen on {rows}"


def _never(chosen: list[int]) -> bool:
    return False


class _HeldOutCurve:
    """Looks at fixed sizes whether the held-out error of a choice still falls."""

    def __init__(self, fit: GramStatistics, held_out: GramStatistics, *, intercept: bool) -> None:
        self._fit, self._held_out, self._intercept = fit, held_out, intercept
        size, self._sizes = forward_size(fit.n_centers), set[int]()
        while size < fit.n_centers:
            self._sizes.add(size)
            size = int(size * AUTO_GROWTH) + 1

    def is_enough(self, chosen: list[int]) -> bool:
        """Tell whether the last fifth of the centers chosen so far brought next to nothing."""
        if len(chosen) not in self._sizes:
            return False
        columns = np.array(chosen)
        sizes = prefix_sizes(len(columns))
        fit, held_out = self._fit.cut(columns), self._held_out.cut(columns)
        errors = held_out_curve(fit, held_out, sizes, intercept=self._intercept)
        before = sizes <= len(columns) / AUTO_GROWTH
        return bool(errors[~before].min() > (1 - AUTO_GAIN) * errors[before].min())
