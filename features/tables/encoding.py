"""From the codes of a table to its inputs: which columns only number the rows, and how the others are encoded.

Cells are first *codes*, (n, columns) f8: a number, the place of a word in a list, -1 for an unknown word, NaN for a
missing cell. Inputs are one-hot words, numbers with the median for a missing cell, and whether a cell was missing:
words and medians are learned on training rows, and are part of the model.

Numbers of rows and times of entry rise or fall in all rows, with gaps or without. A column of n rows in random order
does that by chance once in n!/2, so that 10 rows are enough for one column, and 13 for a thousand of them (`CHANCE`).
The order of the rows alone helps to predict no other row. Columns that follow it less strictly may be inputs by which
the rows were sorted, or numbers that restart: these are used, with a warning.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.cell_text import MOST_CATEGORIES, UNKNOWN, value_of
from features.errors import DataError
from features.words import drop_setting, names_in, normal_name, shown

ONE_HOT = "onehot"
CHANCE = 1e-6  # A table in random order has a column that seems to number its rows with at most this probability.
BACK_SHARE = 0.02  # This share of the steps of a count may go back: of rows swapped, or put behind the others.
LEAST_FILLED = 0.9  # A count has this share of the whole numbers from its least to its largest.
LEAST_DIFFERENT = 0.1  # A column that follows the rows has this share of different values.
LEAST_CORRELATION = 0.9  # It has this correlation of ranks and rows, or this share of steps in one direction.
LEAST_ROWS, MOST_ROWS = 20, 1000  # Fewer rows tell no order; of more, a thousand are compared.
COUNTERS = re.compile(r"(Unnamed: .*|index|row_nr|id)?", re.IGNORECASE)  # Columns that count the rows have such names.
Words = Sequence[Collection[str] | None]  # The words of each column in the order of their codes; None for numbers.


@dataclass(frozen=True)
class EncodingRequest:
    """The encoding that was asked for."""

    words: bool = False  # whether columns of words are encoded, one-hot
    columns: tuple[str, ...] = ()  # columns that are encoded though they hold numbers
    missing: str | None = None  # how missing cells are filled; None: they are not
    most: int = MOST_CATEGORIES  # the most categories of a column

    @classmethod
    def read(cls, categorical: str | None, missing: str | None, most: int = MOST_CATEGORIES) -> "EncodingRequest":
        """Return the request in the settings: onehot, or onehot:NAME,NAME."""
        columns = map(normal_name, names_in((categorical or "").partition(":")[2]))
        return cls(categorical is not None, tuple(columns), missing, most)

    @property
    def encodes(self) -> bool:
        """Whether an encoding is learned, on training rows."""
        return self.words or self.missing is not None


@dataclass(frozen=True)
class ColumnEncoding:
    """How the codes of one column become inputs."""

    name: str
    words: tuple[str, ...] | None  # the sorted categories, each of which is an input; None for a column of numbers
    fill: float  # the value of a missing cell of numbers
    indicator: bool  # whether one more input marks missing cells

    @property
    def inputs(self) -> tuple[str, ...]:
        words = (self.name,) if self.words is None else tuple(f"{self.name}={word}" for word in self.words)
        return words + ((f"{self.name} is missing",) if self.indicator else ())

    def apply(self, codes: np.ndarray) -> np.ndarray:
        """Return the inputs (n, inputs) f8 of codes (n,)."""
        out, missing = np.zeros((len(codes), len(self.inputs))), np.isnan(codes)
        if self.words is not None:
            rows = np.flatnonzero(codes >= 0)
            out[rows, codes[rows].astype(np.int64)] = 1.0
        else:
            out[:, 0] = np.where(missing, self.fill, codes)
        if self.indicator:
            out[:, -1] = missing
        return out


@dataclass(frozen=True)
class TableEncoding:
    """How the cells of a table become inputs: the encodings of its columns; whether cells may be missing."""

    columns: tuple[ColumnEncoding, ...]
    missing: bool

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.inputs)

    def placed(self, codes: NDArray[np.float64], words: Words) -> NDArray[np.float64]:
        """Return codes (n, columns) of some words as those of the words of the encoding; numbers are as they are."""
        codes = np.array(codes)
        for k, (column, listed) in enumerate(zip(self.columns, words, strict=True)):
            if listed is not None:
                known = {word: place for place, word in enumerate(column.words or ())}
                places = np.array([*(known.get(word, UNKNOWN) for word in listed), UNKNOWN], np.float64)
                filled = ~np.isnan(codes[:, k])
                codes[filled, k] = places[codes[filled, k].astype(np.int64)]
        return codes

    def apply(self, codes: np.ndarray) -> np.ndarray:
        """Return the inputs (n, d) f8 of codes (n, columns)."""
        return np.hstack([column.apply(codes[:, k]) for k, column in enumerate(self.columns)])

    def unknown(self, codes: np.ndarray) -> dict[str, int]:
        """Count the codes (n, columns) of words that no training row has, by column."""
        columns = [(k, column.name) for k, column in enumerate(self.columns) if column.words is not None]
        return {name: int(np.count_nonzero(codes[:, k] == UNKNOWN)) for k, name in columns}

    def described(self) -> dict[str, Any]:
        columns = [{**asdict(column), "words": column.words and list(column.words)} for column in self.columns]
        return {"columns": columns, "missing": self.missing}

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "TableEncoding":
        """Return the encoding that `described` made. Raises KeyError or TypeError where it made none."""
        columns = [{**one, "words": one["words"] and tuple(one["words"])} for one in described["columns"]]
        return cls(tuple(ColumnEncoding(**one) for one in columns), described["missing"])

    def notes(self) -> tuple[str, ...]:
        """Return notes on the columns that are encoded."""
        words = [f"{column.name} ({len(column.words)})" for column in self.columns if column.words is not None]
        gaps = [column.name for column in self.columns if column.indicator]
        notes = [f"columns of words, with their number of categories: {shown(words)}"] if words else []
        filled = "missing cells count as the median (words: as no category), and an input marks them"
        return (*notes, f"{filled}: {shown(gaps)}") if gaps else tuple(notes)


def learn_encoding(
    names: Sequence[str], words: Words, codes: NDArray[np.float64], asked: EncodingRequest
) -> TableEncoding:
    """Return the encoding that codes (n, columns) of training rows ask for; DataError where a column has no cell."""
    empty = [name for name, column in zip(names, codes.T, strict=True) if np.isnan(column).all()]
    if empty:
        fault = f"columns without a cell that is filled in in the training rows: {shown(empty)}"
        raise DataError(f"{fault}; leave them out ({drop_setting(*empty)})")
    columns = list[ColumnEncoding]()
    for name, listed, column in zip(names, words, codes.T, strict=True):
        present = column[~np.isnan(column)]
        indicator = len(present) < len(column)
        if listed is None:
            columns.append(ColumnEncoding(name, None, float(np.median(present)), indicator))
            continue
        known = list(listed)
        used = [(value_of(known[code]), known[code]) for code in np.unique(present.astype(np.int64)).tolist()]
        used.sort(key=lambda one: (isinstance(one[0], str), *one))  # Numbers come before words, by their value.
        columns.append(ColumnEncoding(name, tuple(word for _, word in used), 0.0, indicator))
    encoding = TableEncoding(tuple(columns), asked.missing is not None)
    twice = next((name for name, n in Counter(encoding.inputs).items() if n > 1), None)
    if twice is not None:
        raise DataError(f"two inputs would be called {twice!r}: rename the column of that name")
    return encoding


def unknown_words(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note on cells with unknown words, by column; none without such cells."""
    unknown = [f"{name} ({n_cells})" for name, n_cells in sorted(counts.items()) if n_cells]
    return (f"cells with a category that no training row has: {shown(unknown)}; they count as none",) if unknown else ()


