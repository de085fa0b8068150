"""Model folders of the commands, as fitted estimators have them: saved by these, and opened as them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import class_array
from pipeline.estimators.fit_data import Rows, as_value_error
from pipeline.prediction.streamed_prediction import locate
from pipeline.prediction.trained_model import SparseKernelModel


def read(folder: Path, *, classifies: bool) -> SparseKernelModel:
    """Return the model in a model folder, or in the folder of a run.

    Raises ValueError for a model of the other kind of task, else as `streamed_prediction.locate`.
    """
    model = locate(folder).model
    if classifies == (model.task == "regression"):
        fitting = "SLKLClassifier" if not classifies else "SLKLRegressor"
        raise ValueError(f"{folder}: is a model of a {model.task} task; load it with {fitting}")
    return model


def attributes_of(model: SparseKernelModel) -> dict[str, Any]:
    """Return the fitted attributes that a model has; what only a fit knows is None, NaN or 0."""
    single, columns, widths = model.task == "regression", model.table_columns, model.center_sigma2
    known: dict[str, Any] = {
        "_task": model.task,
        "_loaded": model,
        "centers_": model.centers,
        "center_index_": model.center_index,
        "coef_": model.weights[:, 0] if single else model.weights.T.copy(),
        "intercept_": float(model.intercept[0]) if single else model.intercept,
        "mu_": None,
        "dual_gap_": math.nan,
        "n_iter_": 0,
        "penalty_": None,
        "sigma2_": float(widths[0]) if len(widths) and (widths == widths[0]).all() else widths,
        "feature_scales_": model.feature_scales,
        "n_features_in_": math.prod(model.input_shape),
    }
    if columns is not None and columns.input_names:
        known["feature_names_in_"] = np.array(columns.input_names, dtype=object)
    return known if single else known | {"classes_": class_array(model.labels), "temperature_": model.temperature}


def decide(model: SparseKernelModel, rows: Rows) -> NDArray[np.float64]:
    """Return the decision values (n, T) of rows (n, d), images flat, as the commands have them to rounding.

    Raises ValueError for rows that the model cannot take.
    """
    decision = np.empty((len(rows), len(model.intercept)))
    with as_value_error():
        for span, block in rows.blocks(model.n_centers):
            X = model.features_of(block.reshape(len(block), *model.input_shape), span.start)
            decision[span] = model.decision_function(X)
    return decision
