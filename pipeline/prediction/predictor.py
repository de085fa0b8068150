"""The model of a run in memory: inputs as the training had them go in, labels and values come out."""

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from features.csv_files import cell_text
from features.encoding import EncodedRows
from features.errors import DataError
from features.source import Columns, RowArray
from features.table_files import reader_of
from pipeline.prediction.example_files import Examples, Piece
from pipeline.prediction.labelled_scores import labels_of, probabilities_of, probability_names
from pipeline.prediction.streamed_prediction import category_warnings, check_shape, locate, predictions
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
        unknown = Counter[str]()
        rows = _inputs_of(X, self.machine.table_columns, unknown)
        shape = rows.shape or (0,)
        piece = Piece(shape[0], shape[1:], lambda start, stop: (rows[start:stop], None), "X")
        check_shape(piece, self.machine)
        examples = Examples("X", None, (piece,), unknown=unknown)
        blocks = [block.decision for block in predictions(self.machine, examples)]
        for line in category_warnings(examples):
            warnings.warn(line, stacklevel=2)
        return np.concatenate([np.empty((0, len(self.machine.intercept))), *blocks])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return labels (rows,) in the words of the data, or the values of a regression."""
        return labels_of(self.machine, self.decision_function(X))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class (rows, classes); ConfigError where the model has none."""
        probability_names(self.machine)
        return probabilities_of(self.machine, self.decision_function(X))


def _inputs_of(X: Any, columns: Columns | None, unknown: Counter[str]) -> RowArray:
    """Return what a model of such columns, None where they are no table's, takes for X; count unknown categories."""
    if columns is not None and columns.inputs and hasattr(X, "columns"):
        lacking = [name for name in columns.inputs if name not in X.columns]
        if lacking:
            raise DataError(f"X: lacks the column {lacking[0]!r}, which the model needs")
        X = X[list(columns.inputs)]
    if columns is None or columns.encoding is None:
        return np.asarray(X)
    cells, names = np.asarray(X, dtype=object), [column.name for column in columns.encoding.columns]
    if cells.ndim != 2 or cells.shape[1] != len(names):
        shape = cells.shape[1:]
        raise DataError(f"X: rows have shape {shape} each, the model wants cells of its columns: {', '.join(names)}")
    reader = reader_of(columns, names)
    codes = [reader.codes([cell_text(cell) for cell in row], f"X: row {k}") for k, row in enumerate(cells)]
    unknown.update(reader.unknown)
    return EncodedRows(np.array(codes, dtype=np.float64).reshape(len(cells), len(names)), columns.encoding)


def load_predictor(folder: Path) -> Predictor:
    """Return the model of a run folder, or of a model folder; errors as `streamed_prediction.locate`."""
    return Predictor(locate(folder).model)
