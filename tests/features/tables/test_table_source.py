"""Tables to train on: which column is which, what needs a setting, the same rows from every file, by any blocks.

Decimal commas are read where a setting says so, as pyarrow and pandas read them; what is unclear is refused or told.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError, MissingInputError, UsageError
from features.row_draws import draw_sample
from features.source import Columns, Source
from features.tables import learning, readers, table_source
from features.tables.cells import numbers
from features.tables.readers import Table
from features.words import names_in
from sources import all_of, everything, opened, people, same, write_idx_folder


class Reading:
    """Keeps nothing, and counts the readings: with it a table that is not small is read in order."""

    def __init__(self) -> None:
        self.n_rows: list[int] = []

    def read(self, path: Path, files: Any, request: dict[str, Any], read: Any, form: Any) -> Any:
        self.n_rows.append(0)

        def tick(n_rows: int) -> None:
            self.n_rows[-1] += n_rows

        return replace(read(tick))


def table(folder: Path, text: str, name: str = "table.csv", **options: Any) -> Source:
    (folder / name).write_text(text)
    return opened(folder / name, **options)


HEADER, ROWS = "length,sex,label\n", "1.5,0,a\n2.5,1,b\n-3e2,0,a\n4,1,c\n5,1,c\n6,0,b\n7,0,b\n8,1,a\n"
NUMBERS = "y,a,b\n" + "".join(f"{k % 2},{k},{k * 0.5}\n" for k in range(12))
A_TO_C = "a,b,c,y\n" + "".join(f"{k},{k * 2},{k * 3},{k * 0.5}\n" for k in range(20))
PAIRS, YEARS = "1,2,0\n3,4,1\n" * 9, "2019,2020,kind\n" + "1,2,cat\n3,4,dog\n" * 9
OF_ROWS = {"task": "multiclass", "classes": ("a", "b", "c"), "targets": [0, 0, 0, 1, 1, 1, 2, 2], "rows": 8}
OF_ROWS["table"] = [[-300, 0, 0], [1.5, 0, 0], [2.5, 1, 1], [4, 1, 2], [5, 1, 2], [6, 0, 1], [7, 0, 1], [8, 1, 0]]
TO_END = {"task": "regression", "targets": [k * 0.5 for k in range(12)]}
NUMBERED = "columns are called 2019, 2020; if these are cells of the first row, train with `data.header=false`"
LIKE_CELLS = NUMBERED.replace("2019, 2020", "1.5, NA, 2020-01-01")
# Content, options, and what is read: rows, task, classes, sorted targets, names, notes, and all rows in order.
READ: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "with a header": (HEADER + ROWS, {}, OF_ROWS | {"inputs": ("length", "sex"), "target": "label"}),
    "without one": (ROWS, {"header": False}, OF_ROWS | {"inputs": ("f0", "f1"), "note": "target: f2; inputs: f0, f1"}),
    "numbers": (PAIRS, {"header": False, "target": "0"}, {"rows": 18, "target": "f0", "inputs": ("f1", "f2")}),
    "target called y": (NUMBERS, {}, {"task": "binary", "targets": [0] * 6 + [1] * 6}),
    "target by name": (NUMBERS, {"target": "b"}, TO_END),
    "target by place from the end": (NUMBERS, {"target": "-1"}, TO_END),
    "label, first": ("label,m,kg\n" + "p,1,2\nq,3,4\n" * 9, {}, {"target": "label", "classes": ("p", "q")}),
    "years": (YEARS, {"target": "2020", "drop": ("kind",)}, {"inputs": ("2019",), "target": "2020", "note": NUMBERED}),
    "few like cells": ("1.5,NA,2020-01-01,w\n" + "1,2,3,0\n3,4,5,1\n" * 9, {}, {"note": LIKE_CELLS}),
    "weights": ("a,w,y\n" + "1,2,0\n3,0,1\n4,1,1\n" * 9, {"weights": "w"}, {"rows": 18, "inputs": ("a",)}),
    "columns": (A_TO_C, {"columns": ("c", "a")}, {"inputs": ("a", "c"), "target": "y"}),
}


@pytest.mark.parametrize("case", READ)
def test_header_target_and_columns_are_found(tmp_path, case):
    text, options, expected = READ[case]
    source = table(tmp_path, text, **options)
    rows, columns = np.column_stack(everything(source)), source.columns
    found = {
        **{"rows": len(rows), "targets": sorted(rows[:, -1].tolist()), "table": rows[np.argsort(rows[:, 0])].tolist()},
        **{"task": source.task, "classes": source.classes, "inputs": columns.inputs, "target": columns.target},
        **{"note": expected.get("note") if expected.get("note") in source.notes else None},
    }
    assert {key: found[key] for key in expected} == expected
    assert columns.header == options.get("header", True)


REFUSED: list[tuple[type[Exception], str, dict[str, Any], str]] = [
    (DataError, "a,y\n", {}, "has columns but no rows"),
    (DataError, "1\n2\n", {"header": False}, "has no inputs .* columns are 'f0'; cells are separated"),
    (DataError, "a|b|y\n1|2|3\n", {}, r"no inputs .* 'a\|b\|y'; cells are separated by commas, sem"),
    (DataError, "# of the lab\na,b,y\n1,2,3\n", {}, "no inputs .*'# of the lab'.*below a line of names"),
    (DataError, HEADER + ROWS + "1,2,\n", {}, "line 10, column label has no label"),
    (DataError, "a,y\n" + "".join(f"1,{k}\n" for k in range(150)) + "3,x\n", {}, "1 other word, 'x' in line 152; mend"),
    (DataError, "a,y\n" + "1,2\n2,inf\n" * 20, {}, "column y: row 1 is inf; every target must be finite"),
    (DataError, "a,w,y\n1,1,2\n2,x,3\n", {"weights": "w"}, "line 3, column w is 'x'; a finite number"),
    (DataError, "a,w,y\n1,1,2\n2,-1,3\n", {"weights": "w"}, "weights w.*: row 1 is -1; a weight must be"),
    (DataError, "a,w,y\n1,1,2\n2,,3\n", {"groups": "w"}, "line 3, column w names no group"),
    (DataError, "a,w,y\n1,1,2\n2,1,3\n", {"groups": "w"}, "all rows are of one group"),
    (DataError, "x,,b\n" + PAIRS, {}, r"without a name: \(no name, column 1\); leave .*`data.drop=\"\"`"),
    (UsageError, NUMBERS, {"target": "rings"}, "'rings' is no column of .*, which has columns y, a, b"),
    (UsageError, NUMBERS, {"target": "3"}, "it has columns 0 to 2"),
    (UsageError, NUMBERS, {"weights": "y"}, "column y is both target and weights"),
    (UsageError, A_TO_C, {"drop": ("d",)}, r"data.drop.: 'd' is no column of .*, which has a, b, c, y"),
    (UsageError, A_TO_C, {"columns": ("a", "y")}, "'y' is the target"),
    (UsageError, A_TO_C, {"columns": ("a", "b"), "groups": "b"}, "'b' is the groups"),
    (UsageError, A_TO_C, {"drop": ("a", "b", "c")}, "leaves no input"),
    (UsageError, A_TO_C, {"drop": ("a",), "columns": ("b",)}, "leave one of them out"),
    (UsageError, A_TO_C, {"categorical": "onehot:zap"}, r"'zap' is no input of .*; it has a, b, c"),
]


@pytest.mark.parametrize(("error", "text", "options", "message"), REFUSED, ids=range(len(REFUSED)))
def test_tables_and_columns_that_cannot_be_are_refused(tmp_path, error, text, options, message):
    with pytest.raises(error, match=message) as caught:
        table(tmp_path, text, **options)
    assert "\n" not in str(caught.value)


WORDS = "id,color,age,ok\n" + "".join(
    f"{k},{color},{age},{'yn'[k % 2]}\n"
    for k, (color, age) in enumerate([("red", "31"), ('"blue, dark"', "NA"), ("red", "nan"), ("?", "20.5")] * 6)
)
ENCODED = {"categorical": "onehot", "missing": "median"}
MISSING, ONEHOT = "`data.missing=median`", "`data.categorical=onehot`"
DROP = "`data.drop=a`"
CODES = "zip,b,y\n" + "".join(f"{k % 9:02},2,{k % 2}\n" for k in range(40))
WIDE = f"t,a,y\n{'x' * 150_000},1,0\n" + "w,,1\n" * 9
TEXTS = '"a, b",c,y\n' + "".join(f"w{k},{k % 7},{k % 2}\n" for k in range(20))
# A row of a column of numbers that are written in another way, or of dates.
OTHERWISE = "{}.5%|{} kg|{}kg|{}\u202f000|1.{}D-01|0x{}f|{}/8|{}-510|${}|{} star|({})|−{}|~{}|{}+|1_0{}|'{}|٣{}|{}h 5m"
OTHERWISE += "|1{} de enero de 2023|{} days 01:30:00|2020-01-{}|{}.01.2020|{}/31/20|{}:30|2020-{}|2020-01-{}T12:30Z"
OTHERWISE += "|EUR {}|US$ {}|Rs. {}|USD {}20|Dec-1{}|Mar 200{}|Jan {}20 2020|{} März 2020|Wed Jan 1{} 2020|Mon {}"
FORMS = f"{OTHERWISE}|€ {{}}|Sunday, {{}}/5/2020|Q2 200{{}}|PT{{}}H30M|PT{{}}20M".split("|")
SPELLINGS = "a,b,y\n" + "1.1,3,2\n1.10,1,0\n" * 9


def rows_of_form(form: str) -> str:
    return "a;b;y\n" + "".join(f"{form.format(k % 9 + 1)};{k};{k % 2}\n" for k in range(50))


def rows_of_a(cells: Any) -> str:
    return "a,b,y\n" + "".join(f"{cell},{k % 7},{k % 2}\n" for k, cell in enumerate(cells))


# Of a table: options, words of what is said of its columns, and the settings that are asked for.
COMPLAINTS: list[tuple[str, dict[str, Any], str, str]] = [
    (WORDS, {}, "color (2 words, such as 'red' in line 2; 6 of 24 missing), age (12 of 24", f"{ONEHOT} {MISSING}"),
    (WORDS, {"categorical": "onehot"}, "color (6 of 24 missing, the first in line 5), age (12", MISSING),
    (WORDS, {"missing": "median"}, "color (2 words", ONEHOT),
    (WORDS + "24,7,3,y\n", ENCODED, "color (numbers and 2 other words, such as 'red'", "`data.drop=color`"),
    (WORDS + "24,red,inf,y\n", ENCODED | {"drop": ("id",)}, "age (1 infinite, such as 'inf'", "`data.drop=id,age`"),
    (WORDS + "24,red,inf,y\n", ENCODED | {"columns": ("age", "color")}, "age (1 infinite", "`data.columns=color`"),
    (WIDE, {"drop": ("t",)}, "a (9 of 10 missing, the first in line 3)", MISSING),
    (rows_of_a([""] * 18), {}, "a (no cell", DROP),
    (TEXTS, {}, "a, b (20 words, another one in each row, such as 'w0' in line 2)", '`data.drop="a, b"`'),
    (rows_of_a(f"w{k}" for k in range(60)), ENCODED, "a (60 words, another one in each row", DROP),
    (rows_of_a(f"w{k}" for k in range(1002)), ENCODED | {"categories": 1000}, "over 1000 words", DROP),
    (rows_of_a(f"w{k % 70}" for k in range(99)), ENCODED, "more than 64", DROP),
    (CODES, {}, "zip (9 words, such as '00' in line 2)", ONEHOT),
    (rows_of_a(2**53 + k for k in range(30)), {}, "'9007199254740992' in line 2, which float64 does not", DROP),
    (rows_of_a(f"{k % 3}-pack" for k in range(30)), {}, "if they are categories", DROP),
    (SPELLINGS, {"categorical": "onehot:a"}, "'1.1' and '1.10' are one value", f"{DROP} {ONEHOT}"),
    *((rows_of_form(form), ENCODED, f"another spelling, such as {form.format(1)!r}", DROP) for form in FORMS),
]


def remedied(message: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with the settings that a message asks for."""
    lists = ("drop", "columns")
    given = re.findall(r"`data\.(\w+)=([^`]*)`", message.partition(" or try: ")[2])
    return options | {key: names_in(value) if key in lists else value for key, value in given}


