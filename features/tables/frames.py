"""Tables in memory, of pandas, polars, pyarrow: what is one, its columns, and which of these are an index."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow
from pyarrow import types

from features.cell_text import KINDS, TRUTH
from features.errors import DataError

UNREADABLE = (pyarrow.ArrowException, TypeError, ValueError)  # what Arrow says of a frame that it cannot read
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")  # as pandas calls an index that has no name


def check_frame(X: Any, called: str, *, columns: bool = True) -> None:
    """Raise DataError for what one more call makes a table in memory of, and for a table with a column twice.

    columns: whether it is to have several, or is one.
    """
    calls = ["toPandas", "collect", "read_all", *["to_frame"] * columns, "compute"]  # of Spark, polars, pyarrow, dask
    call = next((name for name in calls if hasattr(type(X), name)), None)  # of X itself, a column may have the name
    if call is not None and (call != "compute" or hasattr(X, "columns")):  # arrays of dask have none
        raise DataError(f"{called}: is a {type(X).__name__}, no table in memory; give its .{call}()")
    twice = next((name for name, n in Counter(columns_of(X)).items() if n > 1), None)
    if twice is not None:
        raise DataError(f"{called}: has the column {twice!r} twice; give each column its own name")


def columns_of(X: Any) -> list[Any]:
    """Return the names of the columns of a table in memory, of pandas, polars or pyarrow; [] for what is none."""
    return list(X.column_names if hasattr(X, "column_names") else getattr(X, "columns", ()))


def with_columns(X: Any, names: list[Any]) -> Any:
    """Return some columns of a table in memory."""
    return X.select(names) if hasattr(X, "column_names") else X[names]


def without_index(X: Any) -> Any:
    """Return what is given; a table of pyarrow or polars without the index of the pandas frame that it comes from."""
    names = columns_of(X)
    index = index_in(names, getattr(getattr(X, "schema", None), "metadata", None))
    return with_columns(X, [name for name in names if name not in index]) if index else X


def index_in(names: Iterable[Any], metadata: Mapping[bytes, bytes] | None = None) -> frozenset[str]:
    """Return which columns are the index of a pandas frame: those its metadata lists, or that have the name of one."""
    try:
        listed = json.loads((metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, TypeError, ValueError):
        listed = []
    known = {name.strip() for name in listed if isinstance(name, str)}
    return frozenset(name for name in names if name in known or _UNNAMED_INDEX.fullmatch(str(name).strip()))


def is_frame(X: Any) -> bool:
    """Return whether X is a table in memory: columns with names, by Arrow's interface."""
    return hasattr(X, "__arrow_c_stream__") and hasattr(X, "columns")


def has_numbers_only(frame: Any) -> bool:
    """Return whether all columns of a table in memory are of numbers or truth values; also where Arrow cannot tell."""
    kinds = _schema(frame).types
    return all(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) for kind in kinds)


def truth_columns(frame: Any) -> dict[str, str]:
    """Return the kind of cells of each column of truth values in a table in memory, by its name."""
    return {column.name: KINDS[TRUTH] for column in _schema(frame) if types.is_boolean(column.type)}


def _schema(frame: Any) -> "pyarrow.Schema":
    """Return names and types of the columns of a table in memory, none where Arrow cannot tell."""
    try:
        return pyarrow.table(frame.iloc[:0] if hasattr(frame, "iloc") else frame).schema
    except UNREADABLE:
        return pyarrow.schema([])
