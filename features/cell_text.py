"""The cells of tables as text: which are missing, numbers, dates or truth values, and how values are spelled."""

import math
import re
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

MISSING = frozenset(("", "nan", "+nan", "-nan", "na", "n/a", "<na>", "null", "?"))  # in any case of letters
SECONDS_A_DAY = 86_400
_TRUTH = {"true": 1.0, "false": 0.0}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?")
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0+")


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


def number_of(cell: str) -> float:
    """Return the number, the days since 1970, or the truth value that a cell is; NaN where it is none of them."""
    try:
        return float(cell) if is_plain(cell) else math.nan
    except ValueError:
        word = cell.strip()
        return _TRUTH.get(word.lower(), math.nan) if word.isalpha() else days_of(word)


def days_of(word: str) -> float:
    """Return the days since 1970 of a date, or of a time in UTC where it names no zone; NaN for other words."""
    if not _DATE.fullmatch(word):
        return math.nan
    try:
        if len(word) == 10:
            return float((date.fromisoformat(word) - date(1970, 1, 1)).days)
        moment = datetime.fromisoformat(word)
    except ValueError:
        return math.nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / SECONDS_A_DAY


def is_value(cell: str) -> bool:
    """Return whether a cell of an input is a number in any spelling, a date, or a truth value."""
    return reads_as_number(cell) or not math.isnan(number_of(cell))


def cell_text(value: Any) -> str:
    """Return a value as a csv would hold it: numbers in full, truth values as 1 and 0, nothing for None and NaT."""
    if value is None or (not isinstance(value, str) and str(value) == "NaT"):
        return ""
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)


def category_of(word: str) -> str:
    """Return the category that a word is: 1 and 0 for true and false, 2 for 2.0, as which some programs write 2."""
    whole = _WHOLE.fullmatch(word)
    return whole[1] if whole else f"{_TRUTH[word.lower()]:g}" if word.lower() in _TRUTH else word