@pytest.mark.parametrize(("text", "options", "columns", "settings"), COMPLAINTS, ids=range(len(COMPLAINTS)))
def test_all_columns_that_need_a_setting_are_told_with_settings_that_work(tmp_path, text, options, columns, settings):
    with pytest.raises(DataError) as caught:
        table(tmp_path, text, **options)
    told = str(caught.value).partition(": columns that need a setting: ")[2]
    assert columns in told
    assert told.endswith(f"; mend their cells, or try: {settings}")
    assert table(tmp_path, text, **remedied(told, options)).n_train


def test_a_column_of_many_words_is_taken_where_its_number_is_given(tmp_path):
    text = "a,y,c\n" + "".join(f"w{k % 70},{k % 2},{k * 37 % 700}\n" for k in range(700))
    assert table(tmp_path, text, categorical="onehot", categories=70).input_shape == (71,)
    with pytest.raises(DataError, match=r"more than 64; `data.categories=70` takes them"):
        table(tmp_path, text, categorical="onehot")


@pytest.mark.parametrize("form", ["{}th", ">{}K", "é{}", "class {}", "P{}", "BMW {}", "Mark {}", "sample-{}", "rs{}"])
def test_groups_and_places_in_an_order_are_words(tmp_path, form):
    text = "a,b,y\n" + "".join(f"{form.format(k % 4)},{k % 7},{form.format(k % 3)}\n" for k in range(60))
    source = table(tmp_path, text.replace("é3", "e\u03013"), categorical="onehot")
    assert source.input_shape == (5,)
    assert len(source.classes) == 3


