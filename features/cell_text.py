"""The cells of tables as text: which are missing, which are numbers, and how values are spelled."""

from typing import Any

import numpy as np

MISSING = frozenset(("", "nan", "+nan", "-nan", "na", "n/a", "<na>", "null", "?"))  # in any case of letters


def is_missing(cell: str) -> bool:
    """Return whether a cell says that there is no value."""
    return cell.strip().lower() in MISSING


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


def cell_text(value: Any) -> str:
    """Return a value as a csv would hold it: numbers in full, truth values as 1 and 0, nothing for None."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)
