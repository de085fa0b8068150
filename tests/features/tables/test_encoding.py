"""Words and gaps as inputs, against a naive twin; columns that number the rows, in any format, are no inputs."""

import json
import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from features.cell_text import NULL_WORDS, value_of
from features.errors import DataError
from features.source import Source, SourceSpec
from features.tables import readers
from features.tables.encoding import BACK_SHARE, CHANCE, EncodingRequest, RowOrder, TableEncoding, learn_encoding
from features.tables.learning import CellReader, Learner
from features.tables.readers import Batch, Table, model_layout
from features.tables.table_source import encoded
from pipeline.estimators import SLKLClassifier
from sources import opened, same


def is_missing(cell: str) -> bool:
    return cell.strip() in NULL_WORDS


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=4)
FEW = ["red", " green", "12", "1.5", "-0.25", "1", "007", "12.0", "1.50", "True", "true"]
CELLS = st.sampled_from(FEW) | st.sampled_from(NULL_WORDS) | WORDS


def naive(words: list[str], cells: list[str], is_marked: bool) -> np.ndarray:
    """The inputs of a column of words, written down cell by cell."""
    rows = [[float(value_of(cell) == value_of(word) and not is_missing(cell)) for word in words] for cell in cells]
    return np.array([row + [float(is_missing(cell))] * is_marked for row, cell in zip(rows, cells, strict=True)])


def of_cells(cells: list[str]) -> Batch:
    """Return a column of texts as a batch."""
    return Batch(Path("here"), 0, len(cells), {0: pyarrow.array(cells, pyarrow.string())})


@given(st.lists(CELLS, min_size=1, max_size=12), st.lists(CELLS, max_size=6), st.integers(1, 9))
def test_words_against_a_naive_twin(training, others, span):
    present = {cell.strip() for cell in training if not is_missing(cell)}
    words = sorted(present, key=lambda word: (isinstance(value_of(word), str), value_of(word), word))
    assume(len(set(map(value_of, words))) == len(words))
    asked = EncodingRequest.read("onehot:c", "median")
    learner = Learner(Path("here"), ["c"], asked)
    batches = [of_cells(training[start : start + span]) for start in range(0, len(training), span)]
    codes = np.concatenate([learner.codes(batch, [0]) for batch in batches])
    if not words:
        with pytest.raises(DataError, match=r"without a cell that is filled in .*: c; .*`data.drop=c`"):
            learn_encoding(["c"], learner.words, codes, asked)
        return
    encoding = learn_encoding(["c"], learner.words, codes, asked)
    marked = any(map(is_missing, training))
    assert encoded(codes, encoding, learner.words)[0:100].tolist() == naive(words, training, marked).tolist()
    again = TableEncoding.from_description(json.loads(json.dumps(encoding.described())))
    assert (again, again.digest()) == (encoding, encoding.digest())

    reader, cells = CellReader(["c"], [again.columns[0].words], missing=True), training + others
    codes = reader.codes(of_cells(cells), [0])
    inputs = again.apply(codes)
    assert inputs.tolist() == naive(words, cells, marked).tolist()
    none = [not is_missing(cell) and not row[: len(words)].any() for cell, row in zip(cells, inputs, strict=True)]
    assert reader.unknown["c"] == sum(none) == again.unknown(codes)["c"]


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=2, max_size=20), st.integers(1, 10))
def test_numbers_get_the_median_of_the_training_rows_and_a_mark(cells, n_rows):
    codes = np.array([[np.nan if cell is None else cell] for cell in cells])
    training = [cell for cell in cells[:n_rows] if cell is not None]
    assume(training)
    encoding = learn_encoding(["c"], [None], codes[:n_rows], EncodingRequest(missing="median"))
    inputs, marked = encoding.apply(codes), len(training) < len(cells[:n_rows])
    assert inputs[:, 0].tolist() == [np.median(training) if cell is None else cell for cell in cells]
    assert inputs[:, 1:].tolist() == [[float(cell is None)] * marked for cell in cells]


SIZES = ["size=L", "size=M", "size=S"]


@pytest.mark.parametrize(
    ("asked", "names"), [("onehot", ["zip", *SIZES]), ("onehot:zip", [*(f"zip={k}" for k in range(33)), *SIZES])]
)
def test_columns_of_words_and_those_named_are_categories(asked, names):
    cells = {0: pyarrow.array([k % 33 for k in range(99)]), 1: pyarrow.array(list("SML") * 33)}
    request = EncodingRequest.read(asked, None)
    learner = Learner(Path("here"), ["zip", "size"], request)
    codes = learner.codes(Batch(Path("here"), 0, 99, cells), [0, 1])
    learner.check(SourceSpec("here", categorical=asked))
    assert learn_encoding(["zip", "size"], learner.words, codes, request).inputs == tuple(names)


