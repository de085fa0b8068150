"""The cells of a column: text, missing, or a number where pyarrow reads one; the same from every kind of file.

`numbers` says what number a cell is; `features.tables.learning` calls it for each column of a csv or parquet file, and
no other file is asked. A number with a needless zero in front, such as the code 007, is a word; true and false are 1
and 0.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types

from features.cell_text import NULL_WORDS, TRUTH_WORDS, misread
from features.errors import DataError
from features.targets import LARGEST_WHOLE, MOST_TABLE_CLASSES, UNTOLD, check_printable, check_spellings
from features.words import counted

_NULLS = pyarrow.array(NULL_WORDS, pyarrow.string())
_NEEDLESS_ZEROS = pyarrow.array([f"0{digit}" for digit in range(10)])


def texts_of(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return the cells of a column as a csv would hold them, without blanks around them; null for a missing one.

    Accents are parts of their letters (NFC), however they were written.
    """
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if types.is_boolean(values.type):
        values = compute.if_else(values, "True", "False")
    if types.is_timestamp(values.type):  # In UTC, whatever zones this machine knows.
        values = values.cast(pyarrow.timestamp(values.type.unit))
    texts = compute.utf8_trim_whitespace(values.cast(pyarrow.string()))
    if not compute.all(compute.string_is_ascii(texts)).as_py():
        texts = compute.utf8_normalize(texts, form="NFC")
    return compute.if_else(compute.is_in(texts, value_set=_NULLS), pyarrow.scalar(None, pyarrow.string()), texts)


def distinct(values: "pyarrow.Array") -> tuple[list[str | None], NDArray[np.int64]]:
    """Return the distinct texts of a column (None: missing), by their first rows, and the place (n,) of each row's."""
    coded = texts_of(values).dictionary_encode(null_encoding="encode")
    return coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)


def numbers(values: "pyarrow.Array") -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the cells of a column as numbers (n,), NaN for others, and whether they are words (n,)."""
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if types.is_integer(values.type) or types.is_floating(values.type) or types.is_boolean(values.type):
        read = values.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return read, np.zeros(len(values), bool)
    texts = texts_of(values)
    read = _all_numbers(texts)
    if read is None:
        coded = texts.dictionary_encode(null_encoding="encode")
        read = _numbers_among(coded.dictionary)[coded.indices.to_numpy()]
    return read, np.isnan(read) & texts.is_valid().to_numpy(zero_copy_only=False)


def plain_numbers(columns: Sequence["pyarrow.Array"]) -> NDArray[np.float64] | None:
    """Return columns of texts as (rows, columns) f8 where each cell is a finite number that `numbers` reads; else None.

    Short columns are read together in a tenth of the time that each takes. Whole numbers that float64 does not tell
    apart are left to `long_numbers`.
    """
    if not all(types.is_string(cells.type) for cells in columns):
        return None
    read = _all_numbers(texts_of(pyarrow.concat_arrays(columns)))
    if read is None or not (np.abs(read) < LARGEST_WHOLE).all():  # False where one is NaN.
        return None
    return read.reshape(len(columns), -1).T


def long_numbers(values: "pyarrow.Array", read: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which cells (n,) of a column, read as numbers, are whole ones that float64 does not tell apart."""
    long = np.abs(read) >= LARGEST_WHOLE
    if not long.any() or types.is_floating(values.type):
        return np.zeros(len(read), bool)
    whole = compute.match_substring_regex(texts_of(values), r"^[+-]?[0-9]+(\.0*)?$").fill_null(False)
    return long & whole.to_numpy(zero_copy_only=False)