CELLS = {"numbers": ["1", "2.5", "-3e2"], "words": ["red", "007", "x, y"], "gaps": ["", "NA"], "infinite": ["inf"]}
KINDS = st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=3, unique=True)


@given(st.lists(KINDS, min_size=1, max_size=4), st.integers(0, 9))
def test_one_complaint_is_enough(tmp_path, columns, seed):
    """Whatever the columns hold: with the settings of the first complaint there is no second one."""
    rng, frame = np.random.default_rng(seed), pandas.DataFrame({"sure": np.arange(40.0) ** 2})
    for k, kinds in enumerate(columns):
        frame[f"c {k}"] = rng.choice([cell for kind in kinds for cell in CELLS[kind]], 40)
    frame.assign(y=[0, 1] * 20).to_csv(tmp_path / "t.csv", index=False)
    try:
        source = opened(tmp_path / "t.csv")
    except DataError as error:
        source = opened(tmp_path / "t.csv", **remedied(str(error), {}))
    assert np.isfinite(everything(source)[0]).all()


@pytest.mark.parametrize(
    ("n_values", "task", "other"),
    [(2, "binary", ""), (7, "multiclass", "regression"), (30, "regression", "multiclass")],
)
def test_what_whole_numbers_are_taken_for_is_said(tmp_path, n_values, task, other):
    text = "a,y\n" + "".join(f"{k * 7 % 11},{k % n_values}\n" for k in range(120))
    source = table(tmp_path, text)
    assert source.task == task
    assert any(f"`data.task={other}`" in note for note in source.notes) == bool(other)
    assert not any("data.task" in note for note in table(tmp_path, text, task="regression").notes)


