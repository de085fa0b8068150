"""Parquet files as batches of columns, read a row group at a time by Arrow.

What the file promises is compared with its size before it is read: a footer may say anything.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pyarrow
from pyarrow import ArrowException, compute, types
from pyarrow.parquet import ParquetFile as ArrowFile

from features.column_names import drop_setting
from features.errors import DataError
from features.input_files import ALWAYS_ALLOWED_BYTES, check_promise, open_plain
from features.table_batches import Batch

BATCH_ROWS = 1 << 14
BUFFER_BYTES = 1 << 20  # read of a column at once, in place of all that a row group has of it
MOST_TEXT_BYTES = ALWAYS_ALLOWED_BYTES // BATCH_ROWS  # of a cell: all of a batch may be as long
MOST_COLUMNS = 10_000  # what Arrow keeps of each column of a row group adds up


class ParquetFile:
    """A file whose footer has the names and types of its columns."""

    has_names = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def first_line(self) -> tuple[int, list[str]]:
        """Return 1 and the names of the columns. Raises DataError where the file is damaged, or two have one name."""
        return 1, [str(name) for name in self._facts[0].names]

    @property
    def kinds(self) -> list[str | None]:
        """What each column holds: see `kind_of`."""
        return [kind_of(of) for of in self._facts[0].types]

    def count_rows(self) -> int:
        """Return the number of rows that the footer promises."""
        return self._facts[1]

    @cached_property
    def _facts(self) -> tuple["pyarrow.Schema", int]:
        """Schema and number of rows, checked."""
        with _opened(self.path) as file:
            _check_sizes(self.path, file)
            return file.schema_arrow, file.metadata.num_rows

    def batches(self, places: Collection[int], *, header: bool = True) -> Iterator[Batch]:
        """Yield the rows with the columns at some places.

        Raises DataError where the file is damaged, promises more than its size makes believable, or one of these
        columns has values that are neither numbers, words nor dates.
        """
        schema, n_rows = self._facts
        places, start = sorted(places), 0
        check_types(self.path, schema, places)
        if not places:
            yield Batch(self.path, 0, n_rows, {})
            return
        names = [schema.names[place] for place in places]
        if len(set(schema.names)) < len(schema.names):
            raise DataError(f"{self.path}: two of its columns have one name; give each its own")
        with _opened(self.path) as file:
            most = max(min(BATCH_ROWS, ALWAYS_ALLOWED_BYTES // (16 * len(places))), 1)
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(most, row_groups=[group], columns=names, use_threads=False):
                    columns = dict(zip(places, batch.columns, strict=True))
                    for place, column in columns.items():
                        check_texts(self.path, schema.names[place], column, start)
                    yield Batch(self.path, start, batch.num_rows, columns)
                    start += batch.num_rows


@contextmanager
def _opened(path: Path) -> Iterator[ArrowFile]:
    """Open a file; what is wrong with it, also while it is read, becomes DataError."""
    with open_plain(path) as stream:
        try:
            yield ArrowFile(stream, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
        except (DataError, GeneratorExit):
            raise
        except (ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            words = " ".join(str(error).split())[:120]
            raise DataError(f"{path}: not a readable parquet file ({words})") from error


def _check_sizes(path: Path, file: ArrowFile) -> None:
    """Raise DataError where the footer promises too many columns or rows, or more than the size makes plausible.

    The footer alone is read. What it says of each column is left: Arrow ends the process over some that are damaged.
    """
    metadata = file.metadata
    if len(file.schema_arrow.names) > MOST_COLUMNS:
        raise DataError(f"{path}: has more than {MOST_COLUMNS} columns; save those that are needed")
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    n_rows = sum(group.num_rows for group in groups)
    if n_rows != metadata.num_rows:
        raise DataError(f"{path}: promises {metadata.num_rows} rows, its row groups have {n_rows}")
    check_promise(path, max(sum(group.total_byte_size for group in groups), n_rows * metadata.num_columns))


def check_types(path: Path, schema: "pyarrow.Schema", places: Collection[int]) -> None:
    """Raise DataError where a column that is read holds neither numbers, words nor dates."""
    for place in places:
        field = schema.field(place)
        if kind_of(field.type) is None:
            raise DataError(
                f"{path}: column {field.name} holds {str(field.type)[:60]}; numbers, words or dates are needed: leave "
                f"it out ({drop_setting(field.name)})"
            )


def holds_words(kind: "pyarrow.DataType") -> bool:
    """Return whether values of a type are texts."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def check_texts(path: Path, name: str, column: "pyarrow.Array", start: int) -> None:
    """Raise DataError where a column of words, from a row on, has no UTF-8, or a text too long for a whole batch."""
    texts = column.dictionary if types.is_dictionary(column.type) else column
    if not holds_words(texts.type) or types.is_string_view(texts.type):
        return
    longest = compute.max(compute.binary_length(texts)).as_py() or 0
    if longest > MOST_TEXT_BYTES:
        raise DataError(f"{path}: column {name} has a text of {longest} bytes; leave it out ({drop_setting(name)})")
    try:
        texts.validate(full=True)
    except ArrowException:
        row = start + next((row for row, cell in enumerate(column) if not _is_utf8(cell)), 0)
        fault = f"row {row}, column {name} holds no UTF-8 text"
        raise DataError(f"{path}: {fault}; mend the file, or leave it out ({drop_setting(name)})") from None


def _is_utf8(cell: "pyarrow.Scalar") -> bool:
    try:
        cell.as_py()
    except UnicodeDecodeError:
        return False
    return True


def kind_of(of: "pyarrow.DataType") -> str | None:
    """Return whether a column of a type holds numbers, words, dates, nothing but gaps, or else: None."""
    kind = of.value_type if types.is_dictionary(of) else of
    if any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)):
        return "numbers"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "dates"
    return "gaps" if types.is_null(kind) else "words" if holds_words(kind) else None
