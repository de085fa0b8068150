"""The limits of a least-squares regression: its predictions stay near the range of the training targets.

Weights of both signs cancel among the training rows, and need not do so far from them.
"""

import numpy as np
from numpy.typing import NDArray

WIDENED = 0.1  # of the range, below the least target and above the largest one

Limits = tuple[float, ...]  # the least and the largest prediction; () for none


def limits_of(least: float, largest: float) -> Limits:
    """Return the limits of predictions where training targets go from `least` to `largest`."""
    wider = WIDENED * (largest - least)
    return least - wider, largest + wider


def clipped(predictions: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Return predictions, those beyond the limits at them."""
    return np.clip(predictions, limits[0], limits[1]) if limits else predictions
