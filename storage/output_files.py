"""Outputs under a name from the user, whole or not there; predictions as .csv or .parquet.

Predictions are written block by block, and memory does not grow with the rows: a .csv gets its lines, and a .parquet
groups of rows of some MiB.
"""

import contextlib
import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage import files as disk
from storage.errors import CannotWriteError
from storage.zarr_arrays import chunk_rows_for

SUFFIXES = (".csv", ".parquet")

Write = Callable[[Sequence[NDArray[Any]]], None]  # It takes the columns (rows,) of the next rows, in order.


def check_output(path: Path, *, replace: bool) -> None:
    """Raise CannotWriteError where a path is taken: by a file without `replace`, or by anything but a plain file."""
    if not (path.exists() or path.is_symlink()):
        return
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe, a device or a socket"
        raise CannotWriteError(f"{path}: is {kind}; choose another name")
    if not replace:
        raise CannotWriteError(f"{path}: exists; choose another name, or --force to replace it")


@contextlib.contextmanager
def writing(
    path: Path,
    dtypes: Mapping[str, Any],
    n_rows: int,
    files: NDArray[Any] | None = None,
    *,
    regression: bool = False,
    replace: bool = False,
) -> Iterator[Write]:
    """Yield the function that takes the next rows of predictions, see `Write`.

    dtypes: those of the columns by name, the label first; words are a string. .csv: see `csv_writer`. .parquet has the
    same columns, in groups that suit `n_rows`. Raises CannotWriteError naming path and cause.
    """
    with disk.replacing(path, replace=replace) as stream:
        if path.suffix == ".csv":
            yield csv_writer(lambda text: stream.write(text.encode()), dtypes, files, regression=regression)
            return
        with _parquet_writer(stream, dtypes, n_rows, files) as write:
            yield write


def csv_writer(
    emit: Callable[[str], object], names: Iterable[str], files: NDArray[Any] | None = None, *, regression: bool = False
) -> Write:
    """Emit the header line of a csv, and return a function that emits predictions as lines.

    Columns: row (from 0), file where rows are files, and those of `names`, the label first; numbers in the fewest
    digits that read back equal. The label of a regression is its decision value to 9 digits, the precision of kernel
    values.
    """
    emit(csv_text([["row", *([] if files is None else ["file"]), *names]]))
    numbered = _numbering(files)

    def write(columns: Sequence[NDArray[Any]]) -> None:
        cells = [column.tolist() for column in columns]
        cells[0] = [float(f"{value:.9g}") for value in cells[0]] if regression else cells[0]
        emit(csv_text(zip(*(column.tolist() for column in numbered(len(cells[0]))), *cells, strict=True)))

    return write


def _numbering(files: NDArray[Any] | None) -> Callable[[int], list[NDArray[Any]]]:
    """Return a function that returns the numbers of the next rows, and their files where rows are files."""
    start = 0

    def numbered(n_rows: int) -> list[NDArray[Any]]:
        nonlocal start
        rows, start = np.arange(start, start + n_rows), start + n_rows
        return [rows] if files is None else [rows, files[rows]]

    return numbered


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells as the lines of a csv."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextlib.contextmanager
def _parquet_writer(
    stream: io.RawIOBase, dtypes: Mapping[str, Any], n_rows: int, files: NDArray[Any] | None
) -> Iterator[Write]:
    import pyarrow  # Its import takes 0.1 s, and other files need none.
    from pyarrow.parquet import ParquetWriter

    def type_of(dtype: np.dtype[Any]) -> Any:
        return pyarrow.string() if dtype.kind == "U" else pyarrow.from_numpy_dtype(dtype)

    columns = {"row": np.int64} | ({} if files is None else {"file": str}) | dict(dtypes)
    schema = pyarrow.schema([(name, type_of(np.dtype(dtype))) for name, dtype in columns.items()])
    # The footer's facts of a group, 2 kB for each column, stay in memory until the end. A group of at least 8√n of n
    # rows keeps both small where columns are many. Dictionaries and bounds of distinct numbers are of no use.
    size = max(chunk_rows_for(8 * len(dtypes), n_rows), 8 * math.isqrt(n_rows))
    options = {"use_dictionary": ["label"], "write_statistics": ["row", "label"]}
    waiting, numbered = list[Any](), _numbering(files)  # Tables wait until they fill a group.

    with ParquetWriter(stream, schema, **options) as writer:

        def flush() -> None:
            writer.write_table(pyarrow.concat_tables(waiting))
            waiting.clear()

        def write(columns: Sequence[NDArray[Any]]) -> None:
            arrays = [pyarrow.array(column) for column in (*numbered(len(columns[0])), *columns)]
            waiting.append(pyarrow.Table.from_arrays(arrays, schema=schema))
            if sum(map(len, waiting)) >= size:
                flush()

        yield write
        if waiting:
            flush()
