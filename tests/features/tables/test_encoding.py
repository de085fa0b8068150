"""Words and missing cells as numbers: against a naive twin, on rows of any kind, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from features.cell_text import MOST_ONEHOT, NULL_WORDS, value_of
from features.errors import DataError
from features.source import SourceSpec
from features.tables.encoding import EncodingRequest, TableEncoding, learn_encoding
from features.tables.learning import CellReader, Learner
from features.tables.readers import Batch
from features.tables.table_source import EncodedRows


def is_missing(cell: str) -> bool:
    return cell.strip() in NULL_WORDS


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=4)
CELLS = (
    st.sampled_from(["red", " green", "12", "1.5", "-0.25", "1", "007", "12.0"]) | st.sampled_from(NULL_WORDS) | WORDS
)


def naive(kind: str, training: list[str], cells: list[str]) -> np.ndarray:
    """The inputs of a column of words, written down cell by cell."""

    def order(word: str) -> tuple[int, float, str]:
        try:
            return 0, float(word), word
        except ValueError:
            return 1, 0.0, word

    present = [cell.strip() for cell in training if not is_missing(cell)]
    words = sorted(set(present), key=order)
    middle = sorted(words.index(word) for word in present)[(len(present) - 1) // 2]
    rows = []
    for cell in cells:
        word = cell.strip()
        equal = [one for one in words if value_of(one) == value_of(word)]
        word = equal[0] if word not in words and len(equal) == 1 else word
        if kind == "onehot":
            row = [float(word == one) for one in words]
        else:
            row = [float(words.index(word)) if word in words else float(middle)]
        rows.append(row + [float(is_missing(cell))] * (len(present) < len(training)))
    return np.array(rows)


def of_cells(cells: list[str]) -> Batch:
    """Return a column of texts as a batch."""
    return Batch(Path("here"), 0, len(cells), {0: pyarrow.array(cells, pyarrow.string())})


@example(["1", "2", "3", "4", "NA"], [], "auto", 1)  # the lower of two in the middle
@given(
    st.lists(CELLS, min_size=1, max_size=12),
    st.lists(CELLS, max_size=6),
    st.sampled_from(["onehot", "auto"]),
    st.integers(1, 9),
)
def test_words_against_a_naive_twin(training, others, kind, span):
    if kind == "auto":  # of many words
        training = training + [f"w{k}" for k in range(MOST_ONEHOT + 2)]
    cells, asked = training + others, EncodingRequest.read(f"{kind}:c", "median")
    learner = Learner(Path("here"), ["c"], asked)
    batches = [of_cells(cells[start : start + span]) for start in range(0, len(cells), span)]
    codes = np.concatenate([learner.codes(batch, [0]) for batch in batches])
    if all(map(is_missing, training)):
        with pytest.raises(
            DataError, match=r"without a cell that is filled in in the training rows: c; .*`data.drop=c`"
        ):
            learn_encoding(["c"], learner.words, codes[: len(training)], asked)
        return
    encoding = learn_encoding(["c"], learner.words, codes[: len(training)], asked)
    expected = naive(kind, training, cells)
    assert EncodedRows(codes, encoding, learner.words)[0:100].tolist() == expected.tolist()
    again = TableEncoding.from_description(json.loads(json.dumps(encoding.described())))
    assert (again, again.digest()) == (encoding, encoding.digest())

    known = {word: k for k, word in enumerate(again.columns[0].words or ())}
    later = CellReader(["c"], [known], missing=True)
    as_predicted = np.concatenate([later.codes(batch, [0]) for batch in batches])
    assert again.apply(as_predicted).tolist() == expected.tolist()
    if kind == "onehot":
        unknown = sum(
            not is_missing(cell) and not row[: len(known)].any() for cell, row in zip(cells, expected, strict=True)
        )
        assert later.unknown["c"] == unknown
    assert later.unknown["c"] == again.unknown(as_predicted)["c"]


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=2, max_size=20), st.integers(1, 10))
def test_numbers_get_the_median_of_the_training_rows_and_a_mark(cells, n_rows):
    codes = np.array([[np.nan if cell is None else cell] for cell in cells])
    training = [cell for cell in cells[:n_rows] if cell is not None]
    assume(training)
    encoding = learn_encoding(["c"], [None], codes[:n_rows], EncodingRequest(missing="median"))
    inputs, marked = encoding.apply(codes), len(training) < len(cells[:n_rows])
    assert inputs[:, 0].tolist() == [np.median(training) if cell is None else cell for cell in cells]
    assert inputs[:, 1:].tolist() == [[float(cell is None)] * marked for cell in cells]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("onehot", ["zip", "size=L", "size=M", "size=S"]),
        ("auto", ["zip", "size=L", "size=M", "size=S"]),
        ("auto:zip", ["zip", "size=L", "size=M", "size=S"]),
        ("onehot:zip", [*(f"zip={k}" for k in range(MOST_ONEHOT + 1)), "size=L", "size=M", "size=S"]),
    ],
)
def test_kinds_of_categories(asked, names):
    cells = {0: pyarrow.array([k % (MOST_ONEHOT + 1) for k in range(99)]), 1: pyarrow.array(list("SML") * 33)}
    learner = Learner(Path("here"), ["zip", "size"], EncodingRequest.read(asked, None))
    codes = learner.codes(Batch(Path("here"), 0, 99, cells), [0, 1])
    learner.check(SourceSpec("here", categorical=asked), 99, codes)
    encoding = learn_encoding(["zip", "size"], learner.words, codes, EncodingRequest.read(asked, None))
    assert encoding.inputs == tuple(names)
    if ":" in asked:
        assert encoding.columns[0].words == tuple(map(str, range(MOST_ONEHOT + 1)))  # numbers by their size


COLUMN = {"name": "a", "words": None, "onehot": False, "fill": 0.0, "indicator": False}
CHANGES = [{"missing": 1}, {"columns": []}, {"columns": [{"name": "a"}]}, {"columns": 3}] + [
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
def test_a_damaged_encoding_is_refused(change):
    described = {"columns": [COLUMN], "missing": False}
    assert TableEncoding.from_description(described).described() == described
    with pytest.raises(DataError, match="damaged"):
        TableEncoding.from_description(described | change)
