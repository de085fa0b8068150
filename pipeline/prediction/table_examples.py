"""Rows of tables for prediction, read front to back in batches: csv and parquet files, data frames."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError
from features.source import Columns
from features.table_batches import Batch
from features.table_cells import CellReader, texts_of
from features.table_files import reader_of
from features.table_labels import check_labels
from features.table_layout import ReadRows, TableLayout, layout_of, rows_of
from features.table_parts import Table
from pipeline.prediction.example_files import Asked, Examples, Piece
from pipeline.prediction.trained_model import SparseKernelModel


def table_examples(table: Table, asked: Asked, model: SparseKernelModel) -> Examples:
    """Return the rows of a table, whose files are read once for their layout and are again for their cells."""
    n_inputs = math.prod(model.input_shape)
    columns = model.table_columns or Columns((), None, n_inputs)
    n_columns = n_inputs if columns.encoding is None else len(columns.encoding.columns)
    layout = layout_of(table, asked.target, columns, n_columns, model.labels, labelled=asked.labelled)
    reader = reader_of(columns, [layout.names[place] for place in layout.inputs])
    rows = _TableRows(table, layout, reader, labelled=asked.labelled)

    def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        codes, labels = rows.read(start, stop)
        return codes if columns.encoding is None else columns.encoding.apply(codes), labels

    n_inputs = n_columns if columns.encoding is None else len(columns.encoding.inputs)
    piece = Piece(layout.n_rows, (n_inputs,), read, str(table.path))
    return Examples(table.path.name, None, (piece,), layout.header, reader.unknown)


class _TableRows:
    """The rows of a table, read front to back; reading the first of them begins anew."""

    def __init__(self, table: Table, layout: TableLayout, reader: CellReader, *, labelled: bool) -> None:
        self._table, self._layout, self._reader, self._labelled = table, layout, reader, labelled
        self._batches: Iterator[ReadRows] = iter(())
        self._labels = list[NDArray[Any]]()
        self._codes = np.empty((0, len(layout.inputs)))

    def read(self, start: int, stop: int) -> tuple[NDArray[np.float64], NDArray[Any] | None]:
        """Return codes and labels of the next rows. Raises DataError where there are fewer than there were."""
        if start == 0:
            add = self._add if self._labelled else None
            self._batches = rows_of(self._table, self._layout, self._reader, add)
            self._codes, self._labels = self._codes[:0], []
        n_rows, codes = stop - start, [self._codes]
        while sum(map(len, codes)) < n_rows:
            rows = next(self._batches, None)
            if rows is None:
                fault = f"ends at row {start + sum(map(len, codes))}, it was longer before; leave it alone meanwhile"
                raise DataError(f"{self._table.path}: {fault}")
            codes.append(rows.codes)
        block = np.concatenate(codes)
        self._codes = block[n_rows:]
        if not self._labelled:
            return block[:n_rows], None
        labels = np.concatenate(self._labels) if self._labels else np.empty(0, "U1")
        self._labels = [labels[n_rows:]]
        return block[:n_rows], labels[:n_rows]

    def _add(self, batch: Batch, place: int) -> None:
        check_labels(batch, place, self._layout.names[place])
        self._labels.append(texts_of(batch.columns[place]))
