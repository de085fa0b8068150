"""The cells of a column: numbers, categories, labels or groups, the same from every kind of file."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types

from features.cell_text import DATE, MICROSECONDS_A_DAY, NULL_WORDS, NUMBER, TRUTH, WORD, misread, read_cell, text_of
from features.errors import DataError
from features.tables.readers import holds_words
from features.targets import MOST_TABLE_CLASSES, written

_NULLS = pyarrow.array(NULL_WORDS, pyarrow.string())


def numbers(values: "pyarrow.Array", *, are_known: bool = False) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return the numbers (n,) that the cells of a column are, NaN for others, and of which kind each is (n,).

    A kind is NUMBER, DATE, TRUTH or WORD; that of a missing cell means nothing. are_known: whether the cells were read
    before, and are no words.
    """
    if types.is_dictionary(values.type) and not holds_words(values.type.value_type):
        values = values.dictionary_decode()
    of, all_of = values.type, partial(np.full, len(values), dtype=np.int8)
    if types.is_date(of) or types.is_timestamp(of):
        return _days(values), all_of(DATE)
    if types.is_decimal(of) or types.is_null(of):
        values = values.cast(pyarrow.string())
    if types.is_integer(of) or types.is_floating(of) or types.is_boolean(of):
        read = _array(values.cast(pyarrow.float64(), safe=False))
        return read, all_of(TRUTH if types.is_boolean(of) else NUMBER)
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
                return found, all_of(NUMBER)
        try:
            return _days(values.cast(pyarrow.timestamp("us"))), all_of(DATE)
        except pyarrow.ArrowInvalid:
            pass
    texts, of_rows = distinct(values)
    read_as = [(NUMBER, np.nan) if text is None else read_cell(text) for text in texts]
    kinds, found = (np.array([one[k] for one in read_as]) for k in (0, 1))
    return found[of_rows].astype(np.float64), kinds[of_rows].astype(np.int8)