def test_inputs_of_one_name_are_refused():
    with pytest.raises(DataError, match="two inputs would be called 'c=red'"):
        learn_encoding(["c", "c=red"], [{"red": 0}, None], np.zeros((3, 2)), EncodingRequest(words=True))


RNG = np.random.default_rng(5)
N = 60
FRAME = pandas.DataFrame({"a": RNG.normal(size=N), "b": RNG.integers(0, 9, N), "y": RNG.integers(0, 2, N)})
PLACES = np.sort(RNG.choice(5000, N, replace=False))
TIMES = 1580428800 + 3600 * np.arange(N)  # seconds
TIED = np.sort(RNG.choice(150, N)) + 1580428800  # of a minute or two, with some rows in one second
SWAPPED = np.r_[0:7, 40, 8:40, 7, 41:N]


def told(source: Source) -> str:
    """Return the columns that a note says were left out."""
    (note,) = (note for note in source.warnings if note.startswith("left out"))
    return note.partition("rows: ")[2].partition(";")[0]


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
    "pandas, shuffled": (lambda frame, path: frame.set_axis(RNG.permutation(N)).to_csv(path), "(no name, column 0)"),
    "polars": (as_polars, "index"),
    "shuffled": (lambda frame, path: write(frame.assign(ID=RNG.permutation(N) + 1), path, index=False), "ID"),
    "times": (lambda frame, path: write(frame.assign(at=TIMES), path, index=False), "at"),
    "two swapped": (lambda frame, path: write(frame.assign(id=SWAPPED), path, index=False), "id"),
    "added below": (lambda frame, path: write(frame.assign(id=[*range(2, N), 0, 1]), path, index=False), "id"),
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
    np.testing.assert_array_equal(source.train.X[:9], plain.train.X[:9])
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
    x = np.append(np.arange(40), np.arange(40) // 8)
    frame = pandas.DataFrame({"x": x, "b": np.arange(80) // 40, "y": RNG.integers(0, 2, 80)})
    (tmp_path / "parts").mkdir()
    for name, rows in (("parts/0.csv", frame[:40]), ("parts/1.csv", frame[40:]), ("t.csv", frame)):
        rows.to_csv(tmp_path / name, index=False)
    parts, whole = opened(tmp_path / "parts"), opened(tmp_path / "t.csv")
    assert parts.columns.inputs == ("x", "b")
    assert parts.identity == whole.identity


def test_a_column_that_is_named_is_an_input(tmp_path):
    FRAME.assign(id=PLACES).to_csv(tmp_path / "t.csv")
    assert opened(tmp_path / "t.csv", columns=("id", "a", "")).columns.inputs == ("", "a", "id")
    FRAME.assign(id=PLACES % 25 // 24 + PLACES).to_csv(tmp_path / "t.csv", index=False)
    assert opened(tmp_path / "t.csv", target="id").columns.inputs == ("a", "b", "y")


RISING, FEW_ROWS = np.linspace(0, 1, N), {"b": np.arange(10) % 3, "y": np.arange(10) % 2}
# Columns before the target y: which are inputs, and those of which it is told that they may number the rows.
USED: dict[str, tuple[pandas.DataFrame, str, str]] = {
    "sorted by age": (FRAME.assign(x=np.sort(RNG.integers(20, 50, N))), "a b x", "x"),
    "times, with ties": (FRAME.assign(x=TIED), "a b x", "x"),
    "weekday": (FRAME.assign(x=np.arange(N) % 5), "a b x", ""),
    "walk": (FRAME.assign(x=np.cumsum(RNG.normal(1, 1.5, N))), "a b x", "x"),
    "neighbours swapped": (FRAME.assign(x=np.arange(N) ^ 1), "a b x", "x"),
    "jitter": (FRAME.assign(x=TIMES + 3600 * RNG.normal(0, 2, N)), "a b x", "x"),
    "shuffled": (FRAME.assign(x=RNG.permutation(N)), "a b x", "x"),
    "noise": (FRAME.assign(x=RNG.normal(size=N)), "a b x", ""),
    "the only one": (pandas.DataFrame({"x": RISING, "y": np.sin(9 * RISING)}), "x", "x"),
    "all of them": (pandas.DataFrame({"x": RISING, "t": TIMES, "y": np.sin(9 * RISING)}), "x t", "x, t"),
    "few rows, a counter by its name": (pandas.DataFrame({"index": range(10), "x": PLACES[:10]} | FEW_ROWS), "x b", ""),
}


@pytest.mark.parametrize("case", USED)
def test_inputs_that_may_number_the_rows_and_may_not_are_used_and_told(tmp_path, case):
    """In order by chance, less strictly, or all there is; names of counters are trusted where rows are few."""
    frame, inputs, in_doubt = USED[case]
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = opened(tmp_path / "t.csv", target="y")
    assert source.columns.inputs == tuple(inputs.split())
    told = [warning for warning in source.warnings if "may number" in warning]
    assert [f": {in_doubt}" in warning for warning in told] == [True] * bool(in_doubt)


def test_a_column_without_a_name_that_does_not_number_the_rows_is_refused(tmp_path):
    FRAME.set_axis(PLACES).sample(frac=1, random_state=0).to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"t\.csv: columns without a name: \(no name, column 0\); .*`data\.drop=\"\"`"):
        opened(tmp_path / "t.csv")
    assert opened(tmp_path / "t.csv", drop=("",)).columns.inputs == ("a", "b")
    FRAME.assign(y=FRAME.a).set_axis([f"car {k}" for k in range(N)]).to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match="without a name"):
        opened(tmp_path / "t.csv", categorical="onehot")


@given(st.data())
def test_what_is_in_order_by_no_chance_is_left_out(data):
    """As a naive twin says, which looks at each value, and at each whole number between the least and the largest."""
    values = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=40))
    values = sorted(values, reverse=data.draw(st.booleans())) if data.draw(st.booleans()) else values
    if data.draw(st.booleans()):  # a count, of which some are swapped or left out
        values = [*range(data.draw(st.integers(1, 40)))]
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(values) - 1))
            values[at], values[-1] = values[-1], values[at]
    steps = [after - before for before, after in pairwise(values)]
    back = min(sum(step >= 0 for step in steps), sum(step <= 0 for step in steps))
    is_count = len(set(values)) == len(values) >= 0.9 * (max(values) - min(values) + 1)
    chance = (back + 1) ** len(values) / math.factorial(len(values))
    expected = back <= (BACK_SHARE * len(values) + 1) * is_count and 4 * chance < CHANCE and len(set(values)) > 1
    codes = np.column_stack([np.array(values, float), np.arange(len(values)) % 2])
    one_file = np.zeros(1, np.int64)
    assert RowOrder.of(["x", "z"], [None, ()], codes, one_file).left_out == ((0,) if expected else ())
    assert RowOrder.of(["x", "z"], [(), ()], codes, one_file) == RowOrder()
    assert RowOrder.of(["x", "z"], [None, ()], codes, one_file, ["x"]) == RowOrder()
    infinite, missing = (
        RowOrder.of(["id", "z"], [None, ()], np.where(codes > 3, other, codes), one_file) for other in (np.inf, np.nan)
    )
    assert infinite == missing, "infinite cells are not passed over as missing ones are"


