"""z-scores of table columns, fitted on the training part in one pass.

Moments of blocks are merged in their order (Chan, Golub & LeVeque 1983), in float64, so that their bits are too.
"""

import math
from dataclasses import dataclass

import numpy as np

from features.errors import DataError

# Values that differ by less than this share of them are taken less the first one, which is exact.
CLOSE_VALUES = 1e-9


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Mean and scale of each column, float64 (d,); the scale of a column that was constant is inf: it becomes 0."""

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, inputs: np.ndarray, dtype: type = np.float32) -> np.ndarray:
        """Return (inputs - mean) / scale of (n, d) or (n, *shape) inputs as `dtype` (n, d), infinite if too large."""
        flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), math.prod(np.shape(inputs)[1:]))
        if flat.shape[1] != len(self.mean):
            raise ValueError(f"inputs have {flat.shape[1]} columns, the standardisation was fitted on {len(self.mean)}")
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray((flat - self.mean) / self.scale, dtype=dtype)


@dataclass(frozen=True, eq=False)
class RunningMoments:
    """Count (or weight), mean and sum of squared deviations of rows; a value, whose methods return a new one."""

    count: float
    mean: np.ndarray
    squares: np.ndarray
    origin: np.ndarray  # of a column, subtracted before, and common to all that are merged

    @classmethod
    def begin(cls, block: np.ndarray) -> "RunningMoments":
        """Return the moments of no rows, for rows such as those of `block`, (n, d) or (n, *shape)."""
        flat = _flat(block)
        half, none = flat.max(axis=0) / 2 - flat.min(axis=0) / 2, np.zeros(flat.shape[1])  # the whole may overflow
        return cls(0, none, none, np.where(half <= CLOSE_VALUES * np.abs(flat[0]), flat[0], 0.0))

    def update(self, block: np.ndarray, weights: np.ndarray | None = None) -> "RunningMoments":
        """Return the moments after the rows of `block`, (n, d) or (n, *shape); nd operations.

        A row of weight 2 counts as two rows. Moments beyond float64 become infinities, which `standardisation` refuses.
        """
        flat = _flat(block)
        if not len(flat) or (weights is not None and not weights.any()):
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            flat = flat - self.origin
            mean = flat.mean(axis=0) if weights is None else weights @ flat / weights.sum()
            squares = (flat - mean) ** 2
            squares = squares.sum(axis=0) if weights is None else weights @ squares
        count = len(flat) if weights is None else float(weights.sum())
        return self.merge(RunningMoments(count, mean, squares, self.origin))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """Return the moments of both sets of rows."""
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            mean = self.mean + step * (other.count / count)
            squares = self.squares + other.squares + step**2 * (self.count * other.count / count)
        return RunningMoments(count, mean, squares, self.origin)

    def standardisation(self) -> Standardisation:
        """Return mean and population standard deviation; the scale of a constant column is inf.

        Raises ValueError where there are no rows, DataError naming the first column whose moments leave float64.
        """
        if not self.count:
            raise ValueError("a standardisation needs at least one row, found none")
        mean, deviation = self.origin + self.mean, np.sqrt(self.squares / self.count)
        bad = np.flatnonzero(~(np.isfinite(mean) & np.isfinite(deviation)))
        if bad.size:
            told = f"mean {mean[bad[0]]:g} and standard deviation {deviation[bad[0]]:g}; its values are too large"
            raise DataError(f"inputs, column {bad[0]}: {told} to be standardised in float64: rescale the column")
        return Standardisation(mean, np.where(deviation > 0, deviation, np.inf))


def _flat(block: np.ndarray) -> np.ndarray:
    return np.asarray(block, dtype=np.float64).reshape(len(block), math.prod(block.shape[1:]))
