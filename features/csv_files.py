"""Tables as text, a row a line: their separator, header, target column and cells; read line by line.

Cells are separated by commas, semicolons or tabs, whichever the first line has most of outside of quotes.
A first line is a header where no cell of it reads as a number, or where one is the name asked for as the target: a row
of numbers whose label is a word is never taken for names. Columns count from 0, rows from 0, lines from 1.
"""

import csv
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from features.errors import DataError, UsageError

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SEPARATORS = ",;\t"
MAX_LINE_CHARACTERS = 1 << 20
TARGET_NAMES = ("y", "target", "label")


def is_csv(path: Path) -> bool:
    """Return whether a file is read here, by its name."""
    return path.name.lower().endswith(SUFFIXES)


def csv_cells(stream: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, cells) of each line that is not blank; quotes end on their line."""
    number, separator = 0, "\t" if ".tsv" in path.suffixes else ""
    while line := stream.readline(MAX_LINE_CHARACTERS):
        number += 1
        if len(line) == MAX_LINE_CHARACTERS and not line.endswith("\n"):
            raise DataError(f"{path}: line {number} is longer than {MAX_LINE_CHARACTERS} characters")
        if line.strip():
            separator = separator or _separator_of(line)
            try:
                yield number, next(csv.reader([line], delimiter=separator, strict=True))
            except csv.Error as error:
                raise DataError(f"{path}: line {number} is not text separated by {separator!r} ({error})") from error


def _separator_of(line: str) -> str:
    """Return what a line has most of outside of quotes: commas, semicolons or tabs."""
    return max(SEPARATORS, key=re.sub(r'"[^"]*"', "", line).count)


def cell_text(value: Any) -> str:
    """Return a value as a csv would hold it: numbers in full, truth values as 1 and 0, nothing for None."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)


def is_plain(cell: str) -> bool:
    """Return whether a number is in plain spelling; Python also takes 1_000 and digits of other scripts."""
    return cell.isascii() and "_" not in cell


def reads_as_number(cell: str) -> bool:
    """Return whether a cell is a number in any spelling."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _position(target: str | None) -> int | None:
    """Return the position that a target asked for as a whole number is; None for a name."""
    return int(target) if target is not None and re.fullmatch(r"[+-]?[0-9]{1,9}", target.strip()) else None


def column_names(cells: list[str]) -> list[str]:
    """Return the names in a header."""
    return [cell.strip() for cell in cells]


def is_header(cells: list[str], target: str | None) -> bool:
    """Return whether the first line holds names.

    It does where no cell reads as a number (in any spelling: a row must not be lost), or where `target` is a name and
    among them. Columns may be called 400.
    """
    names = column_names(cells)
    return (_position(target) is None and target in names) or not any(map(reads_as_number, names))


def target_column(
    cells: list[str], header: bool, target: str | None, path: Path, but: Container[int | None] = ()
) -> int:
    """Return the target's column: `target` by position or name, else one of the usual names, else the last.

    The last is the last of those not in `but`. Raises UsageError where `target` names none.
    """
    if target is not None:
        return named_column(cells, header, target, path, "target")
    names = column_names(cells) if header else []
    last = max((place for place in range(len(cells)) if place not in but), default=len(cells) - 1)
    return next((names.index(name) for name in TARGET_NAMES if name in names), last)


def named_column(cells: list[str], header: bool, asked: str, path: Path, what: str) -> int:
    """Return the column at a position or of a name; `what` it is for stands in errors. Raises UsageError."""
    names, number = column_names(cells) if header else [], _position(asked)
    if number is None:
        if asked in names:
            return names.index(asked)
        known = f"columns {', '.join(names)}" if header else f"no header; give the number of the {what}, from 0"
        raise UsageError(f"{what} {asked!r} is no column of {path}, which has {known}")
    if not -len(cells) <= number < len(cells):
        raise UsageError(f"{what} {number} is no column of {path}; it has columns 0 to {len(cells) - 1}")
    return number % len(cells)
