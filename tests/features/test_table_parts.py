"""Tables in many files, in blocks and in memory: the same rows as one file read at once; dates; medians."""

import csv
import gzip
import math
import os

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from features.medians import medians
from features.table_cells import distinct, numbers
from features.table_parts import Table
from hypothesis import given
from hypothesis import strategies as st

from features import csv_files
from features.cell_text import days_of, number_of
from features.errors import DataError, MissingInputError
from features.open_source import open_source
from features.source import SourceSpec
from sources import everything, write_idx_folder

HEADER, N = "a,b,y\n", 60
LINES = [f"{k},{k * 0.5},{k / 7}\n" for k in range(N)]
WHOLE = HEADER + "".join(LINES)


def rows_in(path, **options):
    source = open_source(SourceSpec(str(path), **options))
    return np.column_stack(everything(source)), source


def texts(table, header=True):
    """Return all cells as texts, row by row."""
    places = range(len(table.first_line()[1]))
    found = []
    for batch in table.batches(places, header=header):
        columns = []
        for place in places:
            words, of_rows = distinct(batch.columns[place])
            columns.append([words[k] for k in of_rows])
        found += [list(row) for row in zip(*columns, strict=True)]
    return found


@pytest.mark.parametrize("form", ["csv", "csv.gz", "csv.zst", "parquet", "pattern"])
def test_files_of_a_folder_are_one_table_in_the_order_of_their_names(tmp_path, form):
    (tmp_path / "whole.csv").write_text(WHOLE)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.csv.crc").write_text("not a part")
    for k, first in enumerate((0, 7, 40)):
        text = HEADER + "".join(LINES[first : (7, 40, N)[k]])
        path = folder / f"part-{k}.{'csv' if form == 'pattern' else form}"
        if form == "parquet":
            pyarrow.parquet.write_table(pyarrow.csv.read_csv(pyarrow.py_buffer(text.encode())), path)
        else:
            packed = {"csv.gz": "gzip", "csv.zst": "zstd"}.get(form)
            with pyarrow.output_stream(path, compression=packed) as stream:
                stream.write(text.encode())
    whole, of_whole = rows_in(tmp_path / "whole.csv")
    found, of_parts = rows_in(folder / "part-*.csv" if form == "pattern" else folder)
    assert np.array_equal(found, whole)
    assert of_parts.identity == of_whole.identity
    assert of_parts.columns == of_whole.columns


def test_folders_of_hive_are_columns(tmp_path):
    for year, month in (("2024", "1"), ("2024", "2"), ("2025", "1")):
        folder = tmp_path / "t" / f"year={year}" / f"month={month}"
        folder.mkdir(parents=True)
        table = pyarrow.table({"a": [float(month), 7.0], "y": [float(year), 1.0]})
        pyarrow.parquet.write_table(table, folder / "part.parquet")
    found, source = rows_in(tmp_path / "t")
    assert source.columns.inputs == ("a", "year", "month")
    assert sorted(found[:, 1]) == [2024.0] * 4 + [2025.0] * 2
    assert rows_in(tmp_path / "t", drop=("year",))[1].columns.inputs == ("a", "month")
    for pattern in ("year=*/month=*/*.parquet", "**/*.parquet", "year=*/**/*"):
        assert rows_in(tmp_path / "t" / pattern)[1].columns == source.columns
    stray = tmp_path / "t" / "part.parquet"
    pyarrow.parquet.write_table(table, stray)
    with pytest.raises(DataError, match="its folders name other columns"):
        rows_in(tmp_path / "t")