class RowOrder(NamedTuple):
    """The columns that follow the order of the rows, by their places."""

    left_out: tuple[int, ...] = ()  # columns that number the rows, and are no inputs
    kept: tuple[int, ...] = ()  # columns that number the rows, and are inputs as there are no others
    following: tuple[int, ...] = ()  # columns that follow the rows less strictly

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        words: Words,
        codes: NDArray[np.float64],
        starts: NDArray[np.int64],
        named: Collection[str] = (),
    ) -> "RowOrder":
        """Return which columns of codes (n, columns) follow the order of the rows, in one file or several.

        words: only columns of numbers, which have None, may number rows; starts: the first row of each file;
        named: columns that were asked for, which are inputs whatever they hold.
        """
        numbering, counting, following, others = list[int](), list[int](), list[int](), list[int]()
        for k, name in enumerate(names):
            files = [values[np.isfinite(values)] for values in np.split(codes[:, k], starts[1:])]
            values = np.concatenate(files)
            varies = words[k] is not None or (len(values) > 0 and values.min() < values.max())
            if words[k] is not None or name in named or not varies:
                others += [k] if varies else []
            elif COUNTERS.fullmatch(name) and all(map(_is_count, filter(len, files))):
                counting.append(k)
            elif _is_in_order(values, len(names)):
                numbering.append(k)
            else:
                others.append(k)
                following += [k] if _follows(values) else []
        found = sorted(counting + numbering)
        left_out = found if others else counting if numbering else []
        kept = [k for k in found if k not in left_out]
        return cls(tuple(left_out), tuple(kept), tuple(following))

    def warnings(self, titles: Sequence[str]) -> Iterator[str]:
        """Yield warnings about these columns; titles: the columns' names in messages."""
        left_out, kept, following = (shown(titles[k] for k in places) for places in self)
        if left_out:
            remedy = "name all inputs in `data.columns` to use one by which the table is only sorted"
            yield f"left out, as they number the rows: {left_out}; {remedy}"
        if kept:
            yield f"inputs that may number the rows are used, as there are no others: {kept}"
        if following:
            use = "leave out one that only tells which row it is, or when it was written"
            yield f"inputs that may number the rows: {following}; {use}"


