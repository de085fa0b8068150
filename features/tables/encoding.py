"""Words and missing cells of a table as numbers: learned on training rows, part of the model, the same at prediction.

Cells are first *codes*, (n, columns) f8: a number, the place of a word in a list, -1 for an unknown word, NaN for a
missing cell. Inputs are one-hot words, numbers with the median for a missing cell, and whether a cell was missing.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.cell_text import MOST_CATEGORIES, UNKNOWN, drop_setting, names_in, normal_name, shown, value_of
from features.errors import DataError

ONE_HOT = "onehot"
Places = list[NDArray[np.float64] | None]


@dataclass(frozen=True)
class EncodingRequest:
    """Which encoding was asked for."""

    words: bool = False  # whether columns of words are encoded, one-hot
    columns: tuple[str, ...] = ()  # those that are, though they hold numbers
    missing: str | None = None  # how missing cells are filled; None: not at all
    most: int = MOST_CATEGORIES  # the most categories of a column

    @classmethod
    def read(cls, categorical: str | None, missing: str | None, most: int = MOST_CATEGORIES) -> "EncodingRequest":
        """Return what the settings ask for: onehot, or onehot:NAME,NAME."""
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

    def places(self, words: Collection[str] | None) -> NDArray[np.float64] | None:
        """Return the place of each of some words among those of the column, and last UNKNOWN; None for None."""
        known = {word: k for k, word in enumerate(self.words or ())}
        return None if words is None else np.array([*(known.get(word, UNKNOWN) for word in words), UNKNOWN], np.float64)

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

    def places(self, words: "Words") -> Places:
        """Return, of each column, the places among its words that codes of some words stand for; None for numbers."""
        return [column.places(known) for column, known in zip(self.columns, words, strict=True)]

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
        """Return notes on the columns that are encoded; none where there are none."""
        words = [f"{column.name} ({len(column.words)})" for column in self.columns if column.words is not None]
        gaps = [column.name for column in self.columns if column.indicator]
        notes = [f"columns of words, with their number of categories: {shown(words)}"] if words else []
        filled = "missing cells count as the median (words: as no category), and an input marks them"
        return (*notes, f"{filled}: {shown(gaps)}") if gaps else tuple(notes)


Words = Sequence[Collection[str] | None]  # that the codes of each column stand for, in their order; None for numbers


def placed(codes: NDArray[np.float64], places: Places) -> NDArray[np.float64]:
    """Return codes (n, columns) with the places that their words have in an encoding; numbers are as they are."""
    codes = np.array(codes)
    for k, table in enumerate(places):
        if table is not None:
            filled = ~np.isnan(codes[:, k])
            codes[filled, k] = table[codes[filled, k].astype(np.int64)]
    return codes


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
        used.sort(key=lambda one: (isinstance(one[0], str), *one))  # numbers by their value, before words
        columns.append(ColumnEncoding(name, tuple(word for _, word in used), 0.0, indicator))
    encoding = TableEncoding(tuple(columns), asked.missing is not None)
    twice = next((name for name, n in Counter(encoding.inputs).items() if n > 1), None)
    if twice is not None:
        raise DataError(f"two inputs would be called {twice!r}: rename the column of that name")
    return encoding


def unknown_words(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note of cells with unknown words, by column; none where there are none."""
    unknown = [f"{name} ({n_cells})" for name, n_cells in sorted(counts.items()) if n_cells]
    return (f"cells with a category that no training row has: {shown(unknown)}; they count as none",) if unknown else ()
