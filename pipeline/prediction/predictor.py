"""The model of a run in memory: inputs as the training had them go in, labels and values come out."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from features.errors import DataError
from features.tables.encoding import unknown_words
from features.tables.readers import MixedColumnError, Table, frame_of_cells
from pipeline.prediction.example_files import ExamplePart, ExampleRequest, Examples
from pipeline.prediction.streamed_prediction import check_shape, locate, predictions
from pipeline.prediction.table_examples import table_examples
from pipeline.prediction.trained_model import SparseKernelModel


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model for arrays of inputs; `machine` holds its centers and weights.

    X gives the same bits as a file would: images (rows, H, W) or flat rows; of a table the cells of the input columns
    by position, or by name where X is a DataFrame. Unknown categories are warned of. Every method raises DataError or
    InvalidDataError naming a row that the model cannot take, and for another shape.
    """

    machine: SparseKernelModel

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return decision values (rows, outputs) f8."""
        examples = _examples_of(X, self.machine)
        blocks = [block.decision for block in predictions(self.machine, examples)]
        for line in unknown_words(examples.unknown):
            warnings.warn(line, stacklevel=2)
        return np.concatenate([np.empty((0, len(self.machine.intercept))), *blocks])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return labels (rows,) in the words of the data, or the values of a regression."""
        return self.machine.labels_of(self.decision_function(X))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class (rows, classes); ConfigError where the model has none."""
        self.machine.probability_names()
        return self.machine.probabilities_of(self.decision_function(X))


def _examples_of(X: Any, model: SparseKernelModel) -> Examples:
    """Return what a model takes for X: a table by the names of its columns, cells of its columns, or an array."""
    columns = model.table_columns
    encoding = None if columns is None else columns.encoding
    if columns is not None and columns.inputs and hasattr(X, "columns"):
        given = X.column_names if hasattr(X, "column_names") else X.columns  # of pyarrow; pandas and polars
        called = {str(name).strip(): name for name in reversed(list(given))}  # as files have them
        lacking = [name for name in columns.inputs if name not in called]
        if lacking:
            raise DataError(f"X: lacks the column {lacking[0]!r}, which the model needs")
        if not len(X):
            return Examples("X", None, ())
        X = _selected(X, [called[name] for name in columns.inputs])
        try:
            return table_examples(Table.of(X, "X"), ExampleRequest(None, False), model)
        except MixedColumnError:
            if encoding is None:
                raise
    if encoding is None:
        rows = np.asarray(X)
        shape = rows.shape or (0,)
        piece = ExamplePart(shape[0], shape[1:], lambda start, stop: (rows[start:stop], None), "X")
        check_shape(piece, model)
        return Examples("X", None, (piece,))
    cells, names = np.asarray(X, dtype=object), [column.name for column in encoding.columns]
    if cells.ndim != 2 or cells.shape[1] != len(names):
        shape = cells.shape[1:]
        raise DataError(f"X: rows have shape {shape} each, the model wants cells of its columns: {', '.join(names)}")
    if not len(cells):
        return Examples("X", None, ())
    return table_examples(Table.of(frame_of_cells(cells, names), "X"), ExampleRequest(None, False), model)


def _selected(X: Any, names: list[Any]) -> Any:
    """Return the columns of a table with such names, in their order."""
    return X.select(names) if hasattr(X, "column_names") else X[names]


def load_predictor(folder: Path) -> Predictor:
    """Return the model of a run folder, or of a model folder; errors as `streamed_prediction.locate`."""
    return Predictor(locate(folder).model)
