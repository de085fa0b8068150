"""Which candidates a greedy choice on all rows is among: the finalists of a choice on a sample of the fit rows.

The Gram of M candidates over n rows costs n·M², most of what a selection takes. Which candidates are worth having is
known from fewer rows; the Gram over all rows, of which the last choice and the weights are, is that of the finalists
alone (mathematics.md, eq. 95). Where the Gram of all candidates does not fit, they come in turns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.solvers.forward_backward_selection import forward_size
from pipeline.solvers.greedy_choice import forward_most

ROWS_EACH = 4  # sampled fit rows for each finalist
WORTH = 2  # times as many candidates as finalists, and fit rows as sampled ones: below, it saves next to nothing
SELECTION_ROOM = 1.5  # candidates at once for each finalist, where they come in turns; with fewer, hardly any come in


@dataclass(frozen=True)
class Preselection:
    """How many finalists are chosen, how many of these are dropped again, and the share of the fit rows sampled."""

    n_finalists: int
    n_back: int
    share: float


def preselection(n_fit: float, n_candidates: int, at_once: int, size: int | None) -> Preselection | None:
    """Return how the finalists of `size` centers (None: of as many as are found) are chosen; None: there are none.

    mathematics.md, eq. 95.

    n_fit: how many fit rows there are, about; at_once: candidates whose Gram fits.
    """
    n_finalists, n_back = forward_most(size, n_candidates), forward_size(n_candidates)
    if at_once < n_candidates:
        n_finalists = min(n_finalists, int(at_once / SELECTION_ROOM))
    share = ROWS_EACH * n_finalists / max(n_fit, 1.0)
    if at_once >= n_candidates and (WORTH * n_finalists > n_candidates or WORTH * share > 1.0):
        return None
    return Preselection(n_finalists, min(n_back, n_finalists), min(share, 1.0))


def turns(n_candidates: int, at_once: int, n_finalists: int, seed: int) -> list[NDArray[np.int64]]:
    """Return which candidates come in at each turn, sorted: each in one, beside the finalists of the turn before.

    mathematics.md, eq. 71.
    """
    if at_once >= n_candidates:
        return [np.arange(n_candidates)]
    order = np.random.default_rng([seed, 4]).permutation(n_candidates)
    ends = range(at_once, n_candidates, at_once - n_finalists)
    return [np.sort(turn) for turn in np.split(order, ends)]
