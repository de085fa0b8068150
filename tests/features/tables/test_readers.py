"""Batches of tables: what a csv or parquet holds, by any blocks and in any files; what is damaged, and where."""

import csv
import gzip
import io
import os
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import permutations, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError, MissingInputError
from features.input_files import CSV_SUFFIXES, PACKED_SUFFIXES
from features.tables import readers
from features.tables.cells import distinct, numbers
from features.tables.readers import PARQUET_TYPES, SEPARATORS, Table
from runs import ROOT

LINES = ["a,b,y\n", *(f"{k},{k * 0.5},{k / 7}\n" for k in range(60))]
WHOLE = "".join(LINES)


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


def read(path: Path, content: str | bytes, **options: Any) -> list[list[str | None]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return cells_of(Table.in_files(path, **options))


def save(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    monkeypatch.setattr(readers, "COLUMN_BLOCK_BYTES", 1)
    monkeypatch.setattr(readers, "MOST_BATCH_ROWS", 7)
    monkeypatch.setattr(readers, "LEAST_BATCH_ROWS", 1)


CELLS = ["1", "a b", " 7 ", "1e5", "é", "NA", "\ufeff", "", '"x, y"', '"say ""so"""', 'half"quote', '"two\nlines"']
CELLS.append('"text"behind quotes')
LINE_END = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"])


@given(st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(CELLS), LINE_END), max_size=30), st.integers(40, 99))
def test_cells_of_a_text_are_those_that_python_reads_in_blocks_of_any_size(tmp_path, rows, block_bytes):
    rows = [row for row in rows if any(row[:2])]
    text = "".join(["p,q\n", *(f"{a},{b}{end}" for a, b, end in [("1", "2", "\n"), *rows])])
    expected = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) > 1][1:]
    bare = [[None if cell.strip() in ("", "NA") else cell.strip() for cell in row] for row in expected]
    with patch.multiple(readers, BLOCK_BYTES=block_bytes, COLUMN_BLOCK_BYTES=1):
        assert read(tmp_path / "t.csv", text) == bare


QUOTE = '"'
COMPRESSIONS = {"": None, **PACKED_SUFFIXES}


@pytest.mark.parametrize(
    ("suffix", "separator", "pack", "begin", "end"),
    list(product(CSV_SUFFIXES, SEPARATORS, COMPRESSIONS, ("", "\ufeff"), ("\n", "\r\n")))[::5],
)
def test_every_text_that_is_listed_holds_what_pandas_and_polars_read(tmp_path, suffix, separator, pack, begin, end):
    separator = "\t" if suffix == ".tsv" else separator
    word = f'w "1"{separator} 2'
    rows = [["a b", "größe", "y"], *(["" if k % 7 == 0 else f"{k / 8}", word, str(k % 2)] for k in range(50))]
    path = tmp_path / f"t{suffix}{pack}"
    with pyarrow.output_stream(path, compression=COMPRESSIONS[pack]) as out:
        lines = (
            separator.join(f'"{cell.replace(QUOTE, 2 * QUOTE)}"' if QUOTE in cell else cell for cell in row)
            for row in rows
        )
        out.write(text := (begin + "".join(line + end for line in lines)).encode())
    cells = cells_of(Table.in_files(path))
    of_pandas = pandas.read_csv(io.BytesIO(text), sep=separator, dtype=str, keep_default_na=False, na_values=[""])
    of_polars = polars.read_csv(text, separator=separator, infer_schema=False)
    assert Table.in_files(path).names == list(of_pandas.columns) == of_polars.columns == rows[0]
    assert cells == of_pandas.astype(object).where(of_pandas.notna(), None).to_numpy().tolist()
    assert cells == [list(row) for row in of_polars.rows()]


NUMBERS = [None if k % 5 == 0 else k for k in range(40)]


def column_of(name: str) -> pyarrow.Array:
    """Return a column of a type of Arrow, by its name."""
    if name in ("string", "large_string", "string_view"):
        return pyarrow.array([None if k is None else f"w {k % 3}" for k in NUMBERS], name)
    if name == "bool":
        return pyarrow.array([None if k is None else k % 2 == 0 for k in NUMBERS])
    if name.startswith("decimal"):
        values = [None if k is None else Decimal(k) / 4 for k in NUMBERS]
        return pyarrow.array(values, getattr(pyarrow, name)(9, 2))
    of = {"halffloat": "float16", "timestamp": "timestamp[us]"}.get(name, name)
    return pyarrow.array(NUMBERS, pyarrow.int32() if name == "date32" else pyarrow.int64()).cast(of)


