"""Tables as batches of columns, read front to back by Arrow: text or parquet; one file or several.

A batch is bounded by bytes, however many columns there are. Rows and columns count from 0, lines from 1.

A `TableLayout` says which column is input, target, weights and groups. Columns of a text without a header are called
f0, f1, … . A model finds its columns by name; by place where it was trained on arrays without names.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import BufferedReader, TextIOWrapper
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from pyarrow import compute, types

from features.cell_text import is_number
from features.errors import DataError, MissingInputError, UsageError
from features.input_files import is_parquet, open_plain, open_unpacked, suffix_of, table_files
from features.source import Columns, SourceSpec
from features.words import counted, drop_setting, has_controls, normal_name, shown, title_of

SEPARATORS = ",;\t"
TARGET_NAMES = ("y", "target", "label")
# Columns of parquet may have these types of Arrow, or dictionaries of such values.
PARQUET_TYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "numbers"),
    **dict.fromkeys(("halffloat", "float", "double"), "numbers"),
    **dict.fromkeys(("decimal32", "decimal64", "decimal128", "decimal256", "bool"), "numbers"),
    **dict.fromkeys(("date32", "date64", "timestamp"), "dates"),
    **dict.fromkeys(("string", "large_string", "string_view"), "words"),
    "null": "gaps",
}
BLOCK_BYTES = 1 << 20  # A block of text is at least this large.
COLUMN_BLOCK_BYTES = 1 << 10  # A block of text has at least this for each column.
COLUMN_BYTES = 24 << 10  # Arrow takes this for each column of a text, however short a block is; measured.
BATCH_BYTES = 4 << 20
LEAST_BATCH_ROWS, MOST_BATCH_ROWS = 1 << 10, 1 << 14
BUFFER_BYTES = 1 << 20  # Columns of parquet are read in such pieces, rather than a whole row group at once.
PAGE_BYTES = 1 << 20  # A page of a parquet column is about this large.
MOST_LINE_BYTES = 1 << 20  # The line of names and the one below it are no longer.
MOST_CELL_CHARACTERS = 1 << 30  # No block has as many; the limit that Python's csv sets itself is lower.
MOST_ROWS_READ_AGAIN = 100_000  # No more rows are read again to find the line of one.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # Pandas calls an index without a name so, in parquet.
_NO_NAME = re.compile(r"(Unnamed: \d+(\.\d+)*)?")  # A csv that pandas has read and written again has such titles.
_DECIMAL_COMMA = r"^(\s*[+-]?[0-9]*),([0-9]+([eE][+-]?[0-9]+)?\s*)$"
_WITH_POINT = r"^\s*[+-]?([0-9]+\.|[0-9]*\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?)\s*$"


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of one file: columns by place, those asked for, as Arrow arrays of texts, numbers or dates."""

    path: Path
    start: int  # the first row in its file
    n_rows: int
    columns: Mapping[int, "pyarrow.Array"]
    line_of: Callable[[int], int] | None = None  # returns the line of a row of the file; None: it has no lines

    def place(self, row: int) -> str:
        """Return the line of a row in words; the row itself in a file without lines, or far from its beginning."""
        line_of, row = self.line_of, self.start + row
        return f"row {row}" if line_of is None or row > MOST_ROWS_READ_AGAIN else f"line {line_of(row)}"

    def where(self, row: int) -> str:
        """Return the file and the line of a row of the batch, in words."""
        return f"{self.path}: {self.place(row)}"


