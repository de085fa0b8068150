"""Batches of tables: what a csv or parquet holds, by any blocks and in any files; what is damaged, and where."""

import csv
import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError, MissingInputError
from features.tables import readers
from features.tables.cells import distinct
from features.tables.readers import Table
from runs import python

LINES = ["a,b,y\n", *(f"{k},{k * 0.5},{k / 7}\n" for k in range(60))]
WHOLE = "".join(LINES)
RNG = np.random.default_rng(2)


def cells_of(table: Table) -> list[list[str | None]]:
    """Return all cells as texts, row by row; the batches follow one another."""
    places, rows, ends = range(len(table.names)), list[list[str | None]](), dict[Path, int]()
    for batch in table.batches(places):
        assert batch.start == ends.get(batch.path, 0)
        ends[batch.path] = batch.start + batch.n_rows
        columns = []
        for place in places:
            words, of_rows = distinct(batch.columns[place])
            columns.append([words[k] for k in of_rows])
            assert len(of_rows) == batch.n_rows
        rows += [list(row) for row in zip(*columns, strict=True)]
    assert table.count_rows() == len(rows)
    return rows


def read(path: Path, content: str | bytes, **options: bool) -> list[list[str | None]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return cells_of(Table.in_files(path, **options))


def save(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    monkeypatch.setattr(readers, "COLUMN_BLOCK_BYTES", 1)
    monkeypatch.setattr(readers, "MOST_ROWS", 7)
    monkeypatch.setattr(readers, "LEAST_ROWS", 1)


CELLS = ["1", "a b", " 7 ", "1e5", "é", "NA", "\ufeff", "", '"x, y"', '"say ""so"""', 'half"quote', '"two\nlines"']
LINE_END = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"])


@given(st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(CELLS), LINE_END), max_size=30), st.integers(40, 99))
def test_cells_of_a_text_are_those_that_python_reads_in_blocks_of_any_size(tmp_path, rows, block_bytes):
    text = "".join(["p,q\n", *(f"{a},{b}{end}" for a, b, end in [("1", "2", "\n"), *rows])])
    expected = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) > 1][1:]
    bare = [[None if cell.strip() in ("", "NA") else cell.strip() for cell in row] for row in expected]
    with patch.multiple(readers, BLOCK_BYTES=block_bytes, COLUMN_BLOCK_BYTES=1):
        assert read(tmp_path / "t.csv", text) == bare


@pytest.mark.parametrize("pack", ["", ".gz", ".zst"])
@pytest.mark.parametrize(("name", "separator"), [("t.csv", ","), ("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t")])
def test_separators_and_packed_files(tmp_path, small_blocks, name, separator, pack):
    rows = [['"a, b; c"', " far", "y"], *([str(k), "x;,y" if separator == "\t" else '"x;,y"', ""] for k in range(30))]
    text = "\ufeff\n" + "".join(separator.join(row) + "\r\n" for row in rows)
    with pyarrow.output_stream(tmp_path / (name + pack), compression={".gz": "gzip", ".zst": "zstd"}.get(pack)) as out:
        out.write(text.encode())
    table = Table.in_files(tmp_path / (name + pack))
    assert table.names == ["a, b; c", "far", "y"]
    assert cells_of(table) == [[str(k), "x;,y", None] for k in range(30)]


