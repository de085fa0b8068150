"""Tables in many files, in blocks and in memory: the same rows as one file read at once; dates; medians."""

import gzip
import math

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features import csv_files
from features.csv_files import CsvFile
from features.errors import DataError, MissingInputError
from features.medians import medians
from features.open_source import open_source
from features.source import SourceSpec
from features.table_cells import days_of, distinct, number_of, numbers
from features.table_parts import Table, has_numbers_only, is_frame
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
    stray = tmp_path / "t" / "part.parquet"
    pyarrow.parquet.write_table(table, stray)
    with pytest.raises(DataError, match="its folders name other columns"):
        rows_in(tmp_path / "t")


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


CELL = st.sampled_from(["1", "-2.5", "a b", '"x, y"', '"say ""so"""', "", " 7 ", "1e5", "é", 'half"quote'])
LINE_END = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"])


@given(st.lists(st.tuples(CELL, CELL, LINE_END), min_size=1, max_size=30), st.integers(12, 60))
def test_blocks_of_any_size_hold_the_same_rows(tmp_path, rows, block_bytes):
    path = tmp_path / "t.csv"
    path.write_bytes("".join(["p,q\n", *(f"{a},{b}{end}" for a, b, end in rows)]).encode())
    expected = [cells for _, cells in list(CsvFile(path).lines())[1:]]
    before = csv_files.BLOCK_BYTES
    csv_files.BLOCK_BYTES = block_bytes
    try:
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


def test_words_of_any_library_and_an_index_with_a_name():
    """polars keeps views of texts and unsigned places of categories; an index of pandas is no column."""
    words, numbers = ["x", None, "y", "x"], [1, 2, 3, 4]
    frame = pandas.DataFrame({"w": words, "k": numbers}, index=pandas.Index(numbers, name="row"))
    of_polars = polars.DataFrame({"w": words, "k": numbers})
    for table in (frame, frame.astype({"w": "category"}), of_polars, of_polars.cast({"w": polars.Categorical})):
        assert is_frame(table)
        assert not has_numbers_only(table)
        assert has_numbers_only(table[["k"]])
        assert not is_frame(table["w"])
        read = texts(Table.of(table, "X"))
        assert [["" if cell == "nan" else cell for cell in row] for row in read] == [
            ["x", "1"],
            ["", "2"],
            ["y", "3"],
            ["x", "4"],
        ]


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