class CsvFile:
    """Lines of cells that commas, semicolons or tabs separate, see `_separator_of`.

    header: whether the first line that is not blank holds the names of the columns; None: unless it has only numbers.
    decimal: the decimal mark of numbers, a point or a comma; numbers with the other one are refused.
    """

    index_columns: Sequence[str] = ()  # a text names none

    def __init__(self, path: Path, *, header: bool | None, decimal: str = ".") -> None:
        self.path, self._header, self.decimal = path, header, decimal

    def names(self) -> list[str]:
        """Return the names of the columns, f0, f1, … where there is no header."""
        cells = self._first[1]
        return [normal_name(cell) if self._header else f"f{place}" for place, cell in enumerate(cells)]

    @property
    def separator(self) -> str:
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[str, list[str]]:
        """The separator and the cells of the first line."""
        with open_unpacked(self.path) as stream:
            lines = list(islice(self._lines(stream, MOST_LINE_BYTES), 2))
        if not lines:
            raise DataError(f"{self.path}: is empty; rows of numbers are needed")
        if lines[0].lower().startswith("sep="):
            raise DataError(f"{self.path}: its first line, {lines[0].strip()!r:.60}, is a note for Excel; take it out")
        separator = "\t" if suffix_of(self.path) == ".tsv" else _separator_of(self.path, lines)
        try:
            (cells,) = csv.reader(lines[:1], delimiter=separator, strict=True)
        except csv.Error as error:
            fault = f"its first line is not text separated by {separator!r} ({error})"
            raise DataError(f"{self.path}: {fault}; end quotes on it, and lines with a line feed") from error
        are_numbers = all(map(is_number, cells))
        if self._header is None:
            self._header = not are_numbers
        if self._header and are_numbers:
            fault = f"its first line holds numbers ({separator.join(cells)[:40]}), no names"
            remedy = "put the names of the columns above it, or train with `data.header=false`"
            raise DataError(f"{self.path}: {fault}; {remedy}")
        return separator, cells

    def _lines(self, stream: BufferedReader, most_bytes: int) -> Iterator[str]:
        """Yield the lines of a stream that are not blank. Raises DataError for one that is too long, or no text."""
        for number, line in enumerate(iter(lambda: stream.readline(most_bytes), b""), 1):
            if len(line) == most_bytes:
                remedy = "end lines with a line feed (dos2unix -c mac)" if b"\r" in line else "leave long texts out"
                raise DataError(f"{self.path}: line {number} has over {most_bytes} bytes; {remedy}")
            try:
                text = line.removeprefix(_BYTE_ORDER_MARK).decode()
            except UnicodeDecodeError as error:
                fault = f"line {number} is not UTF-8 text ({error.reason} at byte {error.start} of it)"
                remedy = (
                    "save it as UTF-8 (iconv -f ENCODING -t UTF-8), an Excel sheet as csv, a packed file as .gz or .zst"
                )
                raise DataError(f"{self.path}: {fault}; {remedy}") from error
            if text.strip():
                yield text

    def count_rows(self) -> int:
        return sum(batch.n_rows for batch in self.batches((0,)))

    def reading_bytes(self) -> int:
        """Return how many bytes reading its rows takes: texts, numbers and blocks that are read ahead."""
        return 45 * self._block_bytes + COLUMN_BYTES * len(self._first[1])

    @property
    def _block_bytes(self) -> int:
        return max(BLOCK_BYTES, COLUMN_BLOCK_BYTES * len(self._first[1]))

    def batches(self, places: Collection[int]) -> Iterator[Batch]:
        """Yield the rows with the cells at some places as texts, null where they are empty.

        A blank line is no row, unless there is one column: there it is a missing cell. Raises DataError naming a line
        that cannot be read, has not as many cells as the first one, or has nothing but separators.
        """
        separator, cells = self._first
        names = [str(place) for place in range(len(cells))]
        start, empty, end = 0, list[int](), list[bytes | None]()
        with open_unpacked(self.path) as stream:
            if self._header:
                next(self._lines(stream, MOST_LINE_BYTES))
            try:
                with pyarrow.csv.open_csv(
                    pyarrow.PythonFile(stream, mode="r"),
                    pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=self._block_bytes),
                    pyarrow.csv.ParseOptions(
                        delimiter=separator,
                        newlines_in_values=True,
                        ignore_empty_lines=len(cells) > 1,
                        invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
                    ),
                    pyarrow.csv.ConvertOptions(
                        column_types={
                            name: pyarrow.string() if place in places else pyarrow.binary()
                            for place, name in enumerate(names)
                        },
                        null_values=[""],
                        strings_can_be_null=True,
                    ),
                ) as reader:
                    for read in reader:
                        empty += [start + row for row in _rows_without_cells(read)]
                        columns = {place: self._cells(read.column(str(place)), place, start) for place in places}
                        if not empty:
                            yield Batch(self.path, start, read.num_rows, columns, self._line_of)
                        start += read.num_rows
                        end = read.columns[-1].slice(max(read.num_rows - 1, 0)).cast("binary").to_pylist()
            except pyarrow.ArrowException as error:
                if "Empty CSV file" in str(error):
                    return
                raise self._damage(" ".join(str(error).split()), start) from None
        if empty:
            more = f" and {len(empty) - 1} more have" if len(empty) > 1 else " has"
            raise DataError(f"{self.path}: line {self._line_of(empty[0])}{more} no cell; delete such lines")
        if any(b"\n" in (cell or b"") for cell in end):  # Arrow takes all that follows a lone quote for the last cell.
            ((_, cells),) = deque(self._every_row('"'), maxlen=1)
            if cells != [""]:  # The added quote is a row of its own where all others end.
                raise DataError(f"{self.path}: row {start - 1}: the quotes of its last cell do not end; mend them")

    def _cells(self, cells: "pyarrow.Array", place: int, start: int) -> "pyarrow.Array":
        """Return the cells of a column with points for decimal commas; `start` is their first row."""
        if self.decimal == ".":
            return cells
        wrong = compute.index(compute.match_substring_regex(cells, _WITH_POINT), value=True).as_py()
        if wrong >= 0:
            where = f"line {self._line_of(start + wrong)}, column {title_of(self.names()[place], place)}"
            fault = f"{where} is {cells[wrong].as_py()[:40]!r}, where decimals have commas"
            raise DataError(f"{self.path}: {fault}; take points between thousands out, and write all decimals alike")
        return compute.replace_substring_regex(cells, _DECIMAL_COMMA, r"\1.\2")

    def _every_row(self, *behind: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the line on which each row ends, which Arrow does not tell, and its cells; `behind`: more lines."""
        csv.field_size_limit(MOST_CELL_CHARACTERS)
        with open_unpacked(self.path) as stream, TextIOWrapper(stream, errors="replace", newline="") as text:
            rows = csv.reader(chain(text, behind), delimiter=self.separator)
            for cells in rows:
                yield rows.line_num, cells

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows below the names; a blank line is one only where there is one column."""
        rows = self._every_row()
        filled = ((line, cells) for line, cells in rows if len(cells) > 1 or any(map(str.strip, cells)))
        if self._header:
            next(filled)
        yield from filled if len(self._first[1]) > 1 else rows

    def _line_of(self, row: int) -> int:
        """Return the line on which a row of the file ends; reads the file up to there."""
        last = deque(islice(self._rows(), row + 1), maxlen=1)
        return last[0][0]

    def _damage(self, words: str, start: int) -> DataError:
        """Return the error of a file, from Arrow's words on it after a row."""
        with open_unpacked(self.path) as stream, suppress(csv.Error):
            lines = self._lines(stream, max(MOST_LINE_BYTES, self._block_bytes))
            deque(lines, maxlen=0)  # Arrow names no line that is no text.
            n_columns = len(self._first[1])
            for line, cells in self._rows():
                if len(cells) != n_columns and n_columns > 1:
                    return DataError(f"{self.path}: line {line} has {len(cells)} cells, expected {n_columns}")
        if "straddling" in words:
            words = f"a line, or a cell in quotes, does not fit into {self._block_bytes} bytes"
        return DataError(f"{self.path}: cannot be read after row {start} ({words[:120]})")


def _rows_without_cells(read: "pyarrow.RecordBatch") -> list[int]:
    """Return the rows of several columns that have nothing but blanks in them."""
    rows = pyarrow.array(np.arange(read.num_rows if read.num_columns > 1 else 0))
    for column in read.columns:
        if not len(rows):
            break
        rows = rows.filter(compute.match_substring_regex(column.take(rows), r"^\s*$").fill_null(True))
    return rows.to_pylist()


def _separator_of(path: Path, lines: Sequence[str]) -> str:
    """Return the separator that both lines have equally often outside of quotes, else the first line's most frequent.

    A line of numbers is split by the separator that leaves numbers. Raises DataError where two are equally frequent.
    """
    between_numbers = [sign for sign in ";\t" if sign in lines[0] and all(map(is_number, lines[0].split(sign)))]
    first, second = (Counter(re.sub(r'"[^"]*"', "", line)) for line in (lines[0], lines[-1]))
    if between_numbers:
        return between_numbers[0]
    both = [sign for sign in SEPARATORS if len(lines) > 1 and 0 < first[sign] == second[sign]]
    if len(both) > 1:
        found = " or ".join(map(repr, both))
        raise DataError(f"{path}: cells may be separated by {found}; put names and cells with one of them in quotes")
    return max(both or SEPARATORS, key=first.__getitem__)


class ParquetFile:
    """A file whose footer has the names and types of its columns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        return [normal_name(name) for name in self._facts[0].names]

    @property
    def index_columns(self) -> Sequence[str]:
        """The columns that pandas calls the index, by their names; none where its note cannot be read."""
        try:
            listed = (self._facts[0].pandas_metadata or {})["index_columns"]
            return [name for name in listed if isinstance(name, str)]  # Ranges are no columns.
        except (KeyError, TypeError, ValueError):
            return ()

    def count_rows(self) -> int:
        return self._facts[1]

    def reading_bytes(self) -> int:
        """Return how many bytes reading its rows takes: some pages of each column of a row group, packed and not."""
        pages = min(self._facts[2], len(self._facts[0]) * PAGE_BYTES)
        return 32 * BLOCK_BYTES + int(3.5 * pages)

    @cached_property
    def _facts(self) -> tuple["pyarrow.Schema", int, int]:
        """Schema, number of rows, and bytes of the largest row group; Arrow crashes over some facts of columns."""
        with _opened(self.path) as file:
            groups = (file.metadata.row_group(k) for k in range(file.num_row_groups))
            return file.schema_arrow, file.metadata.num_rows, max((one.total_byte_size for one in groups), default=0)

    def batches(self, places: Collection[int]) -> Iterator[Batch]:
        """Yield the rows with the columns at some places.

        Raises DataError where the file is damaged, or one of these columns has values that are neither numbers, words
        nor dates.
        """
        (schema, n_rows, _), start = self._facts, 0
        _check_types(self.path, schema, places)
        if not places:
            yield Batch(self.path, 0, n_rows, {})
            return
        read = sorted(places)
        names = [schema.names[place] for place in read]
        span = max(min(MOST_BATCH_ROWS, BATCH_BYTES // (8 * len(read))), LEAST_BATCH_ROWS)
        with _opened(self.path) as file:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(span, row_groups=[group], columns=names, use_threads=False):
                    columns = dict[int, pyarrow.Array]()
                    for place, name in zip(read, names, strict=True):  # Arrow adds the field u of a to a column a.u.
                        column = batch.column(batch.schema.get_field_index(name))
                        columns[place] = column.cast("string") if types.is_string_view(column.type) else column
                        try:
                            column.validate(full=True)
                        except pyarrow.ArrowException:
                            fault = f"column {name} holds text that is not UTF-8, at row {start} or below"
                            remedy = f"mend it, or leave the column out ({drop_setting(name)})"
                            raise DataError(f"{self.path}: {fault}; {remedy}") from None
                    yield Batch(self.path, start, batch.num_rows, columns)
                    start += batch.num_rows


@contextmanager
def _opened(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Open a file; its faults become DataError, also while it is read."""
    with open_plain(path) as stream:
        try:
            yield pyarrow.parquet.ParquetFile(stream, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
        except (DataError, GeneratorExit):
            raise
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            raise DataError(f"{path}: not a readable parquet file ({' '.join(str(error).split())[:120]})") from error


def _check_types(path: Path, schema: "pyarrow.Schema", places: Collection[int]) -> None:
    """Raise DataError naming the columns at some places whose type is none of `PARQUET_TYPES`."""
    held = {schema.names[k]: schema.types[k] for k in places}
    values = {name: of.value_type if types.is_dictionary(of) else of for name, of in held.items()}
    wrong = [name for name, of in values.items() if re.split(r"\W", str(of))[0] not in PARQUET_TYPES]
    if wrong:
        told = shown(f"{name} ({str(held[name])[:60]})" for name in wrong)
        fault = f"columns that hold neither numbers, words nor dates: {told}"
        remedy = "cast them to numbers or words (structs: pyarrow.Table.flatten)"
        raise DataError(f"{path}: {fault}; {remedy}, or leave them out ({drop_setting(*wrong)})")


TablePart = CsvFile | ParquetFile  # One file of a table.


@dataclass(frozen=True, eq=False)
class Table:
    """Files with the same columns."""

    path: Path
    parts: Sequence[TablePart]

    @classmethod
    def in_files(cls, path: Path, *, header: bool | None = True, decimal: str = ".") -> "Table":
        """Return the table in a file, or in those of a folder in the order of their names; see `CsvFile`."""
        files = table_files(path)
        if not files:
            raise MissingInputError(f"{path}: no such file, or a folder without tables")
        if is_parquet(files[0]):
            return cls(path, [*map(ParquetFile, files)])
        return cls(path, [CsvFile(file, header=header, decimal=decimal) for file in files])

    @cached_property
    def names(self) -> list[str]:
        """Names of all columns. Raises DataError where there are none, two are alike, or one has control characters."""
        names, path = self.parts[0].names(), self.parts[0].path
        if not names:
            raise DataError(f"{path}: has no columns; inputs and a target are needed")
        twice = next((name for name, n in Counter(names).items() if n > 1), None)
        if twice is not None:
            places = " and ".join(str(place) for place, name in enumerate(names) if name == twice)
            fault = f"are called {twice!r}, blanks and Unicode forms aside" if twice else "have no name"
            remedy = "give each its own name, or delete it (or a title above the names)"
            raise DataError(f"{path}: columns {places} {fault}; {remedy}")
        if unreadable := next(filter(has_controls, names), None):
            raise DataError(f"{path}: the name of a column has control characters ({unreadable!r:.60}); rename it")
        return names

    @cached_property
    def index(self) -> frozenset[int]:
        """Columns that are the index of a pandas frame, or are called like one; they are read only if asked for."""
        known = set(map(normal_name, self.parts[0].index_columns))
        names = enumerate(self.names)
        return frozenset(place for place, name in names if name in known or _PANDAS_INDEX.fullmatch(name))

    @cached_property
    def nameless(self) -> frozenset[int]:
        """Columns without a name, such as the index of a frame in a csv; a model needs none unless it is asked for."""
        return frozenset(place for place, name in enumerate(self.names) if _NO_NAME.fullmatch(name))

    def count_rows(self) -> int:
        return sum(part.count_rows() for part in self.parts)

    def files_told(self) -> str:
        """Return the number of files of a folder in words; an empty text for a single file."""
        return counted(len(self.parts), "file") if self.path.is_dir() else ""

    def batches(self, places: Collection[int]) -> Iterator[Batch]:
        """Yield the rows of all files with the columns at some places. Raises DataError naming a file unlike others."""
        first = self.parts[0]
        for part in self.parts:
            if part.names() != first.names():
                told = f"its columns are not those of {first.path.name}"
                raise DataError(f"{part.path}: {told}; give the same names in one order")
            yield from part.batches(places)


@dataclass(frozen=True)
class TableLayout:
    """Names of all columns of a table, and the places of those that are read; inputs: in the model's order."""

    names: tuple[str, ...]
    inputs: tuple[int, ...]
    target: int | None = None
    weights: int | None = None
    groups: int | None = None

    @property
    def input_names(self) -> list[str]:
        return [self.names[place] for place in self.inputs]

    def without(self, left_out: Collection[int]) -> "TableLayout":
        """Return the layout without some of the inputs, by their places among these."""
        return replace(self, inputs=tuple(place for k, place in enumerate(self.inputs) if k not in left_out))

    def title(self, place: int) -> str:
        return title_of(self.names[place], place)


def training_layout(spec: SourceSpec, table: Table) -> tuple[TableLayout, Columns]:
    """Return the layout of a table to train on, and the columns of the model.

    The target is the column that `spec.target` names, else one called y, target or label, else the last. Raises
    DataError where there are no inputs, UsageError where a column that is asked for is none.
    """
    path, names = table.path, table.names
    asked = {"weights": spec.weights, "groups": spec.groups}
    others = {what: named_column(table, name, what) for what, name in asked.items() if name is not None}
    target = target_column(table, spec.target, others.values())
    roles = {"target": target, **others}
    for place in roles.values():
        both = [role for role, of_role in roles.items() if of_role == place]
        if len(both) > 1:
            raise UsageError(f"{path}: column {names[place]} is both {' and '.join(both)}; name another one")
    places = _input_places(spec, table, roles)
    if not places:
        told = f"has no inputs beside its {' and '.join(roles)}; its columns are {shown(map(repr, names)):.300}"
        index = shown(names[place] for place in sorted(table.index))
        told += f" (the index of a frame: {index})" if table.index else ""
        raise DataError(f"{path}: {told}; cells are separated by commas, semicolons or tabs, below a line of names")
    columns = Columns(
        inputs=tuple(names[place] for place in places),
        target=names[target],
        header=spec.header,
        decimal=spec.decimal,
        weights=names[others["weights"]] if "weights" in others else None,
        groups=names[others["groups"]] if "groups" in others else None,
    )
    return TableLayout(tuple(names), tuple(places), target, **others), columns


def _input_places(spec: SourceSpec, table: Table, roles: Mapping[str, int]) -> list[int]:
    """Return the places of the inputs in their order in the file: all but an index, or those that are asked for."""
    names, key = table.names, "`data.drop`" if spec.columns is None else "`data.columns`"
    if spec.columns is not None and spec.drop is not None:
        raise UsageError("`data.columns` and `data.drop`: name the inputs, or what is none; leave one of them out")
    asked = [normal_name(name) for name in spec.columns or spec.drop or ()]
    for name in asked:
        if name not in names:
            raise UsageError(f"{key}: {name!r} is no column of {table.path}, which has {', '.join(names)[:400]}")
        if role := next((role for role, place in roles.items() if names[place] == name), None):
            raise UsageError(f"{key}: {name!r} is the {role}; leave it out, or name another column for that")
    free = [place for place in range(len(names)) if place not in roles.values()]
    if spec.columns is not None:
        return [place for place in free if names[place] in asked]
    places = [place for place in free if place not in table.index and names[place] not in asked]
    if asked and not places:
        raise UsageError(f"{key}: leaves no input of {table.path}")
    return places


def target_column(table: Table, asked: str | None, but: Collection[int] = ()) -> int:
    """Return the target's column: the one asked for, else one with a usual name, else the last one not in `but`.

    An index, or a column without a name, is taken only if asked for. Raises UsageError where `asked` names no column.
    """
    if asked is not None:
        return named_column(table, asked, "target")
    names = table.names
    places = [place for place in range(len(names)) if place not in table.index | table.nameless]
    last = max((place for place in places if place not in but), default=len(names) - 1)
    return next((place for name in TARGET_NAMES for place in places if names[place] == name), last)


def named_column(table: Table, asked: str, what: str) -> int:
    """Return the column of a name, or of a position: from 0, or negative from the end, not counting an index.

    what: its role, for errors. Raises UsageError where there is no such column.
    """
    names, path = table.names, table.path
    if normal_name(asked) in names:
        return names.index(normal_name(asked))
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", asked.strip()):
        raise UsageError(f"{what} {asked!r} is no column of {path}, which has columns {', '.join(names)[:400]}")
    places = [place for place in range(len(names)) if place not in table.index]
    if not -len(places) <= int(asked) < len(places):
        raise UsageError(f"{what} {asked} is no column of {path}; it has columns 0 to {len(places) - 1}")
    return places[int(asked)]


def model_layout(table: Table, asked: str | None, columns: Columns, n_inputs: int, *, labelled: bool) -> TableLayout:
    """Return the layout of a table as a model reads it.

    columns : those of the table trained on, n_inputs of them inputs; asked: the target, None as in training
    labelled : whether labels are needed

    Raises DataError where columns are missing, or too many without names, UsageError where `asked` names none.
    """
    path, names, others = table.path, table.names, table.index | table.nameless
    target = None if asked is None else named_column(table, asked, "target")
    weights, groups = (names.index(name) if name in names else None for name in (columns.weights, columns.groups))
    if columns.inputs:
        wanted = [normal_name(name) for name in columns.inputs]
        if missing := [name for name in wanted if name not in names]:
            told = f"lacks {shown(map(repr, missing))} of the training file, and has {shown(map(repr, names))}"
            raise DataError(f"{path}: {told}; give the columns of the training file by their names")
        inputs = [names.index(name) for name in wanted]
        if asked is None and columns.target in names:
            target = names.index(columns.target)
        unknown = set(range(len(names))) - {*inputs, target, weights, groups, *others}
        if target is None and columns.target is None and len(unknown) == 1:  # An estimator knows no target's name.
            (target,) = unknown
    else:
        every = [place for place in range(len(names)) if place not in others or place == target]
        if target is None and len(every) == n_inputs + 1:
            target = target_column(table, None)
        inputs = [place for place in every if place != target]
        if len(inputs) != n_inputs:
            raise DataError(f"{path}: has {len(every)} columns, the model wants {n_inputs} inputs")
    if labelled and target is None:
        told = "" if columns.target is None else f" {columns.target!r}"
        raise DataError(f"{path}: has no target column{told}; name the one to compare with (--target NAME)")
    return TableLayout(tuple(names), tuple(inputs), target, weights, groups)