def array_warnings(X: NDArray[Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return a warning of columns of X (n, d) that number its rows, judged by the first rows; none without such."""
    codes = np.asarray(X[:MOST_ROWS], np.float64)
    found = RowOrder.of(names, [None] * len(names), codes, np.zeros(1, np.int64)).left_out
    told = f"columns of X that rise or fall from row to row: {shown(names[k] for k in found)}"
    return (f"{told}; leave out those that only number the rows",) if found else ()


def _signs(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the number of steps up, and of steps down."""
    return int(np.count_nonzero(values[1:] > values[:-1])), int(np.count_nonzero(values[1:] < values[:-1]))


def _is_in_order(values: NDArray[np.float64], n_columns: int) -> bool:
    """Return whether all steps of values (of a count: nearly all) go in one direction, and not by chance.

    At most (k + 1)^n of the n! orders of n values have k steps back or fewer.
    """
    n, (rises, falls) = len(values), _signs(values)
    back = n - 1 - max(rises, falls)
    if back and (back > BACK_SHARE * n + 1 or not _is_count(values)):
        return False
    return bool(math.log(2 * n_columns) + n * math.log(back + 1) - math.lgamma(n + 1) < math.log(CHANCE))


def _is_count(values: NDArray[np.float64]) -> bool:
    """Return whether values are different whole numbers that leave few out, in any order."""
    if (values % 1).any() or len(values) < LEAST_FILLED * (values.max() - values.min() + 1):
        return False
    return len(np.unique(values)) == len(values)


def _follows(values: NDArray[np.float64]) -> bool:
    """Return whether values never fall, or never rise; are a count; or go mostly with the rows, and often differ."""
    n, (rises, falls) = len(values), _signs(values)
    if n < LEAST_ROWS or max(rises, falls) < math.log(n):  # Two or three values that are sorted take few steps.
        return False
    if not min(rises, falls) or (values.min() in (0, 1) and _is_count(values)):
        return True
    some = values[np.linspace(0, n - 1, min(n, MOST_ROWS)).astype(np.int64)]
    correlation = np.corrcoef(np.unique(some, return_inverse=True)[1], np.arange(len(some)))[0, 1]
    share = max(rises, falls) / (rises + falls)
    return max(share, abs(correlation)) >= LEAST_CORRELATION and len(np.unique(values)) >= LEAST_DIFFERENT * n
