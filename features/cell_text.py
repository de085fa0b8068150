"""Cells and names of columns as text: which cells are missing, how values are spelled, and lists of names."""

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

# Words for a missing cell: those of pandas and Arrow, and that of the UCI data sets.
_NULLS = "<NA>,N/A,n/a,#N/A,#N/A N/A,#NA,NA,NaN,nan,-NaN,-nan,1.#IND,-1.#IND,1.#QNAN,-1.#QNAN,NULL,null,None,NaT,?"
NULL_WORDS = ("", *_NULLS.split(","))
# Characters that move a cursor, end a line, or turn the direction of writing: printed as they are, they forge lines.
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")


def is_missing(text: str) -> bool:
    """Return whether a cell says that there is no value."""
    return text.strip() in NULL_WORDS


def text_of(value: Any) -> str | None:
    """Return a value as a csv would hold it; None for a missing one."""
    text = None if value is None else str(value)
    return None if text in ("nan", "NaT", "<NA>") else text


def printable(text: str) -> str:
    """Return a text for a line of a terminal: control characters as Python escapes them."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def has_controls(text: object) -> bool:
    """Return whether a value is a text with control characters."""
    return isinstance(text, str) and printable(text) != text


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, of which `noun` is the word for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reads_as_number(cell: str) -> bool:
    """Return whether a cell is a number in any spelling."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a text such as ``age,"height, cm"``: one with a comma, or blanks at its ends, is in quotes.

    A column without a name is ``""``; nothing between commas is no name. Raises ValueError for a lone quote.
    """
    try:
        (cells,) = csv.reader([text], skipinitialspace=True, strict=True) if text else [[]]
    except (csv.Error, ValueError):
        raise ValueError("must be names of columns whose quotes end") from None
    quoted = '"' in text
    return tuple(cell if quoted else cell.strip() for cell in cells if quoted or cell.strip())


def names_text(names: Iterable[str]) -> str:
    """Return the text of which `names_in` makes these names."""
    text = io.StringIO()
    names = list(names)
    every = any(name != name.strip() or not name for name in names)
    csv.writer(text, quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL, lineterminator="").writerow(names)
    return text.getvalue()


def setting(key: str, value: str) -> str:
    """Return a setting as messages name it: whoever shows them puts it into the words of the reader."""
    return f"`{key}={value}`"


def drop_setting(*names: str) -> str:
    """Return the setting that leaves columns out."""
    return setting("data.drop", names_text(names))


def shown(words: Iterable[str], most: int = 8) -> str:
    """Return the first of some words as a list for people."""
    listed = list(words)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
