"""Predictions as they are written: labels in the model's own words, probabilities, and the names of the columns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import class_array, labels_from_decision
from pipeline.errors import ConfigError
from pipeline.models.scores import probabilities
from pipeline.prediction.trained_model import SparseKernelModel


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
            "--probabilities: the model has no temperature to make them with, being of an earlier version or trained "
            "without held-out rows; train again with statistics.hold_out above 0"
        )
    return tuple(f"probability_{label}" for label in model.labels)


def probabilities_of(model: SparseKernelModel, decision: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each class (rows, classes) of decision values (rows, T)."""
    assert model.temperature is not None  # `probability_names` says so before
    return probabilities(decision, model.temperature)
