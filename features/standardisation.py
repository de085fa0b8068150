"""z-scores of table columns, fitted on the training part in one pass.

Moments of blocks are merged in their order (Chan, Golub & LeVeque 1983), in float64, so that their bits are too.
"""

import math
from dataclasses import dataclass

import numpy as np

from features.errors import DataError

# A spread below this share of the mean is rounding noise of a constant column.
CONSTANT_SPREAD = 1e-12


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Mean and scale of each column, float64 (d,)."""

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, inputs: np.ndarray, dtype: type = np.float32) -> np.ndarray:
        """Return (inputs - mean) / scale of (n, d) or (n, *shape) inputs as `dtype` (n, d), infinite if too large."""
        flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), math.prod(np.shape(inputs)[1:]))
        if flat.shape[1] != len(self.mean):
            raise ValueError(f"inputs have {flat.shape[1]} columns, the standardisation was fitted on {len(self.mean)}")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray((flat - self.mean) / self.scale, dtype=dtype)


def on_scale(inputs: np.ndarray, dtype: str | None, first_row: int = 0) -> np.ndarray:
    """Return images (n, H, W) on the scale of those of `dtype`: uint8, float32, float64, or None for any.

    Whole numbers from 0 to 255 are bytes, whatever their dtype. Raises DataError for other floats where bytes are
    wanted, and for bytes where floats are; `first_row` is that of inputs[0], for the message.
    """
    is_bytes = inputs.dtype == np.uint8
    if dtype is None or is_bytes == (dtype == "uint8"):
        return inputs
    if is_bytes:
        raise DataError(f"inputs are bytes, the model was trained on {dtype} images; give floats on the same scale")
    flat = inputs.reshape(len(inputs), -1)
    bad = np.argwhere(~((flat >= 0) & (flat <= 255) & (flat == np.rint(flat))))
    if bad.size:
        row, pixel = bad[0]
        raise DataError(
            f"row {first_row + row}, pixel {pixel} is {flat[row, pixel]:g}, the model was trained on bytes; give whole "
            "numbers from 0 to 255"
        )
    return inputs.astype(np.uint8)


@dataclass(frozen=True, eq=False)
class RunningMoments:
    """Count (or weight), mean and sum of squared deviations of rows; a value, whose methods return a new one."""

    count: float
    mean: np.ndarray
    squares: np.ndarray

    def update(self, block: np.ndarray, weights: np.ndarray | None = None) -> "RunningMoments":
        """Return the moments after the rows of `block`, (n, d) or (n, *shape); nd operations.

        A row of weight 2 counts as two rows. Moments beyond float64 become infinities, which `standardisation` refuses.
        """
        flat = np.asarray(block, dtype=np.float64).reshape(len(block), len(self.mean))
        if not len(flat) or (weights is not None and not weights.any()):
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            if weights is not None:
                mean = weights @ flat / weights.sum()
                return self.merge(RunningMoments(float(weights.sum()), mean, weights @ (flat - mean) ** 2))
            mean = flat.mean(axis=0)
            return self.merge(RunningMoments(len(flat), mean, ((flat - mean) ** 2).sum(axis=0)))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """Return the moments of both sets of rows."""
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            mean = self.mean + step * (other.count / count)
            squares = self.squares + other.squares + step**2 * (self.count * other.count / count)
        return RunningMoments(count, mean, squares)

    def standardisation(self) -> Standardisation:
        """Return mean and population standard deviation; the scale of a constant column is 1.

        Raises ValueError where there are no rows, DataError naming the first column whose moments leave float64.
        """
        if not self.count:
            raise ValueError("a standardisation needs at least one row, found none")
        deviation = np.sqrt(self.squares / self.count)
        bad = np.flatnonzero(~(np.isfinite(self.mean) & np.isfinite(deviation)))
        if bad.size:
            raise DataError(
                f"inputs, column {bad[0]}: mean {self.mean[bad[0]]:g} and standard deviation {deviation[bad[0]]:g}; "
                "its values are too large to be standardised in float64: rescale the column"
            )
        constant = deviation <= CONSTANT_SPREAD * np.abs(self.mean)
        return Standardisation(self.mean.copy(), np.where(constant, 1.0, deviation))
