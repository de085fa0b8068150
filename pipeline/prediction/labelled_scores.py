"""Scores of predictions for blocks with labels, and the numbers that are reported."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.cell_text import category_of, is_plain
from features.errors import DataError
from features.targets import class_array, class_positions, labels_from_decision
from pipeline.errors import ConfigError
from pipeline.kernels.scaled_rows import first_non_finite_row
from pipeline.models.scores import Score, calibrate, probabilities, score_classes, score_values
from pipeline.prediction.streamed_prediction import Predicted
from pipeline.prediction.trained_model import SparseKernelModel


def score_labelled(
    block: Predicted, known_labels: tuple[object, ...], temperature: float | None = None
) -> tuple[Score, float]:
    """Return the score of a block, with that of its probabilities where there are any, and Σ|error| of values.

    Raises DataError naming a row whose label is unknown, or whose value is not finite.
    """
    if not known_labels:
        values, y = block.decision[:, 0], target_values(block)
        errors = np.abs(values - y)
        absolute = errors.sum() if block.weights is None else block.weights @ errors
        return score_values(values, y, block.weights), float(absolute)
    truth = class_index(block, known_labels)
    task = "multiclass" if block.decision.shape[1] > 1 else "binary"
    weights = block.weights
    calibration = None if temperature is None else calibrate(block.decision, truth, temperature, weights)
    predicted = labels_from_decision(block.decision, task)
    return score_classes(predicted, truth, len(known_labels), calibration, weights), 0.0


def score_numbers(score: Score, absolute_error: float, known_labels: tuple[object, ...]) -> dict[str, Any]:
    """Return the numbers of a score by name; those that do not apply are None."""
    nothing = dict.fromkeys(("error_rate", "n_errors", "labels", "confusion", "mse", "rmse", "mae", "r2"))
    nothing |= {"probabilities": None, "weighted": score.weighted}
    if not known_labels:
        mae = absolute_error / score.counted
        return nothing | {"mse": score.mse, "rmse": score.rmse, "mae": mae, "r2": score.r2}
    counts: dict[str, Any] = {"error_rate": score.error_rate, "n_errors": score.n_errors}
    counts["probabilities"] = score.calibration and score.calibration.numbers()
    return nothing | counts | {"labels": list(known_labels), "confusion": [list(row) for row in score.confusion]}


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
