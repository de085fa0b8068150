"""A path of penalties, from the one at which every weight is zero downwards, each solve started from the last."""

import math
from collections.abc import Callable

import numpy as np

# Two penalties a decade, from the one at which all weights are zero downwards.
STEP = 10.0**-0.5
LEAST_POINTS = 13  # six decades, which cost next to nothing: classes of unequal size gain nothing on the first of them
MOST_POINTS = 31  # fifteen decades: below is rounding
PATIENCE = 3  # penalties in a row without gain that end a search
GAIN = 1e-2  # of the lowest held-out error; less is no gain
DEFAULT_PENALTY = "max:1e-7"


def search(largest: float, attempt: Callable[[int, float], tuple[float, bool]]) -> tuple[int, str | None]:
    """Look for the penalty of the lowest held-out error, from `largest` downwards; return its number and a warning.

    Ends after `PATIENCE` penalties in a row that lower the lowest error by less than `GAIN`, once `LEAST_POINTS` are
    tried, where solves no longer converge, or at `MOST_POINTS`. attempt(number, penalty), in order from number 0,
    returns the held-out error, and whether the solves converged; the best is among those that did, if any but the first
    did, at which all weights are zero. The warning is for a best at an edge of what was tried and converged.
    """
    trials = list[tuple[float, bool]]()  # held-out errors, and whether the solves converged
    lowest, idle = math.inf, 0
    for number in range(MOST_POINTS):
        error, converged = attempt(number, largest * STEP**number)
        trials.append((error, converged))
        idle, lowest = (0, error) if error < (1.0 - GAIN) * lowest else (idle + 1, lowest)
        if (number + 1 >= LEAST_POINTS and idle >= PATIENCE) or not converged:
            break
    some_converged = any(converged for _, converged in trials[1:])  # at the first all weights are zero: no solve at all
    order = [(some_converged and not converged, error, number) for number, (error, converged) in enumerate(trials)]
    best, warning = min(order)[2], None
    if best == 0:
        warning = (
            "no penalty tried is better than weights that are all zero: the inputs tell nothing of the held-out rows"
        )
    elif not idle and not any(converged for _, converged in trials[best + 1 :]):
        which = "tried" if best == len(trials) - 1 else "whose solve converged"
        warning = (
            f"the held-out error still falls at the last and smallest penalty {which}, {largest * STEP**best:.3g}; "
            "more candidates, another kernel width, or a least-squares refit may lower it further"
        )
    return best, warning


def penalty_max(kty: np.ndarray) -> float:
    """Return the smallest penalty λν at which every weight is zero, for kty (M, T) (mathematics.md, eq. 51)."""
    return float((kty**2).max(initial=0.0))