def test_the_separator_is_what_both_lines_have_as_often(tmp_path):
    assert read(tmp_path / "t.csv", "a, cm;b, kg;y\n1,5;2,5;3,5\n", decimal=",") == [["1.5", "2.5", "3.5"]]
    assert Table.in_files(tmp_path / "t.csv").names == ["a, cm", "b, kg", "y"]


@pytest.mark.parametrize("as_dictionary", [False, True])
@pytest.mark.parametrize("name", sorted(PARQUET_TYPES))
def test_every_type_that_is_listed_holds_what_pandas_reads(tmp_path, name, as_dictionary):
    column = pyarrow.nulls(40) if name == "null" else column_of(name)
    as_dictionary = as_dictionary and name in ("string", "int64", "double", "date32")
    save(path := tmp_path / "t.parquet", {"x": column.dictionary_encode() if as_dictionary else column})
    (batch,) = Table.in_files(path).batches([0])
    expected = pandas.read_parquet(path)["x"]
    if PARQUET_TYPES[name] == "words":
        assert [cell.as_py() for cell in batch.columns[0]] == expected.astype(object).where(
            expected.notna(), None
        ).tolist()
        return
    if PARQUET_TYPES[name] == "dates":  # which are names of groups
        words, of_rows = distinct(batch.columns[0])
        read = pandas.to_datetime(pandas.Series([words[k] for k in of_rows]), format="ISO8601")
        assert read.astype("datetime64[us]").equals(pandas.to_datetime(expected).astype("datetime64[us]"))
        return
    np.testing.assert_allclose(numbers(batch.columns[0])[0], expected.astype(float), rtol=1e-15)


def test_the_page_of_tables_lists_what_is_read():
    page = (ROOT / "docs/tables.md").read_text().partition("## What is read")[2].partition("## ")[0]
    rows = (line.split("|", 2)[1:] for line in page.splitlines() if line.startswith("| "))
    lines = {title.strip(): set(re.findall("`(.*?)`", listed)) for title, listed in rows}
    assert lines["text"] == {*CSV_SUFFIXES, *PACKED_SUFFIXES}
    assert lines["separators"] == {{"\t": "\\t"}.get(sign, sign) for sign in SEPARATORS}
    for title, kind in (("numbers", "numbers"), ("dates, as groups", "dates"), ("words", "words")):
        assert lines[f"parquet: {title}"] == {name for name, held in PARQUET_TYPES.items() if held == kind}


STRUCTS = pyarrow.array([{"u": k} for k in range(3)])


@pytest.mark.parametrize("order", list(permutations(("a", "a.u", "y"))))
def test_a_name_with_a_point_beside_a_struct(tmp_path, order):
    columns = {"a": STRUCTS, "a.u": [1.5, 2.5, 3.5], "y": [0, 1, 0]}
    table = Table.in_files(save(tmp_path / "t.parquet", {name: columns[name] for name in order}))
    (batch,) = table.batches([order.index("a.u"), order.index("y")])
    assert batch.columns[order.index("a.u")].to_pylist() == columns["a.u"]
    with pytest.raises(DataError, match=r"a \(struct<.*flatten.*`data\.drop=a`"):
        list(table.batches(range(3)))


def test_row_groups_without_rows(tmp_path):
    schema = pyarrow.schema({"a": "double", "A": "double"})  # names in another case are others
    with pyarrow.parquet.ParquetWriter(tmp_path / "t.parquet", schema) as writer:
        for n_rows in (0, 3, 0, 2, 0):
            writer.write_table(pyarrow.table({"a": np.arange(n_rows * 1.0), "A": np.ones(n_rows)}, schema))
    assert [row[0] for row in cells_of(Table.in_files(tmp_path / "t.parquet"))] == ["0", "1", "2", "0", "1"]


NOTES = (b"not json", b"[1]", b"{}", b'{"index_columns": null}', b'{"index_columns": 5}', b"\xff")


