"""Parquet files: the same table as its csv, by batches; types, nulls, what is damaged or promises too much."""

import csv
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from features.parquet_files import ParquetFile
from features.table_cells import distinct
from hypothesis import given
from hypothesis import strategies as st

from features import parquet_files
from features.errors import DataError, UsageError
from features.open_source import open_source
from features.source import SourceSpec
from sources import everything

BOTH = {"categorical": "onehot", "missing": "median"}
RNG = np.random.default_rng(2)
N = 300
TABLE: dict[str, list[Any]] = {
    "color": [None if k % 11 == 0 else ["red", "green", "blue, dark"][k % 3] for k in range(N)],
    "a.b": [None if k % 7 == 0 else float(value) for k, value in enumerate(RNG.standard_normal(N))],
    "count": [int(value) for value in RNG.integers(-(2**40), 2**40, N)],
    "flag": [k % 5 == 0 for k in range(N)],
    "ok": ["yes" if k % 3 else "no" for k in range(N)],
}


def save(path: Path, table: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(table), path, **options)
    return path


def save_csv(path: Path, table: dict[str, list[Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(table)
        rows = zip(*table.values(), strict=True)
        writer.writerows(rows)
    return path


def texts(path: Path, places: tuple[int, ...]) -> list[list[str]]:
    """Return the texts of some columns, row by row."""
    columns: dict[int, list[str]] = {place: [] for place in places}
    for batch in ParquetFile(path).batches(places):
        for place, values in batch.columns.items():
            found, of_rows = distinct(values)
            columns[place] += [found[k] for k in of_rows]
    return [list(row) for row in zip(*columns.values(), strict=True)]


def test_a_table_is_the_same_in_parquet_and_in_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "BATCH_ROWS", 64)
    words = pyarrow.array(TABLE["color"]).dictionary_encode()
    for table, asked in ((TABLE, "onehot"), ({**TABLE, "color": words}, "onehot"), (TABLE, "onehot:flag")):
        asked = BOTH | {"categorical": asked}
        plain = open_source(SourceSpec(str(save_csv(tmp_path / "t.csv", TABLE)), **asked))
        packed = open_source(SourceSpec(str(save(tmp_path / "t.parquet", table, row_group_size=100)), **asked))
        assert packed.identity == plain.identity
        assert packed.columns == plain.columns
        assert np.array_equal(packed.read("test", 0, 75)[0], plain.read("test", 0, 75)[0])


@given(st.lists(st.tuples(st.none() | st.floats(width=32), st.none() | st.text(max_size=5)), min_size=1, max_size=9))
def test_cells_are_those_that_were_saved(tmp_path, rows):
    numbers, words = zip(*rows, strict=True)
    table = {"x": pyarrow.array(numbers, pyarrow.float32()), "w": pyarrow.array(words, pyarrow.string())}
    path = save(tmp_path / "t.parquet", table)
    assert ParquetFile(path).first_line() == (1, ["x", "w"])
    for (number, word), (cell, text) in zip(rows, texts(path, (0, 1)), strict=True):
        assert text == (word or "")
        assert cell == "" if number is None else np.array_equal(float(cell), number, equal_nan=True)


def test_kinds_of_columns(tmp_path):
    day = np.array(["2020-01-01"] * 4, "datetime64[D]")
    table = {
        "money": [Decimal("1.50"), Decimal("2.25"), None, Decimal("3")],
        "nothing": pyarrow.nulls(4),
        "day": day,
        "list": [[1], [2], [3], [4]],
        "y": [1.5, 2.5, 3.5, 4.5],
    }
    path = save(tmp_path / "t.parquet", table)
    money = ["1.50", "2.25", "", "3.00"]
    assert texts(path, (0, 1, 4)) == [[a, "", str(y)] for a, y in zip(money, table["y"], strict=True)]
    with pytest.raises(DataError, match=r"column list holds list.*--set data.drop=list"):
        open_source(SourceSpec(str(path), **BOTH))
    source = open_source(SourceSpec(str(path), drop=("list", "nothing"), missing="median"))
    assert source.columns.inputs == ("money", "day")
    assert set(everything(source)[0][:, -1]) == {18262.0}  # days since 1970
    with pytest.raises(DataError, match="'nothing' has no cell"):
        open_source(SourceSpec(str(path), drop=("day", "list"), missing="median"))
    with pytest.raises(DataError, match=r"t.parquet: row 2, column money is ''; .*data.missing=median"):
        open_source(SourceSpec(str(path), columns=("money",)))


def test_damaged_files_are_refused(tmp_path):
    numbers = {"a": RNG.standard_normal(5000), "y": RNG.standard_normal(5000)}
    path = save(tmp_path / "t.parquet", numbers, write_page_checksum=True)
    whole, told = path.read_bytes(), []
    for k in range(60):
        damaged = bytearray(whole[: len(whole) * k // 20])
        if k >= 20:
            damaged[int(RNG.integers(len(whole)))] ^= 1 << int(RNG.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            open_source(SourceSpec(str(path)))
        except DataError as error:
            told.append(str(error))
    assert len(told) > 50  # a flipped bit of an unused name harms nobody
    assert not any("\n" in line for line in told)


FLIPPED = """
import sys
from pathlib import Path
import numpy as np
from features.errors import DataError
from features.parquet_files import ParquetFile
from features.table_cells import distinct

path, refused = Path(sys.argv[1]), 0
whole = path.read_bytes()
for bit in np.random.default_rng(0).permutation(8 * len(whole))[:1500]:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << int(bit % 8)
    path.write_bytes(damaged)
    try:
        for batch in ParquetFile(path).batches((1, 2)):
            distinct(batch.columns[1])
    except DataError:
        refused += 1
print(refused)
"""


def test_a_flipped_bit_never_ends_the_process(tmp_path):
    """Nor raises anything but DataError; in a process of its own."""
    table = {"a": pyarrow.array([[1.5], None, [2.5, 3.5]]), "w": ["one", "two", None], "y": [1.0, 2.0, 3.0]}
    path = save(tmp_path / "t.parquet", table, compression="snappy")
    done = subprocess.run([sys.executable, "-c", FLIPPED, path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 500  # refusals


@pytest.mark.parametrize("column", ["w", "y"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_text_that_is_not_utf8_is_refused_with_its_row(tmp_path, column, dictionary):
    words = pyarrow.array([f"word {k % 7}".encode() for k in range(79)] + [b"\xff"], pyarrow.binary()).view("string")
    table = {"a": np.arange(80.0), "w": ["x"] * 80, "y": ["p", "q"] * 40} | {column: words}
    path = save(tmp_path / "t.parquet", table, use_dictionary=dictionary)
    with pytest.raises(DataError, match=rf"t\.parquet: row 79, column {column} holds no UTF-8 text"):
        open_source(SourceSpec(str(path), categorical="onehot"))


def test_times_that_no_calendar_has_are_numbers_and_words(tmp_path):
    """Neither beyond the year 9999, nor where 64 bits of microseconds end."""
    for unit, second, late in (("s", 1, 2**40), ("ms", 10**3, 9 * 10**15), ("us", 10**6, 2**60), ("ns", 10**9, 2**62)):
        times = pyarrow.array([0, late, None, 86_400 * second] * 9, pyarrow.int64())
        table = {"t": times.cast(pyarrow.timestamp(unit)), "y": [0, 1, 0, 1] * 9}
        path = save(tmp_path / "t.parquet", table)
        found = everything(open_source(SourceSpec(str(path), missing="median")))[0][:, 0]
        assert found.max() == pytest.approx(late / second / 86_400)
        assert {0.0, 1.0} <= set(found)
        columns = open_source(SourceSpec(str(path), missing="median", categorical="onehot:t")).columns
        assert len(columns.encoding.columns[0].words) == 3
        assert "1970-01-02 00:00:00" in columns.encoding.columns[0].words


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", None])
def test_words_in_each_encoding(tmp_path, monkeypatch, encoding):
    monkeypatch.setattr(parquet_files, "BATCH_ROWS", 64)
    options = {"use_dictionary": False, "column_encoding": {"color": encoding}} if encoding else {}
    path = save(tmp_path / "t.parquet", TABLE, row_group_size=100, **options)
    cells = texts(path, (0, 2))
    assert cells == [[word or "", str(count)] for word, count in zip(TABLE["color"], TABLE["count"], strict=True)]


def test_promises_are_compared_with_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("features.input_files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    zeros = np.zeros(300_000)
    path = save(tmp_path / "t.parquet", {"a": zeros, "y": zeros}, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2**15
    with pytest.raises(DataError, match="more than a hundredfold"):
        open_source(SourceSpec(str(path)))
    words = pyarrow.DictionaryArray.from_arrays(np.zeros(400_000, np.int8), ["one"])  # unpacked, these are few bytes
    path = save(tmp_path / "w.parquet", {"a": words, "y": words})
    with pytest.raises(DataError, match="800000 bytes or cells"):
        open_source(SourceSpec(str(path)))


def test_a_text_that_is_too_long_is_refused(tmp_path):
    path = save(tmp_path / "t.parquet", {"a": ["x" * 5000] * 9, "y": np.arange(9.0)})
    with pytest.raises(DataError, match=r"a text of 5000 bytes; .*data.drop=a"):
        open_source(SourceSpec(str(path), categorical="onehot"))


def test_a_folder_without_files_is_refused(tmp_path):
    (tmp_path / "t.parquet").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        open_source(SourceSpec(str(tmp_path / "t.parquet")))
