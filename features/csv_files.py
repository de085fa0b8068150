"""Tables as text, a row a line: read in blocks of lines, whose cells Arrow finds.

Cells are separated by commas, semicolons or tabs, whichever the first line has most of outside of quotes; quotes end on
their line. What Arrow does not take, or would take for something else than Python's csv, is read by that, and so are
the lines of errors. Rows count from 0, lines from 1.
"""

import csv
import re
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.csv

from features.errors import DataError
from features.input_files import open_unpacked
from features.table_batches import Batch
from features.table_paths import suffix_of

SEPARATORS = ",;\t"
BLOCK_BYTES = 4 << 20
MAX_LINE_CHARACTERS = 1 << 20
_BLANKS = b" \t\r\n\x0b\x0c"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Cells in quotes, which have two for one, or without any; a quote elsewhere is for Python to judge.
_CELLS = rb'(?:(?:"(?:[^"\r\n]|"")*+"|[^"\r\n%b]*+)(?:[\r\n%b]|\Z))*+'


class CsvFile:
    """A file of lines, read from its begin at every pass."""

    has_names = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._separator = "\t" if suffix_of(path) == ".tsv" else ""

    def first_line(self) -> tuple[int, list[str]]:
        """Return the number of the first line that is not blank, and its cells; (0, []) where there is none."""
        return next(self.lines(), (0, []))

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells) of each line that is not blank. Raises DataError naming a line that cannot be read."""
        with closing(self._blocks()) as blocks:
            for number, block in blocks:
                yield from self._read(number, block)

    def count_rows(self) -> int:
        """Return the number of lines that are not blank."""
        with closing(self._blocks()) as blocks:
            return sum(len(list(filter(bytes.strip, block.splitlines()))) for _, block in blocks)

    def batches(self, places: Collection[int], *, header: bool) -> Iterator[Batch]:
        """Yield the rows with the cells at some places as texts. Raises DataError naming a line without all cells."""
        _, first = self.first_line()
        row = 0
        with closing(self._blocks()) as blocks:
            for number, block in blocks:
                if header and block.strip(_BLANKS):
                    number, block = _without_first(number, block)
                    header = False
                batch = self._parsed(number, block, row, places, len(first))
                if batch is None:
                    batch = self._spelled_out(number, block, row, places, len(first))
                if batch.n_rows or batch.fault:
                    yield batch
                if batch.fault:
                    raise DataError(batch.fault)
                row += batch.n_rows

    def _blocks(self) -> Generator[tuple[int, bytes]]:
        """Yield (number of its first line, bytes) of blocks that end where lines do."""
        number, rest = 1, b""
        with open_unpacked(self.path) as stream:
            while piece := stream.read(BLOCK_BYTES):
                piece = piece.removeprefix(_BYTE_ORDER_MARK) if number == 1 and not rest else piece
                rest += piece
                end = max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, -1)) + 1
                if end:
                    yield number, rest[:end]
                    number, rest = number + _n_ends(rest[:end]), rest[end:]
                if len(rest) > MAX_LINE_CHARACTERS:
                    raise self._too_long(number)
        if rest:
            yield number, rest

    def _parsed(self, number: int, block: bytes, row: int, places: Collection[int], n_cells: int) -> Batch | None:
        """Return the rows of a block as Arrow reads them; None where it cannot, or reads other rows than lines."""
        if n_cells < 2 or not block.strip(_BLANKS) or block.startswith(_BYTE_ORDER_MARK):  # which Arrow leaves out
            return None
        if b'"' in block and not re.fullmatch(_CELLS.replace(b"%b", self._separator.encode()), block):
            return None
        names = [str(place) for place in range(n_cells)]
        wanted = [names[place] for place in sorted(places)] or names[:1]
        try:
            table = pyarrow.csv.read_csv(
                pyarrow.py_buffer(block),
                pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
                pyarrow.csv.ParseOptions(delimiter=self._separator),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pyarrow.string()),
                    include_columns=wanted,
                    strings_can_be_null=False,
                ),
            )
        except pyarrow.ArrowInvalid:
            return None
        n_lines = _n_ends(block) + (not block.endswith((b"\n", b"\r")))
        if table.num_rows != n_lines and table.num_rows != sum(1 for line in block.splitlines() if line.strip()):
            return None
        columns = {place: table.column(str(place)).combine_chunks() for place in places}
        return Batch(self.path, row, table.num_rows, columns, lambda of: _line(number, block, of))

    def _spelled_out(self, number: int, block: bytes, row: int, places: Collection[int], n_cells: int) -> Batch:
        """Return the rows of a block as Python reads them, up to one that cannot be read."""
        numbers, rows, fault = list[int](), list[list[str]](), None
        lines = self._read(number, block)
        try:
            for line, cells in lines:
                if len(cells) != n_cells:
                    where = f"{self.path}: row {row + len(rows)} (line {line})"
                    fault = f"{where} has {len(cells)} cells, expected {n_cells}"
                    break
                numbers.append(line)
                rows.append(cells)
        except DataError as error:
            fault = str(error)
        columns = {place: pyarrow.array([cells[place] for cells in rows], pyarrow.string()) for place in places}
        return Batch(self.path, row, len(rows), columns, numbers.__getitem__, fault)

    def _read(self, number: int, block: bytes) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells) of the lines of a block that begins with a line of such a number."""
        for line, data in enumerate(block.splitlines(), number):
            if len(data) > MAX_LINE_CHARACTERS:
                raise self._too_long(line)
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                fault = f"line {line} is not UTF-8 text ({error.reason} at byte {error.start} of it)"
                raise DataError(f"{self.path}: {fault}") from error
            if not text.strip():
                continue
            self._separator = self._separator or _separator_of(text)
            try:
                yield line, next(csv.reader([text], delimiter=self._separator, strict=True))
            except csv.Error as error:
                fault = f"line {line} is not text separated by {self._separator!r} ({error})"
                raise DataError(f"{self.path}: {fault}; a cell in quotes must end on its line") from error

    def _too_long(self, line: int) -> DataError:
        return DataError(f"{self.path}: line {line} is longer than {MAX_LINE_CHARACTERS} characters")


def _separator_of(line: str) -> str:
    """Return what a line has most of outside of quotes: commas, semicolons or tabs."""
    return max(SEPARATORS, key=re.sub(r'"[^"]*"', "", line).count)


def _n_ends(block: bytes) -> int:
    """Return the number of ends of lines."""
    return block.count(b"\n") + (block.count(b"\r") - block.count(b"\r\n") if b"\r" in block else 0)


def _line(number: int, block: bytes, row: int) -> int:
    """Return the line of a row among the lines of a block that are not blank."""
    lines = (line for line, data in enumerate(block.splitlines(), number) if data.strip())
    return next(islice(lines, row, None))


def _without_first(number: int, block: bytes) -> tuple[int, bytes]:
    """Return a block without its first line that is not blank, and the number of its first line then."""
    lines = block.splitlines(keepends=True)
    skipped = 1 + next(k for k, line in enumerate(lines) if line.strip())
    return number + skipped, block[sum(map(len, lines[:skipped])) :]
