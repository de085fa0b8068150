"""Decimal commas: read where a setting says so, as pyarrow and pandas read them; what is unclear is refused or told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError
from features.source import Columns, Source
from features.tables.cells import numbers
from features.tables.readers import Table
from sources import opened, same


def table(folder: Path, *columns: list[str], **options: Any) -> Source:
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
    options = pyarrow.csv.ConvertOptions(column_types={"x": "float64"}, decimal_point=",")
    of_arrow = pyarrow.csv.read_csv(
        path, parse_options=pyarrow.csv.ParseOptions(delimiter=";"), convert_options=options
    )
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
        with pytest.raises(DataError, match=r"commas in a \(such as .*\), y \(such as .*`data\.decimal=,`"):
            opened(tmp_path / name)


@pytest.mark.parametrize(
    ("cell", "decimal", "words"),
    [
        (
            "17.648,46",
            ".",
            r"commas in a \(such as '17\.648,46'\).*without points between thousands, .*`data\.decimal=,`",
        ),
        ("1,234", ".", r"commas stand between thousands \(a\), take them out .*`data\.decimal=,`"),
        ("17.648,46", ",", r"line 2, column a is '17\.648,46'.*take points between thousands out"),
        ("17.648", ",", r"line 2, column a is '17\.648', where decimals have commas"),
        ("2.5", ",", r"line 2, column a is '2\.5', where decimals have commas"),
    ],
)
def test_commas_and_points_that_are_unclear_are_refused(tmp_path, cell, decimal, words):
    with pytest.raises(DataError, match=words):
        table(tmp_path, [cell] * 40, list(map(str, RNG.integers(0, 9, 40))), LABELS, decimal=decimal)


def test_dates_and_words_with_points_are_no_numbers_with_points(tmp_path):
    days = [f"{day}.01.2020" for day in RNG.integers(1, 9, 40)]
    source = table(tmp_path, days, ["2,5", "v1.5"] * 20, LABELS, decimal=",", categorical="onehot:b", drop=("a",))
    assert source.columns.input_names == ("b=2.5", "b=v1.5")


@pytest.mark.parametrize(
    ("cells", "is_told"), [(("900", "17.648"), True), (("900", "17.64"), False), (("0.125", "17.648"), False)]
)
def test_points_with_three_digits_behind_each_are_told_in_a_file_of_semicolons(tmp_path, cells, is_told):
    source = table(tmp_path, list(RNG.choice(cells, 40)), list(map(str, RNG.integers(0, 9, 40))), LABELS)
    assert any("three digits" in note and note.endswith(": a") for note in source.notes) == is_told
    (tmp_path / "t.tsv").write_text((tmp_path / "t.csv").read_text().replace(";", "\t"))
    assert any("three digits" in note for note in opened(tmp_path / "t.tsv").notes) == is_told


def test_the_same_words_in_parquet_are_told_as_before(tmp_path):
    pandas.DataFrame({"a": ["2,5", "3,5"] * 20, "y": LABELS}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"a .*write decimals with points"):
        opened(tmp_path / "t.parquet")
