"""The score of decision values on labelled rows: sums of blocks, which add up, and the numbers that are reported."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError
from features.row_draws import draw_sample
from features.targets import class_positions, labels_from_decision
from pipeline.kernels.scaled_rows import first_non_finite_row
from pipeline.models.scores import (
    Sums,
    add_sums,
    area_under_curve,
    calibration_numbers,
    calibration_sums,
    class_sums,
    r_squared,
    value_sums,
)
from pipeline.prediction.example_files import Examples
from pipeline.prediction.streamed_prediction import Predicted, predictions
from pipeline.prediction.trained_model import SparseKernelModel

MOST_RANKED = 2**21  # values, 16 MiB, that are kept of all rows for the area under their ROC curve
RANKED = ("decision", "truth", "weights")


def score_examples(model: SparseKernelModel, examples: Examples) -> tuple[dict[str, Any], int]:
    """Return the `score_numbers` of a model on labelled rows, and how many rows are far from all centers.

    Raises DataError naming a row whose label is unknown, or whose value is not finite, and what `predictions` raises.
    """
    n_far, n_classes = 0, len(model.labels)

    def scored() -> Iterator[Sums]:
        nonlocal n_far
        start = 0
        for block in predictions(model, examples):
            truth, decision, weights = true_targets(block, model.labels), block.decision, block.weights
            ranked = ranked_rows(decision, truth, weights, start, examples.n_rows) if n_classes else {}
            yield score_sums(decision, truth, n_classes, model.temperature, weights) | ranked
            start, n_far = start + len(truth), n_far + block.n_far

    return score_numbers(total_of(scored()), model.labels), n_far


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


def true_targets(block: Predicted, labels: tuple[object, ...]) -> NDArray[Any]:
    """Return the labels of the data as indices (rows,) i8 into the model's, or values (rows,) f8 where it has none.

    Numbers may be text. Raises DataError naming the first row whose label is unknown, or whose
    value is no finite number.
    """
    assert block.labels is not None
    if not labels:
        text = block.labels.dtype.kind == "U"
        values = np.array([_number(label) for label in block.labels.tolist()] if text else block.labels, np.float64)
        bad = first_non_finite_row(values)  # None, which stands for text that is no number, has become nan
        if bad is not None:
            label, row = block.labels[bad].item(), block.piece_start + bad
            raise DataError(f"{block.name}: row {row} has the target {label!r}; a finite number is needed")
        return values
    known = set(labels)

    def otherwise(label: str | float) -> object:
        return str(label) if str(label) in known else _number(label)

    index = class_positions(block.labels, labels, otherwise)
    unknown = np.flatnonzero(index < 0)
    if unknown.size:
        label, row = block.labels[unknown[0]].item(), block.piece_start + int(unknown[0])
        shown = ", ".join(repr(one) for one in labels[:12]) + (", ..." if len(labels) > 12 else "")
        raise DataError(f"{block.name}: row {row} has label {label!r}, which the model does not know; it knows {shown}")
    return index


def _number(value: str | float) -> int | float | None:
    """Return what a text reads as, None where it is no number; a whole one stays exact."""
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    for kind in (int, float):
        try:
            number: int | float = kind(value)
            return number
        except (ValueError, OverflowError):
            continue
    return None
