"""Scores of predictions for blocks with labels, and the numbers that are reported."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.cell_text import category_of, is_plain
from features.errors import DataError
from features.row_draws import draw_sample
from features.targets import class_array, class_positions, labels_from_decision
from pipeline.errors import ConfigError
from pipeline.kernels.scaled_rows import first_non_finite_row
from pipeline.models.scores import (
    Score,
    area_under_curve,
    calibrate,
    probabilities,
    score_classes,
    score_values,
)
from pipeline.prediction.streamed_prediction import Predicted
from pipeline.prediction.trained_model import SparseKernelModel

MOST_RANKED = 2**21  # values, 16 MiB, that are kept of all rows for the area under their ROC curve
MOST_CLASSES = 10  # that the table of a run names each, and of more
WORST_CLASSES = 3

Ranked = dict[str, NDArray[Any]]  # decision (k, T), truth (k,), weights (k,) of some rows


def score_labelled(
    blocks: Iterable[Predicted], known_labels: tuple[object, ...], temperature: float | None, n_rows: int
) -> tuple[Score, float, int]:
    """Return the score of the blocks of so many rows, Σ|error| of values, and how many rows are far from all centers.

    With that of their probabilities where there are any. Raises DataError naming a row whose label is unknown, or whose
    value is not finite.
    """
    score: Score | None = None
    ranked: list[Ranked] = []
    absolute, n_far = 0.0, 0
    for block in blocks:
        weights, start = block.weights, score.rows if score else 0
        if not known_labels:
            values, y = block.decision[:, 0], target_values(block)
            errors = np.abs(values - y)
            absolute += float(errors.sum() if weights is None else weights @ errors)
            found = score_values(values, y, weights)
        else:
            truth = class_index(block, known_labels)
            found = score_decision(block.decision, truth, len(known_labels), temperature, weights)
            ranked.append(ranked_rows(block.decision, truth, weights, start, n_rows))
        score, n_far = score + found if score else found, n_far + block.n_far
    assert score is not None  # data without rows are refused before
    if ranked:
        score = with_area(score, {name: np.concatenate([rows[name] for rows in ranked]) for name in ranked[0]})
    return score, absolute, n_far


def score_decision(
    decision: NDArray[np.float64],
    truth: NDArray[np.int64],
    n_classes: int,
    temperature: float | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Score:
    """Return the score of decision values (rows, T), with that of their probabilities at a temperature, if any."""
    calibration = None if temperature is None else calibrate(decision, truth, temperature, weights)
    predicted = labels_from_decision(decision, "multiclass" if decision.shape[1] > 1 else "binary")
    return score_classes(predicted, truth, n_classes, calibration, weights)


def ranked_share(n_rows: int, n_outputs: int) -> float:
    """Return the share of rows that are kept to rank them: all, if their numbers are at most MOST_RANKED."""
    return min(1.0, MOST_RANKED / (n_rows * (n_outputs + 2)))


def ranked_rows(
    decision: NDArray[np.float64],
    truth: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    start: int,
    n_rows: int,
) -> Ranked:
    """Return what `with_area` needs of a block that starts at a row: of so many rows that few are kept, drawn ones.

    They are drawn by their numbers, and not every other one: classes may take turns.
    """
    numbers = np.arange(start, start + len(truth), dtype=np.uint64)
    kept = draw_sample(0, ranked_share(n_rows, decision.shape[1]), numbers)  # a share of 1 draws all
    counted = np.ones(len(truth)) if weights is None else weights
    return {"decision": decision[kept], "truth": truth[kept], "weights": counted[kept]}


def with_area(score: Score, ranked: Ranked) -> Score:
    """Return a score of classes with the area under the ROC curve of the rows that were kept."""
    return replace(score, auc=area_under_curve(**ranked), auc_rows=len(ranked["truth"]))


def score_numbers(score: Score, absolute_error: float, known_labels: tuple[object, ...]) -> dict[str, Any]:
    """Return the numbers of a score by name; those that do not apply are None."""
    nothing = dict.fromkeys(("error_rate", "n_errors", "labels", "confusion", "mse", "rmse", "mae", "r2"))
    nothing |= {"probabilities": None, "weighted": score.weighted, **class_numbers(score, known_labels)}
    if not known_labels:
        mae = absolute_error / score.counted
        return nothing | {"mse": score.mse, "rmse": score.rmse, "mae": mae, "r2": score.r2}
    counts: dict[str, Any] = {"error_rate": score.error_rate, "n_errors": score.n_errors}
    counts["probabilities"] = score.calibration and score.calibration.numbers()
    return nothing | counts | {"labels": list(known_labels), "confusion": [list(row) for row in score.confusion]}


def class_numbers(score: Score, labels: tuple[object, ...]) -> dict[str, Any]:
    """Return the numbers that tell more of classes than their error; None each for a regression.

    baseline: the class that most rows are of, and the error of always predicting it; auc, auc_rows: the area under the
    ROC curve, and of how many rows; by_class: the label of each, its number of rows, recall and precision, None where
    there is no row of the class, or none that is predicted as it. Where rows have weights, they count by these.
    """
    if not score.by_class:
        return dict.fromkeys(("baseline", "auc", "auc_rows", "by_class"))
    of_class = [rows for rows, _, _ in score.by_class]
    k, total = int(np.argmax(of_class)), sum(of_class)
    by_class = [
        {
            "label": label,
            "rows": sum(confused),
            "recall": right / rows if rows else None,
            "precision": right / predicted if predicted else None,
        }
        for label, confused, (rows, predicted, right) in zip(labels, score.confusion, score.by_class, strict=True)
    ]
    baseline = {"label": labels[k], "error_rate": (total - of_class[k]) / total}
    return {"baseline": baseline, "auc": score.auc, "auc_rows": score.auc_rows, "by_class": by_class}


def class_lines(numbers: Mapping[str, Any], *, few: bool) -> list[str]:
    """Return lines that tell of the `class_numbers` and the confusion matrix among numbers: a line for each class.

    few: of more than MOST_CLASSES, those of the WORST_CLASSES of lowest recall.
    """
    baseline, by_class = numbers.get("baseline"), numbers.get("by_class")
    if not baseline or not by_class:
        return []
    drawn = f" of {numbers['auc_rows']} rows" if numbers["auc_rows"] < sum(one["rows"] for one in by_class) else ""
    area = "" if numbers["auc"] is None else f"; AUC {numbers['auc']:.4f}{drawn}"
    lines = [f"baseline: {100 * baseline['error_rate']:.2f} % error (always {baseline['label']}){area}"]
    shown = list(range(len(by_class)))
    if few and len(shown) > MOST_CLASSES:
        shown = [k for k in by_recall(by_class) if by_class[k]["rows"]][:WORST_CLASSES]
        lines.append(f"the {len(shown)} of {len(by_class)} classes of lowest recall (report.json has all):")
    width = max(len(str(by_class[k]["label"])) for k in shown) + 1
    return lines + [_class_line(by_class[k], numbers, k, width) for k in shown]


def by_recall(by_class: list[dict[str, Any]]) -> list[int]:
    """Return the places of classes, those of lowest recall first; last those that have none."""
    return sorted(range(len(by_class)), key=lambda k: 2.0 if by_class[k]["recall"] is None else by_class[k]["recall"])


def _class_line(one: Mapping[str, Any], numbers: Mapping[str, Any], k: int, width: int) -> str:
    """Return a line of the class of a place, with the class that its rows are most often taken for."""
    start, others = f"class {one['label']!s}:".ljust(7 + width), numbers["confusion"][k]
    if one["recall"] is None:
        return f"{start}no rows"
    precision = "never predicted" if one["precision"] is None else f"precision {100 * one['precision']:6.2f} %"
    other = max((j for j in range(len(others)) if j != k), key=lambda j: others[j])
    taken = f", {others[other]} taken for {numbers['by_class'][other]['label']}" if others[other] else ""
    return f"{start}recall {100 * one['recall']:6.2f} %, {precision} ({one['rows']} rows{taken})"


def probability_words(numbers: Mapping[str, Any]) -> str:
    """Return a line that tells of the numbers of probabilities."""
    return (
        f"probabilities: log loss {numbers['log_loss']:.4g}, Brier score {numbers['brier_score']:.4g}, "
        f"expected calibration error {100 * numbers['calibration_error']:.2f} %"
    )


def class_index(block: Predicted, known_labels: tuple[object, ...]) -> NDArray[np.int64]:
    """Return the labels of the data as indices into the model's, (rows,) i8; numbers may be text, true and
    false 1 and 0.

    Raises DataError naming the first row whose label is unknown.
    """
    assert block.labels is not None
    spelled = {category_of(label): label for label in known_labels if isinstance(label, str)}

    def otherwise(label: str | float) -> object:
        text = category_of(str(label))
        return spelled.get(text, _number(text))

    index = class_positions(block.labels, known_labels, otherwise)
    unknown = np.flatnonzero(index < 0)
    if unknown.size:
        label, row = block.labels[unknown[0]].item(), block.piece_start + int(unknown[0])
        shown = ", ".join(repr(one) for one in known_labels[:12]) + (", ..." if len(known_labels) > 12 else "")
        raise DataError(f"{block.name}: row {row} has label {label!r}, which the model does not know; it knows {shown}")
    return index


def target_values(block: Predicted) -> NDArray[np.float64]:
    """Return the values that the data have, (rows,) f8. Raises DataError naming a row that is no finite number."""
    assert block.labels is not None
    text = block.labels.dtype.kind == "U"
    values = np.array([_number(label) for label in block.labels.tolist()] if text else block.labels, np.float64)
    bad = first_non_finite_row(values)  # None, which stands for text that is no number, has become nan
    if bad is not None:
        label, row = block.labels[bad].item(), block.piece_start + bad
        raise DataError(f"{block.name}: row {row} has the target {label!r}; a finite number is needed")
    return values


def _number(value: str | float) -> int | float | None:
    """Return what a text reads as, None where it is no number; a whole one stays exact."""
    if isinstance(value, str) and not is_plain(value):
        return None
    for kind in (int, float):
        try:
            number: int | float = kind(value)
            return number
        except (ValueError, OverflowError):
            continue
    return None


def label_dtype(model: SparseKernelModel) -> np.dtype[Any]:
    """Return the dtype of predicted labels: float64 for regression, else what holds every label of the model."""
    return np.dtype(np.float64) if model.task == "regression" else class_array(model.labels).dtype


def labels_of(model: SparseKernelModel, decision: NDArray[np.float64]) -> NDArray[Any]:
    """Return the labels (rows,) of decision values (rows, T): the model's own, or the values of a regression."""
    predicted = labels_from_decision(decision, model.task)
    return predicted if model.task == "regression" else class_array(model.labels)[predicted]


def decision_names(model: SparseKernelModel) -> tuple[str, ...]:
    """Return the names of the columns of decision values: after the classes, or one."""
    return tuple(f"decision_{label}" for label in model.labels) if model.task == "multiclass" else ("decision",)


def probability_names(model: SparseKernelModel) -> tuple[str, ...]:
    """Return a column name for each class. Raises ConfigError for a regression, and a model without a temperature."""
    if model.task == "regression":
        raise ConfigError("--probabilities: the model is of a regression, which has no classes; leave it out")
    if model.temperature is None:
        raise ConfigError(
            "--probabilities: the model has no temperature to make them with, trained without held-out rows; train "
            "again with statistics.hold_out above 0"
        )
    return tuple(f"probability_{label}" for label in model.labels)


def probabilities_of(model: SparseKernelModel, decision: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each class (rows, classes) of decision values (rows, T)."""
    assert model.temperature is not None  # `probability_names` says so before
    return probabilities(decision, model.temperature)
