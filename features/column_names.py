"""Names of columns as they are typed: separated by commas; one with a comma, or blanks at its ends, is in quotes."""

import csv
import io
import shlex
from collections.abc import Iterable


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a text such as ``age,"height, cm"``; ValueError: a lone quote.

    A column without a name is ``""``; nothing between commas is no name.
    """
    try:
        (cells,) = csv.reader([text], skipinitialspace=True, strict=True) if text else [[]]
    except (csv.Error, ValueError):
        raise ValueError("must be names of columns whose quotes end") from None
    quoted = '"' in text
    return tuple(cell if quoted else cell.strip() for cell in cells if cell.strip() or (quoted and not cell))


def names_text(names: Iterable[str]) -> str:
    """Return the text of which `names_in` makes these names."""
    text = io.StringIO()
    names = list(names)
    every = any(name != name.strip() or not name for name in names)
    csv.writer(text, quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL, lineterminator="").writerow(names)
    return text.getvalue()


def setting(key: str, value: str) -> str:
    """Return the option that sets something, as a shell takes it."""
    return f"--set {shlex.quote(f'{key}={value}')}"


def drop_setting(*names: str) -> str:
    """Return the option that leaves columns out."""
    return setting("data.drop", names_text(names))
