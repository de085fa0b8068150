"""Probabilities of classes and their calibration; scores of predictions, which add up over blocks.

Decision values f (rows, T) are those of one machine for each class; two classes have one, that of the second, and the
first then has 0. `truth` (rows,) i8 are the indices of the true classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.solvers.held_out_losses import Limits

Sums = dict[str, Any]  # Arrays and numbers of float64 and int64 by name; `add_sums` adds those of blocks of rows.

ERROR_NAMES = ("error_rate", "n_errors", "mse", "rmse", "mae", "r2", "n_at_limit")
INTERVAL_LEVEL, SET_LEVEL = 0.9, 0.95  # Scores tell the coverage at these levels.
N_BINS = 15  # Bins of the largest probability have equal widths.
LEAST_LOGARITHM = -1e300  # A probability is 0 long before; its logarithm keeps log losses and their sum finite.


@dataclass(frozen=True)
class Calibration:
    """Probabilities are the softmax of f / temperature + offsets, f the decision values (mathematics.md, eq. 76)."""

    temperature: float
    offsets: tuple[float, ...] = ()  # one for each class; () for none

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Calibration | None":
        """Return the calibration in JSON fields; None where there is no temperature."""
        temperature, offsets = found.get("temperature"), tuple(found.get("offsets", ()))
        return None if temperature is None else cls(temperature, offsets)


def probabilities(decision: NDArray[np.floating], calibration: Calibration) -> NDArray[np.float64]:
    """Return the probability of each class (rows, K) for decision values (rows, T)."""
    values = np.exp(_shifted(decision, calibration))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def _shifted(decision: NDArray[np.floating], calibration: Calibration) -> NDArray[np.float64]:
    """Return logarithms (rows, K) up to a constant for each row, at most 0 and at least LEAST_LOGARITHM."""
    f = by_class(decision)
    with np.errstate(over="ignore"):
        shifted = np.maximum((f - f.max(axis=1, keepdims=True)) / calibration.temperature, LEAST_LOGARITHM)
    shifted += calibration.offsets or 0.0
    return np.asarray(shifted - shifted.max(axis=1, keepdims=True))


def by_class(decision: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the decision value of each class (rows, K); the first of two classes has 0."""
    f = np.asarray(decision, np.float64)
    return f if f.shape[1] > 1 else np.hstack([np.zeros_like(f), f])


def calibration_sums(
    decision: NDArray[np.floating], truth: NDArray[np.int64], calibration: Calibration, s: NDArray[np.float64]
) -> Sums:
    """Return sums of how well probabilities fit the true classes (rows,), over rows with weights s (rows,).

    log_loss: the sum of -log p of the true class; brier: that of Σ_k (p_k - y_k)², y_k 1 for the true class and 0 for
    others, for two classes half of it, (p_1 - y_1)², as in scikit-learn. bin_rows, bin_confidence, bin_right (15,): for
    each bin of the largest probability the weights of its rows, the sums of that probability, and the weights of the
    rows of that class.
    """
    shifted = _shifted(decision, calibration)
    sums = np.exp(shifted).sum(axis=1)
    p, rows = np.exp(shifted) / sums[:, None], np.arange(len(truth))
    largest = p.max(axis=1)
    bins = np.minimum((largest * N_BINS).astype(np.int64), N_BINS - 1)
    briers = (p**2).sum(axis=1) - 2 * p[rows, truth] + 1
    return {
        "log_loss": s @ (np.log(sums) - shifted[rows, truth]),  # It is finite also where p is 0.
        "brier": s @ briers / (2 if p.shape[1] == 2 else 1),
        "bin_rows": np.bincount(bins, s, N_BINS),
        "bin_confidence": np.bincount(bins, s * largest, N_BINS),
        "bin_right": np.bincount(bins, s * (p.argmax(axis=1) == truth), N_BINS),
    }


def calibration_numbers(sums: Sums) -> dict[str, Any]:
    """Return mean log loss and Brier score, expected calibration error (mathematics.md, eq. 80), and its bins."""
    bins = list(zip(*(sums[f"bin_{name}"].tolist() for name in ("rows", "confidence", "right")), strict=True))
    total = sum(rows for rows, _, _ in bins)
    return {
        "log_loss": sums["log_loss"].item() / total,
        "brier_score": sums["brier"].item() / total,
        "calibration_error": sum(abs(right - confidence) for _, confidence, right in bins) / total,
        "reliability": [
            {"rows": rows, "confidence": confidence / rows, "accuracy": right / rows}
            for rows, confidence, right in bins
            if rows
        ],
    }


def add_sums(a: Sums, b: Sums) -> Sums:
    """Return the sums of the rows of both."""
    total = {name: a[name] + b[name] for name in a}
    if "spread" in a:
        step = b["mean"] - a["mean"]
        total["mean"] = a["mean"] + step * b["counted"] / total["counted"]
        total["spread"] = a["spread"] + b["spread"] + step**2 * a["counted"] * b["counted"] / total["counted"]
    return total