def test_a_model_never_needs_the_column(tmp_path):
    """It is passed over in tables to predict, by name and by place, and in a test part."""
    FRAME.to_csv(tmp_path / "t.csv")
    FRAME.to_csv(tmp_path / "plain.csv", index=False)
    one, other = (opened(tmp_path / "t.csv", test=str(tmp_path / name)) for name in ("plain.csv", "t.csv"))
    same(one, other)
    columns = one.columns
    for known in (columns, type(columns)(()), type(columns)(("a", "b"))):
        for name, first in (("t.csv", 1), ("plain.csv", 0)):
            layout = model_layout(Table.in_files(tmp_path / name), None, known, 2, labelled=True)
            assert (layout.inputs, layout.target) == ((first, first + 1), first + 2)


def test_estimators_and_arrays_warn_of_a_column_that_counts_the_rows(tmp_path):
    frame, X = FRAME.reset_index(names="Unnamed: 0"), np.column_stack([FRAME[["a", "b"]], -PLACES])
    with pytest.warns(UserWarning, match="rise or fall from row to row: Unnamed: 0; leave out"):
        SLKLClassifier(random_state=0).fit(frame.drop(columns="y"), frame["y"])
    for inputs, n_warnings in ((X, 1), (X[:, :2], 0)):
        np.savez(tmp_path / "data.npz", X=inputs, y=FRAME["y"])
        warnings = opened(tmp_path / "data.npz").warnings
        assert sum("columns of X that rise or fall from row to row: 2; leave" in one for one in warnings) == n_warnings
