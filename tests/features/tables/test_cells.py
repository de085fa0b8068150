"""Cells: which are numbers, words or missing, the same in every type and company, and to other libraries; labels."""

import io
import math
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.cell_text import NULL_WORDS, TRUTH_WORDS
from features.errors import DataError
from features.tables.cells import distinct, labels_of, long_numbers, numbers
from features.words import names_in, names_text

MISSING, WORD = None, "a word"
NUMBERS = {"12": 12, "-3": -3, "+4": 4, "2.50": 2.5, ".5": 0.5, "1.": 1, "1e3": 1000, "-2.5E-3": -0.0025, "0.07": 0.07}
CELLS = {
    **NUMBERS,
    **TRUTH_WORDS,
    **dict.fromkeys(NULL_WORDS, MISSING),
    **{" 7 ": 7.0, "\t7": 7.0, "inf": math.inf, "-Infinity": -math.inf, "1e400": math.inf, " NA ": MISSING},
    **dict.fromkeys(("007", " 007", "00", "00.5", "-007", "+00", "1_000", "0x1F", "1,5", "1 2", "٣", "１", "1e"), WORD),
    **dict.fromkeys((".", "NAN", "nan(1)", "na", "none", "yes", "t", "tRUE", "1970-01-01", "24:00", "1.5D3"), WORD),
}
PAGE = Path(__file__).parents[3] / "docs" / "tables.md"


def of_texts(cells: Sequence[str | None]) -> pyarrow.Array:
    return pyarrow.array(cells, pyarrow.string())


def read(values: pyarrow.Array) -> list[float | str | None]:
    """Return what each cell of a column is read as: a number, a word, or missing."""
    found, are_words = numbers(values)
    kinds = zip(found.tolist(), are_words.tolist(), strict=True)
    return [WORD if is_word else MISSING if math.isnan(number) else number for number, is_word in kinds]


@pytest.mark.parametrize("cell", CELLS)
def test_what_a_cell_is_alone_and_in_any_company(cell):
    expected = [CELLS[cell]]
    for company in ([], ["1.5"], ["word"], ["", None], ["007"], ["True"]):
        for column in (of_texts([*company, cell]), of_texts([*company, cell]).dictionary_encode()):
            assert read(column)[len(company) :] == expected
    assert read(of_texts([cell]).cast("large_string")) == expected
    assert distinct(of_texts([cell]))[0] == [None if expected == [MISSING] else cell.strip()]


def test_pandas_and_polars_read_the_same_spellings():
    for cells in (NUMBERS, TRUTH_WORDS):
        lines = "\n".join(["c,d", *(f"{cell},1" for cell in [*cells, *NULL_WORDS])])
        ours = read(of_texts([*cells, *NULL_WORDS]))
        theirs = pandas.read_csv(io.StringIO(lines), na_values=["?", "-", "NaT"])["c"].astype(float)
        assert [None if math.isnan(number) else number for number in theirs] == ours
        if cells is NUMBERS:
            frame = polars.read_csv(lines.encode(), schema_overrides={"c": polars.Float64}, null_values=[*NULL_WORDS])
            assert frame["c"].to_list() == ours


def test_the_page_lists_the_spellings_that_are_read():
    rows = [
        ("a number, such as", NUMBERS),
        ("the number 1", [word for word, value in TRUTH_WORDS.items() if value]),
        ("the number 0", [word for word, value in TRUTH_WORDS.items() if not value]),
        ("missing: nothing, or", NULL_WORDS[1:]),
        ("a word", ["all else"]),
    ]
    lines = [f"| {what} | {', '.join(f'`{word}`' for word in words)} |" for what, words in rows]
    table = "\n".join(["| a cell is | where it is |", "|---|---|", *lines]).replace("`all else`", "all else")
    assert table in PAGE.read_text(), f"put this into {PAGE}:\n{table}"


NEARLY = st.text("0123456789+-.eEinfatyNAT: _xZ", max_size=12)


@given(st.lists(NEARLY | st.floats().map(str) | st.integers().map(str), min_size=1, max_size=6))
def test_a_cell_is_the_same_alone_and_in_a_column(cells):
    alone = [read(of_texts([cell]))[0] for cell in cells]
    assert read(of_texts(cells)) == read(of_texts([*cells, "word"]))[:-1] == alone


@given(st.floats(allow_nan=False), st.integers(-(2**80), 2**80))
def test_numbers_are_those_of_python(number, whole):
    assert read(of_texts([repr(number), str(whole)])) == [number, float(whole)]
    long = abs(whole) >= 2**53
    for column in (of_texts([str(whole)]), pyarrow.array([Decimal(whole)])):
        assert long_numbers(column, numbers(column)[0]).tolist() == [long]


