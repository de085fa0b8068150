"""How good predictions are: the confusion matrix of classes, the squared errors of values. Scores of blocks add up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.models.calibration import Calibration


@dataclass(frozen=True)
class Score:
    """What is counted on labelled rows: the confusion matrix [truth][predicted], or the squared errors.

    target_mean, target_spread: the mean of the targets of a regression, and the sum of their squared distances from it;
    None where that was not counted (runs once were without). calibration: of the probabilities, None where there are
    none. weight, wrong: the sum of the rows' weights, and that of those predicted as another class; None where each row
    counts 1. With weights, all sums but the confusion matrix are weighted.
    """

    rows: int
    confusion: tuple[tuple[int, ...], ...] = ()
    squared_error: float = 0.0
    target_mean: float = 0.0
    target_spread: float | None = None
    calibration: Calibration | None = None
    weight: float | None = None
    wrong: float | None = None

    @classmethod
    def from_stored(cls, payload: Mapping[str, Any]) -> "Score":
        """Return the score whose fields were stored as JSON."""
        calibration = payload.get("calibration")
        return cls(**{**payload, "calibration": calibration and Calibration(**calibration)})

    def __add__(self, other: "Score") -> "Score":
        """Return the score of the rows of both."""
        pairs = zip(self.confusion, other.confusion, strict=True)
        confusion = tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in pairs)
        counted, step = self.counted + other.counted, other.target_mean - self.target_mean
        spread = None
        if self.target_spread is not None and other.target_spread is not None:
            spread = self.target_spread + other.target_spread + step**2 * self.counted * other.counted / counted
        mean = self.target_mean + step * other.counted / counted
        both = self.calibration is not None and other.calibration is not None
        calibration = self.calibration + other.calibration if both else None  # type: ignore[operator]
        sums = (
            None if a is None or b is None else a + b
            for a, b in ((self.weight, other.weight), (self.wrong, other.wrong))
        )
        squared_error = self.squared_error + other.squared_error
        return Score(self.rows + other.rows, confusion, squared_error, mean, spread, calibration, *sums)

    @property
    def counted(self) -> float:
        """The sum of the rows' weights: their number, where each counts 1."""
        return self.rows if self.weight is None else self.weight

    @property
    def n_errors(self) -> int:
        """Number of rows predicted as another class."""
        return self.rows - sum(self.confusion[k][k] for k in range(len(self.confusion)))

    @property
    def error_rate(self) -> float:
        """Share of the rows, or of their weights, predicted as another class."""
        return self.weight_of_errors / self.counted

    @property
    def weight_of_errors(self) -> float:
        """The sum of the weights of the rows predicted as another class: their number, where each counts 1."""
        return self.n_errors if self.wrong is None else self.wrong

    @property
    def mse(self) -> float:
        """Mean squared error."""
        return self.squared_error / self.counted

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return float(np.sqrt(self.mse))

    @property
    def r2(self) -> float | None:
        """The share of the targets' variance that is explained; None for classes, and where all targets are equal."""
        return r_squared(self.squared_error, self.target_spread)


def score_classes(
    predicted: NDArray[np.int64],
    truth: NDArray[np.int64],
    n_classes: int,
    calibration: Calibration | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Score:
    """Return the score of predicted classes (rows,), indices below n_classes, against the true ones."""
    counts = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    score = Score(len(truth), tuple(map(tuple, counts.tolist())), calibration=calibration)
    if weights is None:
        return score
    return replace(score, weight=float(weights.sum()), wrong=float(weights @ (predicted != truth)))


def score_values(
    predicted: NDArray[np.float64], truth: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> Score:
    """Return the score of predicted values (rows,) against the true ones."""
    if weights is None:
        mean = float(np.mean(truth))
        return Score(len(truth), (), float(np.sum((predicted - truth) ** 2)), mean, float(np.sum((truth - mean) ** 2)))
    mean, weight = float(np.average(truth, weights=weights)), float(weights.sum())
    squares = float(weights @ (predicted - truth) ** 2), mean, float(weights @ (truth - mean) ** 2)
    return Score(len(truth), (), *squares, weight=weight)


def r_squared(squared_error: float, spread: float | None) -> float | None:
    """Return the explained share of a spread Σ (y - mean)², or of a variance; None where there is none to explain."""
    return 1 - squared_error / spread if spread else None