INDEXED = pandas.DataFrame({"a": np.arange(40.0) ** 2, "b": np.arange(40) % 7, "cost": np.arange(40) / 4}).sample(40)
INDEX = "left out, the index of a pandas frame: {}; name it to use it"


@pytest.mark.parametrize("name", [None, "id", "y", "price"])
def test_an_index_of_pandas_is_no_column_unless_it_is_named(tmp_path, name):
    (tmp_path / "parts").mkdir()
    frame = INDEXED.rename_axis(name)
    for part, rows in (("t.parquet", frame), ("parts/0.parquet", frame[:9]), ("parts/1.parquet", frame[9:])):
        rows.to_parquet(tmp_path / part)
    called = name or "__index_level_0__"
    copied = polars.read_parquet(tmp_path / "t.parquet")  # has no metadata of pandas
    copied.write_parquet(tmp_path / "copy.parquet")
    copied.write_csv(tmp_path / "copy.csv")
    for path in ("t.parquet", "parts", *["copy.parquet", "copy.csv"] * (name is None)):
        source = opened(tmp_path / path, test=str(tmp_path / "parts"))
        assert (source.columns.inputs, source.columns.target, source.n_train) == (("a", "b"), "cost", 40)
        assert INDEX.format(called) in source.notes
        assert opened(tmp_path / path, drop=("a",)).columns.inputs == ("b",)
    named = opened(tmp_path / "t.parquet", columns=("a", called))
    assert (named.columns.inputs, INDEX.format(called) in named.notes) == (("a", called), False)
    assert opened(tmp_path / "t.parquet", target=called).columns.inputs == ("a", "b", "cost")
    assert opened(tmp_path / "t.parquet", target="-1").columns.target == "cost"
    frame.set_index(["a", "b"]).to_parquet(tmp_path / "few.parquet")
    with pytest.raises(DataError, match=r"has no inputs .*\(the index of a frame: a, b\)"):
        opened(tmp_path / "few.parquet")