def test_folders_of_hive_have_the_words_that_arrow_wrote_and_are_no_target(tmp_path):
    words = ["x y", "a/b", "é", "50%"] * 5
    table = pyarrow.table({"kind": words, "a": np.arange(20.0), "b": [0, 1] * 10})
    pyarrow.parquet.write_to_dataset(table, tmp_path / "t", partition_cols=["kind"])
    source = rows_in(tmp_path / "t", categorical="onehot")[1]
    assert source.columns.target == "b"
    assert source.columns.inputs == ("a", "kind")
    assert source.columns.encoding.columns[1].words == tuple(sorted(set(words)))
    twice = tmp_path / "twice" / "a=1"
    twice.mkdir(parents=True)
    pyarrow.parquet.write_table(table, twice / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: has the column a, which its folders name too"):
        rows_in(tmp_path / "twice")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (pyarrow.array([1, 2]), r"b\.parquet: column x holds numbers, in a\.parquet dates"),
        (pyarrow.array(["2024-01-01", "p"]), r"b\.parquet: column x holds words, in a\.parquet dates"),
        (pyarrow.array([1, 2]).cast("timestamp[ns]"), None),
        (pyarrow.nulls(2), None),
    ],
)
def test_parts_of_parquet_hold_the_same_in_each_column(tmp_path, other, message):
    days = pyarrow.array([1, 2], pyarrow.int32()).cast("date32")
    for name, column in (("a", days), ("b", other)):
        pyarrow.parquet.write_table(pyarrow.table({"x": column, "y": [0, 1]}), tmp_path / f"{name}.parquet")
    if message is None:
        assert len(rows_in(tmp_path, missing="median")[0]) == 4
    else:
        with pytest.raises(DataError, match=message):
            rows_in(tmp_path, categorical="onehot")


def test_codes_are_one_category_in_whichever_type_a_part_has_them(tmp_path):
    """As pandas writes parts with a gap; a csv of those has 1.0."""
    codes = {"a": [1, 2, 3, 2], "b": [2.0, None, 1.0, 3.0]}
    for name, column in codes.items():
        table = pandas.DataFrame({"zip": column, "y": [0, 1, 0, 1]})
        table.to_parquet(tmp_path / f"{name}.parquet")
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    for suffix in ("parquet", "csv"):
        source = rows_in(tmp_path / f"*.{suffix}", categorical="onehot:zip", missing="median")[1]
        assert source.columns.encoding.columns[0].words == ("1", "2", "3")


@pytest.mark.parametrize("line", ["2024-01-01,true,yes\n", "2024-01-01,5,yes\n", "true,2024-01-01T10:00,no\n"])
def test_a_first_row_of_dates_is_no_header(tmp_path, line):
    (tmp_path / "t.csv").write_text(line * 20 + line.replace("yes", "no").replace("no\n", "maybe\n") * 20)
    found, source = rows_in(tmp_path / "t.csv")
    assert len(found) == 40
    assert source.columns.inputs == ()
    (tmp_path / "wide.csv").write_text("2024-01-01,2024-02-01,yes\n" + "1,2,no\n3,4,yes\n" * 20)
    assert rows_in(tmp_path / "wide.csv")[1].columns.inputs == ("2024-01-01", "2024-02-01")


def test_empty_parts_are_left_out_and_names_that_are_not_utf8_refused(tmp_path):
    for name in ("a", "c", "e"):
        (tmp_path / f"{name}.csv").write_text("")
    for name in ("b", "d"):
        (tmp_path / f"{name}.csv").write_text(WHOLE)
    (tmp_path / "notes.txt").write_text("no part")
    for path in (tmp_path, tmp_path / "*"):
        assert len(rows_in(path)[0]) == 2 * N
    (tmp_path / os.fsdecode(b"f\xff.csv")).write_text(WHOLE)
    with pytest.raises(DataError, match=r"f\\udcff\.csv' is no UTF-8 text; rename it"):
        rows_in(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("a,c,y\n1,2,3\n", r"b\.csv: its columns are not those of a\.csv"),
        ("1,2,3\n", r"b\.csv: its columns are not those of a\.csv"),
        (HEADER + "1,2,3\n4,x,6\n", r"b\.csv: row 1 \(line 3\), column b is 'x'"),
        (HEADER + "1,2,3\n4,6\n", r"b\.csv: row 1 \(line 3\) has 2 cells, expected 3"),
    ],
)
def test_a_file_unlike_the_first_is_named(tmp_path, other, message):
    (tmp_path / "a.csv").write_text(WHOLE)
    (tmp_path / "b.csv").write_text(other)
    with pytest.raises(DataError, match=message):
        rows_in(tmp_path)