ROWS = "a,b\n" + "1,2\n" * 40
STORED = gzip.compress(ROWS.encode(), compresslevel=0, mtime=0)
FAULTS: dict[str, tuple[str, str | bytes, str]] = {
    "nothing": ("t.csv", "", "is empty"),
    "numbers for names": ("t.csv", "1,2e3\n3,4\n", r"its first line holds numbers \(1,2e3\), .* `data.header=false`"),
    "places for names": ("t.csv", "0, 1\n3,4\n", "holds numbers .* put names in its place, as these count the columns"),
    "commas for names": ("t.csv", "1,5;2,5\n3,5;4\n", r"its first line holds numbers \(1,5;2,5\)"),
    "names that repeat": ("t.csv", "a,b,a\n1,2,3\n", "has the column 'a', which stands twice in its header"),
    "control characters": ("t.csv", "a,b\x1b[2J\n1,2\n", r"control characters \('b\\x1b\[2J'\)"),
    "a long first row": ("t.csv", "a,b\n1,2,3\n", "row 0 has 3 cells, expected 2"),
    "a short row": ("t.csv", ROWS + "1\n", r"row 40 \(line 42\) has 1 cells, expected 2"),
    "a long row": ("t.csv", ROWS + "1,2,3\n" + ROWS, r"row 40 \(line 42\) has 3 cells, expected 2"),
    "behind blank lines": ("t.csv", "\n" + ROWS.replace("\n", "\n \n\n") + "1\n", r"row 40 \(line 125\) has 1 cells"),
    "behind long cells": ("t.csv", 'a,b\n1,"2\n\n"\n' * 9 + "1\n", r"row 17 \(line 37\) has 1 cells"),
    "a quote": ("t.csv", ROWS + '1,"2\n1,3\n', "row 40: the quotes of its last cell do not end"),
    "a quote far from the end": ("t.csv", ROWS + '1,"2\n' + ROWS, r"after row \d+ \(a line, or a cell in quotes, does"),
    "a quote in the header": ("t.csv", 'a,"b\n1,2\n', "its first line is not text separated by ','"),
    "carriage returns": ("t.csv", ROWS.replace("\n", "\r"), "; end lines with a line feed"),
    "other bytes": ("t.csv", ROWS.encode() + b"1,\xff\n", "line 42 is not UTF-8 text .* as UTF-8: iconv -f LATIN1 -t"),
    "Latin-1 names": ("t.csv", "a,größe\n1,2\n".encode("latin-1"), "line 1 is not UTF-8 text .*iconv -f LATIN1"),
    **{
        coding: ("t.csv", ROWS.encode(coding), "line 1 is not UTF-8 text .*iconv -f UTF-16 -t UTF-8")
        for coding in ("utf-16", "utf-16-le", "utf-16-be")
    },
    "a line without end": ("t.csv", "1" * 5000, "line 1 is longer than 1000 bytes"),
    "many columns": ("t.csv", ",".join(f"{k}x" for k in range(101)), "has 101 columns, at most 100 are read"),
    "cut": ("t.csv.gz", gzip.compress(ROWS.encode())[:-9], r"damaged \.gz file"),
    "no gzip": ("t.csv.gz", ROWS, r"damaged \.gz file .*take \.gz off its name if it is not packed"),
    "another digit": ("t.csv.gz", STORED.replace(b"1,2\n1", b"1,3\n1", 1), r"damaged \.gz file .*incorrect data check"),
    "a bomb": ("t.csv.gz", gzip.compress(ROWS.encode() * 2000), "unpacks to more than 100 times its size"),
    "gzip by another name": (
        "t.csv",
        gzip.compress(ROWS.encode()),
        r"is a gzip \(\.gz\) file, no text; give it the end",
    ),
    "no parquet": ("t.parquet", ROWS, "not a readable parquet file"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path, monkeypatch, small_blocks, case):
    monkeypatch.setattr(readers, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(readers, "MOST_COLUMNS", 100)
    monkeypatch.setattr("features.input_files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    name, content, message = FAULTS[case]
    with pytest.raises(DataError, match=rf"{name}: .*{message}") as caught:
        read(tmp_path / name, content)
    assert str(caught.value).isprintable()


TABLE: dict[str, list[Any]] = {
    "color": [None if k % 11 == 0 else ["red", "green", "blue, dark"][k % 3] for k in range(300)],
    "a.b": [None if k % 7 == 0 else float(value) for k, value in enumerate(RNG.standard_normal(300))],
    "count": [int(value) for value in RNG.integers(-(2**40), 2**40, 300)],
    "flag": [k % 5 == 0 for k in range(300)],
}
TEXTS = [[None if cell is None else str(cell) for cell in row] for row in zip(*TABLE.values(), strict=True)]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", None])
def test_parquet_of_any_encoding_is_the_csv_of_the_same_table(tmp_path, small_blocks, encoding):
    options = {"use_dictionary": False, "column_encoding": {"color": encoding}} if encoding else {}
    path = save(tmp_path / "t.parquet", TABLE, row_group_size=100, **options)
    pandas.DataFrame(TABLE).to_csv(tmp_path / "t.csv", index=False)
    tables = [Table.in_files(tmp_path / name) for name in ("t.csv", path.name)]
    for table in tables:
        assert table.names == list(TABLE)
        assert cells_of(table) == TEXTS
    assert [one.n_rows for one in tables[-1].batches([])] == [300]


@pytest.mark.parametrize("dictionary", [True, False])
def test_columns_that_cannot_be_read_are_named_with_what_leaves_them_out(tmp_path, dictionary):
    words = pyarrow.array([f"word {k % 7}".encode() for k in range(79)] + [b"\xff"], pyarrow.binary()).view("string")
    columns = {"a": np.arange(80.0), "w": words, "t": ["x" * 5000] * 80, "l": [[1] * (1 + k % 2) for k in range(80)]}
    table = Table.in_files(save(tmp_path / "t.parquet", columns, use_dictionary=dictionary))
    for place, message in (
        (1, r"t\.parquet: row 79, column w holds no UTF-8 text; .*`data\.drop=w`"),
        (2, r"t\.parquet: column t has a text of 5000 bytes; .*`data\.drop=t`"),
        (3, r"t\.parquet: columns .*: l \(list<.*\); give each .*, or leave them out \(`data\.drop=l`\)"),
    ):
        with pytest.raises(DataError, match=message):
            list(table.batches([0, place]))
        assert next(iter(table.batches([0]))).n_rows


def test_promises_are_compared_with_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("features.input_files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    monkeypatch.setattr(readers, "MOST_COLUMNS", 2)
    zeros, words = np.zeros(300_000), pyarrow.DictionaryArray.from_arrays(np.zeros(400_000, np.int8), ["one"])
    for columns, message in (
        ({"a": zeros, "y": zeros}, "more than a hundredfold"),
        ({"a": words, "y": words}, "800000 bytes or cells"),  # unpacked, these are few bytes
        ({"a": [1], "b": [2], "y": [3]}, "more than 2 columns"),
    ):
        path = save(tmp_path / "t.parquet", columns, compression="zstd", use_dictionary=columns["a"] is words)
        assert path.stat().st_size < 2**15
        with pytest.raises(DataError, match=message):
            Table.in_files(path).names


FLIPPED = """
import sys
from pathlib import Path
import numpy as np
from features.errors import DataError
from features.tables.cells import distinct, numbers
from features.tables.readers import Table

path, refused = Path(sys.argv[1]), 0
whole = path.read_bytes()
for bit in np.random.default_rng(0).permutation(8 * len(whole))[:1500]:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << int(bit % 8)
    path.write_bytes(damaged if bit % 5 else damaged[: bit // 8])
    try:
        table = Table.in_files(path)
        for batch in table.batches((1, 2)):
            distinct(batch.columns[1]), numbers(batch.columns[2])
    except DataError as error:
        assert "\\n" not in str(error), error
        refused += 1
print(refused)
"""


def test_a_flipped_bit_or_a_cut_never_ends_the_process(tmp_path):
    """Nor raises anything but DataError; in a process of its own."""
    columns = {"a": pyarrow.array([1.5, None, 2.5]), "w": ["one", "two", None], "y": [1.0, 2.0, 3.0]}
    path = save(tmp_path / "t.parquet", columns, compression="snappy", write_page_checksum=True)
    done = python("-c", FLIPPED, path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 900  # refusals


@pytest.mark.parametrize("form", ["csv", "csv.gz"])
def test_files_of_a_folder_are_one_table_in_the_order_of_their_names(tmp_path, small_blocks, form):
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("_SUCCESS", ".part-0.csv.crc", "notes.txt", ".part-00.csv"):
        (folder / name).write_text("")
    (folder / "part-3.csv").write_text(LINES[0])
    for k, (first, stop) in enumerate(((1, 8), (8, 41), (41, 61))):
        text = (LINES[0] + "".join(LINES[first:stop])).encode()
        path = folder / f"part-{k}.{form}"
        path.write_bytes(gzip.compress(text) if form == "csv.gz" else text)
    parts = Table.in_files(folder)
    assert parts.names == ["a", "b", "y"]
    assert cells_of(parts) == read(tmp_path / "whole.csv", WHOLE)


BY_LINK = "is a link, by which .* read twice"
HARMS: dict[str, tuple[str, Callable[[Path], object], type[Exception], str]] = {
    "a link to no file": ("b.csv", lambda path: path.symlink_to("none"), MissingInputError, "b.csv: is a link to what"),
    "a link to itself": ("b.csv", lambda path: path.symlink_to(path), MissingInputError, "b.csv: is a link to what"),
    "a link to a part": ("b.csv", lambda path: path.symlink_to("c/a.csv"), DataError, BY_LINK),
    "a link to its folder": ("k", lambda path: path.symlink_to(path.parent), DataError, BY_LINK),
    "a link beside": ("k", lambda path: path.symlink_to("c"), DataError, BY_LINK),
    "a pipe": ("b.csv", os.mkfifo, DataError, "b.csv: is a pipe, a device or a socket"),
    "an empty part": ("b.csv", Path.touch, DataError, "b.csv: is empty"),
    "an empty folder": ("b.csv", Path.mkdir, DataError, "b.csv: is a folder without tables"),
    "a folder that is not listed": ("shut", Path.mkdir, PermissionError, "shut"),
    "a folder that is a column": ("k=2", Path.mkdir, DataError, "d: has folders that stand for columns, as k=2"),
}


@pytest.mark.parametrize("case", HARMS)
def test_no_part_of_a_folder_is_passed_over_in_silence(tmp_path, monkeypatch, case):
    name, harm, error, message = HARMS[case]
    folder, real = tmp_path / "d", os.scandir
    (folder / "c").mkdir(parents=True)
    for place in (folder, folder / "c"):
        (place / "a.csv").write_text(LINES[0] + "1,2,3\n")
    assert len(cells_of(Table.in_files(folder))) == 2
    harm(folder / name)

    def refusing(place: Any) -> Any:  # root may list every folder
        if Path(place).name == "shut":
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(error, match=message):
        cells_of(Table.in_files(folder))


def test_a_link_to_no_folder_is_no_empty_folder(tmp_path):
    (tmp_path / "a.csv").write_text(WHOLE)
    (tmp_path / "k").symlink_to("none")
    with pytest.raises(MissingInputError, match="k: is a link to what is not there"):
        Table.in_files(tmp_path)


DAYS = pyarrow.array([1, 2], pyarrow.int32()).cast("date32")
OTHERS: dict[str, tuple[Any, str | None]] = {
    "numbers": ([1, 2], r"b\.parquet: column x holds numbers, in a\.parquet dates"),
    "words": (["2024-01-01", "p"], r"b\.parquet: column x holds words, in a\.parquet dates"),
    "times": (pyarrow.array([1, 2]).cast("timestamp[ns]"), None),
    "gaps": (pyarrow.nulls(2), None),
    "another name": ({"z": [1, 2]}, r"b\.parquet: its columns are not those of a\.parquet"),
    "more": ({"x": DAYS, "z": [1, 2]}, r"b\.parquet: has 3 columns, a\.parquet has 2"),
    "another order": ("y,x", r"b\.csv: its columns are not those of a\.csv"),
    "fewer": ("x", r"b\.csv: has 1 columns, a\.csv has 2"),
    "a line": ("x,y\n1,2\n3", r"b\.csv: row 1 \(line 3\) has 1 cells, expected 2"),
    "another kind": (None, r"has \.csv and \.parquet files"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_files_unlike_the_first_are_named(tmp_path, case):
    other, message = OTHERS[case]
    if isinstance(other, str):
        (tmp_path / "a.csv").write_text("x,y\n1,2\n")
        (tmp_path / "b.csv").write_text(f"{other}\n")
    else:
        columns = [{"x": DAYS}, other if isinstance(other, dict) else {"x": DAYS if other is None else other}]
        for name, column in zip("ab", columns, strict=True):
            save(tmp_path / f"{name}.parquet", column | {"y": [0, 1]})
        if other is None:
            (tmp_path / "c.csv").write_text("x,y\n1,2\n")
    if message is None:
        assert len(cells_of(Table.in_files(tmp_path))) == 4
        return
    with pytest.raises(DataError, match=message):
        cells_of(Table.in_files(tmp_path))


def test_names_of_files_that_no_table_has(tmp_path):
    with pytest.raises(MissingInputError, match="no such file"):
        Table.in_files(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text(WHOLE)
    (tmp_path / os.fsdecode(b"f\xff.csv")).write_text(WHOLE)
    with pytest.raises(DataError, match=r"f\\udcff\.csv' is no UTF-8 text; rename it"):
        Table.in_files(tmp_path)
