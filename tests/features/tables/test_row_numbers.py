"""Columns that number the rows are no inputs, in every format, by any blocks and parts, unless they are named."""

import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError
from features.source import Source
from features.tables import readers
from features.tables.columns import model_layout
from features.tables.readers import Table
from features.tables.row_numbers import CHANCE, RowNumbers
from pipeline.estimators import SLKLClassifier
from sources import opened, same

RNG = np.random.default_rng(5)
N = 60
FRAME = pandas.DataFrame({"a": RNG.normal(size=N), "b": RNG.integers(0, 9, N), "y": RNG.integers(0, 2, N)})
PLACES = np.sort(RNG.choice(5000, N, replace=False))
TIMES = 1580428800 + 3600 * np.arange(N)  # seconds


def told(source: Source) -> str:
    """Return the columns that a note says were left out."""
    (note,) = (note for note in source.notes if note.startswith("left out"))
    return note.partition("do: ")[2].partition(";")[0]


def write(frame: pandas.DataFrame, path: Path, **options: Any) -> None:
    getattr(frame, f"to_{path.suffix[1:]}")(path, **options)


def as_polars(frame: pandas.DataFrame, path: Path) -> None:
    getattr(polars.from_pandas(frame).with_row_index(), f"write_{path.suffix[1:]}")(path)


def read_again(frame: pandas.DataFrame, path: Path) -> None:
    frame.to_csv(path.with_suffix(".txt"))
    write(pandas.read_csv(path.with_suffix(".txt")), path, index=False)


WRITERS: dict[str, tuple[Any, str]] = {
    "pandas": (lambda frame, path: frame.to_csv(path), "(no name, column 0)"),
    "pandas, some rows": (lambda frame, path: frame.set_axis(PLACES).to_csv(path), "(no name, column 0)"),
    "R": (lambda frame, path: frame.set_axis(range(1, N + 1)).to_csv(path, quoting=2), "(no name, column 0)"),
    "read by pandas": (read_again, "Unnamed: 0"),
    "polars": (as_polars, "index"),
    "numbers": (lambda frame, path: write(frame.assign(id=PLACES), path, index=False), "id"),
    "falling": (lambda frame, path: write(frame.assign(id=-PLACES), path, index=False), "id"),
    "times": (lambda frame, path: write(frame.assign(at=TIMES), path, index=False), "at"),
    "both": (lambda frame, path: write(frame.assign(at=TIMES, id=PLACES), path, index=False), "at, id"),
}

NAMED = [case for case, (_, name) in WRITERS.items() if not name.startswith("(")]  # in parquet an index is known as one


