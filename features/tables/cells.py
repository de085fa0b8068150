"""The cells of a column: numbers, categories, labels or groups, the same from every kind of file.

Arrow decides what a number is. Dates are days since 1970, true and false are 1 and 0. A number that begins with a
needless 0, such as the code 007, is a word.
"""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types

from features.cell_text import NULL_WORDS, text_of
from features.errors import DataError
from features.tables.readers import holds_words

EXACT = 2**53  # below it, float64 tells all whole numbers apart
MICROSECONDS_A_DAY = 86_400e6
_NUMBER = re.compile(r"([+-]?inf(inity)?|(?!0[0-9])[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", re.I | re.A)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.A)
_TRUTH = {"true": 1.0, "false": 0.0}
_NULLS = pyarrow.array(NULL_WORDS, pyarrow.string())


def numbers(
    values: "pyarrow.Array", *, are_known: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Return the numbers (n,) that the cells of a column are, NaN for others; and which others are words.

    The second is None where no cell is a word. are_known: whether the cells were read before, and are no words.
    """
    if types.is_dictionary(values.type) and not holds_words(values.type.value_type):
        values = values.dictionary_decode()
    kind = values.type
    if types.is_date(kind) or types.is_timestamp(kind):
        return _days(values), None
    if types.is_decimal(kind) or types.is_null(kind):
        values = values.cast(pyarrow.string())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return _array(values.cast(pyarrow.float64(), safe=False)), None
    if types.is_string(values.type):
        for has_blanks in (False, True):
            cells = _trimmed(values) if has_blanks else values
            if not are_known and _has_needless_zeros(cells):
                break
            try:
                found = _array(cells.cast(pyarrow.float64()))
            except pyarrow.ArrowInvalid:
                continue
            if are_known or not _has_other_nans(cells, found):
                return found, None
        try:
            return _days(values.cast(pyarrow.timestamp("us"))), None
        except pyarrow.ArrowInvalid:
            pass
    texts, of_rows = distinct(values)
    read_as = np.array([np.nan if text is None else number_of(text) for text in texts], np.float64)
    words = np.array([text is not None and np.isnan(number) for text, number in zip(texts, read_as, strict=True)], bool)
    return read_as[of_rows], words[of_rows] if words.any() else None


def number_of(text: str) -> float:
    """Return the number, the days since 1970, or the truth value that a text is; NaN where it is none of them."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DATE.fullmatch(text):
        return _TRUTH.get(text.lower(), np.nan)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return np.nan
    if len(text) == 10:
        return float((moment.date() - date(1970, 1, 1)).days)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since // timedelta(microseconds=1)) / MICROSECONDS_A_DAY


def distinct(values: "pyarrow.Array") -> tuple[list[str | None], NDArray[np.int64]]:
    """Return the distinct texts of a column in the order of their first rows, and which of them each row is.

    They are those that a csv of the same table holds, without blanks around them; None for a missing cell.
    """
    if types.is_null(values.type) or types.is_string_view(values.type):
        values = values.cast(pyarrow.string())
    coded = values if types.is_dictionary(values.type) else values.dictionary_encode()
    codes = coded.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    used, first, of_rows = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(used), np.int64)
    rank[order] = np.arange(len(used))
    listed = _micros(coded.dictionary)
    texts = [None if code < 0 else _text(listed[code]) for code in used[order].tolist()]
    return texts, rank[of_rows]


def missing_cells(values: "pyarrow.Array") -> NDArray[np.bool_]:
    """Return which cells (n,) of a column are missing."""
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    values = values.cast(pyarrow.string() if holds_words(kind) else kind)
    missing = compute.is_null(values, nan_is_null=types.is_floating(kind))
    if holds_words(kind):
        missing = compute.or_(missing, compute.is_in(_bare(values), value_set=_NULLS))
    return missing.to_numpy(zero_copy_only=False)


def labels_of(columns: Sequence["pyarrow.Array"], where: str) -> NDArray[np.generic]:
    """Return the labels (n,) of a column in pieces: int64, uint64 or float64 where all are numbers, else texts.

    Raises DataError, which begins with `where`, for labels that no type tells apart, compares or keeps.
    """
    pieces = [_micros(piece) for piece in columns]
    kinds = list(dict.fromkeys(piece.type for piece in pieces))
    _check_alike(kinds, where)
    if len(kinds) > 1 or types.is_decimal(kinds[0]):  # the first: of several files
        pieces = [_texts(piece) for piece in pieces]
    column = pyarrow.chunked_array(pieces)
    if holds_words(column.type) and not any(_has_needless_zeros(piece) for piece in column.chunks):
        column = compute.utf8_trim_whitespace(column.cast(pyarrow.string()))
        hexadecimal = compute.any(compute.match_substring(column, "x", ignore_case=True)).as_py()
        for kind in (pyarrow.int64(), pyarrow.uint64(), pyarrow.float64()):
            if kind != pyarrow.float64() and hexadecimal:
                continue
            try:
                read = column.cast(kind)
            except pyarrow.ArrowInvalid:
                continue
            _check_apart(column, read, where)
            return read.to_numpy()
    elif types.is_integer(column.type) or types.is_floating(column.type):
        unsigned = column.type == pyarrow.uint64()
        kind = pyarrow.uint64() if unsigned else pyarrow.int64() if types.is_integer(column.type) else pyarrow.float64()
        return column.cast(kind).to_numpy()
    texts, of_rows = distinct(column.combine_chunks())
    ends = next((text for text in texts if text is not None and text.endswith("\0")), None)
    if ends is not None:
        raise DataError(f"{where}: the label {ends[:40]!r} ends with a NUL character; correct it")
    return np.array(texts, dtype=str)[of_rows]


