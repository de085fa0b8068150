"""Monotone transforms of the targets of a regression, for long tails and outliers: what is fitted, and the way back."""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError

KINDS = ("none", "log", "rank")  # as the files of a run number them
MOST_KNOTS = 256
LARGEST_VALUE = 1e150  # whose squares are float64 numbers too
STEEPEST = 4.0  # growth of log(1 + |y - median| / scale) a unit of the normal scores: that of a log-normal with σ = 4
_NORMAL = NormalDist()
_LEAST_STEP = 1e-9  # between targets at two knots, in units of the scale
_LEAST_SHARE = 1e-15  # below and above a target: normal scores stay within ±8


@dataclass(frozen=True)
class TargetTransform:
    """A piecewise linear map from targets to scores: `values` (K,) and their `scores` (K,), both strictly ascending.

    Targets, and predictions on the way back, beyond the knots count as the nearest one: no prediction leaves the range
    of the targets that the transform was made of, or overflows.
    """

    kind: str
    values: tuple[float, ...]
    scores: tuple[float, ...]

    @classmethod
    def from_knots(cls, kind: Any, knots: Any) -> "TargetTransform":
        """Return the transform of a kind with these `knots`. Raises DataError where there can be no such transform."""
        if kind not in KINDS[1:] or not isinstance(knots, np.ndarray):
            raise DataError(f"target_transform is {kind!r:.40}, expected one of {', '.join(KINDS[1:])}, and its knots")
        rows = knots.ndim == 2 and knots.dtype == np.float64 and len(knots) == 2 and 2 <= knots.shape[1] <= MOST_KNOTS
        with np.errstate(all="ignore"):
            steps = np.diff(knots) if rows else np.zeros((2, 1))
            slopes = np.concatenate([steps[0] / steps[1], steps[1] / steps[0]])
        if not (rows and np.isfinite(knots).all() and steps.min() > 0 and np.isfinite(slopes).all()):
            raise DataError(f"target_knots are {knots.dtype} {knots.shape}, expected two rows of rising float64 values")
        if np.abs(knots).max() > LARGEST_VALUE:
            raise DataError(f"target_knots hold values above {LARGEST_VALUE:g}")
        return cls(kind, *map(tuple, knots.tolist()))

    def knots(self) -> NDArray[np.float64]:
        """Return values and scores, (2, K) f8."""
        return np.array([self.values, self.scores])

    def apply(self, targets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scores of targets, of any shape."""
        return np.interp(targets, self.values, self.scores)

    def invert(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the targets that have some scores, of any shape."""
        return np.interp(scores, self.scores, self.values)


@dataclass(frozen=True, eq=False)
class TargetDistribution:
    """The distinct targets (m,) f8, ascending, and how much the rows of each weigh (m,) f8, above 0."""

    values: NDArray[np.float64]
    weights: NDArray[np.float64]

    @staticmethod
    def of(targets: NDArray[np.float64], weights: NDArray[np.float64]) -> "TargetDistribution":
        """Return the distribution of the targets (n,) of rows with weights (n,) > 0, of one row at least."""
        values, place = np.unique(targets, return_inverse=True)
        return TargetDistribution(values, np.bincount(place, weights).astype(np.float64))

    @cached_property
    def center(self) -> float:
        """The median."""
        return _median(self.values, self.weights)

    @cached_property
    def scale(self) -> float:
        """The median distance from the median, of targets that differ from it; 1 where none does."""
        distances = np.abs(self.values - self.center)
        order = np.argsort(distances)
        order = order[distances[order] > 0]
        if not len(order):
            return 1.0
        return max(_median(distances[order], self.weights[order]), 1e-100 * float(distances[order[-1]]))

    @property
    def tail(self) -> float:
        """The largest distance from the median, in units of the scale: 4 for 10 000 normal targets."""
        return float(np.abs(self.values[[0, -1]] - self.center).max() / self.scale)

    def transform(self, kind: str) -> TargetTransform | None:
        """Return the transform of a kind; None where no two targets can be told apart.

        log: sign(y - c) log(1 + |y - c| / s), c the `center` and s the `scale`, at 256 knots. rank: Φ⁻¹ of the share of
        the rows below y and half of those at y.
        """
        values, scores = {"log": self._log, "rank": self._rank}[kind]()
        kept = np.concatenate([[True], (np.diff(values) > _LEAST_STEP * self.scale) & (np.diff(scores) > 0)])
        if np.count_nonzero(kept) < 2:
            return None
        return TargetTransform(kind, tuple(values[kept].tolist()), tuple(scores[kept].tolist()))

    def _log(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        ends = self._compressed(self.values[[0, -1]])
        scores = np.linspace(ends[0], ends[1], MOST_KNOTS)
        values = self._expanded(scores)
        values[[0, -1]] = self.values[[0, -1]]  # exactly
        return values, scores

    def _rank(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shares = (np.cumsum(self.weights) - 0.5 * self.weights) / self.weights.sum()
        shares = np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE)
        values = self.values
        if len(values) > MOST_KNOTS:
            scores = np.linspace(_NORMAL.inv_cdf(shares[0]), _NORMAL.inv_cdf(shares[-1]), MOST_KNOTS)
            values = np.interp([_NORMAL.cdf(score) for score in scores.tolist()], shares, values)
        else:
            scores = np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()])
        # Steep where outliers begin: a prediction that is a little too high would be a thousand times too high.
        compressed = self._compressed(values)
        steps = np.minimum(np.diff(compressed), STEEPEST * np.diff(scores))
        middle = int(np.argmin(np.abs(compressed)))
        limited = np.concatenate([[0.0], np.cumsum(steps)])
        return self._expanded(limited + (compressed[middle] - limited[middle])), scores

    def _compressed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        distances = values - self.center
        return np.sign(distances) * np.log1p(np.abs(distances) / self.scale)

    def _expanded(self, compressed: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.center + np.sign(compressed) * self.scale * np.expm1(np.abs(compressed))


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Return the least of ascending values (m,) that has half of the weight at or below it."""
    sums = np.cumsum(weights)
    return float(values[np.searchsorted(sums, 0.5 * sums[-1])])
