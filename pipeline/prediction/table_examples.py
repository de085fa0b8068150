"""Rows of tables for prediction, read front to back in batches: csv and parquet files, data frames."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError
from features.source import Columns
from features.tables.cells import distinct
from features.tables.columns import model_layout
from features.tables.readers import Table
from features.tables.table_source import RowsInOrder, cell_reader, rows_of
from pipeline.prediction.example_files import ExamplePart, ExampleRequest, Examples
from pipeline.prediction.trained_model import SparseKernelModel


def table_examples(table: Table, asked: ExampleRequest, model: SparseKernelModel) -> Examples:
    """Return the rows of a table; of texts, one reading more counts them."""
    n_inputs = math.prod(model.input_shape)
    columns = model.table_columns or Columns(())
    n_columns = n_inputs if columns.encoding is None else len(columns.encoding.columns)
    layout = model_layout(table, asked.target, columns, n_columns, labelled=asked.labelled)
    reader = cell_reader(columns, layout.input_names)

    def blocks() -> Iterator[tuple[NDArray[Any], ...]]:
        for rows in rows_of(table, layout, reader, labelled=asked.labelled):
            inputs = rows.codes if columns.encoding is None else columns.encoding.apply(rows.codes)
            if rows.labels is None:
                yield (inputs,)
                continue
            texts, of_rows = distinct(rows.labels)
            yield inputs, np.array(texts, dtype=str)[of_rows]
        raise DataError(f"{table.path}: became shorter while it was read; leave it alone meanwhile")

    in_order, n_rows = RowsInOrder(blocks), table.count_rows()
    if not n_rows:
        raise DataError(f"{table.path}: has no rows")

    def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        inputs, *labels = in_order.read(start, stop)
        return inputs, labels[0] if labels else None

    piece = ExamplePart(
        n_rows, (len(columns.encoding.inputs) if columns.encoding else n_columns,), read, str(table.path)
    )
    return Examples(table.path.name, None, (piece,), columns.header, reader.unknown)
