"""Losses of held-out rows one by one, and whether one fit has lower ones than another by more than chance.

The rows are the same: their differences are compared, and tell much more than the two means do. Where a few rows are
far out, neither the mean nor its doubt is theirs alone: the largest differences count as less.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.solvers.ridge import search_exponents

Values = NDArray[np.float64]
WIDENED = 1 / 3  # Predictions may exceed the targets by this share of their range; far away, weights need not cancel.
Limits = tuple[float, ...]  # the least and the largest prediction; () for none
FIRST_TEMPERATURE, TEMPERATURES = -4, range(-16, 5)  # Both hold twice the logarithms of temperatures to base 2.
CUT = 0.99  # Larger differences count as this quantile of them.
LEAST_GAIN, DOUBTS = 0.002, 1.0  # A better fit lowers the loss by this share and by this number of standard errors.


def log_losses(f: Values, truth: NDArray[np.int64], weights: Values, n_different: float) -> Values:
    """Return the log loss (rows,) of decision values f (rows, T) at the temperature where its mean is the lowest.

    truth (rows,): the classes; weights (rows,); n_different: how many of the rows differ (mathematics.md, eq. 82).
    """
    if f.shape[1] == 1:  # two classes: their outputs are 0 and f, as in eq. 76
        f = np.hstack([np.zeros_like(f), f])
    behind = f - np.take_along_axis(f, truth[:, None], axis=1)
    most = behind.max(axis=1)
    # Half a row is wrong in any case.
    sure = float(np.average(np.maximum(most, -behind.min(axis=1)), weights=weights)) / (2 * n_different)
    below = behind - most[:, None]

    def losses_at(step: int) -> Values:
        temperature = 2.0 ** (step / 2)
        return np.asarray(np.log(np.exp(below / temperature).sum(axis=1)) + (most + sure) / temperature)

    def mean_at(step: int) -> float:
        return float(np.average(losses_at(step), weights=weights))

    errors = search_exponents(mean_at, FIRST_TEMPERATURE, TEMPERATURES)
    return losses_at(min(errors, key=lambda step: errors[step]))


def is_better(before: Values, after: Values, weights: Values, n_different: float) -> bool:
    """Return whether losses `after` are lower than those `before`, all (rows,), by more than chance.

    n_different: how many of the rows differ, or of those that they are drawn from (mathematics.md, eq. 75). A heavy row
    counts as no more than a large difference does.
    """
    shares = weights / weights.mean()
    falls = shares * (before - after)
    most = float(np.quantile(np.abs(falls), CUT))
    falls = np.clip(falls, -most, most)
    mean, n_rows = float(falls.mean()), min(n_different, len(falls) / float(np.square(shares).mean()))
    doubt = float(np.square(falls - mean).mean() / n_rows) ** 0.5
    return mean > max(DOUBTS * doubt, LEAST_GAIN * float(np.average(before, weights=weights)))


def limits_of(least: float, largest: float) -> Limits:
    """Return the limits of predictions for targets from `least` to `largest`: 0 or more where `least` is."""
    wider = WIDENED * (largest - least)
    return max(least - wider, 0.0) if least >= 0 else least - wider, largest + wider


def clipped(predictions: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Return predictions, those beyond the limits at them."""
    return np.clip(predictions, limits[0], limits[1]) if limits else predictions
