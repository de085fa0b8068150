"""Words of messages: counts, lists, and names of columns as they are written and compared."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable

# Characters that move a cursor, end a line, or turn the direction of writing: printed as they are, they forge lines.
# Lone surrogates cannot be printed.
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def printable(text: str) -> str:
    """Return a text for a line of a terminal: control characters as Python escapes them."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def has_controls(text: object) -> bool:
    """Return whether a value is a text with control characters."""
    return isinstance(text, str) and printable(text) != text


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, of which `noun` is the word for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown(words: Iterable[str], most: int = 8) -> str:
    """Return the first of some words as a list for people."""
    listed = list(words)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def composed(text: str) -> str:
    """Return a text in one form of Unicode (NFC), whose accents are parts of their letters."""
    return unicodedata.normalize("NFC", text)


def normal_name(name: object) -> str:
    """Return a name without blanks around it, in the one form of Unicode (NFC) that names are compared in."""
    return composed(str(name)).strip()


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
    every = any(name != name.strip() or name in ("", "none", "all") for name in names)
    csv.writer(text, quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL, lineterminator="").writerow(names)
    return text.getvalue()


def title_of(name: str, place: int) -> str:
    """Return what messages call a column."""
    return name or f"(no name, column {place})"


def drop_setting(*names: str) -> str:
    """Return the setting that leaves columns out, as messages name it: whoever shows them puts it into their words."""
    return f"`data.drop={names_text(names)}`"
