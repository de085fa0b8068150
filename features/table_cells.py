"""The cells of tables as numbers: a column of a batch at a time, the same for every kind of file.

Cells of inputs become *codes*, of which `features.encoding` makes inputs: a number, the place of a word in a list, -1
for an unknown word, NaN for a missing cell. Dates are days since 1970, true and false are 1 and 0.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types

from features.cell_text import SECONDS_A_DAY, category_of, cell_text, is_missing, is_plain, number_of, reads_as_number
from features.column_names import drop_setting
from features.encoding import MOST_ONEHOT, MOST_WORD_CHARACTERS, MOST_WORDS, UNKNOWN
from features.errors import DataError
from features.row_draws import Keys, group_keys
from features.table_batches import Batch


class CellError(DataError):
    """A cell that cannot be: what is wrong with it, and the row of the batch that has it."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def distinct(values: "pyarrow.Array") -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of a column in the order of their first rows, and which of them each row is.

    They are the texts that a csv of the same table holds: numbers in full, truth values as 1 and 0, nothing for null.
    """
    if types.is_null(values.type):
        values = values.cast(pyarrow.string())
    if types.is_boolean(values.type):
        values = values.cast(pyarrow.int8())
    if types.is_string_view(values.type):
        values = values.cast(pyarrow.string())
    values = _micros(values)
    coded = values if types.is_dictionary(values.type) else values.dictionary_encode()
    codes = coded.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    used, first, of_rows = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(used), np.int64)
    rank[order] = np.arange(len(used))
    listed = coded.dictionary
    texts = ["" if code < 0 else _text_of(listed[code]) for code in used[order].tolist()]
    return texts, rank[of_rows]


def texts_of(values: "pyarrow.Array") -> NDArray[np.str_]:
    """Return the texts (n,) of a column, without blanks around them."""
    texts, of_rows = distinct(values)
    return np.array([text.strip() for text in texts], dtype=str)[of_rows] if texts else np.empty(0, "U1")


def numbers(values: "pyarrow.Array") -> NDArray[np.float64]:
    """Return the numbers (n,) that the cells of a column are, those that Python's float reads; NaN for all others."""
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    if types.is_date(kind) or types.is_timestamp(kind):
        return _days(values)
    if types.is_decimal(kind) or types.is_null(kind):
        values = values.cast(pyarrow.string())
    if types.is_boolean(kind):
        values = values.cast(pyarrow.int8())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return _array(values.cast(pyarrow.float64(), safe=False))
    if not types.is_dictionary(values.type):
        for read in (lambda texts: texts, _trimmed):
            try:
                return _array(read(values).cast(pyarrow.float64()))
            except pyarrow.ArrowInvalid:
                continue
    texts, of_rows = distinct(values)
    return np.array([number_of(text) for text in texts])[of_rows]


def _days(values: "pyarrow.Array") -> NDArray[np.float64]:
    """Return the days since 1970 of dates and times, NaN for null."""
    if types.is_date32(values.type):
        return _array(values.cast(pyarrow.int32()).cast(pyarrow.float64()))
    unit = getattr(values.type, "unit", "ms")  # which is that of a date64
    micros = _array(_micros(values).cast(pyarrow.int64()).cast(pyarrow.float64(), safe=False))
    return micros * {"s": 1e6, "ms": 1e3}.get(unit, 1.0) / 1e6 / SECONDS_A_DAY


