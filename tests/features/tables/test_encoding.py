"""Words and missing cells as numbers: against a naive twin, on rows of any kind, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from features.cell_text import NULL_WORDS, value_of
from features.errors import DataError
from features.source import SourceSpec
from features.tables.encoding import EncodingRequest, TableEncoding, learn_encoding
from features.tables.learning import CellReader, Learner
from features.tables.readers import Batch
from features.tables.table_source import encoded


def is_missing(cell: str) -> bool:
    return cell.strip() in NULL_WORDS


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=4)
CELLS = (
    st.sampled_from(["red", " green", "12", "1.5", "-0.25", "1", "007", "12.0"]) | st.sampled_from(NULL_WORDS) | WORDS
)


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
    learner.check(SourceSpec("here", categorical=asked), 99)
    assert learn_encoding(["zip", "size"], learner.words, codes, request).inputs == tuple(names)


def test_inputs_of_one_name_are_refused():
    with pytest.raises(DataError, match="two inputs would be called 'c=red'"):
        learn_encoding(["c", "c=red"], [{"red": 0}, None], np.zeros((3, 2)), EncodingRequest(words=True))