N = 400
FRAME, TARGETS = people(N)
DAYS = (FRAME["since"] - pandas.Timestamp(0)).dt.days
FRAME = FRAME.assign(since=DAYS, g=np.arange(N) * 7 % 40, w=np.arange(N) % 3, y=TARGETS)
ASKED: dict[str, Any] = {"weights": "w", "groups": "g", "missing": "median", "seed": 4, "categorical": "onehot:member"}
SMALL = {"BLOCK_BYTES": 1 << 11, "COLUMN_BLOCK_BYTES": 1, "MOST_BATCH_ROWS": 33, "LEAST_BATCH_ROWS": 1}


def written(folder: Path, frame: pandas.DataFrame) -> dict[str, Path]:
    """Return a table as a csv, a parquet file and folders of three parts of each."""
    for suffix, options in (("csv", {"index": False}), ("parquet", {})):
        (folder / f"{suffix}s").mkdir()
        parts = {f"t.{suffix}": frame, f"{suffix}s/0.{suffix}": frame[:1], f"{suffix}s/1.{suffix}": frame[1:150]}
        for name, part in (parts | {f"{suffix}s/2.{suffix}": frame[150:]}).items():
            getattr(part, f"to_{suffix}")(folder / name, **options)
    return {name: folder / name for name in ("t.csv", "t.parquet", "csvs", "parquets")}


def test_every_file_holds_the_same_table_by_blocks_of_any_size(tmp_path, monkeypatch):
    files = written(tmp_path, FRAME)
    first = opened(files["t.csv"], **ASKED)
    monkeypatch.setattr(learning, "TOGETHER", 2)  # before, no column was beside numbers alone
    for values in ({}, SMALL):
        for name, value in values.items():
            monkeypatch.setattr(readers, name, value)
        for path in files.values():
            keeper, told = Reading(), (f"3 files, {N} rows",) if path.is_dir() else ()
            same(opened(path, keeper, **ASKED), replace(first, notes=(*told, *first.notes)))
            assert keeper.n_rows == [N]
    words = [column.words for column in first.columns.encoding.columns[::3]]
    assert words == [("blue, dark", "green", "red"), ("False", "True")]


