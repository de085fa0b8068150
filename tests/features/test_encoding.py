"""Words and missing cells as numbers: against a naive twin, on rows of any kind, and what is refused."""

import json
import re
from functools import partial
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow
import pytest
from features.tables.encoding import Asked, EncodedRows, TableEncoding, learn
from features.table_batches import Batch
from features.table_cells import CellReader
from hypothesis import example, given
from hypothesis import strategies as st

from features.cell_text import MISSING
from features.errors import DataError
from features.open_source import open_source
from features.source import SourceSpec

WORDS = st.text(st.characters(codec="utf-8", exclude_characters=' \t\r\n",;'), min_size=1, max_size=4).filter(
    lambda word: word.strip().lower() not in MISSING | {"true"} and not re.fullmatch(r"[+-]?[0-9]+\.0+", word.strip())
)
SPELLINGS = {"12.0": "12", "+3.00": "+3", "true": "1", "TRUE": "1", "False": "0"}  # of a category, as programs write it
OTHERS = ["red", "green", "12", "1.5", "-0.25", "1", "0"]
CELLS = st.one_of(st.sampled_from([*OTHERS, *SPELLINGS]), st.sampled_from(sorted(MISSING)), WORDS)


def known(cell: str) -> str | None:
    """Return the category of a cell, None for a missing one."""
    word = cell.strip()
    return None if word.lower() in MISSING else SPELLINGS.get(word, word)


def naive(kind: str, training: list[str], cells: list[str]) -> np.ndarray:
    """The inputs of a column of words, written down cell by cell."""

    def order(word: str) -> tuple[int, float, str]:
        try:
            return 0, float(word), word
        except ValueError:
            return 1, 0.0, word

    present = [known(cell) for cell in training if known(cell) is not None]
    words = sorted(set(present), key=order)
    marked = len(present) < len(training)
    middle = sorted(words.index(word) for word in present)[(len(present) - 1) // 2]
    rows = []
    for cell in map(known, cells):
        if kind == "onehot":
            row = [float(cell == word) for word in words]
        else:
            row = [float(words.index(cell)) if cell in words else float(middle)]
        rows.append(row + [float(cell is None)] * marked)
    return np.array(rows)


def of_cells(cells: list[str]) -> Batch:
    """Return a column of texts as a batch."""
    return Batch(Path("here"), 0, len(cells), {0: pyarrow.array(cells, pyarrow.string())})


@example(["1", "2", "3", "4", "NA"], [], "ordinal")  # the lower of two in the middle
@given(st.lists(CELLS, min_size=1, max_size=12), st.lists(CELLS, max_size=6), st.sampled_from(["onehot", "ordinal"]))
def test_words_against_a_naive_twin(training, others, kind):
    asked = Asked.read(f"{kind}:c", "median")
    reader = CellReader(["c"], [{}], missing=True, new=True)
    codes = reader.codes(of_cells(training + others), [0])
    words, blocks = reader.words, partial(iter, np.array_split(codes[: len(training)], 2))
    if all(cell.strip().lower() in MISSING for cell in training):
        with pytest.raises(DataError, match="column 'c' has no cell"):
            learn(["c"], words, blocks, asked)
        return
    encoding, places = learn(["c"], words, blocks, asked)
    expected = naive(kind, training, training + others)
    assert EncodedRows(codes, encoding, places)[0:100].tolist() == expected.tolist()
    again = TableEncoding.from_description(encoding.described())
    assert again == encoding
    assert again.digest() == encoding.digest()

    later = CellReader(["c"], [{word: k for k, word in enumerate(again.columns[0].words or ())}], missing=True)
    as_predicted = later.codes(of_cells(training + others), [0])
    assert again.apply(as_predicted).tolist() == expected.tolist()
    unknown = [cell for cell in others if known(cell) is not None and known(cell) not in map(known, training)]
    assert later.unknown["c"] == len(unknown)


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=2, max_size=20), st.integers(1, 10))
def test_numbers_get_the_median_of_the_training_rows_and_a_mark(cells, n_rows):
    codes = np.array([[np.nan if cell is None else cell] for cell in cells])
    training = [cell for cell in cells[:n_rows] if cell is not None]
    hypothesis.assume(training)
    encoding, _ = learn(["c"], [None], lambda: iter([codes[:n_rows]]), Asked(missing="median"))
    inputs = encoding.apply(codes)
    median, marked = np.median(training), len(training) < len(cells[:n_rows])
    assert inputs[:, 0].tolist() == [median if cell is None else cell for cell in cells]
    assert inputs.shape[1] == 1 + marked
    if marked:
        assert inputs[:, 1].tolist() == [cell is None for cell in cells]


TEXT = "id,color,age,ok\n" + "".join(
    f"{k},{color},{age},{'yn'[k % 2]}\n"
    for k, (color, age) in enumerate([("red", "31"), ('"blue, dark"', "NA"), ("red", "nan"), ("?", "20.5")] * 6)
)


def table(tmp_path, text, **options):
    (tmp_path / "table.csv").write_text(text)
    return open_source(SourceSpec(str(tmp_path / "table.csv"), **options))


BOTH = {"categorical": "onehot", "missing": "median"}