@pytest.mark.parametrize(
    ("case", "suffix"), [pair for pair in product(WRITERS, ("csv", "parquet")) if pair[1] == "csv" or pair[0] in NAMED]
)
def test_a_column_that_numbers_the_rows_is_left_out_and_told(tmp_path, case, suffix):
    writer, name = WRITERS[case]
    writer(FRAME, tmp_path / f"t.{suffix}")
    FRAME.to_csv(tmp_path / "plain.csv", index=False)
    source, plain = opened(tmp_path / f"t.{suffix}"), opened(tmp_path / "plain.csv")
    assert told(source) == name
    assert source.columns == plain.columns
    np.testing.assert_array_equal(source.read("train", 0, 9)[0], plain.read("train", 0, 9)[0])
    assert source.identity == plain.identity


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_parts_that_are_numbered_each_or_together(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(readers, "COLUMN_BLOCK_BYTES", 1)
    for name, index in (("each", [*range(20)] * 3), ("together", [*range(60)])):
        (tmp_path / name).mkdir()
        for k, rows in enumerate((slice(0, 20), slice(20, 40), slice(40, 60))):
            FRAME.set_axis(index)[rows].to_csv(tmp_path / name / f"{k}.csv")
        assert told(opened(tmp_path / name)) == "(no name, column 0)"
    (tmp_path / "rows").mkdir()
    for k in range(N):  # of one row each, in which nothing rises
        FRAME[k : k + 1].to_csv(tmp_path / "rows" / f"{k:02}.csv", index=False)
    assert opened(tmp_path / "rows").columns.inputs == ("a", "b")


def test_a_column_that_rises_in_the_first_part_alone_is_an_input(tmp_path):
    """The first batch says otherwise: the table is read again, and equal rows are known by all inputs."""
    frame = pandas.DataFrame({"x": [*range(40), *range(40)], "b": np.arange(80) // 40, "y": RNG.integers(0, 2, 80)})
    (tmp_path / "parts").mkdir()
    for k in range(2):
        frame[40 * k : 40 * k + 40].assign(x=lambda part, k=k: part["x"] if k == 0 else part["x"] // 2).to_csv(
            tmp_path / "parts" / f"{k}.csv", index=False
        )
    pandas.concat([pandas.read_csv(tmp_path / "parts" / f"{k}.csv") for k in range(2)]).to_csv(
        tmp_path / "t.csv", index=False
    )
    parts, whole = opened(tmp_path / "parts"), opened(tmp_path / "t.csv")
    assert parts.columns.inputs == ("x", "b")
    assert parts.identity == whole.identity


def test_a_column_that_is_named_is_an_input(tmp_path):
    FRAME.assign(id=PLACES).to_csv(tmp_path / "t.csv")
    assert opened(tmp_path / "t.csv", columns=("id", "a", "")).columns.inputs == ("", "a", "id")
    FRAME.assign(id=PLACES % 25 // 24 + PLACES).to_csv(tmp_path / "t.csv", index=False)
    assert opened(tmp_path / "t.csv", target="id").columns.inputs == ("a", "b", "y")


@pytest.mark.parametrize("n_rows", [10, 11])
def test_few_rows_may_be_in_order_by_chance(tmp_path, n_rows):
    """For one of two inputs: 4 / 10! is above a millionth, 4 / 11! below; the names of counters are trusted before."""
    frame = pandas.DataFrame({"x": PLACES[:n_rows], "y": np.arange(n_rows) % 2}).assign(
        b=[3, 1] * (n_rows // 2) + [2] * (n_rows % 2)
    )
    frame[["x", "b", "y"]].to_csv(tmp_path / "t.csv", index=False)
    assert opened(tmp_path / "t.csv").columns.inputs == (("x", "b") if n_rows == 10 else ("b",))
    frame.assign(index=range(n_rows))[["index", "b", "y"]].to_csv(tmp_path / "t.csv", index=False)
    assert opened(tmp_path / "t.csv").columns.inputs == ("b",)


def test_inputs_that_are_all_in_order_are_used_and_told(tmp_path):
    frame = pandas.DataFrame({"x": np.linspace(0, 1, N), "y": np.sin(np.linspace(0, 9, N))})
    frame.to_csv(tmp_path / "t.csv")
    source = opened(tmp_path / "t.csv")
    assert source.columns.inputs == ("x",)
    assert any("rise or fall" in note and ": x; they are used" in note for note in source.notes)


def test_a_column_without_a_name_that_does_not_number_the_rows_is_refused(tmp_path):
    FRAME.sample(frac=1, random_state=0).to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"t\.csv: columns without a name .*\(no name, column 0\); .*`data\.drop=\"\"`"):
        opened(tmp_path / "t.csv")
    assert opened(tmp_path / "t.csv", drop=("",)).columns.inputs == ("a", "b")
    FRAME.assign(y=FRAME.a).set_axis([f"car {k}" for k in range(N)]).to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match="without a name"):
        opened(tmp_path / "t.csv", categorical="onehot")


@given(st.data())
def test_blocks_and_files_find_what_each_file_alone_shows(tmp_path, data):
    """As a naive twin does: all steps of a file have one sign, and so many values are in order by no chance."""
    files = [
        np.array(data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=14)), float)
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    files = [np.sort(one) if data.draw(st.booleans()) else one for one in files]
    numbers = RowNumbers(["x", "z"])
    for k, values in enumerate(files):
        cut = data.draw(st.integers(0, len(values)))
        for part in filter(len, (values[:cut], values[cut:])):
            numbers.add(tmp_path / str(k), np.column_stack([part, part * 0]))
    signs = {np.sign(after - before) for values in files for before, after in pairwise(values)}
    orders = math.prod(math.factorial(len(values)) for values in files)
    expected = [0] if signs in ({1.0}, {-1.0}) and 4 / orders < CHANCE else []
    assert numbers.found([None, None]) == expected
    assert numbers.found([(), None]) == []


def test_a_model_never_needs_the_column(tmp_path):
    """It is passed over in tables to predict, by name and by place, and in a test part."""
    FRAME.to_csv(tmp_path / "t.csv")
    FRAME.to_csv(tmp_path / "plain.csv", index=False)
    columns = opened(tmp_path / "t.csv", test=str(tmp_path / "plain.csv")).columns
    same(
        opened(tmp_path / "t.csv", test=str(tmp_path / "plain.csv")),
        opened(tmp_path / "t.csv", test=str(tmp_path / "t.csv")),
    )
    for known in (columns, type(columns)(()), type(columns)(("a", "b"))):
        for name, first in (("t.csv", 1), ("plain.csv", 0)):
            layout = model_layout(Table.in_files(tmp_path / name), None, known, 2, labelled=True)
            assert (layout.inputs, layout.target) == ((first, first + 1), first + 2)


def test_an_estimator_warns_of_a_column_that_counts_the_rows(tmp_path):
    FRAME.to_csv(tmp_path / "t.csv")
    frame = pandas.read_csv(tmp_path / "t.csv")
    with pytest.warns(UserWarning, match="count its rows: Unnamed: 0; leave them out"):
        SLKLClassifier(random_state=0).fit(frame.drop(columns="y"), frame["y"])