def without_zeros(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return a column whose texts have no needless zeros in front: those of quantities, where 007 is no code."""
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    return compute.replace_substring_regex(_bare(values), "^([+-]?)0+([0-9])", r"\1\2") if holds_words(kind) else values


def distinct(values: "pyarrow.Array") -> tuple[list[str | None], NDArray[np.int64]]:
    """Return the distinct texts of a column in the order of their first rows, and which of them each row is.

    They are those that a csv of the same table holds, without blanks around them; None for a missing cell.
    """
    if types.is_null(values.type):
        values = values.cast(pyarrow.string())
    coded = values if types.is_dictionary(values.type) else values.dictionary_encode()
    codes = coded.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    used, first, of_rows = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(used), np.int64)
    rank[order] = np.arange(len(used))
    listed = _micros(coded.dictionary)
    if types.is_floating(listed.type):  # in as few digits as its own type needs
        listed = listed.to_numpy(zero_copy_only=False)
    texts = [None if code < 0 else _text(listed[code]) for code in used[order].tolist()]
    return texts, rank[of_rows]


def missing_cells(values: "pyarrow.Array") -> NDArray[np.bool_]:
    """Return which cells (n,) of a column are missing."""
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    values = _trimmed(values) if holds_words(kind) else values.cast(kind)
    return compute.is_null(values, nan_is_null=types.is_floating(kind)).to_numpy(zero_copy_only=False)


def labels_of(columns: Sequence["pyarrow.Array"], where: str, task: str | None = None) -> NDArray[np.generic]:
    """Return the labels (n,) of a column in pieces: int64, uint64 or float64 where all are numbers, else texts.

    Texts that are numbers stay texts where they would be classes and one is not written as its number is: a class is
    what is written. task: that asked for, "words" for texts alone, None where the labels decide. Raises DataError that
    begins with `where`, for labels that no type compares or keeps, and for texts that only look like words.
    """
    pieces = [_micros(piece.dictionary_decode() if types.is_dictionary(piece.type) else piece) for piece in columns]
    kinds = list(dict.fromkeys(piece.type for piece in pieces))
    _check_alike(kinds, where)
    if len(kinds) > 1 or types.is_decimal(kinds[0]):  # the first: of several files
        pieces = [_texts(piece) for piece in pieces]
    column, are_texts = pyarrow.chunked_array(pieces), any(map(holds_words, kinds))
    if holds_words(column.type) and task != "words":
        column = column.cast(pyarrow.string())
        texts = pyarrow.chunked_array(map(without_zeros if task == "regression" else _bare, column.chunks))
        read = _as_numbers(texts)
        if read is not None and not (are_texts and _are_words(texts, task)):
            return read.to_numpy()
    elif types.is_integer(column.type) or types.is_floating(column.type):
        found = column.to_numpy()
        return written(found) if found.dtype.kind == "f" else found if found.itemsize == 8 else found.astype(np.int64)
    texts, of_rows = distinct(column.combine_chunks())
    words = [text for text in texts if text is not None and read_cell(text)[0] == WORD]
    if task is None and are_texts and (looks := misread(words)) is not None:
        told = f"holds {looks[0]}, such as {looks[2]!r:.60}; {looks[1]}"
        raise DataError(f"{where}: {told}; if these are classes, give `data.task=multiclass`")
    ends = next((text for text in texts if text is not None and text.endswith("\0")), None)
    if ends is not None:
        raise DataError(f"{where}: the label {ends[:40]!r} ends with a NUL character; correct it")
    return np.array(texts, dtype=str)[of_rows]


def _as_numbers(texts: "pyarrow.ChunkedArray") -> "pyarrow.ChunkedArray | None":
    """Return texts without blanks around them as int64, uint64 or float64; None where one is a word."""
    if any(_has_needless_zeros(piece) for piece in texts.chunks):
        return None
    hexadecimal = compute.any(compute.match_substring(texts, "x", ignore_case=True)).as_py()
    for kind in (pyarrow.int64(), pyarrow.uint64(), pyarrow.float64())[2 * bool(hexadecimal) :]:
        with suppress(pyarrow.ArrowInvalid):
            return texts.cast(kind)
    return None


def _are_words(texts: "pyarrow.ChunkedArray", task: str | None) -> bool:
    """Return whether texts of numbers are classes of which one is not written as Python writes its number.

    Where nothing is known, they are classes if the numbers would be, or if few texts are fewer numbers: 1.1 and 1.10.
    """
    words = texts.unique()
    if task == "regression" or (task is None and len(words) > MOST_TABLE_CLASSES):
        return False
    found = _as_numbers(pyarrow.chunked_array([words]))
    assert found is not None
    numbers = found.to_pylist()
    if list(map(str, numbers)) == words.to_pylist():
        return False
    if task is not None or not np.isfinite(np.array(numbers, np.float64)).all():
        return task is not None
    return len(set(numbers)) in (2, *range(len(words))) or all(float(number).is_integer() for number in numbers)


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


def _has_needless_zeros(values: "pyarrow.Array") -> bool:
    """Return whether a text of a column begins with 0 and another digit, with or without a sign."""
    values = values.cast(pyarrow.string()) if not types.is_string(values.type) else values
    _, offsets, data = values.buffers()
    if data is None or not data.size:
        return False
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    letters = np.frombuffer(data, np.uint8)
    first = letters.take(ends[:-1], mode="clip")
    begins = ends[:-1] + ((first == ord("-")) | (first == ord("+")))
    zeros = begins[(letters.take(begins, mode="clip") == ord("0")) & (ends[1:] - begins > 1)]
    return bool((letters[zeros + 1] - np.uint8(ord("0")) < 10).any())


def _has_other_nans(values: "pyarrow.Array", read: NDArray[np.float64]) -> bool:
    """Return whether a text that Arrow reads as NaN is none of the words for a missing cell, such as nan(1)."""
    are_nans = np.isnan(read)
    nans = values.filter(pyarrow.array(are_nans)).drop_null() if are_nans.any() else []
    return len(nans) > 0 and not compute.all(compute.is_in(nans, value_set=_NULLS)).as_py()


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


def _text(cell: Any) -> str | None:
    """Return a value as a csv would hold it, None for a missing one; a time that no calendar has as its number."""
    try:
        value = cell.as_py() if isinstance(cell, pyarrow.Scalar) else cell
    except (OverflowError, ValueError, pyarrow.ArrowInvalid):
        return str(cell.value)
    text = text_of(value)
    if not isinstance(value, str):
        return text if text is None else text.removesuffix(" 00:00:00")  # a date
    return None if value.strip() in NULL_WORDS else value.strip()


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