def test_only_training_rows_are_learned_from(tmp_path):
    first = table(tmp_path, TEXT, **BOTH)
    rows = TEXT.splitlines()
    test_rows = first.read("test", 0, first.n_test)[0][:, 0].astype(int).tolist()
    for row in test_rows:
        rows[1 + row] = f"{row},other{row},1e6,{'yn'[row % 2]}"
    second = table(tmp_path, "\n".join(rows), **BOTH)
    assert second.columns.encoding == first.columns.encoding
    assert np.array_equal(second.read("train", 0, 18)[0], first.read("train", 0, 18)[0])
    assert not second.read("test", 0, len(test_rows))[0][:, 1:3].any()
    assert second.identity["encoding"] == first.identity["encoding"]
    told = f"test part: cells with a category that no training row has: color ({len(test_rows)}); they count as none"
    assert told in second.notes
    assert not any("no training row" in note for note in first.notes)
    assert second.identity["sha256"] != first.identity["sha256"]


def test_kinds_of_categories(tmp_path):
    text = "zip,size,y\n" + "".join(f"{k % 40},{'SML'[k % 3]},{k}\n" for k in range(400))
    assert table(tmp_path, text, categorical="onehot").input_shape == (4,)
    assert table(tmp_path, text, categorical="ordinal").input_shape == (2,)
    assert table(tmp_path, text, categorical="onehot:zip").input_shape == (43,)
    source = table(tmp_path, text, categorical="auto:zip")
    assert source.columns.input_names == ("zip", "size=L", "size=M", "size=S")
    assert source.columns.encoding.columns[0].words == tuple(map(str, range(40)))  # numbers by their size


def test_a_test_file_of_its_own(tmp_path):
    (tmp_path / "test.csv").write_text("ok;age;color;id\n" + "y;50;green;1\nn;;red;2\n")
    test = str(tmp_path / "test.csv")
    source = table(tmp_path, TEXT, test=test, drop=("id",), **BOTH)
    assert (source.n_train, source.n_test, source.input_shape) == (24, 2, (5,))
    assert source.columns.inputs == ("color", "age")
    names = ("color=blue, dark", "color=red", "color is missing", "age", "age is missing")
    assert source.columns.input_names == names
    median = (20.5 + 31) / 2
    rows = [[0, 1, 0, 31, 0], [1, 0, 0, median, 1], [0, 1, 0, median, 1], [0, 0, 1, 20.5, 0]]
    assert source.read("train", 0, 24)[0].tolist() == rows * 6
    inputs, targets = source.read("test", 0, 2)
    assert inputs.tolist() == [[0, 0, 0, 50, 0], [0, 1, 0, median, 1]]
    assert "categories: color (2)" in source.notes
    assert any(note.startswith("missing cells, filled in and marked: color, age") for note in source.notes)
    assert targets.tolist() == [1, 0]
    json.dumps(source.identity)
    few = table(tmp_path, TEXT, test=test, n_train=8, drop=("id",), **BOTH)
    assert (few.n_train, few.n_test) == (8, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b,y\n1,2\n", "test.csv: lacks the column 'a'"),
        ("a,b,c,y\n1,2,3,4\n", "has the column 'c'"),
        ("a,b\n1,2\n", "has no target column 'y'"),
        ("a,b,y\n1,2,\n", "no label"),
        ("a,b,y\n1,2,x\n", "row 0 has the target 'x', those of the training file are numbers"),
        ("a,b,y\n", "has no rows"),
        ("1,2\n", "has 2 columns"),
    ],
)
def test_a_test_file_that_does_not_fit_is_refused(tmp_path, text, message):
    (tmp_path / "test.csv").write_text(text)
    training = "a,b,y\n" + "".join(f"{k},{k * k},{k / 2}\n" for k in range(9))
    with pytest.raises(DataError, match=message):
        table(tmp_path, training, test=str(tmp_path / "test.csv"))


COLUMN = {"name": "a", "words": None, "onehot": False, "fill": 0.0, "indicator": False}
CHANGES = [{"missing": 1}, {"columns": []}, {"columns": [{"name": "a"}]}] + [
    {"columns": [COLUMN | change]}
    for change in (
        {"words": ["x", "x"], "onehot": True},
        {"words": ["\ud800"], "onehot": True},
        {"words": ["x"], "fill": 1.0},
        {"onehot": True},
        {"fill": float("inf")},
        {"name": 3},
        {"words": "xy", "onehot": True},
    )
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_encoding_is_refused(tmp_path, change):
    described = table(tmp_path, TEXT, **BOTH).columns.encoding.described()
    assert TableEncoding.from_description(json.loads(json.dumps(described))).described() == described
    with pytest.raises(DataError, match="damaged"):
        TableEncoding.from_description({**described, **change})


def test_a_first_row_of_words_is_no_header_where_its_words_recur(tmp_path):
    board = [["xob"[k % 3], "xob"[k // 3 % 3], "xob"[k // 9 % 3], "won" if k % 2 else "lost"] for k in range(60)]
    text = "".join(",".join(row) + "\n" for row in board)
    source = table(tmp_path, text, categorical="onehot")
    assert (source.n_train + source.n_test, source.columns.inputs, source.input_shape) == (60, (), (9,))
    assert source.notes[0] == "header: no, target: column 3 of 0 to 3"
    (tmp_path / "test.csv").write_text("x,x,o,won\no,o,o,lost\n")
    source = table(tmp_path, text, test=str(tmp_path / "test.csv"), categorical="onehot")
    assert source.read("test", 0, 2)[0].tolist() == [[0, 0, 1, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0, 0, 1, 0]]
    named = table(tmp_path, "left,middle,right,end\n" + text, categorical="onehot")
    assert (named.n_train + named.n_test, named.columns.inputs) == (60, ("left", "middle", "right"))
