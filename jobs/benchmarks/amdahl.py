"""Amdahl's law with items: what a stage would take on more workers than it was measured on.

Seconds on n workers are serial + parallel * share, both at least 0, where share = ceil(items / n) / items is the part
of equally large items that the busiest worker has. Memory bandwidth and networks are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Fit:
    """Seconds of a stage on n workers: serial + parallel * ceil(items / n) / items."""

    serial: float
    parallel: float
    items: int

    def seconds(self, workers: int) -> float:
        return self.serial + self.parallel * share(self.items, workers)


def share(items: int, workers: int) -> float:
    """Return the part of a stage that its busiest worker has, where items are equally large."""
    return -(-items // workers) / items if items else 1.0


def fit(items: int, seconds: Mapping[int, float]) -> Fit:
    """Return the fit to seconds by number of workers; what one item, or one measurement, cannot tell is serial."""
    shares = [share(items, workers) for workers in seconds]
    if len(set(shares)) < 2:
        return Fit(fmean(seconds.values()), 0.0, items)
    equations = np.column_stack([np.ones(len(shares)), shares])
    (serial, parallel), _ = nnls(equations, np.array([*seconds.values()]))
    return Fit(float(serial), float(parallel), items)