def _micros(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return times as they are, those in nanoseconds in microseconds: Python has no nanoseconds."""
    if not types.is_timestamp(values.type) or values.type.unit != "ns":
        return values
    return values.cast(pyarrow.timestamp("us", values.type.tz), safe=False)


def _text_of(cell: "pyarrow.Scalar") -> str:
    """Return a value as a csv would hold it; a time that no calendar has as its number."""
    try:
        return cell_text(cell.as_py())
    except (OverflowError, ValueError, pyarrow.ArrowInvalid):
        return str(cell.value)


def _trimmed(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return texts without blanks around them, null for empty ones."""
    trimmed = compute.ascii_trim_whitespace(values)
    return compute.if_else(compute.equal(trimmed, ""), pyarrow.scalar(None, trimmed.type), trimmed)


def _array(values: "pyarrow.Array") -> NDArray[np.float64]:
    """Return numbers (n,) f8, NaN for null."""
    return values.to_numpy(zero_copy_only=False)


@dataclass
class CellReader:
    """Turns the columns of batches into codes.

    names: of the columns; words: the place of each known word by column, None for a column of numbers; missing: whether
    cells may be missing. new: whether unknown words get places of their own, as in training; else they are counted.
    """

    names: Sequence[str]
    words: Sequence[dict[str, int] | None]
    missing: bool = False
    new: bool = False
    unknown: Counter[str] = field(default_factory=Counter)

    def codes(self, batch: Batch, places: Sequence[int], hint: str = "") -> NDArray[np.float64]:
        """Return the codes (rows, columns) f8 of the columns at some places; `hint` ends errors of the first row.

        Raises CellError for the first row with a cell that cannot be.
        """
        codes, errors = np.empty((batch.n_rows, len(places))), list[CellError]()
        for k, (known, place) in enumerate(zip(self.words, places, strict=True)):
            read = self._numbers if known is None else self._places
            try:
                codes[:, k] = read(k, batch, batch.columns[place], hint)
            except CellError as error:
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: error.row)
        return codes

    def _numbers(self, k: int, batch: Batch, values: "pyarrow.Array", hint: str) -> NDArray[np.float64]:
        codes = numbers(values)
        bad = np.flatnonzero(~np.isfinite(codes))
        if not len(bad):
            return codes
        texts, of_rows = distinct(values.take(pyarrow.array(bad)))
        wrong = [not (self.missing and is_missing(text)) for text in texts]
        if any(wrong):
            row = bad[np.flatnonzero(np.array(wrong)[of_rows])[0]]
            text = texts[wrong.index(True)]
            hint = hint if not row else ""
            wanted = self._wanted(text, values)
            raise CellError(int(row), f"{batch.where(row)}, column {self.names[k]} is {text[:40]!r}; {wanted}{hint}")
        codes = codes.copy()
        codes[bad] = np.nan
        return codes

    def _places(self, k: int, batch: Batch, values: "pyarrow.Array", hint: str) -> NDArray[np.float64]:
        known, name = self.words[k], self.names[k]
        assert known is not None
        texts, of_rows = distinct(values)
        places = np.empty(len(texts))
        for at, text in enumerate(texts):
            if is_missing(text) and not self.missing:
                row = int(np.flatnonzero(of_rows == at)[0])
                wanted = f"a category is needed{self._advice('data.missing=median fills missing cells in')}"
                raise CellError(row, f"{batch.where(row)}, column {name} is {text[:40]!r}; {wanted}")
            try:
                places[at] = np.nan if is_missing(text) else self._place(known, text.strip())
            except OverflowError as error:
                row = int(np.flatnonzero(of_rows == at)[0])
                fault = f"column {name} has {error}; leave it out ({drop_setting(name)})"
                raise CellError(row, f"{batch.where(row)}, {fault}") from None
        self.unknown[name] += int(np.count_nonzero(places[of_rows] == UNKNOWN))
        return places[of_rows]

    def _place(self, known: dict[str, int], word: str) -> float:
        """Return the place of a word in the list of its column. Raises OverflowError where that becomes too long."""
        if word not in known:
            word = category_of(word)
        if word in known:
            return float(known[word])
        if not self.new:
            return UNKNOWN
        if len(word) > MOST_WORD_CHARACTERS:
            raise OverflowError(f"a text of {len(word)} characters")
        if len(known) == MOST_WORDS:
            raise OverflowError(f"more than {MOST_WORDS} categories")
        known[word] = len(known)
        return float(known[word])

    def _wanted(self, cell: str, values: "pyarrow.Array") -> str:
        """Return what a cell of numbers should be, and how other cells can be read."""
        if is_missing(cell):
            return f"a finite number is needed{self._advice('data.missing=median fills missing cells in')}"
        if not is_plain(cell) and reads_as_number(cell):
            return "a number in ASCII digits without underscores is needed"
        if re.fullmatch(r"[+-]?[0-9]+,[0-9]+", cell.strip()):
            return "a finite number with a decimal point is needed"
        if reads_as_number(cell):
            return "a finite number is needed"
        kind = "onehot" if len(distinct(values)[0]) <= MOST_ONEHOT else "auto"
        return f"a finite number is needed{self._advice(f'data.categorical={kind} takes words for categories')}"

    def _advice(self, setting: str) -> str:
        """Return a setting that helps in training; a model has what it was trained with."""
        return f" (--set {setting})" if self.new else ""


def first_rows(batch: Batch, place: int, wrong: Callable[[str], bool]) -> tuple[int, str] | None:
    """Return the first row of a column whose text is wrong, and that text."""
    texts, of_rows = distinct(batch.columns[place])
    bad = [at for at, text in enumerate(texts) if wrong(text.strip())]
    if not bad:
        return None
    row = int(np.flatnonzero(np.isin(of_rows, bad))[0])
    return row, texts[of_rows[row]].strip()


def keys_of_groups(batch: Batch, place: int, name: str) -> Keys:
    """Return the key (rows,) u8 of the group of each row. Raises CellError for a row without one."""
    texts, of_rows = distinct(batch.columns[place])
    missing = first_rows(batch, place, is_missing)
    if missing is not None:
        raise CellError(missing[0], f"{batch.where(missing[0])}, column {name} names no group; name one for each row")
    try:
        return group_keys(np.array([text.strip() for text in texts], dtype=str))[of_rows]
    except DataError as error:
        raise CellError(0, f"{batch.path}, column {name}: {error}") from None