@pytest.mark.parametrize("form", ["t.csv", "parquets"])
def test_a_table_that_is_not_small_is_learned_on_a_sample_and_read_in_order(tmp_path, monkeypatch, form):
    files = written(tmp_path, FRAME)
    whole = opened(files[form], **ASKED)
    for name, value in SMALL.items():
        monkeypatch.setattr(readers, name, value)
    monkeypatch.setattr(table_source, "SAMPLE_CELLS", 2 * N)
    source = opened(files[form], Reading(), **ASKED)
    learned, rows = source.learned(), source.train.numbers
    sampled = np.flatnonzero(draw_sample(ASKED["seed"], 0.25, np.arange(N, dtype=np.uint64)))
    assert learned.numbers.tolist() == np.intersect1d(sampled, rows).tolist()
    assert source.columns.encoding.columns[1].fill == np.nanmedian(FRAME["age"][learned.numbers])
    places = np.searchsorted(rows, learned.numbers)
    for name in ("X", "y", "weights"):
        np.testing.assert_array_equal(getattr(learned, name)[:], getattr(source.train, name)[:][places])
    held: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for part, start, inputs in source.in_order():
        assert start == sum(map(len, held[part]))
        held[part].append(inputs)
    inputs = np.concatenate(held["train"] + held["test"])
    np.testing.assert_array_equal(inputs, everything(source)[0])
    gaps = inputs[:, 5] == 1  # of which the medians are others
    assert not np.array_equal(inputs, everything(whole)[0])
    np.testing.assert_array_equal(inputs[~gaps], everything(whole)[0][~gaps])
    for found, wanted in zip(all_of(source)[1:], all_of(whole)[1:], strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert source.identity | {"encoding": ""} == whole.identity | {"encoding": ""}
    assert not opened(files[form], **ASKED).is_in_order  # without one who keeps it, all is in memory


@pytest.mark.parametrize("harm", ["another number", "another row", "a row less", "no number"])
def test_a_file_that_changes_between_two_readings_is_told(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(table_source, "SAMPLE_CELLS", 16)
    lines = [f"{k},{k % 7},{k % 2}\n" for k in range(60)]
    source = table(tmp_path, "a,b,y\n" + "".join(lines), keeper=Reading())
    changed = {"another number": [*lines[:9], "9,9,1\n", *lines[10:]], "another row": [*lines, "9,9,0\n"]}
    changed |= {"a row less": lines[:-1], "no number": [*lines[:9], "x,1,0\n", *lines[10:]]}
    (tmp_path / "table.csv").write_text("a,b,y\n" + "".join(changed[harm]))
    with pytest.raises(DataError, match=r"table\.csv: (changed while it was read|line 11)"):
        list(source.in_order())


def test_only_training_rows_are_learned_from(tmp_path):
    first = table(tmp_path, WORDS, **ENCODED)
    rows = WORDS.splitlines()
    test_rows = first.test.numbers.tolist()
    for row in test_rows:
        rows[1 + row] = f"{row},other{row},1e6,{'yn'[row % 2]}"
    second = table(tmp_path, "\n".join(rows), **ENCODED)
    assert second.columns == first.columns
    assert np.array_equal(second.train.X[:18], first.train.X[:18])
    assert not second.test.X[: len(test_rows)][:, :2].any()
    told = f"test part: cells with a category that no training row has: color ({len(test_rows)}); they count as none"
    assert told in second.notes
    assert not any("no training row" in note for note in first.notes)
    assert second.identity["encoding"] == first.identity["encoding"]
    assert second.identity["sha256"] != first.identity["sha256"]


@pytest.mark.parametrize("sample_cells", [table_source.SAMPLE_CELLS, 30])
def test_a_test_file_of_its_own(tmp_path, monkeypatch, sample_cells):
    monkeypatch.setattr(table_source, "SAMPLE_CELLS", sample_cells)
    (tmp_path / "test.csv").write_text("ok;age;color;id;more\n" + "y;50;green;1;\nn;;red;2;x\n")
    options = {"test": str(tmp_path / "test.csv"), "drop": ("id",), **ENCODED}
    source = table(tmp_path, WORDS, keeper=Reading(), **options)
    assert (source.n_train, source.n_test, source.input_shape) == (24, 2, (5,))
    assert source.columns.input_names == ("color=blue, dark", "color=red", "color is missing", "age", "age is missing")
    median = source.columns.encoding.columns[1].fill
    rows = [[0, 1, 0, 31, 0], [1, 0, 0, median, 1], [0, 1, 0, median, 1], [0, 0, 1, 20.5, 0]]
    assert source.train.X[:24].tolist() == rows * 6
    inputs, targets = source.test.X[:2], source.test.y[:2]
    assert inputs.tolist() == [[0, 0, 0, 50, 0], [0, 1, 0, median, 1]]
    assert targets.tolist() == [1, 0]
    assert "test part: cells with a category that no training row has: color (1); they count as none" in source.notes
    assert median == (20.5 + 31) / 2 or sample_cells == 30
    few = table(tmp_path, WORDS, n_train=8, **options)
    assert (few.n_train, few.n_test) == (8, 2)


@pytest.mark.parametrize("sample_cells", [table_source.SAMPLE_CELLS, 30])
def test_rows_that_are_equal_with_their_words_and_gaps_are_in_one_part_and_told_in_a_test_file(
    tmp_path, monkeypatch, sample_cells
):
    monkeypatch.setattr(table_source, "SAMPLE_CELLS", sample_cells)
    rows = [f"{k % 5},{['', 'r', 'g', 'b'][k % 4]},{'yn'[k % 3 % 2]}\n" for k in range(120)]
    source = table(tmp_path, "a,color,y\n" + "".join(rows), keeper=Reading(), **ENCODED)
    train, test = ({rows[row][:-2] for row in source.parts[part].numbers} for part in ("train", "test"))
    assert (len(train | test), train & test, source.n_test) == (20, set(), 30)
    (tmp_path / "test.csv").write_text("a,color,y\n0,b,y\n0,pink,y\n0,,n\n1,r,n\n9,r,n\n1.5,,n\n")
    source = opened(tmp_path / "table.csv", Reading(), test=str(tmp_path / "test.csv"), **ENCODED)
    assert any(note.startswith("3 of 6 test rows equal a training row") for note in source.notes)


TEST_FAULTS = {
    "b,y\n1,2\n": "test.csv: lacks 'a'",
    "a,b\n1,2\n": "has no target column 'y'",
    "a,b,y\n1,2,\n": "no label",
    "a,b,y\n1,2,x\n": "column y: 'x' in line 2 is a word; numbers are needed",
    "a,b,y\n1,,2\n": "line 2, column b is ''; a finite number is needed",
}


@pytest.mark.parametrize("text", TEST_FAULTS)
def test_a_test_file_that_does_not_fit_is_refused(tmp_path, text):
    (tmp_path / "test.csv").write_text(text)
    training = "a,b,y\n" + "".join(f"{k},{k * k},{k / 2}\n" for k in range(9))
    with pytest.raises(DataError, match=TEST_FAULTS[text]):
        table(tmp_path, training, test=str(tmp_path / "test.csv"))


def test_labels_of_a_test_file_are_those_of_the_training_file(tmp_path):
    (tmp_path / "test.csv").write_text("a,y\n1,7.0\n2,EX\n")
    source = table(tmp_path, "a,y\n1,7\n2,ex\n3,7\n", test=str(tmp_path / "test.csv"))
    assert (source.classes, source.test.y[:2].tolist()) == (("7", "ex"), [0, 1])


def test_images_with_a_table_beside_them_are_images_and_a_folder_without_files_is_none(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 3
    write_idx_folder(tmp_path, train=(images, labels), t10k=(images[:6], labels[:6]))
    (tmp_path / "names.csv").write_text("label,name\n0,a\n1,b\n")
    assert opened(tmp_path).input_shape == (8, 8)
    (tmp_path / "t.parquet").mkdir()
    with pytest.raises(MissingInputError, match="a folder without tables"):
        opened(tmp_path / "t.parquet")


def of_columns(folder: Path, *columns: list[str], **options: Any) -> Source:
    """Open a table of columns a, b, ..., of which the last is y, between semicolons."""
    names = [*"abcdef"[: len(columns) - 1], "y"]
    lines = [";".join(cells) for cells in zip(*columns, strict=True)]
    (folder / "t.csv").write_text("\n".join([";".join(names), *lines, ""]))
    return opened(folder / "t.csv", **options)


RNG = np.random.default_rng(8)
LABELS = ["p", "q"] * 20


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False) | st.integers(-99, 99), min_size=1, max_size=20))
def test_numbers_with_commas_are_those_of_pyarrow_and_pandas(tmp_path, values):
    texts = [str(value).replace(".", ",") for value in values]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x;y", *(f"{text};1" for text in texts), ""]))
    read = np.concatenate([numbers(one.columns[0])[0] for one in Table.in_files(path, decimal=",").batches([0])])
    semicolons = pyarrow.csv.ParseOptions(delimiter=";")
    commas = pyarrow.csv.ConvertOptions(column_types={"x": "float64"}, decimal_point=",")
    of_arrow = pyarrow.csv.read_csv(path, parse_options=semicolons, convert_options=commas)
    assert read.tolist() == of_arrow["x"].to_pylist() == list(map(float, values))
    np.testing.assert_allclose(read, pandas.read_csv(path, sep=";", decimal=",")["x"], rtol=1e-14)


