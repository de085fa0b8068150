"""Split conformal prediction: intervals and sets of labels that hold the truth of new rows at a given level.

Scores of rows that weights were not fitted to say how far a truth may be off: |y - f| for numbers, 1 - p for labels.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError

STEPS = 200  # Quantiles are kept at the levels 1/200, 2/200, ...; a level between two takes the next.
ROUNDING = 1e-9
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Conformal:
    """Quantiles of scores (mathematics.md, eq. 100), as far as their rows or groups support them."""

    n_units: float  # the effective number of rows or groups (eq. 99)
    quantiles: tuple[float, ...]

    def quantile(self, level: float) -> float:
        """Return the score that new rows exceed with a probability of 1 - level at most. Raises ConfigError."""
        if not isinstance(level, Real) or not 0 < level < 1:
            raise ConfigError(f"a level must be a number between 0 and 1; found {level!r}")
        if _place(level) > STEPS - 2:
            raise ConfigError(f"no level of {level:g}: the highest level is {1 - 1 / STEPS:g}")
        if not self.allows(level):
            n, most = int(self.n_units + ROUNDING), len(self.quantiles) / STEPS
            fault = f"{n} rows or groups that weights were not fitted to support levels up to {most:g}"
            needed = math.ceil(level / (1 - level) - ROUNDING)
            raise ConfigError(f"no level of {level:g}: {fault}, and {needed} are needed; train with more")
        return self.quantiles[_place(level)]

    def allows(self, level: float) -> bool:
        """Return whether there is a quantile at a level."""
        return _place(level) < len(self.quantiles)


def _place(level: float) -> int:
    return max(math.ceil(level * STEPS - ROUNDING) - 1, 0)


def conformal_of(scores: Values, weights: Values, units: NDArray[Any]) -> Conformal | None:
    """Return the quantiles of scores (rows,) of rows with weights (rows,) ≥ 0, in units (rows,), such as groups.

    A unit counts as one row, whose weight is the mean of its rows: the promise is for a row of a new unit. None where
    no row counts (mathematics.md, eqs. 99 and 100).
    """
    _, of_rows, sizes = np.unique(units, return_inverse=True, return_counts=True)
    shares = weights / sizes[of_rows]
    of_units = np.bincount(of_rows, shares)
    if not of_units.any():
        return None
    n, order = float(of_units.sum() ** 2 / (of_units @ of_units)), np.argsort(scores, kind="stable")
    reached = np.cumsum(shares[order]) / shares.sum()
    asked = np.arange(1, STEPS) / STEPS * (1 + 1 / n)
    places = np.searchsorted(reached, asked[asked <= 1 + ROUNDING] - ROUNDING)
    return Conformal(n, tuple(scores[order][np.minimum(places, len(scores) - 1)].tolist()))


def label_sets(p: Values, quantile: float) -> NDArray[np.bool_]:
    """Return whether labels are in the set of each row, (rows, K); the likeliest is in it (mathematics.md, eq. 101)."""
    return (1.0 - p <= quantile) | (p == p.max(axis=1, keepdims=True))
