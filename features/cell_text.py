"""Cells of tables as text: which say that a cell is missing, and which look like numbers."""

import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from features.words import composed, counted

# Words for a missing cell: those of pandas and Arrow, those of the UCI data sets, and a dash.
_NULLS = "<NA>,N/A,n/a,#N/A,#N/A N/A,#NA,NA,NaN,nan,-NaN,-nan,1.#IND,-1.#IND,1.#QNAN,-1.#QNAN,NULL,null,None,NaT,?,-"
NULL_WORDS = ("", *_NULLS.split(","))
# Words for truth values, which are numbers: those of pandas and of Arrow's reader of csv.
TRUTH_WORDS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
MOST_CATEGORIES = 64  # The default of data.categories: of a column with more words little is learned from each.
UNKNOWN = -1  # A word that is not in a list has this place.
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


def misread(words: Iterable[str]) -> tuple[str, str, str] | None:
    """Return what most words of a column are that only look like words, what to do about it, and one of them."""
    alike = dict[str, list[str]]()
    for word in islice(words, 1000):  # These are enough to know.
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


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with a point or a comma."""
    return cell not in TRUTH_WORDS and not isinstance(value_of(cell.replace(",", ".")), str)


def looks_like_cell(name: str) -> bool:
    """Return whether the name of a column is a number, a date, a truth value or a word for a missing cell."""
    return is_number(name) or name in (*NULL_WORDS[1:], *TRUTH_WORDS) or _DATE.fullmatch(name) is not None
