"""Cells: which are numbers, dates, words or missing, the same in every type and company; labels of columns."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from features.cell_text import NULL_WORDS, names_in, names_text, read_cell
from features.cell_text import WORD as IS_WORD
from features.errors import DataError
from features.tables.cells import distinct, labels_of, missing_cells, numbers

MISSING, WORD = None, "a word"
CELLS = {
    **{"1": 1.0, "+1": 1.0, "1.": 1.0, ".5": 0.5, "-3e2": -300.0, "1E-3": 0.001, "0.5": 0.5, "0": 0.0, "0e3": 0.0},
    **{" 7 ": 7.0, "\t7": 7.0, "inf": math.inf, "-Infinity": -math.inf, "1e400": math.inf, "20240101": 20240101.0},
    **{"true": 1.0, "TRUE": 1.0, "False": 0.0},
    **{"1970-01-01": 0.0, "1969-12-31": -1.0, "2024-02-29": 19782.0, "0001-01-01": -719162.0, "1970-01-02 06": 1.25},
    **{"1970-01-01T12:00": 0.5, "1970-01-01 06:00": 0.25, "1970-01-02T00:00:00.5Z": 1 + 0.5 / 86400},
    **{"1970-01-01T01:00:00+01:00": 0.0, "1970-01-02 12:00:00+00": 1.5},
    **{"1970-01-01T00:00:00.123456789": 0.123456 / 86400},
    **dict.fromkeys(("", " ", " NA ", "?", "nan", "-NaN", "None", "null", "NaT", "#N/A", "-"), MISSING),
    **dict.fromkeys(
        ("007", " 007", "00", "00.5", "1_000", "0x1F", "1,5", "1 2", "٣", "１", "1e", "-007", "+00", "."), WORD
    ),
    **dict.fromkeys(
        ("NAN", "nan(1)", "na", "none", "yes", "t", "2024-02-30", "2024-1-1", "24:00", "1970-01-01T25", "."), WORD
    ),
}


def of_texts(cells: Sequence[str | None]) -> pyarrow.Array:
    return pyarrow.array(cells, pyarrow.string())


def kinds_of(values: pyarrow.Array) -> list[float | str | None]:
    """Return what each cell of a column is read as: a number, a word, or missing."""
    found, kinds = numbers(values)
    is_word = ~np.isfinite(found) & ~np.isinf(found) & (kinds == IS_WORD)
    return [
        WORD if word else None if math.isnan(number) else number
        for number, word in zip(found.tolist(), is_word.tolist(), strict=True)
    ]


@pytest.mark.parametrize("cell", CELLS)
def test_what_a_cell_is(cell):
    expected = [CELLS[cell]]
    for company in ([], ["1.5"], ["1970-01-01"], ["word"], ["", None], ["007"]):
        assert kinds_of(of_texts([*company, cell]))[len(company) :] == expected
        assert kinds_of(of_texts([*company, cell]).dictionary_encode())[len(company) :] == expected
    assert kinds_of(of_texts([cell]).cast("large_string")) == expected
    if expected != [WORD]:
        found, _ = numbers(of_texts([cell]), are_known=True)
        assert found[0] == expected[0] or (expected == [MISSING] and math.isnan(found[0]))
    assert missing_cells(of_texts([cell])).tolist() == [expected == [MISSING]]
    assert distinct(of_texts([cell]))[0] == [None if expected == [MISSING] else cell.strip()]


NEARLY = st.text("0123456789+-.eEinfatyNAT: _xZ", max_size=12)


@example(["1970-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999"])
@given(
    st.lists(NEARLY | st.floats().map(str) | st.integers().map(str) | st.datetimes().map(str), min_size=1, max_size=6)
)
def test_a_cell_is_the_same_alone_and_in_a_column(cells):
    alone = [kinds_of(of_texts([cell]))[0] for cell in cells]
    assert kinds_of(of_texts(cells)) == kinds_of(of_texts([*cells, "word"]))[:-1] == alone
    for cell, found in zip(cells, alone, strict=True):
        _, number = read_cell(cell.strip())
        assert found == (MISSING if cell.strip() in NULL_WORDS else WORD if math.isnan(number) else number)


@given(st.floats(allow_nan=False), st.datetimes(), st.dates())
def test_numbers_and_dates_are_those_of_python(number, moment, day):
    since = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)
    days = float((day - date(1970, 1, 1)).days)
    assert kinds_of(of_texts([repr(number), str(moment), str(day)])) == [number, since / 86_400e6, days]
    assert kinds_of(pyarrow.array([moment], pyarrow.timestamp("us"))) == [since / 86_400e6]
    assert kinds_of(pyarrow.array([day])) == [days]


TIME = datetime(1970, 1, 2, 12)
TYPES = [
    (pyarrow.array([1, None, -3], pyarrow.int8()), [1.0, None, -3.0], ["1", None, "-3"]),
    (pyarrow.array([2**63], pyarrow.uint64()), [2.0**63], [str(2**63)]),
    (pyarrow.array([0.5, float("nan"), None], pyarrow.float32()), [0.5, None, None], ["0.5", None, None]),
    (pyarrow.array([True, None, False]), [1.0, None, 0.0], ["True", None, "False"]),
    (pyarrow.array([Decimal("1.50"), None, Decimal("0.07")]), [1.5, None, 0.07], ["1.50", None, "0.07"]),
    (pyarrow.nulls(2), [None, None], [None, None]),
    (pyarrow.array(["x", None, "1"], pyarrow.string_view()), [WORD, None, 1.0], ["x", None, "1"]),
    (pyarrow.array([TIME.date(), None], pyarrow.date64()), [1.0, None], ["1970-01-02", None]),
    *(
        (pyarrow.array([TIME, None], pyarrow.timestamp(unit)), [1.5, None], ["1970-01-02 12:00:00", None])
        for unit in ("s", "ms", "us", "ns")
    ),
    # Times that no calendar has are numbers, and as words their ticks.
    (pyarrow.array([2**40]).cast(pyarrow.timestamp("s")), [2.0**40 / 86_400], [str(2**40)]),
    (pyarrow.array([2**62]).cast(pyarrow.timestamp("ns")), [2.0**62 / 86_400e9], ["2116-02-20 23:53:38.427387"]),
]


@pytest.mark.parametrize(("values", "expected", "texts"), TYPES, ids=[str(one[0].type) for one in TYPES])
def test_types_of_columns(values, expected, texts):
    plain = pyarrow.types.is_null(values.type) or pyarrow.types.is_string_view(values.type)
    for column in (values,) if plain else (values, values.dictionary_encode()):
        for number, wanted in zip(kinds_of(column), expected, strict=True):
            assert number == (pytest.approx(wanted, rel=1e-12) if isinstance(wanted, float) else wanted)
        found, of_rows = distinct(column)
        assert [found[k] for k in of_rows] == texts
        assert missing_cells(column).tolist() == [number is None for number in expected]


MIXED, VERSIONS = ["1", "2.0"], ["1.1", "1.10", "1.2"]
PRICES = [f"{k / 8:.3f}" for k in range(30)]
# Labels in pieces, the task that is asked for, and what they are.
LABELS: list[tuple[list[list[Any]], str | None, list[Any]]] = [
    ([["1", " 2"], ["-3"]], None, [1, 2, -3]),
    ([["0.0", "1.0", "2.0"]], None, [0.0, 1.0, 2.0]),
    ([PRICES, ["1", "1.0"]], None, [*map(float, PRICES), 1.0, 1.0]),
    ([["0.50", "1.25", "2.75"]], None, [0.5, 1.25, 2.75]),
    ([["0.50", "1.25", "2.75"]], "multiclass", ["0.50", "1.25", "2.75"]),
    ([["inf", "2"]], None, [math.inf, 2.0]),
    *(([labels], None, labels) for labels in (MIXED, VERSIONS, ["01", "2"], ["-007", "7"], ["+1", "-1"], ["1e3", "2"])),
    *(([labels], "regression", [*map(float, labels)]) for labels in (MIXED, VERSIONS)),
    ([["022"], [" -007"]], "regression", [22, -7]),
    ([["1", "2"]], "words", ["1", "2"]),
    *(
        ([labels], None, labels)
        for labels in (["1", "x"], ["1 star", "2 stars"], ["true", "False"], ["2024-01-01", "2024-01-02"])
    ),
    ([[True, False]], None, ["True", "False"]),
    ([[date(2024, 1, 1)]], None, ["2024-01-01"]),
    ([[1], [2.5], [True]], None, [1.0, 2.5, 1.0]),
    ([[Decimal("0.50"), Decimal("1.25")]], None, [0.5, 1.25]),
    ([[np.float32(0.1), np.float32(2)]], None, [0.1, 2.0]),
]


@pytest.mark.parametrize(("pieces", "task", "expected"), LABELS)
def test_labels_are_numbers_where_all_are_else_texts_as_they_are_written(pieces, task, expected):
    for columns in (pieces, [[label] for piece in pieces for label in piece]):
        found = labels_of([pyarrow.array(piece) for piece in columns], "t", task)
        assert list(map(repr, found.tolist())) == list(map(repr, expected))
        if isinstance(pieces[0][0], str | int):  # a categorical column of the same
            found = labels_of([pyarrow.array(piece).dictionary_encode() for piece in columns], "t", task)
            assert found.tolist() == expected or isinstance(pieces[0][0], bool)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            ["-0,5", "1,5", "2"],
            "t: holds numbers with a comma, such as '-0,5'; write decimals with points, .*; .*`data.task=",
        ),
        (
            ["n.a.", *(f"{k}.04kg" for k in range(33))],
            r"a unit, .*1 other word, such as '0\.04kg'; write plain numbers",
        ),
        ([f"1-Jan-{k}" for k in range(1980, 2020)], r"t: holds dates of a country.*write ISO dates \(2020-01-31\)"),
        ([True, "true"], "t: the files of the table hold bool and string; give labels of one type"),
        ([date(2020, 1, 1), TIME], r"t: the files of the table hold date32.* and timestamp.*; give labels of one type"),
        (["x", "y\0"], r"t: the label 'y\\x00' ends with a NUL character"),
    ],
)
def test_labels_that_cannot_be_kept_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        labels_of([pyarrow.array([label]) for label in labels], "t")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=6), min_size=1, max_size=5))
def test_names_in_a_text_are_read_back(names):
    assert names_in(names_text(names)) == tuple(names)
