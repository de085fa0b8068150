"""Parsers of setting values: text from the command line or a TOML value in, a checked value out.

Each raises ValueError with a reason that starts with "must". Nothing here imports numpy.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from string import ascii_letters
from typing import Any

from features.cell_text import has_controls, names_in

PLAIN = "must be UTF-8 text without control characters"
NO_PENALTY = "none"
_WHOLE = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*")


def whole(minimum: int, maximum: int = 2**63 - 1) -> Callable[[Any], int]:
    """Return a parser of whole numbers between two bounds."""
    words = f"at least {minimum}" if maximum > 2**62 else f"{minimum} to {maximum}"

    def parse(value: object) -> int:
        number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, bool) or not isinstance(number, Integral) or not minimum <= int(number) <= maximum:
            raise ValueError(f"must be a whole number of {words}")
        return int(number)

    return parse


def real(
    minimum: float, maximum: float = math.inf, *, above: bool = False, closed: bool = False
) -> Callable[[Any], float]:
    """Return a parser of finite numbers: `minimum` is too low where `above`, `maximum` too high unless `closed`."""
    words = f"above {minimum:g}" if above else f"of at least {minimum:g}"
    if maximum < math.inf:
        words += f" and {'at most' if closed else 'below'} {maximum:g}"

    def parse(value: object) -> float:
        number = _number(value)
        if not minimum <= number <= maximum or (above and number == minimum) or (number == maximum and not closed):
            raise ValueError(f"must be a number {words}")
        return number

    return parse


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True)
class OneOf:
    """A parser that accepts the listed words, and what `otherwise` makes of any other value."""

    choices: tuple[str, ...]
    otherwise: Callable[[Any], Any] | None = None

    def __call__(self, value: object) -> Any:
        if value in self.choices:
            return value
        if self.otherwise is None:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        try:
            return self.otherwise(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{', '.join([str(error), *self.choices[:-1]])}, or {self.choices[-1]}") from None


@dataclass(frozen=True)
class Optionally:
    """A parser that maps `word` to None (decided from the data) and hands the rest on."""

    parse: Callable[[Any], Any]
    word: str

    def __call__(self, value: object) -> Any:
        return None if value is None or value == self.word else self.parse(value)


def text(value: object) -> str:
    """Accept a non-empty text."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a non-empty text")
    if not is_plain(value):
        raise ValueError(f"{PLAIN}; rename the file or column")
    return value


def column(value: object) -> str:
    """Accept the name of a column, or its position."""
    is_position = isinstance(value, Integral) and not isinstance(value, bool)
    return text(str(value) if is_position else value)


def is_plain(value: str) -> bool:
    """Return whether a text can be a path and be printed: names that are no UTF-8 have lone surrogates."""
    return not has_controls(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def address(value: object) -> str:
    """Accept the address of a dask scheduler: `settings.load` knows where it may come from."""
    if is_address(value) and re.fullmatch(r".*[^/:]:\d+", str(value)):
        return str(value)
    raise ValueError("must be tls://HOST:PORT")


def is_address(scheduler: object) -> bool:
    """Return whether a scheduler is one of dask's that runs somewhere, which sends code to be run here."""
    return isinstance(scheduler, str) and scheduler.startswith("tls://")


def truth(value: object) -> bool:
    """Accept true or false."""
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise ValueError("must be true or false")
    return words[str(value).lower()]


def name_list(value: Any) -> tuple[str, ...]:
    """Accept names of columns, each once, as a list or separated by commas; one that has a comma is in quotes."""
    given = names_in(value) if isinstance(value, str) else value
    names = tuple("" if name == "" else column(name) for name in given)  # a column may have none
    if not names or len(set(names)) < len(names):
        raise ValueError("must be names of columns, each once, separated by commas")
    return names


def categories(value: object) -> str:
    """Accept onehot, alone or with columns after a colon."""
    kind, colon, names = text(value).partition(":")
    if kind != "onehot" or (colon and not names_in(names)):
        raise ValueError("must be onehot, or onehot with columns that hold codes: onehot:zip,month")
    return text(value)


def deformation(value: object) -> str:
    """Accept strengths such as rotation:12,smooth:0,flip."""
    from features.deformed_copies import strengths  # with numba

    strengths(text(value))
    return text(value)


def picture_size(value: object) -> str:
    """Parse a side of pictures in pixels, or their height and width, to HEIGHTxWIDTH."""
    sides = str(value).split("x")
    if len(sides) > 2 or not all(side.isdecimal() and 2 <= int(side) <= 4096 for side in sides):
        raise ValueError("must be a number of pixels, 2 to 4096, or a height and a width such as 28x40")
    return f"{int(sides[0])}x{int(sides[-1])}"


def penalty(value: object) -> float | str:
    """Accept a penalty above 0, a fraction `max:F` of the largest, `auto`, or `none`."""
    if value in ("auto", NO_PENALTY):
        return str(value)
    is_fraction = isinstance(value, str) and value.startswith("max:")
    number = penalty_fraction(str(value)) if is_fraction else _number(value)
    if not 0 < number < (1 if is_fraction else math.inf):
        raise ValueError("must be a number above 0, none, max:F with F above 0 and below 1 such as max:1e-7, or auto")
    return str(value) if is_fraction else number


def learns_scales(value: object) -> bool:
    """Return whether a scale is one of those that are learned; none are where it is not filled in yet."""
    return value not in (None, "none")


def penalty_fraction(value: str) -> float:
    """Return the F of `max:F`: a fraction of the penalty at which all weights are zero."""
    return _number(value.removeprefix("max:"))


def selection(value: object) -> str:
    """Accept `none`, or `greedy:K` with a number of centers K."""
    if value == "none":
        return "none"
    kind, _, size = str(value).partition(":")
    if kind != "greedy" or not size.isascii() or not size.isdigit() or int(size) < 1:
        raise ValueError("must be none, or greedy:K with a number of centers K such as greedy:400")
    return f"greedy:{int(size)}"


def selection_size(value: str) -> int:
    """Return the K of `greedy:K`, 0 of `none`."""
    return int(value.partition(":")[2] or 0)


BYTE_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
BYTE_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def byte_size(value: object) -> int:
    """Accept a number of bytes: 1500000000, 2GiB, 800MB."""
    return max(int(_in_units(value, BYTE_UNITS, "a size above 0 such as 2GiB, 800MB or a number of bytes")), 1)


_TIME_UNITS = {"": 1.0, "S": 1.0, "M": 60.0, "MIN": 60.0, "H": 3600.0, "D": 86400.0}


def duration(value: object) -> float:
    """Accept a time in seconds: 90, 90s, 55m, 12h, 2d."""
    return _in_units(value, _TIME_UNITS, "a time above 0 such as 90s, 55m, 12h or a number of seconds")


def _in_units(value: object, units: Mapping[str, float], words: str) -> float:
    typed = str(value).strip()
    digits = typed.rstrip(f"{ascii_letters} ")
    number = _number(digits) * units.get(typed[len(digits) :].strip().upper(), math.nan)
    if not 0 < number < math.inf:
        raise ValueError(f"must be {words}")
    return number
