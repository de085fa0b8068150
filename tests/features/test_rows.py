"""Rows of arrays through whatever they are read: as NumPy indexes them, in bounded pieces, front to back once."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features import rows
from features import rows as rows_module
from features.row_draws import row_keys
from features.rows import Chosen, InOrder, Mapped, Repeated, RowArray, keys_of_inputs

X = np.arange(120.0).reshape(40, 3)
SOME = np.array([0, 3, 4, 11, 12, 13, 30, 39])


def in_order(begun: list[int], block: int = 7) -> InOrder:
    def blocks() -> Iterator[tuple[np.ndarray, ...]]:
        begun.append(0)
        for start in range(0, 40, block):
            yield X[start : start + block], -X[start : start + block, 0]

    return InOrder(blocks, X.shape)


def mapped(values: RowArray) -> Mapped:
    return Mapped(values, lambda block, numbers: block * 2 + numbers[:, None], (3,), np.float64)


FORMS: dict[str, tuple[RowArray, np.ndarray]] = {
    "chosen": (Chosen(X, SOME), X[SOME]),
    "repeated": (Repeated(Chosen(X, SOME), 3), np.repeat(X[SOME], 3, axis=0)),
    "mapped": (mapped(X), X * 2 + np.arange(40)[:, None]),
    "mapped, repeated": (mapped(Repeated(X, 2)), np.repeat(X, 2, axis=0) * 2 + np.arange(80)[:, None]),
    "in order": (in_order([]).array(0, (3,)), X),
    "in order, beside": (in_order([]).array(1), -X[:, 0]),
    "chosen, in order": (mapped(Chosen(in_order([]).array(0, (3,)), SOME)), X[SOME] * 2 + np.arange(8)[:, None]),
}


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
def test_rows_are_those_that_numpy_takes(form, data):
    array, expected = FORMS[form]
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(expected))] * 2)))
    numbers = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "TAKE_BYTES", data.draw(st.sampled_from([1, 100, 10_000])))
        patch.setattr(rows_module, "PIECE_BYTES", data.draw(st.sampled_from([1, 100, 10_000])))
        np.testing.assert_array_equal(array[start:stop], expected[start:stop])
        np.testing.assert_array_equal(array[numbers], expected[numbers])


def test_what_is_read_in_order_begins_anew_for_earlier_rows_alone():
    begun: list[int] = []
    one = in_order(begun)
    inputs, labels = one.array(0, (3,)), one.array(1)
    for start in (0, 10, 30):
        np.testing.assert_array_equal(inputs[start : start + 9][:, 0], -labels[start : start + 9])
    assert len(begun) == 1
    np.testing.assert_array_equal(inputs[2:4], X[2:4])
    assert len(begun) == 2


def test_keys_of_inputs_are_those_of_the_rows_asked_for(monkeypatch):
    """No other row is read, and no more at once than fit into a piece."""
    monkeypatch.setattr(rows, "PIECE_BYTES", 3 * 8 * 2)
    read: list[int] = []
    keys = keys_of_inputs(Mapped(X, lambda block, numbers: read.append(len(numbers)) or block, (3,), np.float64))
    np.testing.assert_array_equal(keys[5:9], row_keys(X)[5:9])
    assert read == [2, 2]
    np.testing.assert_array_equal(keys[SOME], row_keys(X)[SOME])
    assert sum(read) == 4 + len(SOME)
