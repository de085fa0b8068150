"""Outputs under a name that the user gives, whole under it or not there; predictions as .csv or .parquet.

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

# Takes the next labels (rows,), decision values (rows, T) f8, and as `others` the values (rows,) of other columns.
Write = Callable[..., None]
NO_OTHERS: Mapping[str, np.dtype[Any]] = {}


def check_output(path: Path, *, replace: bool) -> None:
    """Raise CannotWriteError where a file may not be written: no plain file is there, or one without `replace`."""
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
    names: Sequence[str],
    n_rows: int,
    label_dtype: np.dtype[Any],
    files: NDArray[Any] | None = None,
    *,
    others: Mapping[str, np.dtype[Any]] = NO_OTHERS,
    regression: bool = False,
    replace: bool = False,
) -> Iterator[Write]:
    """Yield the function that takes the next rows of predictions, see `Write`.

    .csv: see `csv_writer`. .parquet: the columns of the .csv, row i8, label i8, f8, bool or string as `label_dtype`
    says, file a string, those of `names` f8, and `others` as their dtypes say, in groups that suit `n_rows`. Raises
    CannotWriteError naming path and cause.
    """
    with disk.replacing(path, replace=replace) as stream:
        if path.suffix == ".csv":
            columns = [*names, *others]
            yield csv_writer(lambda text: stream.write(text.encode()), columns, files, regression=regression)
            return
        with _parquet_writer(stream, names, n_rows, label_dtype, files, others) as write:
            yield write


def csv_writer(
    emit: Callable[[str], object], names: Sequence[str], files: NDArray[Any] | None = None, *, regression: bool = False
) -> Write:
    """Emit the header line of a csv, and return a function that emits predictions as lines.

    Columns: row (from 0), file where rows are files, label, and what else is given, by name; numbers in the fewest
    digits that read back equal. The label of a regression is its decision value to 9 digits, the precision of kernel
    values.
    """
    emit(csv_text([["row", *([] if files is None else ["file"]), "label", *names]]))
    columns_of = _numbering(files)

    def write(label: NDArray[Any], decision: NDArray[np.float64], others: Sequence[NDArray[Any]] = ()) -> None:
        label = np.array([float(f"{value:.9g}") for value in label.tolist()]) if regression else label
        emit(csv_text(zip(*(column.tolist() for column in columns_of(label, decision, others)), strict=True)))

    return write


def _numbering(files: NDArray[Any] | None) -> Callable[..., list[NDArray[Any]]]:
    """Return a function that gives the columns of the next rows: numbers, files where rows are files, and the rest."""
    start = 0

    def columns_of(
        label: NDArray[Any], decision: NDArray[np.float64], others: Sequence[NDArray[Any]]
    ) -> list[NDArray[Any]]:
        nonlocal start
        rows, start = np.arange(start, start + len(label)), start + len(label)
        return [rows, *([] if files is None else [files[rows]]), label, *decision.T, *others]

    return columns_of


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells as the lines of a csv."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextlib.contextmanager
def _parquet_writer(
    stream: io.RawIOBase,
    names: Sequence[str],
    n_rows: int,
    label_dtype: np.dtype[Any],
    files: NDArray[Any] | None,
    others: Mapping[str, np.dtype[Any]],
) -> Iterator[Write]:
    import pyarrow  # takes 0.1 s, and other files need none
    from pyarrow.parquet import ParquetWriter

    def type_of(dtype: np.dtype[Any]) -> Any:
        return pyarrow.string() if dtype.kind == "U" else pyarrow.from_numpy_dtype(dtype)

    values = [(name, pyarrow.float64()) for name in names]
    values += [(name, type_of(dtype)) for name, dtype in others.items()]
    of_file = [] if files is None else [("file", pyarrow.string())]
    schema = pyarrow.schema([("row", pyarrow.int64()), *of_file, ("label", type_of(label_dtype)), *values])

    # What the footer says of a group, 2 kB for each column, stays in memory until the end. A group of at least 8√n of n
    # rows keeps both small where columns are many. Dictionaries and bounds of distinct numbers are of no use.
    size = max(chunk_rows_for(8 * (len(names) + len(others)), n_rows), 8 * math.isqrt(n_rows))
    options = {"use_dictionary": ["label"], "write_statistics": ["row", "label"]}
    waiting, columns_of = list[Any](), _numbering(files)  # tables wait until they fill a group

    with ParquetWriter(stream, schema, **options) as writer:

        def flush() -> None:
            writer.write_table(pyarrow.concat_tables(waiting))
            waiting.clear()

        def write(label: NDArray[Any], decision: NDArray[np.float64], others: Sequence[NDArray[Any]] = ()) -> None:
            columns = [pyarrow.array(column) for column in columns_of(label, decision, others)]
            waiting.append(pyarrow.Table.from_arrays(columns, schema=schema))
            if sum(map(len, waiting)) >= size:
                flush()

        yield write
        if waiting:
            flush()
