"""Probabilities of classes by one temperature and their calibration; scores of predictions. All but the area under the
ROC curve add up over blocks.

Decision values f (rows, T) are those of one machine for each class; two classes have one, that of the second, and the
first then has 0. `truth` (rows,) i8 are the indices of the true classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_BINS = 15  # of the largest probability, of equal width
# At which the slope of the log loss is summed, a quarter of an octave apart. Decision values are fitted to -1 and 1: a
# temperature of 32 leaves nothing of them, one of 2^-15 is certain of every class.
INVERSE_TEMPERATURES = 2.0 ** np.arange(-5, 15.25, 0.25)
LEAST_LOGARITHM = -1e300  # of a probability, which is 0 long before; log losses stay finite, and so does their sum
_MOST_VALUES = 2**20  # held at once while slopes are summed


def probabilities(decision: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Return the probability of each class (rows, K) for decision values (rows, T) (mathematics.md, eq. 75)."""
    values = np.exp(_shifted(decision, temperature))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def _shifted(decision: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Return f / temperature less its largest in each row, (rows, K), at least LEAST_LOGARITHM."""
    f = _by_class(decision)
    with np.errstate(over="ignore"):
        return np.maximum((f - f.max(axis=1, keepdims=True)) / temperature, LEAST_LOGARITHM)


def _by_class(decision: NDArray[np.floating]) -> NDArray[np.float64]:
    f = np.asarray(decision, np.float64)
    return f if f.shape[1] > 1 else np.hstack([np.zeros_like(f), f])


@dataclass(frozen=True)
class LossSlopes:
    """What the choice of a temperature needs to know of some rows (mathematics.md, eq. 77); of blocks they add up.

    slopes, curvatures (G,) f8: of the log loss by the inverse temperature, at each of INVERSE_TEMPERATURES; others: the
    sum of what the other classes' values have on average above the true one's; rows: their number, not weighted.
    """

    slopes: NDArray[np.float64]
    curvatures: NDArray[np.float64]
    others: float
    rows: int

    def __add__(self, other: "LossSlopes") -> "LossSlopes":
        """Return the sums of the rows of both."""
        slopes, curvatures = self.slopes + other.slopes, self.curvatures + other.curvatures
        return LossSlopes(slopes, curvatures, self.others + other.others, self.rows + other.rows)


def loss_slopes(
    decision: NDArray[np.floating], truth: NDArray[np.int64], weights: NDArray[np.float64] | None = None
) -> LossSlopes:
    """Return the slopes of some rows with weights (rows,) (none: 1 each). Costs rows·K·G exponentials."""
    f = _by_class(decision)
    above = f - f[np.arange(len(f)), truth][:, None]
    ones = np.ones(len(f)) if weights is None else weights
    sums = np.zeros((2, len(INVERSE_TEMPERATURES)))
    step = max(_MOST_VALUES // (f.shape[1] * len(INVERSE_TEMPERATURES)), 1)
    for start in range(0, len(f), step):
        part = slice(start, start + step)
        sums += _moments(above[part], ones[part])
    return LossSlopes(sums[0], sums[1], float(ones @ above.sum(axis=1)) / (f.shape[1] - 1), len(f))


def _moments(above: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sums of mean and variance of values (rows, K) under their probabilities, (2, G)."""
    largest = above.max(axis=1)
    below = above - largest[:, None]  # whose moments lose no digits where one class has it all
    p = np.exp(INVERSE_TEMPERATURES[:, None, None] * below)
    p /= p.sum(axis=2, keepdims=True)
    mean, square = np.einsum("gik,ik->gi", p, below), np.einsum("gik,ik->gi", p, below**2)
    return np.stack([(mean + largest) @ weights, np.maximum(square - mean**2, 0.0) @ weights])


def best_temperature(sums: LossSlopes) -> float | None:
    """Return the temperature of least log loss, None where there are no rows (mathematics.md, eqs. 76 and 77).

    The loss is convex in the inverse temperature: its slope crosses zero once, and is interpolated where it does. At
    an end of INVERSE_TEMPERATURES where it does not.
    """
    if not sums.rows:
        return None
    slopes = sums.slopes - sums.others / (sums.rows + 2)
    rising = np.flatnonzero(slopes >= 0)
    place = int(rising[0]) if len(rising) else len(slopes) - 1
    if place and len(rising):
        ends = slice(place - 1, place + 1)
        octaves = np.log2(INVERSE_TEMPERATURES[ends])
        by_octave = np.log(2) * INVERSE_TEMPERATURES[ends] * sums.curvatures[ends]
        part = _crossing(slopes[ends].tolist(), (np.diff(octaves) * by_octave).tolist())
        return float(0.5 ** (octaves[0] + part * (octaves[1] - octaves[0])))
    return float(1 / INVERSE_TEMPERATURES[place])


def _crossing(values: list[float], derivatives: list[float]) -> float:
    """Return where a cubic, given by values (below 0, above 0) and derivatives at 0 and 1, crosses zero."""
    (a, b), (da, db) = values, derivatives
    low, high = 0.0, 1.0
    for _ in range(53):
        t = 0.5 * (low + high)
        cubic = (1 + 2 * t) * (1 - t) ** 2 * a + t * (1 - t) ** 2 * da + t**2 * (3 - 2 * t) * b - t**2 * (1 - t) * db
        low, high = (t, high) if cubic < 0 else (low, t)
    return high


@dataclass(frozen=True)
class Calibration:
    """Probabilities of some rows against their true classes; of blocks they add up.

    log_loss_sum, brier_sum : -log p of the true class; Σ_k (p_k - y_k)², y_k 1 for the true class and 0 for others
    counts, confidences, right : of the rows in each of 15 bins of the largest probability: their number, the sum of
        that probability, and how many of them are of that class. Where rows have weights, all are sums of them.
    """

    log_loss_sum: float
    brier_sum: float
    counts: tuple[float, ...]
    confidences: tuple[float, ...]
    right: tuple[float, ...]

    def __add__(self, other: "Calibration") -> "Calibration":
        """Return what is counted on the rows of both."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("counts", "confidences", "right"))
        bins = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs)
        return Calibration(self.log_loss_sum + other.log_loss_sum, self.brier_sum + other.brier_sum, *bins)

    def numbers(self) -> dict[str, Any]:
        """Return what reports show: mean log loss and Brier score, expected calibration error (mathematics.md, eq. 78).

        And of the bins that have rows, their mean largest probability and who is right.
        """
        bins, total = list(zip(self.counts, self.confidences, self.right, strict=True)), sum(self.counts)
        return {
            "log_loss": self.log_loss_sum / total,
            "brier_score": self.brier_sum / total,
            "calibration_error": sum(abs(right - confidence) for _, confidence, right in bins) / total,
            "reliability": [
                {"rows": rows, "confidence": confidence / rows, "accuracy": right / rows}
                for rows, confidence, right in bins
                if rows
            ],
        }


def calibrate(
    decision: NDArray[np.floating],
    truth: NDArray[np.int64],
    temperature: float,
    weights: NDArray[np.float64] | None = None,
) -> Calibration:
    """Return how well the probabilities of decision values (rows, T) fit the true classes (rows,).

    weights (rows,) f8 of the rows; None: each counts 1.
    """
    shifted = _shifted(decision, temperature)
    sums = np.exp(shifted).sum(axis=1)
    p, rows = np.exp(shifted) / sums[:, None], np.arange(len(truth))
    largest = p.max(axis=1)
    bins = np.minimum((largest * N_BINS).astype(np.int64), N_BINS - 1)
    is_right = p.argmax(axis=1) == truth
    log_losses = np.log(sums) - shifted[rows, truth]  # finite also where p is 0
    briers = (p**2).sum(axis=1) - 2 * p[rows, truth] + 1
    if weights is not None:
        largest, log_losses, briers = weights * largest, weights * log_losses, weights * briers
    right = np.bincount(bins[is_right], None if weights is None else weights[is_right], minlength=N_BINS)
    return Calibration(
        float(log_losses.sum()),
        float(briers.sum()),
        tuple(np.bincount(bins, weights, minlength=N_BINS).tolist()),
        tuple(np.bincount(bins, largest, minlength=N_BINS).tolist()),
        tuple(right.tolist()),
    )


@dataclass(frozen=True)
class Score:
    """What is counted on labelled rows: the confusion matrix [truth][predicted], or the squared errors.

    counted, wrong: the sum of the rows' weights, and that of those predicted as another class. target_mean,
    target_spread: the mean of the targets of a regression, and the sum of their squared distances from it. calibration:
    of the probabilities, None where there are none. by_class: the rows of each class, those predicted as it, and those
    of both. Where rows are weighted, all sums but the confusion matrix are. auc, auc_rows: the `area_under_curve` of so
    many rows, which does not add up: it is put in when all rows are there, where it is defined.
    """

    rows: int
    counted: float
    weighted: bool
    confusion: tuple[tuple[int, ...], ...] = ()
    wrong: float = 0.0
    squared_error: float = 0.0
    target_mean: float = 0.0
    target_spread: float = 0.0
    calibration: Calibration | None = None
    by_class: tuple[tuple[float, float, float], ...] = ()
    auc: float | None = None
    auc_rows: int = 0

    @classmethod
    def from_stored(cls, payload: Mapping[str, Any]) -> "Score":
        """Return the score whose fields were stored as JSON."""
        calibration = payload["calibration"]
        return cls(**{**payload, "calibration": calibration and Calibration(**calibration)})

    def __add__(self, other: "Score") -> "Score":
        """Return the score of the rows of both."""
        pairs = zip(self.confusion, other.confusion, strict=True)
        counted, step = self.counted + other.counted, other.target_mean - self.target_mean
        between = step**2 * self.counted * other.counted / counted
        return Score(
            rows=self.rows + other.rows,
            counted=counted,
            weighted=self.weighted,
            confusion=tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in pairs),
            wrong=self.wrong + other.wrong,
            squared_error=self.squared_error + other.squared_error,
            target_mean=self.target_mean + step * other.counted / counted,
            target_spread=self.target_spread + other.target_spread + between,
            calibration=self.calibration + other.calibration if self.calibration and other.calibration else None,
            by_class=tuple(
                (a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(self.by_class, other.by_class, strict=True)
            ),
        )

    @property
    def n_errors(self) -> int:
        """Number of rows predicted as another class."""
        return self.rows - sum(self.confusion[k][k] for k in range(len(self.confusion)))

    @property
    def error_rate(self) -> float:
        """Share of the rows, or of their weights, predicted as another class."""
        return self.wrong / self.counted

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
    s, right = np.ones(len(truth)) if weights is None else weights, predicted == truth
    sums = float(s.sum()), weights is not None, tuple(map(tuple, counts.tolist())), float(s @ ~right)
    of_classes = ((truth, s), (predicted, s), (truth[right], s[right]))
    by_class = zip(*(np.bincount(classes, counted, n_classes).tolist() for classes, counted in of_classes), strict=True)
    return Score(len(truth), *sums, calibration=calibration, by_class=tuple(by_class))


def area_under_curve(
    decision: NDArray[np.floating], truth: NDArray[np.int64], weights: NDArray[np.float64]
) -> float | None:
    """Return the area under the ROC curve of decision values (rows, T): for several classes, the mean of one to rest.

    The share of the pairs of a row of the class and another row, by the product of their weights, in which the first
    has the larger value; equal values count half. Classes that have no such pairs are left out; None where all are.
    Sorts the rows T times.
    """
    first = 1 if decision.shape[1] == 1 else 0
    areas = [_area(values, truth == first + k, weights) for k, values in enumerate(decision.T)]
    defined = [area for area in areas if area is not None]
    return sum(defined) / len(defined) if defined else None


def _area(values: NDArray[np.floating], positive: NDArray[np.bool_], weights: NDArray[np.float64]) -> float | None:
    if not (weights[positive].any() and weights[~positive].any()):
        return None
    order = np.argsort(values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)  # of runs of equal values
    s, positive = weights[order], positive[order]
    found, alarms = (np.append(0.0, np.cumsum(np.where(side, s, 0.0))[ends]) for side in (positive, ~positive))
    return float(np.diff(found / found[-1]) @ (alarms[:-1] + alarms[1:]) / (2 * alarms[-1]))


def score_values(
    predicted: NDArray[np.float64], truth: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> Score:
    """Return the score of predicted values (rows,) against the true ones."""
    if weights is None:
        mean, counted = float(np.mean(truth)), float(len(truth))
        error, spread = float(np.sum((predicted - truth) ** 2)), float(np.sum((truth - mean) ** 2))
    else:
        mean, counted = float(np.average(truth, weights=weights)), float(weights.sum())
        error, spread = float(weights @ (predicted - truth) ** 2), float(weights @ (truth - mean) ** 2)
    sums = counted, weights is not None, (), 0.0, error, mean, spread
    return Score(len(truth), *sums)


def r_squared(squared_error: float, spread: float) -> float | None:
    """Return the explained share of a spread Σ (y - mean)², or of a variance; None where there is none to explain."""
    return 1 - squared_error / spread if spread else None
