"""A table in one file, in many, or in memory: its names and its rows by batches, in the order of the files."""

import ctypes
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from features.cell_text import cell_text
from features.csv_files import CsvFile
from features.errors import DataError
from features.parquet_files import ParquetFile
from features.table_batches import Batch, TablePart
from features.table_paths import existing_files, is_parquet, partitions_of

FRAME_ROWS = 1 << 14  # of a batch of a table in memory
_INDEX = "__index_level_"  # begins what Arrow calls an index of pandas


class MixedColumnError(DataError):
    """A table in memory has a column of values that no type of Arrow has, such as numbers and words."""


class ArrowPart:
    """A table in memory, by Arrow's interface: of pandas, polars, pyarrow or others."""

    has_names = True

    def __init__(self, frame: Any, called: str) -> None:
        self.path = Path(called)
        try:
            table = pyarrow.table(frame)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            words = " ".join(str(error).split())[:120]
            raise MixedColumnError(f"{called}: cannot be read as a table ({words})") from error
        fields = [_readable(field) for field in table.schema if not field.name.startswith(_INDEX)]
        self.table = table.select([field.name for field in fields]).cast(pyarrow.schema(fields))

    def first_line(self) -> tuple[int, list[str]]:
        """Return 1 and the names of the columns."""
        return 1, self.table.column_names

    def count_rows(self) -> int:
        """Return the number of rows."""
        return int(self.table.num_rows)

    def batches(self, places: Collection[int], *, header: bool = True) -> Iterator[Batch]:
        """Yield the rows with the columns at some places."""
        places, start = sorted(places), 0
        if not places:
            yield Batch(self.path, 0, self.count_rows(), {})
            return
        for batch in self.table.select(places).to_batches(FRAME_ROWS):
            yield Batch(self.path, start, batch.num_rows, dict(zip(places, batch.columns, strict=True)))
            start += batch.num_rows


def _readable(field: "pyarrow.Field") -> "pyarrow.Field":
    """Return a field of a type that Arrow's functions take: not all take views of texts, as polars has them."""
    return field.with_type(pyarrow.large_string()) if pyarrow.types.is_string_view(field.type) else field


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

    def write_parquet(self, path: Path) -> None:
        """Write a table in memory. Raises OSError."""
        for part, _ in self.parts:
            assert isinstance(part, ArrowPart)
            pyarrow.parquet.write_table(part.table, path, row_group_size=1 << 17)

    @property
    def has_names(self) -> bool:
        """Whether the files say what their columns are called, so that no line has to be a header."""
        return self.parts[0][0].has_names

    def first_line(self) -> tuple[int, list[str]]:
        """Return the number of the first line, and its cells, which may be names; (0, []) for an empty file."""
        line, cells = self.parts[0][0].first_line()
        return line, [*cells, *self.partitioned] if cells else []

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells) of the first file, if it has lines."""
        first = self.parts[0][0]
        return first.lines() if isinstance(first, CsvFile) else iter(())

    def count_rows(self, *, header: bool) -> int:
        """Return the number of rows of all files; `header`: whether the first line of each is none."""
        counts = [part.count_rows() - (header and not part.has_names) for part, _ in self.parts]
        return sum(max(count, 0) for count in counts)

    def batches(self, places: Collection[int], *, header: bool) -> Iterator[Batch]:
        """Yield the rows of all files with the columns at some places. Raises DataError naming a file unlike others."""
        names = [name.strip() for name in self.parts[0][0].first_line()[1]]
        own = {place for place in places if place < len(names)}
        for number, (part, values) in enumerate(self.parts):
            if number and not self._is_alike(part, names, header=header):
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

    def _is_alike(self, part: TablePart, names: list[str], *, header: bool) -> bool:
        """Return whether a further file has lines. Raises DataError where its columns are not those of the first."""
        line, cells = part.first_line()
        if not line:
            return False
        first = self.parts[0][0].path
        if header and [cell.strip() for cell in cells] != names:
            raise DataError(f"{part.path}: its columns are not those of {first.name}; give the same names in one order")
        if len(cells) != len(names):
            raise DataError(f"{part.path}: has {len(cells)} columns, {first.name} has {len(names)}")
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
    """Return objects (n, columns) as a table of texts, as a csv would have them."""
    columns = [pyarrow.array([cell_text(cell) for cell in column], pyarrow.string()) for column in cells.T]
    return pyarrow.Table.from_arrays(columns, list(names))
