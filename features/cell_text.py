"""Cells and names of columns as text: which are missing or numbers, what they may be mistaken for, and lists of names.

A number is what Arrow takes for one; one that begins with a needless 0, such as the code 007, is a word. Dates are days
since 1970, true and false are 1 and 0.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

# Words for a missing cell: those of pandas and Arrow, those of the UCI data sets, and a dash.
_NULLS = "<NA>,N/A,n/a,#N/A,#N/A N/A,#NA,NA,NaN,nan,-NaN,-nan,1.#IND,-1.#IND,1.#QNAN,-1.#QNAN,NULL,null,None,NaT,?,-"
NULL_WORDS = ("", *_NULLS.split(","))
UNKNOWN = -1  # place of a word that is none of a list
MOST_ONEHOT = 32  # categories of a column, where the kind of encoding is auto; columns of fewer are ordinary ones
KINDS = ("number", "date", "truth value", "word")  # of cells
NUMBER, DATE, TRUTH, WORD = range(4)
MICROSECONDS_A_DAY = 86_400e6
_NUMBER = re.compile(r"([+-]?inf(inity)?|(?![+-]?0[0-9])[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", re.I | re.A)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.A)
_TRUTH = {"true": 1.0, "false": 0.0}
_MONTH = r"(jan|feb|m[aä][riy]|apr|jun|jul|aug|sep|o[ck]t|nov|de[cz])[^\W\d_]*"
_DAYS = rf"([0-9]{{1,2}}[./-]){{2}}|[0-9]{{1,2}}[./\s-]*{_MONTH}[.,/\s-]*|{_MONTH}\s[0-9]{{1,2}},?\s"
_DAY = rf"(({_DAYS})([0-9]{{2}}){{1,2}}|[0-9]{{4}}([./-][0-9]{{1,2}}){{2}})([T ].*)?"
_DIGITS = r"(([0-9]*[.,])?[0-9]+|[0-9]{1,3}([.,\s'’_][0-9]{3})+([.,][0-9]+)?)"
_UNIT = r"\s?[%‰°$€£¥]?[^\W\d_]*[²³]?(/[^\W\d_]+)?"
_QUANTITY = rf"(?![+-]?[0-9]+$)[<>≤≥~]?\s?[+−-]?[$€£¥%]?\s?[+−-]?({_DIGITS}{_UNIT}|\([$€£¥]?{_DIGITS}\))"
COMMAS = "numbers with a comma"
# What words may be that are none, and what to do about it.
_LOOKS = {
    COMMAS: (r"[+-]?[0-9]*,[0-9]+(e[+-]?[0-9]+)?", "write decimals with points, and thousands without commas"),
    "numbers with a point": (r"[+-]?[0-9]*\.[0-9]+", "write decimals without needless zeros"),
    "dates of a country": (_DAY, "write ISO dates (2020-01-31)"),
    "numbers with a unit, or signs in them": (_QUANTITY, "write plain numbers (1234.5)"),
}
# Characters that move a cursor, end a line, or turn the direction of writing: printed as they are, they forge lines.
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")


def read_cell(text: str) -> tuple[int, float]:
    """Return what kind a text is, and its number, days since 1970, or truth value; NaN for a word."""
    if _NUMBER.fullmatch(text):
        return NUMBER, float(text)
    if text.lower() in _TRUTH:
        return TRUTH, _TRUTH[text.lower()]
    try:
        moment = datetime.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError:
        return WORD, float("nan")
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return DATE, since // timedelta(microseconds=1) / MICROSECONDS_A_DAY


def misread(words: Iterable[str]) -> tuple[str, str, str] | None:
    """Return what most words of a column are that only look like words, what to do about it, and one of them.

    Units and dates of up to MOST_ONEHOT words are ordinary categories, such as 1 star; decimal commas are not.
    """
    alike = dict[str, list[str]]()
    for word in islice(words, 1000):  # which are enough to know
        looks = (look for look, (pattern, _) in _LOOKS.items() if re.fullmatch(pattern, word, re.I))
        alike.setdefault(next(looks, ""), []).append(word)
    n_others, n_alike = len(alike.pop("", [])), sum(map(len, alike.values()))
    look = max(alike, key=lambda look: len(alike[look]), default=None)
    if look is None or n_alike <= n_others or (n_alike <= MOST_ONEHOT and look != COMMAS):
        return None
    told = f"{look}, and {counted(n_others, 'other word')}" if n_others else look
    return told, _LOOKS[look][1], alike[look][0]


def composed(text: str) -> str:
    """Return a text in one form of Unicode (NFC), whose accents are parts of their letters."""
    return unicodedata.normalize("NFC", text)


def value_of(text: str) -> object:
    """Return what is equal for texts of one value, such as 2 and 2.0, or True and true; whole ones stay exact."""
    if re.fullmatch("-?(0|[1-9][0-9]*)", text):
        return int(text)
    kind, value = read_cell(text)
    return composed(text) if kind == WORD else (kind, value) if kind == DATE else value


def places_in(known: Mapping[str, int], texts: Collection[str]) -> list[int]:
    """Return the place of each text, or of the one known text that has its value; else UNKNOWN."""
    of_value = dict[object, int]()
    for text, place in known.items() if not known.keys() >= set(texts) else ():
        value = value_of(text)
        of_value[value] = UNKNOWN if value in of_value else place
    return [known[text] if text in known else of_value.get(value_of(text), UNKNOWN) for text in texts]


def text_of(value: Any) -> str | None:
    """Return a value as a csv would hold it; None for a missing one."""
    text = None if value is None else str(value)
    return None if text in ("nan", "NaT", "<NA>") and not isinstance(value, str) else text


def printable(text: str) -> str:
    """Return a text for a line of a terminal: control characters as Python escapes them."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def has_controls(text: object) -> bool:
    """Return whether a value is a text with control characters."""
    return isinstance(text, str) and printable(text) != text


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, of which `noun` is the word for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with a point or a comma."""
    return read_cell(cell.strip().replace(",", "."))[0] == NUMBER


def looks_like_cell(name: str) -> bool:
    """Return whether the name of a column is a number, a date, a truth value or a word for a missing cell."""
    return is_number(name) or read_cell(name)[0] != WORD or name in NULL_WORDS[1:]


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
