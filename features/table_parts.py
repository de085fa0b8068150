"""A table in one file, in many, or in memory: its names and its rows by batches, in the order of the files."""

import ctypes
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from pyarrow import types

from features.cell_text import cell_text
from features.csv_files import CsvFile
from features.errors import DataError
from features.parquet_files import ParquetFile, check_texts, check_types
from features.table_batches import Batch, TablePart
from features.table_paths import existing_files, is_parquet, partitions_of

FRAME_ROWS = 1 << 14  # of a batch of a table in memory
_UNREADABLE = (pyarrow.ArrowException, TypeError, ValueError)  # what Arrow says of a table that it cannot read


class MixedColumnError(DataError):
    """A table in memory has a column of values that no type of Arrow has, such as numbers and words."""


class ArrowPart:
    """A table in memory, by Arrow's interface: of pandas, polars, pyarrow or others."""

    has_names = True

    def __init__(self, frame: Any, called: str) -> None:
        self.path = Path(called)
        try:
            self._table = pyarrow.table(frame.reset_index(drop=True) if hasattr(frame, "reset_index") else frame)
        except _UNREADABLE as error:
            words = " ".join(str(error).split())[:120]
            raise MixedColumnError(f"{called}: cannot be read as a table ({words})") from error
        for place, column in enumerate(self._table.columns):  # as polars has them, which parquet has not
            kind = column.type
            if types.is_dictionary(kind) and types.is_string_view(kind.value_type):
                column = column.cast(pyarrow.dictionary(kind.index_type, pyarrow.string()))
                self._table = self._table.set_column(place, self._table.field(place).with_type(column.type), column)

    def write_parquet(self, path: Path) -> None:
        """Write the table to a file. Raises OSError."""
        pyarrow.parquet.write_table(self._table, path, row_group_size=1 << 17)

    def first_line(self) -> tuple[int, list[str]]:
        """Return 1 and the names of the columns."""
        return 1, self._table.column_names

    def count_rows(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def batches(self, places: Collection[int], *, header: bool = True) -> Iterator[Batch]:
        """Yield the rows with the columns at some places."""
        for start in range(0, self.count_rows(), FRAME_ROWS):
            yield self.rows(start, min(start + FRAME_ROWS, self.count_rows()), sorted(places))

    def rows(self, start: int, stop: int, places: Sequence[int]) -> Batch:
        """Return some rows with the columns at some places."""
        check_types(self.path, self._table.schema, places)
        part = self._table.select(places).slice(start, stop - start)
        columns = [column.combine_chunks() for column in part.columns]
        columns = [column.cast("string") if types.is_string_view(column.type) else column for column in columns]
        for name, column in zip(part.column_names, columns, strict=True):
            check_texts(self.path, name, column, start)
        return Batch(self.path, start, stop - start, dict(zip(places, columns, strict=True)))


def is_frame(X: Any) -> bool:
    """Return whether X is a table in memory: columns with names, by Arrow's interface."""
    return hasattr(X, "__arrow_c_stream__") and hasattr(X, "columns")


def has_numbers_only(frame: Any) -> bool:
    """Return whether all columns of a table in memory are of numbers or truth values; also where Arrow cannot tell."""
    try:
        kinds = pyarrow.table(frame.iloc[:0] if hasattr(frame, "iloc") else frame).schema.types
    except _UNREADABLE:
        return True
    return all(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) for kind in kinds)


