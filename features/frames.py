"""Data frames (pandas, polars, Arrow) as the inputs of a model: their cells are read as those of files are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow

from features.encoding import Asked, EncodedRows, learn
from features.errors import DataError
from features.source import Columns, RowArray
from features.table_cells import CellReader
from features.table_files import reader_of
from features.table_header import column_names
from features.table_layout import TableLayout, rows_of, word_columns
from features.table_parts import MixedColumnError, Table, cells_as_table


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame: it has columns, and the interface of Arrow."""
    return hasattr(X, "columns") and hasattr(X, "__arrow_c_stream__")


def is_plain(frame: Any) -> bool:
    """Return whether all columns of a data frame are numbers of numpy's types, or of Arrow's without null."""
    if hasattr(frame, "iloc"):  # pandas
        return all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in frame.dtypes)
    columns = pyarrow.table(frame).itercolumns()
    return not any(column.null_count or not _is_number(column.type) for column in columns)


def _is_number(kind: "pyarrow.DataType") -> bool:
    return pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)


def table_of(frame: Any, called: str, names: Sequence[str] | None = None) -> Table:
    """Return a data frame as a table, called so in errors: all columns, or those with such names, in their order.

    Raises DataError where it lacks one of them, or cannot be read.
    """
    there = frame.column_names if hasattr(frame, "column_names") else list(frame.columns)  # of pyarrow, of others
    if names is not None:
        lacking = [name for name in names if name not in there]
        if lacking:
            raise DataError(f"{called}: lacks the column {lacking[0]!r}, which the model needs")
        frame = frame.select(list(names)) if hasattr(frame, "column_names") else frame[list(names)]
    try:
        return Table.of(frame, called)
    except MixedColumnError:  # numbers and words
        cells = np.asarray(frame, dtype=object)
        return Table.of(cells_as_table(cells, [str(name) for name in (there if names is None else names)]), called)


def learned_inputs(frame: Any, called: str, categorical: str | None, missing: str | None) -> tuple[RowArray, Columns]:
    """Return the inputs (n, d) f8 of a data frame to train on, read by slices, and the columns of the model.

    categorical, missing: as the settings data.categorical and data.missing. Codes take 8 bytes a cell.

    Raises DataError naming the first row with a cell that cannot be, UsageError for a setting that cannot be used.
    """
    asked, table = Asked.read(categorical, missing), table_of(frame, called)
    names = column_names(table.first_line()[1])
    if len(set(names)) < len(names):
        raise DataError(f"{called}: names of columns repeat: {', '.join(names)[:400]}; rename them")
    layout = _layout(names)
    words = word_columns(table, layout, asked)
    reader = CellReader(names, words, missing=asked.missing is not None, new=True)
    codes, columns = _codes(table, layout, reader), Columns(tuple(names), None, len(names))
    if not len(codes):
        raise DataError(f"{called}: has no rows")
    if asked == Asked():
        return codes, columns
    known = [None if listed is None else tuple(listed) for listed in reader.words]
    encoding, places = learn(names, known, lambda: iter([codes]), asked)
    return EncodedRows(codes, encoding, places), replace(columns, encoding=encoding)


def known_inputs(frame: Any, called: str, columns: Columns) -> tuple[RowArray, Counter[str]]:
    """Return the inputs (n, d) f8 of a data frame as a model with such columns takes them, matched by name.

    Also how many cells of each column hold a category that the model does not know. Raises DataError.
    """
    layout, reader = _layout(columns.inputs), reader_of(columns, columns.inputs)
    codes = _codes(table_of(frame, called, columns.inputs), layout, reader)
    return codes if columns.encoding is None else EncodedRows(codes, columns.encoding), reader.unknown


def _layout(names: Sequence[str]) -> TableLayout:
    return TableLayout(0, True, tuple(names), tuple(range(len(names))), None)


def _codes(table: Table, layout: TableLayout, reader: CellReader) -> np.ndarray:
    """Return the codes (n, columns) f8 of all rows."""
    blocks = [rows.codes for rows in rows_of(table, layout, reader, None)]
    return np.concatenate([np.empty((0, len(layout.inputs))), *blocks])