def r_squared(squared_error: float, spread: float) -> float | None:
    """Return the share of a spread Σ (y - mean)², or of a variance, that is explained; None where that is 0."""
    return 1 - squared_error / spread if spread else None


def score_sums(
    decision: NDArray[np.float64],
    truth: NDArray[Any],
    n_classes: int,
    calibration: Calibration | None = None,
    weights: NDArray[np.float64] | None = None,
    limits: Limits = (),
) -> Sums:
    """Return sums of decision values (rows, T) against true classes or values (rows,), of rows with weights (rows,).

    counted: the weights of the rows. For values: squared_error, absolute_error; at_limit: how many are one of the
    limits; mean, spread: the mean of the true values, and their squared distances from it. For classes: confusion
    (K, K) i8, rows [truth][predicted]; wrong, n_wrong: the weights and the number of rows predicted as another class;
    by_class (K, 3): the weights of the rows of each class, of those predicted as it, and of both; with a
    calibration the sums of `calibration_sums`.
    """
    s = np.ones(len(truth)) if weights is None else weights
    sums: Sums = {"counted": s.sum()}
    if not n_classes:
        errors, mean = decision[:, 0] - truth, np.average(truth, weights=s)
        sums |= {"squared_error": s @ errors**2, "absolute_error": s @ np.abs(errors)}
        sums |= {"at_limit": np.int64(np.count_nonzero(np.isin(decision, limits)))}
        return sums | {"mean": mean, "spread": s @ (truth - mean) ** 2}
    predicted = labels_from_decision(decision, "multiclass" if decision.shape[1] > 1 else "binary")
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    right = predicted == truth
    of_classes = ((truth, s), (predicted, s), (truth[right], s[right]))
    by_class = np.stack([np.bincount(classes, counted, n_classes) for classes, counted in of_classes], axis=1)
    sums |= {"wrong": s @ ~right, "n_wrong": np.int64(np.count_nonzero(~right))}
    of_probabilities = {} if calibration is None else calibration_sums(decision, truth, calibration, s)
    return sums | {"confusion": confusion, "by_class": by_class} | of_probabilities


def score_numbers(total: Sums, labels: tuple[object, ...]) -> dict[str, Any]:
    """Return the scores that reports show, from the sums of all rows; what does not apply is None.

    baseline: the class with most rows, and the error of always predicting it; by_class: the label of each class, its
    number of rows, its recall (None without rows) and precision (None if never predicted). Rows count by their weights.
    """
    coverage = coverage_numbers(total)
    if not labels:
        names = ("baseline", "by_class", "probabilities", "confusion")
        return error_numbers(total) | dict.fromkeys(names) | {"coverage": coverage}
    confusion, of_class = total["confusion"].tolist(), total["by_class"].tolist()
    most, n_rows = max(range(len(labels)), key=lambda k: of_class[k][0]), sum(rows for rows, _, _ in of_class)
    by_class = [
        {
            "label": label,
            "rows": sum(confused),
            "recall": right / rows if rows else None,
            "precision": right / predicted if predicted else None,
        }
        for label, confused, (rows, predicted, right) in zip(labels, confusion, of_class, strict=True)
    ]
    return error_numbers(total) | {
        "baseline": {"label": labels[most], "error_rate": (n_rows - of_class[most][0]) / n_rows},
        "by_class": by_class,
        "probabilities": calibration_numbers(total) if "log_loss" in total else None,
        "confusion": confusion,
        "coverage": coverage,
    }


def coverage_numbers(total: Sums) -> dict[str, float] | None:
    """Return the `level` of intervals or sets, the share of rows `reached`, and their mean `size`; or None."""
    if "covered" not in total:
        return None
    reached, size = (total[name].item() / total["counted"].item() for name in ("covered", "sizes"))
    return {"level": SET_LEVEL if "wrong" in total else INTERVAL_LEVEL, "reached": reached, "size": size}


def error_numbers(total: Sums) -> dict[str, Any]:
    """Return the error of classes, or the errors of values; what does not apply is None."""
    nothing, counted = dict.fromkeys(ERROR_NAMES), total["counted"].item()
    if "wrong" in total:
        return nothing | {"error_rate": total["wrong"].item() / counted, "n_errors": total["n_wrong"].item()}
    mse, mae = total["squared_error"].item() / counted, total["absolute_error"].item() / counted
    r2 = r_squared(total["squared_error"].item(), total["spread"].item())
    of_values = {"mse": mse, "rmse": float(np.sqrt(mse)), "mae": mae, "r2": r2}
    return nothing | of_values | {"n_at_limit": total["at_limit"].item()}