@dataclass(frozen=True, eq=False)
class Table:
    """Parts with the same columns, and what folders say of each: values of the `partitioned` columns, the last ones."""

    path: Path
    parts: Sequence[tuple[TablePart, tuple[str, ...]]]
    partitioned: tuple[str, ...] = ()

    @classmethod
    def in_files(cls, path: Path) -> "Table":
        """Return the table in a file, or in those of a folder or a pattern, in the order of their names.

        Raises MissingInputError where there is none, DataError where they do not go together.
        """
        parts, names = list[tuple[TablePart, tuple[str, ...]]](), tuple[str, ...]()
        for file in existing_files(path):
            values = partitions_of(file, path)
            if parts and tuple(values) != names:
                raise DataError(f"{file}: its folders name other columns than those of {parts[0][0].path}")
            names = tuple(values)
            parts.append((ParquetFile(file) if is_parquet(file) else CsvFile(file), tuple(values.values())))
        return cls(path, parts, names)

    @classmethod
    def of(cls, frame: Any, called: str) -> "Table":
        """Return a table in memory, called so in errors. Raises DataError where Arrow cannot read it."""
        return cls(Path(called), [(ArrowPart(frame, called), ())])

    @property
    def has_names(self) -> bool:
        """Whether the files say what their columns are called, so that no line has to be a header."""
        return self._first.has_names

    @cached_property
    def _first(self) -> TablePart:
        """The first file that is not empty, if one is."""
        return next((part for part, _ in self.parts if part.first_line()[0]), self.parts[0][0])

    def first_line(self) -> tuple[int, list[str]]:
        """Return the number of the first line, and its cells, which may be names; (0, []) for an empty file.

        Raises DataError where a file has a column that its folders name as well.
        """
        line, cells = self._first.first_line()
        twice = {cell.strip() for cell in cells} & set(self.partitioned)
        if twice:
            raise DataError(f"{self._first.path}: has the column {min(twice)}, which its folders name too; rename one")
        return line, [*cells, *self.partitioned] if cells else []

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells) of the first file, if it has lines."""
        return self._first.lines() if isinstance(self._first, CsvFile) else iter(())

    def count_rows(self, *, header: bool) -> int:
        """Return the number of rows of all files; `header`: whether the first line of each is none."""
        counts = [part.count_rows() - (header and not part.has_names) for part, _ in self.parts]
        return sum(max(count, 0) for count in counts)

    def batches(self, places: Collection[int], *, header: bool) -> Iterator[Batch]:
        """Yield the rows of all files with the columns at some places. Raises DataError naming a file unlike others."""
        names = [name.strip() for name in self._first.first_line()[1]]
        own = {place for place in places if place < len(names)}
        for part, values in self.parts:
            if part is not self._first and not self._is_alike(part, names, own, header=header):
                continue
            for batch in part.batches(own, header=header):
                if not self.partitioned:
                    yield batch
                    continue
                folders = {
                    len(names) + k: pyarrow.repeat(value, batch.n_rows)
                    for k, value in enumerate(values)
                    if len(names) + k in places
                }
                columns = {**batch.columns, **folders}
                yield Batch(batch.path, batch.start, batch.n_rows, columns, batch.line_of, batch.fault)

    def _is_alike(self, part: TablePart, names: list[str], places: Collection[int], *, header: bool) -> bool:
        """Return whether a further file has lines. Raises DataError where its columns are not those of the first."""
        line, cells = part.first_line()
        if not line:
            return False
        first = self._first.path
        if header and [cell.strip() for cell in cells] != names:
            raise DataError(f"{part.path}: its columns are not those of {first.name}; give the same names in one order")
        if len(cells) != len(names):
            raise DataError(f"{part.path}: has {len(cells)} columns, {first.name} has {len(names)}")
        if isinstance(part, ParquetFile) and isinstance(self._first, ParquetFile):
            for place in places:
                held, before = part.kinds[place], self._first.kinds[place]
                if held != before and "gaps" not in (held, before):
                    raise DataError(f"{part.path}: column {names[place]} holds {held}, in {first.name} {before}")
        return True


@contextmanager
def returned_memory() -> Iterator[None]:
    """Let Arrow take memory from the system, and return what is free when the block ends: its own pools keep it."""
    before = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    try:
        yield
    finally:
        pyarrow.set_memory_pool(before)
        with suppress(OSError, AttributeError):  # a system with another C library
            ctypes.CDLL(None).malloc_trim(0)


def cells_as_table(cells: np.ndarray, names: Sequence[str]) -> "pyarrow.Table":
    """Return cells (n, columns) as a table: numbers as they are, objects as the texts that a csv would have."""
    if cells.dtype.kind in "biuf":
        columns = [pyarrow.array(column) for column in cells.T]
    else:
        columns = [pyarrow.array([cell_text(cell) for cell in column], pyarrow.string()) for column in cells.T]
    return pyarrow.Table.from_arrays(columns, list(names))