TIME = datetime(1970, 1, 2, 12)
TYPES = [
    (pyarrow.array([1, None, -3], pyarrow.int8()), [1.0, None, -3.0], ["1", None, "-3"]),
    (pyarrow.array([2**63], pyarrow.uint64()), [2.0**63], [str(2**63)]),
    (
        pyarrow.array([0.1, float("nan"), None], pyarrow.float32()),
        [float(np.float32(0.1)), None, None],
        ["0.1", None, None],
    ),
    (pyarrow.array([0.5, None], pyarrow.float16()), [0.5, None], ["0.5", None]),
    (pyarrow.array([True, None, False]), [1.0, None, 0.0], ["True", None, "False"]),
    (pyarrow.array([Decimal("1.50"), None, Decimal("0.07")]), [1.5, None, 0.07], ["1.50", None, "0.07"]),
    (pyarrow.array([Decimal("1.50")], pyarrow.decimal256(40, 2)), [1.5], ["1.50"]),
    (pyarrow.nulls(2), [None, None], [None, None]),
    (pyarrow.array(["x", None, "1"], pyarrow.string_view()), [WORD, None, 1.0], ["x", None, "1"]),
    (pyarrow.array([TIME.date(), None], pyarrow.date64()), [WORD, None], ["1970-01-02", None]),
    (pyarrow.array([TIME], pyarrow.timestamp("s", "Europe/Zurich")), [WORD], ["1970-01-02 12:00:00"]),
]


@pytest.mark.parametrize(("values", "expected", "texts"), TYPES, ids=[str(one[0].type) for one in TYPES])
def test_types_of_columns(values, expected, texts):
    plain = pyarrow.types.is_null(values.type) or pyarrow.types.is_string_view(values.type)
    for column in (values,) if plain else (values, values.dictionary_encode()):
        assert read(column) == expected
        found, of_rows = distinct(column)
        assert [found[k] for k in of_rows] == texts


PRICES = [f"{k / 8:.3f}" for k in range(30)]
# Labels in pieces, the task that is asked for, and what they are.
LABELS: list[tuple[list[list[Any]], str | None, list[Any]]] = [
    ([["1", " 2"], ["-3"]], None, [1, 2, -3]),
    ([["0.0", "1.0", "2"]], None, [0.0, 1.0, 2.0]),
    ([PRICES, ["1", "1.0"]], None, [*map(float, PRICES), 1.0, 1.0]),
    ([["0.50", "1.25", "2.75"]], "multiclass", [0.5, 1.25, 2.75]),
    ([["1.1", "1.10", "1.2"]], "regression", [1.1, 1.1, 1.2]),
    ([["inf", "2"]], None, [math.inf, 2.0]),
    ([["true", "FALSE"]], "regression", [1.0, 0.0]),
    ([["1", "2"]], "words", ["1", "2"]),
    *(([labels], None, labels) for labels in (["01", "2"], ["-007", "8"], ["1", "x"], ["true", "False"])),
    ([[f"1{'0' * 22}"], [f"1{'0' * 21}1"]], None, [f"1{'0' * 22}", f"1{'0' * 21}1"]),
    ([["1 star", "2 stars"]], "multiclass", ["1 star", "2 stars"]),
    ([[True, False]], None, ["True", "False"]),
    ([["a", "a "], ["b"]], None, ["a", "a", "b"]),
    ([[Decimal("0.50"), Decimal("1.25")]], None, [0.5, 1.25]),
    ([[np.float32(0.5), np.float32(2)]], None, [0.5, 2.0]),
]


@pytest.mark.parametrize(("pieces", "task", "expected"), LABELS)
def test_labels_are_numbers_where_all_are_else_texts(pieces, task, expected):
    for columns in (pieces, [[label] for piece in pieces for label in piece]):
        for labels in (map(pyarrow.array, columns), (pyarrow.array(piece).dictionary_encode() for piece in columns)):
            found = labels_of([*labels], "t", task)
            assert list(map(repr, found.tolist())) == list(map(repr, expected))


ONE_LABEL = r"t: {!r} in row 0 and {!r} in row 1 are one label in two spellings"
LONG = r"t: holds whole numbers such as '1(0){22}' in row 0; float64 does not tell them apart"
SPELT_TWICE = [("True", "TRUE"), ("0", "0.0"), ("1", "01"), ("True", "1"), ("Yes", "yes"), (True, 1)]
REFUSED: list[tuple[list[Any], str | None, str]] = [
    (["-0,5", "1,5", "2"], None, r"t: holds numbers with a comma, such as '-0,5' in row 0; .*`data.task="),
    (["n.a.", *(f"{k}.04kg" for k in range(33))], None, r"another spelling, .*1 other word, such as .* as such$"),
    ([f"1-Jan-{k}" for k in range(1980, 2020)], None, "t: holds numbers, dates or times .* in row 0; write plain"),
    ([date(2020, 1, 1), date(2020, 1, 2)], None, "t: holds .*dates or times.*; if these are classes, .*task=binary"),
    (["1.5", "2.5", "n.a."], None, "t: holds numbers and 1 other word, 'n.a.' in row 2; mend it"),
    (["1", "12 kg"], "regression", "t: '12 kg' in row 1 is a word; numbers are needed"),
    *(([*both, "x"], None, ONE_LABEL.format(*map(str, both))) for both in SPELT_TWICE),
    (["1.1", "1.10", "1.2"], None, ONE_LABEL.format("1.1", "1.10")),
    ([f"1{'0' * 22}", "5"], "regression", LONG),
    ([f"1{'0' * 22}", *map(str, range(40))], None, LONG),
    (["x", "y\0"], None, r"t holds a label with control characters \('y\\x00'\)"),
]


@pytest.mark.parametrize(("labels", "task", "message"), REFUSED)
def test_labels_that_cannot_be_kept_or_told_apart_are_refused(labels, task, message):
    with pytest.raises(DataError, match=message):
        labels_of([pyarrow.array([label]) for label in labels], "t", task)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=6), min_size=1, max_size=5))
def test_names_in_a_text_are_read_back(names):
    assert names_in(names_text(names)) == tuple(names)