def test_files_of_two_kinds_and_patterns_without_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text(WHOLE)
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"has \.csv and \.parquet files"):
        rows_in(tmp_path)
    with pytest.raises(MissingInputError, match="no such file"):
        rows_in(tmp_path / "none-*.csv")


def test_images_with_a_table_beside_them_are_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 3
    write_idx_folder(tmp_path, train=(images, labels), t10k=(images[:6], labels[:6]))
    (tmp_path / "names.csv").write_text("label,name\n0,a\n1,b\n")
    assert open_source(SourceSpec(str(tmp_path))).input_shape == (8, 8)


CELLS = ["1", "-2.5", "a b", '"x, y"', '"say ""so"""', "", " 7 ", "1e5", "é", 'half"quote', '""a', 'x"', "\ufeff"]
CELL = st.sampled_from(CELLS)
LINE_END = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"])


@given(st.lists(st.tuples(CELL, CELL, LINE_END), min_size=1, max_size=30), st.integers(12, 60))
def test_blocks_of_any_size_hold_the_same_rows(tmp_path, rows, block_bytes):
    path = tmp_path / "t.csv"
    path.write_bytes("".join(["p,q\n", *(f"{a},{b}{end}" for a, b, end in rows)]).encode())
    expected, fault = list[list[str]](), False
    for a, b, _ in rows:  # strict: a cell in quotes has nothing behind them
        try:
            expected.append(next(csv.reader([f"{a},{b}"], strict=True)))
        except csv.Error:
            fault = True
            break
    before = csv_files.BLOCK_BYTES
    csv_files.BLOCK_BYTES = block_bytes
    try:
        if fault:
            with pytest.raises(DataError, match=r"a cell in quotes must end on its line"):
                texts(Table.in_files(path))
            return
        assert texts(Table.in_files(path)) == expected
        assert Table.in_files(path).count_rows(header=True) == len(expected)
    finally:
        csv_files.BLOCK_BYTES = before


def test_a_line_end_within_quotes_is_refused_with_its_line(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + '1,2,3\n"4\n",5,6\n')
    with pytest.raises(DataError, match=r"line 3 is not text .*; a cell in quotes must end on its line"):
        rows_in(tmp_path / "t.csv")


@given(st.lists(st.one_of(st.floats().map(str), st.integers().map(str), st.text(max_size=6)), min_size=1, max_size=8))
def test_numbers_are_those_that_python_reads(cells):
    cells = [cell for cell in cells if cell.isprintable()] or ["1"]
    expected = [number_of(cell) for cell in cells]
    found = numbers(pyarrow.array(cells, pyarrow.string()))
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(numbers(pyarrow.array(cells, pyarrow.string()).dictionary_encode()), expected, equal_nan=True)


