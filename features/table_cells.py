"""The cells of tables, a row a time: read as text from any kind of table file, and turned into codes.

Codes are what `features.encoding` makes inputs of.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from features.csv_files import csv_cells, is_csv, is_plain, reads_as_number
from features.encoding import MOST_WORD_CHARACTERS, MOST_WORDS, UNKNOWN
from features.errors import DataError
from features.input_files import open_plain_text
from features.parquet_files import is_parquet, parquet_cells

MISSING = frozenset(("", "nan", "+nan", "-nan", "na", "n/a", "<na>", "null", "?"))  # in any case of letters

LOOKED_AT = 1001  # lines at the begin of a file, where words may be names or a row


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name."""
    return is_csv(path) or is_parquet(path)


def table_rows(path: Path, places: Collection[int] | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of each row: lines from 1, which is that of the names in a parquet file.

    Cells of columns other than `places` may be empty. Raises DataError where the file is damaged, UnavailableError
    where what reads it is not installed.
    """
    if is_parquet(path):
        yield from enumerate(parquet_cells(path, places), 1)
        return
    try:
        with open_plain_text(path) as stream:
            yield from csv_cells(stream, path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def is_repeated(path: Path) -> bool:
    """Return whether the first line of a file without numbers is a row: most of its cells recur below, as no names do.

    Looks at a thousand lines; those of a parquet file are never rows.
    """
    if is_parquet(path):
        return False
    rows = itertools.islice(table_rows(path), LOOKED_AT)
    _, first = next(rows, (0, []))
    recurring = set[int]()
    for _, cells in rows:
        recurring |= {place for place, pair in enumerate(zip(first, cells, strict=False)) if pair[0] == pair[1]}
    return 2 * len(recurring) > len(first)


def line_words(path: Path, line: int) -> str:
    """Return what a line is called, for people: the row that it is in a file without lines."""
    return f"row {line - 2}" if is_parquet(path) else f"line {line}"


def is_missing(cell: str) -> bool:
    """Return whether a cell says that there is no value."""
    return cell.strip().lower() in MISSING


def _number(cell: str) -> float:
    """Return the number that a cell is, NaN where it is none in plain spelling."""
    try:
        return float(cell) if is_plain(cell) else math.nan
    except ValueError:
        return math.nan


@dataclass
class CellReader:
    """Turns the cells of rows into codes.

    names: of the columns; words: the place of each known word by column, None for a column of numbers; missing: whether
    cells may be missing. new: whether unknown words get places of their own, as in training; else they are counted.
    """

    names: Sequence[str]
    words: Sequence[dict[str, int] | None]
    missing: bool = False
    new: bool = False
    unknown: Counter[str] = field(default_factory=Counter)

    def codes(self, cells: Sequence[str], where: str, hint: str = "") -> list[float]:
        """Return the codes of a row. Raises DataError, naming the column, for a cell that cannot be."""
        codes = []
        for name, known, cell in zip(self.names, self.words, cells, strict=True):
            value = _number(cell) if known is None else math.nan
            if not math.isfinite(value) and not (self.missing and is_missing(cell)):
                if known is None or is_missing(cell):
                    raise DataError(f"{where}, column {name} is {cell[:40]!r}; {self._wanted(cell, known)}{hint}")
                value = self._place(known, cell.strip(), name, where)
            codes.append(value)
        return codes

    def _place(self, known: dict[str, int], word: str, name: str, where: str) -> float:
        """Return the place of a word in the list of its column. Raises DataError where that becomes too long."""
        if word in known:
            return float(known[word])
        if not self.new:
            self.unknown[name] += 1
            return UNKNOWN
        if len(known) == MOST_WORDS or len(word) > MOST_WORD_CHARACTERS:
            much = (
                f"more than {MOST_WORDS} categories"
                if len(known) == MOST_WORDS
                else f"a text of {len(word)} characters"
            )
            raise DataError(f"{where}, column {name} has {much}; leave it out (--set data.drop={name})")
        known[word] = len(known)
        return float(known[word])

    def _wanted(self, cell: str, known: dict[str, int] | None) -> str:
        """Return what a cell should be, and how other cells can be read."""
        if is_missing(cell):
            kind = "finite number" if known is None else "category"
            advice = "--set data.missing=median fills missing cells in"
        elif not is_plain(cell) and reads_as_number(cell):
            return "a number in ASCII digits without underscores is needed"
        else:
            comma = re.fullmatch(r"[+-]?[0-9]+,[0-9]+", cell.strip())
            kind = "finite number with a decimal point" if comma else "finite number"
            advice = (
                "" if comma or reads_as_number(cell) else "--set data.categorical=onehot takes words for categories"
            )
        if not self.new:
            advice = ""  # a model has what it was trained with
        return f"a {kind} is needed" + (f" ({advice})" if advice else "")
