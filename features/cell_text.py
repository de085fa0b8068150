"""Cells and names of columns as text: which say that a cell is missing, which look like numbers, and lists of names."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

# Words for a missing cell: those of pandas and Arrow, those of the UCI data sets, and a dash.
_NULLS = "<NA>,N/A,n/a,#N/A,#N/A N/A,#NA,NA,NaN,nan,-NaN,-nan,1.#IND,-1.#IND,1.#QNAN,-1.#QNAN,NULL,null,None,NaT,?,-"
NULL_WORDS = ("", *_NULLS.split(","))
# Words for truth values, which are numbers: those of pandas and of Arrow's reader of csv.
TRUTH_WORDS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
MOST_CATEGORIES = 64  # The default of data.categories: of a column with more words little is learned from each.
UNKNOWN = -1  # place of a word that is none of a list
COMMAS = "numbers with a comma"
# What may stand before the first digit of an amount, a day, a quarter of a year or a duration.
_CURRENCY = (
    r"[a-z]{0,3}[$€£¥₹]|usd|eur|gbp|chf|jpy|inr|cny|cad|aud|sek|nok|dkk|pln|czk|huf|brl|mxn|zar|(rs|kr)\.?(?=\s)"
)
_WEEKDAY = r"((mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?[.,]?\s+)?"
_MONTH = (
    r"jan(uary?)?|feb(ruary?)?|mar(ch)?|märz?|apr(il)?|ma[iy]|jun[ei]?|jul[iy]?|aug(ust)?|sept?(ember)?|o[ck]t(ober)?|"
    r"nov(ember)?|de[cz](ember)?"
)
_BEFORE = rf"(({_CURRENCY})\s?|{_WEEKDAY}(({_MONTH})[.,/\s-]+)?|q[1-4][/\s-](?=\d{{4}})|p(?=t?\d+[dhmswy])t?)"
# What words may be that are none, and what to do about it: groups (>50K) and places in an order (1st) are words.
_LOOKS = {
    COMMAS: (
        r"[+-]?[0-9]*,[0-9]+(e[+-]?[0-9]+)?",
        "write decimals with points and thousands without commas, or read a csv with `data.decimal=,`",
    ),
    "numbers, dates or times in another spelling": (
        rf"(?!\d+(st|nd|rd|th)$){_BEFORE}[^\w<>≤≥]*\d.*",
        "write plain numbers (1234.5), and days, years or seconds as such",
    ),
}
_DATE = re.compile(r"[0-9]{1,4}[./:-][0-9]{1,2}([./:-].*)?")
# Characters that move a cursor, end a line, or turn the direction of writing: printed as they are, they forge lines.
# Lone surrogates cannot be printed.
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def misread(words: Iterable[str]) -> tuple[str, str, str] | None:
    """Return what most words of a column are that only look like words, what to do about it, and one of them."""
    alike = dict[str, list[str]]()
    for word in islice(words, 1000):  # which are enough to know
        is_plain = word.isascii() and not isinstance(value_of(word), str)
        plain = "" if is_plain else unicodedata.normalize("NFKC", word)
        looks = (look for look, (pattern, _) in _LOOKS.items() if re.fullmatch(pattern, plain, re.I | re.S))
        alike.setdefault(next(looks, ""), []).append(word)
    n_others, n_alike = len(alike.pop("", [])), sum(map(len, alike.values()))
    if n_alike <= n_others:
        return None
    look = max(alike, key=lambda look: len(alike[look]))
    told = f"{look}, and {counted(n_others, 'other word')}" if n_others else look
    return told, _LOOKS[look][1], alike[look][0]


def composed(text: str) -> str:
    """Return a text in one form of Unicode (NFC), whose accents are parts of their letters."""
    return unicodedata.normalize("NFC", text)


def value_of(text: str) -> object:
    """Return what is equal for texts of one value, such as 2, 2.0 and 02, or True and 1; whole ones stay exact."""
    text = text.strip()
    if text in TRUTH_WORDS:
        return TRUTH_WORDS[text]
    for kind in (int, float) if "_" not in text else ():
        with suppress(ValueError):
            value = kind(text)
            return text if value != value else value  # nan is a word
    return composed(text)


def of_one_value(values: Iterable[object]) -> tuple[int, int] | None:
    """Return the places of two values that are equal, None where no two are."""
    known = dict[object, int]()
    return next(((known[value], k) for k, value in enumerate(values) if known.setdefault(value, k) != k), None)


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
    return cell not in TRUTH_WORDS and not isinstance(value_of(cell.replace(",", ".")), str)


def looks_like_cell(name: str) -> bool:
    """Return whether the name of a column is a number, a date, a truth value or a word for a missing cell."""
    return is_number(name) or name in (*NULL_WORDS[1:], *TRUTH_WORDS) or _DATE.fullmatch(name) is not None


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


def normal_name(name: object) -> str:
    """Return a name without blanks around it, in the one form of Unicode (NFC) that names are compared in."""
    return composed(str(name)).strip()


def title_of(name: str, place: int) -> str:
    """Return what messages call a column."""
    return name or f"(no name, column {place})"


def drop_setting(*names: str) -> str:
    """Return the setting that leaves columns out, as messages name it: whoever shows them puts it into their words."""
    return f"`data.drop={names_text(names)}`"


def shown(words: Iterable[str], most: int = 8) -> str:
    """Return the first of some words as a list for people."""
    listed = list(words)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
