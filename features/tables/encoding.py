"""Words and missing cells of a table as numbers: learned on training rows, part of the model, the same at prediction.

Cells are first *codes*, (n, columns) f8: a number, the place of a word in a list, -1 for an unknown word, NaN for a
missing cell. Inputs are one-hot words or their places, the median for a missing cell, and whether it was missing.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.cell_text import MOST_ONEHOT, UNKNOWN, drop_setting, names_in, places_in, shown
from features.errors import DataError, UsageError

KINDS = ("auto", "onehot")
MOST_WORDS = 1000  # of a column; with more it is a name or a text, of which nothing is learned
MOST_WORD_CHARACTERS = 200


@dataclass(frozen=True)
class EncodingRequest:
    """Which encoding was asked for: one of KINDS, for columns of words and those named in `columns`; missing."""

    categorical: str | None = None
    columns: tuple[str, ...] = ()
    missing: str | None = None

    @classmethod
    def read(cls, categorical: str | None, missing: str | None) -> "EncodingRequest":
        """Return what the settings ask for: KIND or KIND:NAME,NAME, or UsageError for others."""
        kind, _, names = (categorical or "").partition(":")
        if kind and kind not in KINDS:
            known = ", ".join(KINDS)
            raise UsageError(f"`data.categorical={categorical}`: give {known}, or such with columns: KIND:A,B")
        return cls(kind or None, names_in(names), missing)


@dataclass(frozen=True)
class ColumnEncoding:
    """How the codes of one column become inputs.

    words: the sorted categories, None for a column of numbers; onehot: whether each is an input; fill: the value of a
    missing cell, or of an unknown word that is no input of its own; indicator: whether one more input marks missing
    cells.
    """

    name: str
    words: tuple[str, ...] | None
    onehot: bool
    fill: float
    indicator: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        words = tuple(f"{self.name}={word}" for word in self.words or ()) if self.onehot else (self.name,)
        return words + ((f"{self.name} is missing",) if self.indicator else ())

    def places(self, words: Collection[str] | None) -> NDArray[np.float64] | None:
        """Return the place of each of some words among those of the column, and last UNKNOWN; None for None."""
        known = {word: k for k, word in enumerate(self.words or ())}
        return None if words is None else np.array([*places_in(known, words), UNKNOWN], np.float64)

    def apply(self, codes: np.ndarray) -> np.ndarray:
        """Return the inputs (n, inputs) f8 of codes (n,)."""
        out, missing = np.zeros((len(codes), len(self.inputs))), np.isnan(codes)
        if self.onehot:
            rows = np.flatnonzero(codes >= 0)
            out[rows, codes[rows].astype(np.int64)] = 1.0
        else:
            out[:, 0] = np.where(missing if self.words is None else ~(codes >= 0), self.fill, codes)
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
        """Names of all inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    def apply(self, codes: np.ndarray) -> np.ndarray:
        """Return the inputs (n, d) f8 of codes (n, columns)."""
        return np.hstack([column.apply(codes[:, k]) for k, column in enumerate(self.columns)])

    def unknown(self, codes: np.ndarray) -> dict[str, int]:
        """Count the codes (n, columns) of words that no training row has, by column."""
        columns = [(k, column.name) for k, column in enumerate(self.columns) if column.words is not None]
        return {name: int(np.count_nonzero(codes[:, k] == UNKNOWN)) for k, name in columns}

    def described(self) -> dict[str, Any]:
        """Return the encoding as JSON-able values."""
        columns = [{**asdict(column), "words": column.words and list(column.words)} for column in self.columns]
        return {"columns": columns, "missing": self.missing}

    def digest(self) -> str:
        """Return the sha256 of the encoding."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "TableEncoding":
        """Return the encoding that `described` made. Raises DataError where something in it cannot be."""
        try:
            columns = tuple(_checked_column(**column) for column in described["columns"])
            if type(described["missing"]) is not bool or not columns:
                raise TypeError("missing is no truth value, or there are no columns")
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise DataError(f"the encoding of its columns is damaged ({error!s:.80})") from None
        return cls(columns, described["missing"])

    def notes(self) -> tuple[str, ...]:
        """Return notes on the columns that are encoded; none where there are none."""
        words, gaps = [], []
        for column in self.columns:
            if column.words is not None:
                words.append(
                    f"{column.name} ({len(column.words)}{'' if column.onehot else ', by place in the alphabet'})"
                )
            if column.indicator:
                gaps.append(column.name)
        notes = [f"columns of words, with their number of categories: {shown(words)}"] if words else []
        filled = "missing cells count as the median (words: as no category), and an input marks them"
        notes += [f"{filled}: {shown(gaps)}"] if gaps else []
        return tuple(notes)


Words = Sequence[Collection[str] | None]  # that the codes of each column stand for, in their order; None for numbers


def learn_encoding(
    names: Sequence[str], words: Words, codes: NDArray[np.float64], asked: EncodingRequest
) -> TableEncoding:
    """Return the encoding that the codes (n, columns) of training rows ask for.

    words: what the codes stand for. Raises DataError where columns have nothing but missing cells.
    """
    empty = [name for name, column in zip(names, codes.T, strict=True) if np.isnan(column).all()]
    if empty:
        fault = f"columns without a cell that is filled in in the training rows: {shown(empty)}"
        raise DataError(f"{fault}; leave them out ({drop_setting(*empty)})")
    columns = list[ColumnEncoding]()
    for name, listed, column in zip(names, words, codes.T, strict=True):
        present = column[~np.isnan(column)]
        indicator = len(present) < len(column)
        if listed is None:
            columns.append(ColumnEncoding(name, None, False, float(np.median(present)), indicator))
            continue
        known, counts = list(listed), np.bincount(present.astype(np.int64), minlength=len(listed))
        used = sorted(np.flatnonzero(counts).tolist(), key=lambda code: _by_value(known[code]))
        onehot = asked.categorical == "onehot" or (asked.categorical == "auto" and len(used) <= MOST_ONEHOT)
        middle = np.searchsorted(np.cumsum(counts[used]), (len(present) - 1) // 2, side="right")
        fill = 0.0 if onehot else float(middle)
        columns.append(ColumnEncoding(name, tuple(known[code] for code in used), onehot, fill, indicator))
    return TableEncoding(tuple(columns), asked.missing is not None)


def unknown_words(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note of cells with unknown words, by column; none where there are none."""
    unknown = [f"{name} ({n_cells})" for name, n_cells in sorted(counts.items()) if n_cells]
    return (f"cells with a category that no training row has: {shown(unknown)}; they count as none",) if unknown else ()


def _by_value(word: str) -> tuple[bool, float, str]:
    """Return the key that sorts numbers by their value and before words."""
    try:
        return False, float(word), word
    except ValueError:
        return True, 0.0, word


def _checked_column(name: str, words: Any, onehot: bool, fill: float, indicator: bool) -> ColumnEncoding:
    """Return the encoding of a column. Raises TypeError or UnicodeEncodeError where a value cannot be."""
    if not isinstance(name, str) or {type(onehot), type(indicator)} != {bool} or type(fill) is not float:
        raise TypeError("a name is no text, or a value of the wrong kind")
    if not np.isfinite(fill) or (onehot and words is None):
        raise TypeError("a value that is not finite, or no words")
    if words is not None:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise TypeError("words that are no list of texts")
        if not len(set(words)) == len(words) <= MOST_WORDS or fill not in range(len(words)):
            raise TypeError(f"{len(words)} words, one twice, or a fill that is none of them")
    "".join([name, *(words or ())]).encode()
    return ColumnEncoding(name, None if words is None else tuple(words), onehot, fill, indicator)
