"""Probabilities of classes by one temperature and their calibration; scores of predictions. All but the area under the
ROC curve add up over blocks.

Decision values f (rows, T) are those of one machine for each class; two classes have one, that of the second, and the
first then has 0. `truth` (rows,) i8 are the indices of the true classes.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_sample
from features.targets import labels_from_decision

Sums = dict[str, Any]  # arrays and numbers of float64 and int64 by name: those of blocks of rows add up, `add_sums`

N_BINS = 15  # of the largest probability, of equal width
# At which the slope of the log loss is summed, a quarter of an octave apart. Decision values are fitted to -1 and 1: a
# temperature of 32 leaves nothing of them, one of 2^-15 is certain of every class.
INVERSE_TEMPERATURES = 2.0 ** np.arange(-5, 15.25, 0.25)
LEAST_LOGARITHM = -1e300  # of a probability, which is 0 long before; log losses stay finite, and so does their sum
_MOST_VALUES = 2**20  # held at once while slopes are summed
MOST_RANKED = 2**21  # values, 16 MiB, that are kept of all rows for the area under their ROC curve
RANKED = ("decision", "truth", "weights")


def probabilities(decision: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Return the probability of each class (rows, K) for decision values (rows, T) (mathematics.md, eq. 76)."""
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


def loss_slopes(
    decision: NDArray[np.floating], truth: NDArray[np.int64], weights: NDArray[np.float64] | None = None
) -> Sums:
    """Return the sums, over rows with weights (none: 1 each), that choose a temperature (mathematics.md, eq. 78).

    slopes, curvatures (G,): of the log loss by the inverse temperature, at each of INVERSE_TEMPERATURES; others: what
    the other classes' values have on average above the true one's; rows: their number. Costs rows·K·G exponentials.
    """
    f = _by_class(decision)
    above = f - f[np.arange(len(f)), truth][:, None]
    ones = np.ones(len(f)) if weights is None else weights
    sums = np.zeros((2, len(INVERSE_TEMPERATURES)))
    step = max(_MOST_VALUES // (f.shape[1] * len(INVERSE_TEMPERATURES)), 1)
    for start in range(0, len(f), step):
        part = slice(start, start + step)
        sums += _moments(above[part], ones[part])
    others = float(ones @ above.sum(axis=1)) / (f.shape[1] - 1)
    return {"slopes": sums[0], "curvatures": sums[1], "others": others, "rows": len(f)}


def _moments(above: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sums of mean and variance of values (rows, K) under their probabilities, (2, G)."""
    largest = above.max(axis=1)
    below = above - largest[:, None]  # whose moments lose no digits where one class has it all
    p = np.exp(INVERSE_TEMPERATURES[:, None, None] * below)
    p /= p.sum(axis=2, keepdims=True)
    mean, square = np.einsum("gik,ik->gi", p, below), np.einsum("gik,ik->gi", p, below**2)
    return np.stack([(mean + largest) @ weights, np.maximum(square - mean**2, 0.0) @ weights])


def best_temperature(sums: Sums) -> float | None:
    """Return the temperature of least log loss, None where there are no rows (mathematics.md, eqs. 77 and 78).

    The loss is convex in the inverse temperature: its slope crosses zero once, and is interpolated where it does. At
    an end of INVERSE_TEMPERATURES where it does not.
    """
    if not sums["rows"]:
        return None
    slopes = sums["slopes"] - sums["others"] / (sums["rows"] + 2)
    rising = np.flatnonzero(slopes >= 0)
    place = int(rising[0]) if len(rising) else len(slopes) - 1
    if place and len(rising):
        ends = slice(place - 1, place + 1)
        octaves = np.log2(INVERSE_TEMPERATURES[ends])
        by_octave = np.log(2) * INVERSE_TEMPERATURES[ends] * sums["curvatures"][ends]
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


def calibration_sums(
    decision: NDArray[np.floating],
    truth: NDArray[np.int64],
    temperature: float,
    weights: NDArray[np.float64] | None = None,
) -> Sums:
    """Return sums of how well the probabilities of decision values (rows, T) fit the true classes (rows,).

    log_loss, brier: of -log p of the true class, and of Σ_k (p_k - y_k)², y_k 1 for the true class and 0 for others.
    bin_rows, bin_confidence, bin_right (15,): of the rows in each bin of the largest probability their number, the sum
    of that probability, and how many are of that class. Of rows with weights (rows,), all are sums of these.
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
    return {
        "log_loss": log_losses.sum(),
        "brier": briers.sum(),
        "bin_rows": np.bincount(bins, weights, minlength=N_BINS),
        "bin_confidence": np.bincount(bins, largest, minlength=N_BINS),
        "bin_right": np.bincount(bins[is_right], None if weights is None else weights[is_right], minlength=N_BINS),
    }


def calibration_numbers(sums: Sums) -> dict[str, Any]:
    """Return what reports show: mean log loss and Brier score, expected calibration error (mathematics.md, eq. 80).

    And of the bins that have rows, their mean largest probability and who is right.
    """
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


def class_sums(
    predicted: NDArray[np.int64], truth: NDArray[np.int64], n_classes: int, weights: NDArray[np.float64] | None = None
) -> Sums:
    """Return sums of predicted classes (rows,), indices below n_classes, against the true ones.

    confusion (K, K) i8: rows [truth][predicted]; counted: the weights of the rows; wrong, n_wrong: the weights and the
    number of those predicted as another class; by_class (K, 3): the weights of the rows of each class, of those
    predicted as it, and of both.
    """
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    s, right = np.ones(len(truth)) if weights is None else weights, predicted == truth
    of_classes = ((truth, s), (predicted, s), (truth[right], s[right]))
    by_class = np.stack([np.bincount(classes, counted, n_classes) for classes, counted in of_classes], axis=1)
    wrong = {"wrong": s @ ~right, "n_wrong": np.int64(np.count_nonzero(~right))}
    return {"confusion": confusion, "counted": s.sum(), **wrong, "by_class": by_class}


def value_sums(
    predicted: NDArray[np.float64], truth: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> Sums:
    """Return sums of predicted values (rows,) against the true ones.

    counted: the weights of the rows; squared_error, absolute_error; mean, spread: of the true values, their mean and
    their squared distances from it.
    """
    errors, mean = predicted - truth, np.average(truth, weights=weights)

    def total(values: NDArray[np.float64]) -> np.float64:
        return np.float64(values.sum() if weights is None else weights @ values)

    return {
        "counted": np.float64(len(truth) if weights is None else weights.sum()),
        "squared_error": total(errors**2),
        "absolute_error": total(np.abs(errors)),
        "mean": mean,
        "spread": total((truth - mean) ** 2),
    }


def add_sums(a: Sums, b: Sums) -> Sums:
    """Return the sums of the rows of both."""
    total = {name: a[name] + b[name] for name in a}
    if "spread" in a:
        step = b["mean"] - a["mean"]
        total["mean"] = a["mean"] + step * b["counted"] / total["counted"]
        total["spread"] = a["spread"] + b["spread"] + step**2 * a["counted"] * b["counted"] / total["counted"]
    return total


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


def r_squared(squared_error: float, spread: float) -> float | None:
    """Return the explained share of a spread Σ (y - mean)², or of a variance; None where there is none to explain."""
    return 1 - squared_error / spread if spread else None


def score_sums(
    decision: NDArray[np.float64],
    truth: NDArray[Any],
    n_classes: int,
    temperature: float | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Sums:
    """Return the sums of decision values (rows, T) against true classes or, of no classes, true values (rows,).

    With those of the probabilities at a temperature, if any.
    """
    if not n_classes:
        return value_sums(decision[:, 0], truth, weights)
    predicted = labels_from_decision(decision, "multiclass" if decision.shape[1] > 1 else "binary")
    calibration = {} if temperature is None else calibration_sums(decision, truth, temperature, weights)
    return class_sums(predicted, truth, n_classes, weights) | calibration


def ranked_share(n_rows: int, n_outputs: int) -> float:
    """Return the share of rows that are kept to rank them: all, if their numbers are at most MOST_RANKED."""
    return min(1.0, MOST_RANKED / (n_rows * (n_outputs + 2)))


def ranked_rows(
    decision: NDArray[np.float64],
    truth: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    start: int,
    n_rows: int,
) -> Sums:
    """Return what the area under the ROC curve needs of a block that starts at a row: of many rows few, drawn ones.

    They are drawn by their numbers, and not every other one: classes may take turns.
    """
    numbers = np.arange(start, start + len(truth), dtype=np.uint64)
    kept = draw_sample(0, ranked_share(n_rows, decision.shape[1]), numbers)  # a share of 1 draws all
    counted = np.ones(len(truth)) if weights is None else weights
    return dict(zip(RANKED, (decision[kept], truth[kept], counted[kept]), strict=True))


def total_of(blocks: Iterable[Sums]) -> Sums:
    """Return the sums of blocks in the order of their rows, with the ranked rows one after the other."""
    ranked: dict[str, list[NDArray[Any]]] = {}

    def unranked(block: Sums) -> Sums:
        for name in block.keys() & RANKED:
            ranked.setdefault(name, []).append(block[name])
        return {name: value for name, value in block.items() if name not in RANKED}

    total = reduce(add_sums, map(unranked, blocks))
    return total | {name: np.concatenate(parts) for name, parts in ranked.items()}


def score_numbers(total: Sums, labels: tuple[object, ...]) -> dict[str, Any]:
    """Return what is reported of the sums of all rows; what does not apply is None.

    baseline: the class that most rows are of, and the error of always predicting it; auc, auc_rows: the area under the
    ROC curve, and of how many rows; by_class: the label of each, its number of rows, recall and precision, None where
    there is no row of the class, or none that is predicted as it. Where rows have weights, they count by these.
    """
    names = ("baseline", "auc", "auc_rows", "by_class", "probabilities", "confusion")
    if not labels:
        return error_numbers(total) | dict.fromkeys(names)
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
        "auc": area_under_curve(*(total[name] for name in RANKED)),
        "auc_rows": len(total["truth"]),
        "by_class": by_class,
        "probabilities": calibration_numbers(total) if "log_loss" in total else None,
        "confusion": confusion,
    }


def error_numbers(total: Sums) -> dict[str, Any]:
    """Return the error of classes, or the errors of values; what does not apply is None."""
    nothing, counted = dict.fromkeys(("error_rate", "n_errors", "mse", "rmse", "mae", "r2")), total["counted"].item()
    if "wrong" in total:
        return nothing | {"error_rate": total["wrong"].item() / counted, "n_errors": total["n_wrong"].item()}
    squared = total["squared_error"].item()
    mse, mae, r2 = (
        squared / counted,
        total["absolute_error"].item() / counted,
        r_squared(squared, total["spread"].item()),
    )
    return nothing | {"mse": mse, "rmse": float(np.sqrt(mse)), "mae": mae, "r2": r2}