def _check_alike(kinds: Sequence["pyarrow.DataType"], where: str) -> None:
    """Raise DataError where values of some types may be equal and written otherwise."""
    words = any(holds_words(kind) or types.is_dictionary(kind) for kind in kinds)
    dates = any(map(types.is_temporal, kinds)) and len(kinds) > 1 and not all(map(types.is_timestamp, kinds))
    if dates or (words and any(map(types.is_boolean, kinds))):
        listed = " and ".join(str(kind)[:60] for kind in kinds[:2])
        raise DataError(f"{where}: the files of the table hold {listed}; give labels of one type")


def _texts(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return the cells of a column as a csv would hold them, true and false as 1 and 0."""
    texts, of_rows = distinct(values.cast(pyarrow.int8()) if types.is_boolean(values.type) else values)
    return pyarrow.array(texts, pyarrow.string()).take(pyarrow.array(of_rows))


def _check_apart(texts: "pyarrow.ChunkedArray", read: "pyarrow.ChunkedArray", where: str) -> None:
    """Raise DataError where whole numbers beyond the exact ones of float64 become one."""
    if read.type != pyarrow.float64() or not len(read):
        return
    large = compute.and_(
        compute.greater_equal(compute.abs(read), float(EXACT)), compute.match_substring_regex(texts, r"^[+-]?\d+$")
    )
    written, kept = texts.filter(large), read.filter(large)
    if compute.count_distinct(written).as_py() != compute.count_distinct(kept).as_py():
        shown = " and ".join(text.as_py()[:40] for text in written.unique()[:2])
        raise DataError(
            f"{where}: no type of numbers tells labels such as {shown} apart; write labels of classes as words, and "
            "quantities with an exponent (1e20)"
        )


def _has_needless_zeros(values: "pyarrow.Array") -> bool:
    """Return whether a text of a column begins with 0 and another digit."""
    values = values.cast(pyarrow.string()) if not types.is_string(values.type) else values
    _, offsets, data = values.buffers()
    if data is None or not data.size:
        return False
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    letters = np.frombuffer(data, np.uint8)
    begins_with_zero = letters.take(ends[:-1], mode="clip") == ord("0")
    zeros = ends[:-1][begins_with_zero & (np.diff(ends) > 1)]
    return bool((letters[zeros + 1] - np.uint8(ord("0")) < 10).any())


def _has_other_nans(values: "pyarrow.Array", read: NDArray[np.float64]) -> bool:
    """Return whether a text that Arrow reads as NaN is none of the words for a missing cell, such as nan(1)."""
    are_nans = np.isnan(read)
    if not are_nans.any():
        return False
    nans = values.filter(pyarrow.array(are_nans))
    return len(nans) > nans.null_count and not compute.all(compute.is_in(nans.drop_null(), value_set=_NULLS)).as_py()


def _days(values: "pyarrow.Array") -> NDArray[np.float64]:
    """Return the days since 1970 of dates and times, NaN for null."""
    if types.is_date32(values.type):
        return _array(values.cast(pyarrow.int32()).cast(pyarrow.float64()))
    unit = getattr(values.type, "unit", "ms")  # which is that of a date64
    ticks = _array(_micros(values).cast(pyarrow.int64()).cast(pyarrow.float64(), safe=False))
    return ticks * {"s": 1e6, "ms": 1e3}.get(unit, 1.0) / MICROSECONDS_A_DAY


def _micros(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return times as they are, those in nanoseconds in microseconds: Python has no nanoseconds."""
    if not types.is_timestamp(values.type) or values.type.unit != "ns":
        return values
    return values.cast(pyarrow.timestamp("us", values.type.tz), safe=False)


def _text(cell: "pyarrow.Scalar") -> str | None:
    """Return a value as a csv would hold it, None for a missing one; a time that no calendar has as its number."""
    try:
        text = text_of(cell.as_py())
    except (OverflowError, ValueError, pyarrow.ArrowInvalid):
        return str(cell.value)
    text = None if text is None else text.strip()
    return None if text in NULL_WORDS else text


def _trimmed(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return texts without blanks around them, null for those that say that a cell is missing."""
    trimmed = _bare(values)
    missing = compute.is_in(trimmed, value_set=_NULLS)
    return compute.if_else(missing, pyarrow.scalar(None, trimmed.type), trimmed)


def _bare(values: "pyarrow.Array") -> "pyarrow.Array":
    return compute.utf8_trim_whitespace(values.cast(pyarrow.string()))


def _array(values: "pyarrow.Array") -> NDArray[np.float64]:
    """Return numbers (n,) f8, NaN for null."""
    return values.to_numpy(zero_copy_only=False)
