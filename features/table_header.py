"""What the first line of a table is, names or a row, and which column is asked for by a name or a position.

A first line is a header where no cell of it reads as a number, or where one is the name asked for as the target: a row
of numbers whose label is a word is never taken for names. Columns count from 0.
"""

import re
from collections.abc import Container
from pathlib import Path

from features.cell_text import reads_as_number
from features.errors import UsageError

TARGET_NAMES = ("y", "target", "label")


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