def test_dates_and_truth_values_are_the_same_numbers_in_csv_and_parquet(tmp_path):
    days = ["2024-02-29", "1970-01-01", "1969-12-31", "2024-02-29"]
    moments = ["2024-02-29T12:00:00", "1970-01-01 06:00", "1970-01-02T00:00:00.5Z", "1970-01-01T01:00:00+01:00"]
    flags = ["true", "False", "TRUE", "false"]
    found_days, found_moments = [19782.0, 0.0, -1.0, 19782.0], [19782.5, 0.25, 1 + 0.5 / 86400, 0.0]
    expected = np.column_stack((found_days, found_moments, [1.0, 0.0, 1.0, 0.0], [0.5, 1.5, 2.5, 3.5]))
    cells = zip(days, moments, flags, strict=True)
    lines = ["day,moment,flag,y", *(f"{','.join(row)},{k + 0.5}" for k, row in enumerate(cells))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    times = np.array(["2024-02-29T12:00", "1970-01-01T06:00", "1970-01-02T00:00:00.5", "1970-01-01"], "datetime64[us]")
    truth = [flag.lower() == "true" for flag in flags]
    table = {"day": np.array(days, "datetime64[D]"), "moment": times, "flag": truth, "y": [0.5, 1.5, 2.5, 3.5]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        found = rows_in(tmp_path / name)[0]
        assert np.array_equal(found[np.argsort(found[:, -1])], expected)
    for word in ("2024-02-30", "2024-1-1", "2024-01-01T25:00", "20240101x"):
        assert math.isnan(days_of(word))


@given(
    st.lists(
        st.tuples(*[st.one_of(st.just(math.nan), st.floats(-1e300, 1e300), st.sampled_from([0.0, -0.0, 1.0]))] * 2),
        max_size=40,
    ),
    st.integers(1, 7),
)
def test_medians_are_those_of_all_rows_at_once(rows, span):
    values = np.array(rows, np.float64).reshape(-1, 2)
    blocks = [values[start : start + span] for start in range(0, len(values), span)]
    found = medians(lambda: iter(blocks), 2)
    for k in range(2):
        present = values[~np.isnan(values[:, k]), k]
        assert found[k] == np.median(present) if len(present) else math.isnan(found[k])


def test_tables_in_memory_are_those_of_any_library(tmp_path):
    columns = {"a": [1.5, None, 2.5], "w": ["x", None, "y"], "k": [1, 2, 3]}
    frames = [pyarrow.table(columns), polars.DataFrame(columns), pandas.DataFrame(columns, index=[3, 1, 2])]
    for frame in frames:
        table = Table.of(frame, "X")
        assert table.first_line() == (1, ["a", "w", "k"])
        assert [[cell.replace("nan", "") for cell in row] for row in texts(table)] == [
            ["1.5", "x", "1"],
            ["", "", "2"],
            ["2.5", "y", "3"],
        ]
    for unreadable in (pandas.to_timedelta(range(3), unit="h"), [[1], [2], [3]]):
        table = Table.of(pandas.DataFrame({"a": unreadable, "b": [1, 2, 3]}), "X")
        with pytest.raises(DataError, match=r"^X: column a holds .*; numbers, words or dates are needed"):
            next(table.batches([0, 1], header=True))
        assert next(table.batches([1], header=True)).n_rows == 3
    with pytest.raises(DataError, match="X: cannot be read as a table"):
        Table.of(pandas.DataFrame({"a": [1, "b", object()]}), "X")


@pytest.mark.parametrize("name", ["b\x1b[2J", "b\x00c", "b\nc"])
def test_names_with_control_characters_are_refused_and_not_printed(tmp_path, name):
    table = pyarrow.table({"a": [1.0, 2.0], name: [1.0, 3.0], "y": [0, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    for settings in ({}, {"target": "none"}, {"drop": ("a",)}):
        with pytest.raises(DataError, match="control characters") as refused:
            open_source(SourceSpec(str(tmp_path / "t.parquet"), **settings))
        assert str(refused.value).isprintable()


def test_a_damaged_part_in_zst_is_named(tmp_path):
    (tmp_path / "t.csv.zst").write_bytes(gzip.compress(WHOLE.encode()))
    with pytest.raises(DataError, match=r"t\.csv\.zst: damaged zstd file"):
        rows_in(tmp_path / "t.csv.zst")


def test_whole_labels_of_64_bits_without_a_sign_keep_their_values(tmp_path):
    labels = np.array([2**64 - 1, 5, 2**64 - 1, 5, 5, 2**64 - 1], np.uint64)
    pyarrow.parquet.write_table(pyarrow.table({"a": np.arange(6.0) ** 2, "y": labels}), tmp_path / "t.parquet")
    assert open_source(SourceSpec(str(tmp_path / "t.parquet"))).classes == (5, 2**64 - 1)