@pytest.mark.parametrize("note", NOTES)
def test_a_note_of_pandas_that_cannot_be_read_names_no_index(tmp_path, note):
    table = pyarrow.table({"a": [1.0, 2.0], "y": [0, 1]}).replace_schema_metadata({b"pandas": note})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert Table.in_files(tmp_path / "t.parquet").index == frozenset()


@pytest.mark.parametrize(
    ("text", "header"), [("x\n1.0\n\n2.0\n", True), ("\nx\r\n1.0\r\n\r\n2.0", True), ("1.0\n\n2.0\n", False)]
)
def test_a_blank_line_of_one_column_is_a_missing_cell(tmp_path, text, header):
    assert read(tmp_path / "t.csv", text, header=header) == [["1.0"], [None], ["2.0"]]
    batch = next(iter(Table.in_files(tmp_path / "t.csv", header=header).batches([0])))
    assert batch.place(2) == f"line {len(text.splitlines())}"
    assert polars.read_csv(text.lstrip().encode(), has_header=header)[:, 0].to_list() == [1, None, 2]


ROWS = "a,b\n" + "1,2\n" * 40
STORED = gzip.compress(ROWS.encode(), compresslevel=0, mtime=0)
FAULTS: dict[str, tuple[str, str | bytes, str]] = {  # and the words that tell where it is, or what to do
    "nothing": ("t.csv", "", "is empty"),
    "numbers for names": ("t.csv", "1,2e3\n3,4\n", "data.header=false"),
    "names that repeat": ("t.csv", "a,b,a\n1,2,3\n", "columns 0 and 2 are called 'a'"),
    "names alike but for blanks": ("t.csv", "a,b, a\n1,2,3\n", "columns 0 and 2 are called 'a'"),
    "names in two forms": ("t.csv", "e\u0301,b,\u00e9\n1,2,3\n", "columns 0 and 2 are called 'é'"),
    "two columns without a name": ("t.csv", "a,y,,\n1,2,,\n", "columns 2 and 3 have no name"),
    "lines of commas": ("t.csv", ROWS + ",\n" * 40, "line 42 and 39 more have no cell"),
    "separators that are mixed": ("t.csv", "a;b\n1\t2\n", "line 2 has 1 cells, expected 2"),
    "a note for Excel": ("t.csv", "sep=;\na;b\n1;2\n", "'sep=;', is a note for Excel; take it out"),
    "two separators": ("t.csv", "Price, EUR, net;y\n1,5,2;2\n", "separated by ',' or ';'"),
    "control characters": ("t.csv", "a,b\x1b[2J\n1,2\n", r"control characters \('b\\x1b\[2J'\)"),
    "a long row": ("t.csv", ROWS + "1,2,3\n" + ROWS, "line 42 has 3 cells, expected 2"),
    "behind blank lines": ("t.csv", "\n" + ROWS.replace("\n", "\n \n\n") + "1\n", "line 125 has 1 cells"),
    "behind text after quotes": ("t.csv", 'a,b\n"1"x,2\n1,2,3\n', "line 3 has 3 cells, expected 2"),
    "behind long cells": ("t.csv", 'a,b\n1,"2\n\n"\n' * 9 + "1\n", "line 37 has 1 cells"),
    "a quote": ("t.csv", ROWS + '1,"2\n1,3\n', "row 40: the quotes of its last cell do not end; mend them"),
    "a quote far from the end": ("t.csv", ROWS + '1,"2\n' + ROWS, r"after row \d+ \(a line, or a cell in quotes, does"),
    "a quote in the header": ("t.csv", 'a,"b\n1,2\n', "end quotes on it"),
    "carriage returns": ("t.csv", ROWS.replace("\n", "\r"), "and lines with a line feed"),
    "other bytes": ("t.csv", ROWS.encode() + b"1,\xff\n", "line 42 is not UTF-8 text"),
    "Latin-1 names": ("t.csv", "a,größe\n1,2\n".encode("latin-1"), "line 1 is not UTF-8 text"),
    "UTF-16": ("t.csv", ROWS.encode("utf-16"), "line 1 is not UTF-8 text .*iconv -f ENCODING -t UTF-8"),
    "UTF-16 without a mark": ("t.csv", ROWS.encode("utf-16-be"), "control characters"),
    "gzip by another name": ("t.csv", gzip.compress(ROWS.encode()), "line 1 is not UTF-8 text .*a packed file as .gz"),
    "a line without end": ("t.csv", "1" * 5000, "line 1 has over 1000 bytes; leave long texts out"),
    "carriage returns without end": ("t.csv", "1,2\r" * 500, "line 1 has over 1000 bytes; end lines with a line feed"),
    "cut": ("t.csv.gz", gzip.compress(ROWS.encode())[:-9], r"damaged \.gz file"),
    "no gzip": ("t.csv.gz", ROWS, r"damaged \.gz file"),
    "another digit": ("t.csv.gz", STORED.replace(b"1,2\n1", b"1,3\n1", 1), r"damaged \.gz file"),
    "no parquet": ("t.parquet", ROWS, "not a readable parquet file"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path, monkeypatch, small_blocks, case):
    monkeypatch.setattr(readers, "MOST_LINE_BYTES", 1000)
    name, content, message = FAULTS[case]
    with pytest.raises(DataError, match=rf"{name}: .*{message}") as caught:
        read(tmp_path / name, content)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("dictionary", [True, False])
def test_columns_that_cannot_be_read_are_named_with_what_leaves_them_out(tmp_path, dictionary):
    words = pyarrow.array([f"word {k % 7}".encode() for k in range(79)] + [b"\xff"], pyarrow.binary()).view("string")
    columns = {"a": np.arange(80.0), "w": words, "l": [[1] * (1 + k % 2) for k in range(80)]}
    table = Table.in_files(save(tmp_path / "t.parquet", columns, use_dictionary=dictionary))
    for place, message in (
        (1, r"t\.parquet: column w holds text that is not UTF-8, .*`data\.drop=w`"),
        (2, r"t\.parquet: columns .*: l \(list<.*\); cast them .*, or leave them out \(`data\.drop=l`\)"),
    ):
        with pytest.raises(DataError, match=message):
            list(table.batches([0, place]))
        assert next(iter(table.batches([0]))).n_rows


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
    "a link to no folder": ("k", lambda path: path.symlink_to("none"), MissingInputError, "k: is a link to what"),
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


FRACTIONS = {"x": [0.5, 1.5], "y": [0, 1]}
# A second file beside a.csv with a line of x and y, or beside a.parquet with two rows; and what is told.
OTHERS: dict[str, tuple[str, str | dict[str, Any], str | None]] = {
    "whole numbers": ("b.parquet", {"x": [1, 2], "y": [0, 1]}, None),
    "gaps": ("b.parquet", {"x": pyarrow.nulls(2), "y": [0, 1]}, None),
    "another name": ("b.parquet", {"z": [1, 2], "y": [0, 1]}, r"b\.parquet: its columns are not those of a\.parquet"),
    "more": ("b.parquet", FRACTIONS | {"z": [1, 2]}, r"b\.parquet: its columns are not those of a\.parquet"),
    "another order": ("b.csv", "y,x\n", r"b\.csv: its columns are not those of a\.csv"),
    "fewer": ("b.csv", "x\n", r"b\.csv: its columns are not those of a\.csv"),
    "a line": ("b.csv", "x,y\n1,2\n3\n", r"b\.csv: line 3 has 1 cells, expected 2"),
    "another kind": ("a.parquet", FRACTIONS, r"has \.csv and \.parquet files"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_files_unlike_the_first_are_named(tmp_path, case):
    name, content, message = OTHERS[case]
    if name == "b.parquet":
        save(tmp_path / "a.parquet", FRACTIONS)
    else:
        (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    else:
        save(tmp_path / name, content)
    if message is None:
        assert len(cells_of(Table.in_files(tmp_path))) == 4
        return
    with pytest.raises(DataError, match=message):
        cells_of(Table.in_files(tmp_path))


def test_names_of_files_that_no_table_has(tmp_path):
    (tmp_path / "a.csv").write_text(WHOLE)
    (tmp_path / os.fsdecode(b"f\xff.csv")).write_text(WHOLE)
    with pytest.raises(DataError, match=r"f\\udcff\.csv' is no UTF-8 text"):
        Table.in_files(tmp_path)