def labels_of(
    columns: Sequence["pyarrow.Array"],
    where: str,
    task: str | None = None,
    place: Callable[[int], str] = "row {}".format,
) -> NDArray[np.generic]:
    """Return the labels (n,) of a column in pieces: int64, uint64 or float64 where all are numbers, else texts.

    task: the one asked for, "words" for texts alone, None where the labels decide; place: returns the name of a row.
    Raises DataError that begins with `where`, for labels that no type keeps, for texts that only look like words, and
    for one label in two spellings.
    """
    kinds = {piece.type for piece in columns}
    (kind,) = kinds if len(kinds) == 1 else (pyarrow.string(),)
    if types.is_integer(kind) or types.is_floating(kind):
        found = pyarrow.chunked_array(columns).to_numpy()
        return found if found.itemsize == 8 else found.astype(np.float64 if found.dtype.kind == "f" else np.int64)
    texts = pyarrow.concat_arrays([texts_of(piece) for piece in columns])
    exact = None if task == "words" else _exact_numbers(texts)
    if exact is not None:
        are_values = task == "regression" or (task is None and len(np.unique(exact)) > 2)
        if are_values or (exact == np.round(exact)).all():
            return exact
    coded = texts.dictionary_encode()
    words, of_rows = coded.dictionary, coded.indices.to_numpy()
    labels = np.array(words.to_pylist(), dtype=str)
    if task == "words":
        return labels[of_rows]
    firsts = np.unique(of_rows, return_index=True)[1]

    def told(k: int) -> str:
        return f"{labels[k].item()!r:.60} in {place(int(firsts[k]))}"

    if exact is None and (task == "regression" or (task is None and len(labels) > MOST_TABLE_CLASSES)):
        values = _numbers_among(words)
        if task == "regression" and np.isnan(values).any():
            raise DataError(f"{where}: {told(int(np.argmax(np.isnan(values))))} is a word; numbers are needed")
        if (long := np.flatnonzero(np.abs(values) >= LARGEST_WHOLE)).size:
            raise DataError(f"{where}: holds whole numbers such as {told(int(long[0]))}; {UNTOLD}")
        if task == "regression":
            return values[of_rows]
    _check_words(words, where, task, told)
    check_spellings(labels, where, told)
    return labels[of_rows] if exact is None else exact


def _check_words(words: "pyarrow.Array", where: str, task: str | None, told: Callable[[int], str]) -> None:
    """Raise DataError where distinct labels only look like words, or one has control characters."""
    listed, values = words.to_pylist(), _numbers_among(words)
    found = values[~np.isnan(values)]
    n_words, are_values = len(listed) - len(found), len(found) > MOST_TABLE_CLASSES or (found != np.round(found)).any()
    if task is None and n_words and are_values:
        held = f"holds numbers and {counted(n_words, 'other word')}"
        raise DataError(f"{where}: {held}, {told(int(np.argmax(np.isnan(values))))}; mend it")
    looks = misread(itertools.compress(listed, np.isnan(values).tolist()))
    if looks is not None and task is None:
        kind = "binary" if len(listed) == 2 else "multiclass"
        classes = f"; if these are classes, give `data.task={kind}`" if len(listed) <= MOST_TABLE_CLASSES else ""
        raise DataError(f"{where}: holds {looks[0]}, such as {told(listed.index(looks[2]))}; {looks[1]}{classes}")
    check_printable(listed, where)


def _exact_numbers(texts: "pyarrow.Array") -> NDArray[Any] | None:
    """Return texts that are all numbers as int64, uint64 or float64, whichever has each exactly; else None."""
    read = _all_numbers(texts)
    if read is None:
        return None
    for kind in (pyarrow.int64(), pyarrow.uint64()):
        with suppress(pyarrow.ArrowInvalid):
            return texts.cast(kind).to_numpy()
    return None if long_numbers(texts, read).any() else read


def _all_numbers(texts: "pyarrow.Array") -> NDArray[np.float64] | None:
    """Return texts (n,) as numbers, NaN for null; None where one is a word."""
    begins = compute.utf8_slice_codeunits(compute.ascii_ltrim(texts, "+-"), 0, 2)
    if compute.any(compute.is_in(begins, value_set=_NEEDLESS_ZEROS)).as_py():
        return None
    with suppress(pyarrow.ArrowInvalid):
        read = texts.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
        if np.count_nonzero(np.isnan(read)) == texts.null_count:  # Arrow reads texts such as nan(1) as NaN.
            return read
    return None


def _numbers_among(texts: "pyarrow.Array") -> NDArray[np.float64]:
    """Return texts (n,) as numbers, NaN for null and for words, by halving: most columns have few words."""
    read, middle = _all_numbers(texts), len(texts) // 2
    if read is not None:
        return read
    if not middle:
        return np.array([TRUTH_WORDS.get(texts[0].as_py(), np.nan)])
    return np.concatenate([_numbers_among(texts[:middle]), _numbers_among(texts[middle:])])