def test_a_table_with_decimal_commas_is_that_with_points(tmp_path):
    frame = pandas.DataFrame({"a": RNG.normal(size=40), "n": RNG.integers(0, 99, 40), "y": RNG.normal(size=40)})
    frame.to_csv(tmp_path / "points.csv", index=False)
    frame.to_csv(tmp_path / "commas.csv", index=False, decimal=",", sep=";")
    frame.to_csv(tmp_path / "quoted.csv", index=False, decimal=",")
    points = opened(tmp_path / "points.csv")
    for name in ("commas.csv", "quoted.csv"):
        source = opened(tmp_path / name, decimal=",")
        assert (source.columns.decimal, source.identity) == (",", points.identity)
        same(replace(source, name="points", columns=points.columns), points)
        assert Columns.from_description(source.columns.described()) == source.columns
        with pytest.raises(DataError, match=r"holds numbers with a comma, such as .*`data\.decimal=,`"):
            opened(tmp_path / name)


@pytest.mark.parametrize(
    ("cell", "decimal", "words"),
    [
        ("17.648,46", ".", r"a \(numbers, dates or times in another spelling, such as '17\.648,46'"),
        ("1,234", ".", r"a \(numbers with a comma, .*with `data\.decimal=,`; if they .*\); mend their cells$"),
        ("17.648,46", ",", r"line 2, column a is '17\.648,46'.*take points between thousands out"),
        ("17.648", ",", r"line 2, column a is '17\.648', where decimals have commas"),
        ("2.5", ",", r"line 2, column a is '2\.5', where decimals have commas"),
    ],
)
def test_commas_and_points_that_are_unclear_are_refused(tmp_path, cell, decimal, words):
    with pytest.raises(DataError, match=words):
        of_columns(tmp_path, [cell] * 40, list(map(str, RNG.integers(0, 9, 40))), LABELS, decimal=decimal)


def test_dates_and_words_with_points_are_no_numbers_with_points(tmp_path):
    days = [f"{day}.01.2020" for day in RNG.integers(1, 9, 40)]
    source = of_columns(tmp_path, days, ["2,5", "v1.5"] * 20, LABELS, decimal=",", categorical="onehot:b", drop=("a",))
    assert source.columns.input_names == ("b=2.5", "b=v1.5")


@pytest.mark.parametrize(
    ("cells", "is_told"), [(("900", "17.648"), True), (("900", "17.64"), False), (("0.125", "17.648"), False)]
)
def test_points_with_three_digits_behind_each_are_told_in_a_file_of_semicolons(tmp_path, cells, is_told):
    source = of_columns(tmp_path, list(RNG.choice(cells, 40)), list(map(str, RNG.integers(0, 9, 40))), LABELS)
    assert any("three digits" in note and note.endswith(": a") for note in source.notes) == is_told
    (tmp_path / "t.tsv").write_text((tmp_path / "t.csv").read_text().replace(";", "\t"))
    assert any("three digits" in note for note in opened(tmp_path / "t.tsv").notes) == is_told
