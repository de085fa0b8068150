"""The labels of tables: whole numbers, numbers or words, collected batch by batch."""

import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types

from features.cell_text import is_plain, reads_as_number
from features.errors import DataError
from features.table_batches import Batch
from features.table_cells import CellError, distinct, first_rows

EXACT = 2**53  # below it, float64 tells all whole numbers apart
MOST_LABEL_WORDS = 1 << 20


class WordAfterNumbersError(Exception):
    """A label is a word, all before it were numbers: they are to be read again, as words."""


def is_no_label(text: str) -> bool:
    """Return whether a cell of the target says that there is no label."""
    return not text or text.lower() in ("nan", "na")


def check_labels(batch: Batch, place: int, name: str) -> None:
    """Raise CellError for the first row of a batch without a label in the column at a place, of such a name."""
    missing = first_rows(batch, place, is_no_label)
    if missing is not None:
        row, text = missing
        raise CellError(row, f"{batch.where(row)}, column {name} has no label ({text!r})")


@dataclass
class LabelReader:
    """Collects labels: int64, uint64 or float64 where all are numbers, else text.

    name: of the column, for errors; as_words: whether numbers are words, too.
    """

    name: str
    as_words: bool = False
    _numbers: list[NDArray[np.generic]] = field(default_factory=list)
    _codes: list[NDArray[np.int64]] = field(default_factory=list)
    _words: dict[str, int] = field(default_factory=dict)
    _large: dict[float, str] = field(default_factory=dict)
    _alike: tuple[str, str] | None = None  # two large whole numbers that are one in float64
    _odd: tuple[int, str] | None = None  # a row with a number in another spelling
    _n_rows: int = 0

    def add(self, batch: Batch, place: int) -> None:
        """Take the labels of a batch. Raises CellError for a row without one, WordAfterNumbersError."""
        if not self.as_words:
            values = _fast(batch.columns[place])
            if values is None:
                check_labels(batch, place, self.name)
                values = self._spelled(batch, place)
            if values is None and self._numbers:
                raise WordAfterNumbersError
            if values is not None:
                self._numbers.append(values)
            self.as_words = values is None
        if self.as_words:
            check_labels(batch, place, self.name)
            texts, of_rows = distinct(batch.columns[place])
            places = [self._words.setdefault(text.strip(), len(self._words)) for text in texts]
            if len(self._words) > MOST_LABEL_WORDS:
                raise CellError(0, f"{batch.path}, column {self.name} has more than {MOST_LABEL_WORDS} distinct words")
            self._codes.append(np.array(places, np.int64)[of_rows])
        self._n_rows += batch.n_rows

    def values(self, where: str) -> NDArray[np.generic]:
        """Return the labels of all rows (n,). Raises DataError for numbers that cannot be told apart, or be read."""
        if self.as_words:
            ends = next((word for word in self._words if word.endswith("\0")), None)
            if ends is not None:
                raise DataError(f"{where}: the label {ends[:40]!r} ends with a NUL character; correct it")
            return np.array(list(self._words))[np.concatenate(self._codes)]
        if not self._numbers:
            return np.empty(0)
        kinds = {values.dtype.kind for values in self._numbers}
        kind = kinds.pop() if len(kinds) == 1 else "f"
        if kinds == {"i", "u"} and all(values.min() >= 0 for values in self._numbers):
            kind = "u"
        if kind == "f" and self._alike is not None:
            one, other = (text[:40] for text in self._alike)
            raise DataError(
                f"{where}: no type of numbers tells the labels {one} and {other} apart; write labels of classes as "
                "words, and quantities with an exponent (1e20)"
            )
        if self._odd is not None:
            row, text = self._odd
            raise DataError(f"{where}, row {row} is {text[:40]!r}; write numbers in ASCII digits without _")
        return np.concatenate(self._numbers).astype({"i": np.int64, "u": np.uint64, "f": np.float64}[kind], copy=False)

    def first_unlike_others(self) -> tuple[str, str] | None:
        """Return the first label, and how it differs from all others, where it may be a name or be wrong."""
        if not self.as_words or self._n_rows < 3:
            return None
        first, *others = self._words
        counts = np.bincount(np.concatenate(self._codes))
        if reads_as_number(first) or counts[0] > 1:
            return None
        if all(map(reads_as_number, others)):
            return first, "all other lines have numbers"
        if counts[1:].min() > 1:
            return first, "no other line has it, and all other labels repeat"
        return None

    def _spelled(self, batch: Batch, place: int) -> NDArray[np.generic] | None:
        """Return labels as Python reads each of them, as numbers of one type; None where one is none."""
        texts, of_rows = distinct(batch.columns[place])
        texts = [text.strip() for text in texts]
        for dtype in (np.int64, np.uint64, np.float64):
            try:
                values = np.array([dtype(text) for text in texts])
            except (ValueError, OverflowError):
                continue
            for at, text in enumerate(texts):
                if abs(float(values[at])) >= EXACT and re.fullmatch(r"[+-]?\d+", text):
                    other = self._large.setdefault(float(values[at]), text)
                    self._alike = self._alike or ((other, text) if other != text else None)
                if not is_plain(text) and self._odd is None:
                    self._odd = batch.start + int(np.flatnonzero(of_rows == at)[0]), text
            return values[of_rows]
        return None


def _fast(values: "pyarrow.Array") -> NDArray[np.generic] | None:
    """Return labels that are numbers below 2^53 as int64 or float64; None where some are not, or may not be."""
    if types.is_dictionary(values.type) or values.null_count or not len(values):
        return None
    if not (types.is_integer(values.type) or types.is_floating(values.type)):
        if not (types.is_string(values.type) or types.is_large_string(values.type)):
            return None
        values = compute.ascii_trim_whitespace(values)
        try:
            hexadecimal = compute.any(compute.match_substring(values, "x", ignore_case=True)).as_py()
            values = values.cast(pyarrow.float64() if hexadecimal else pyarrow.int64())
        except pyarrow.ArrowInvalid:
            try:
                values = values.cast(pyarrow.float64())
            except pyarrow.ArrowInvalid:
                return None
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind == "u" and array.max() >= EXACT:
        return None
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)
    largest = max(-int(array.min()), int(array.max())) if array.dtype.kind == "i" else np.abs(array).max()
    return array if largest < EXACT else None
