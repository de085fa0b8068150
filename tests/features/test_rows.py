"""Rows of arrays through whatever they are read, as NumPy indexes them, front to back once; streaming z-scores."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from features import rows
from features.errors import DataError
from features.row_draws import row_keys
from features.rows import Chosen, InOrder, Mapped, RowArray, RunningMoments, Standardisation, keys_of_inputs

X = np.arange(120.0).reshape(40, 3)
SOME = np.array([0, 3, 4, 11, 12, 13, 30, 39])
TWICE = np.repeat(np.arange(40), 2)


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
    "repeated": (Chosen(Chosen(X, SOME), np.repeat(np.arange(8), 3)), np.repeat(X[SOME], 3, axis=0)),
    "mapped": (mapped(X), X * 2 + np.arange(40)[:, None]),
    "mapped, repeated": (
        mapped(Chosen(X, np.repeat(np.arange(40), 2))),
        np.repeat(X, 2, axis=0) * 2 + np.arange(80)[:, None],
    ),
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
        patch.setattr(rows, "TAKE_BYTES", data.draw(st.sampled_from([1, 100, 10_000])))
        patch.setattr(rows, "PIECE_BYTES", data.draw(st.sampled_from([1, 100, 10_000])))
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


def fit(rows, block):
    moments = RunningMoments.begin(rows[:block])
    for start in range(0, len(rows), block):
        moments = moments.update(rows[start : start + block])
    return moments.standardisation()


@example(60, 9, 0.0, 1e-150)
@example(60, 9, 0.0, 1e150)
@given(st.integers(2, 80), st.integers(1, 90), st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_equals_numpy_for_any_block_size(n, block, shift, spread):
    rows = shift + spread * np.random.default_rng(n).standard_normal((n, 3))
    found, again = fit(rows, block), fit(rows.reshape(n, 3, 1), block)  # as those of images
    assert (found.mean.tobytes(), found.scale.tobytes()) == (again.mean.tobytes(), again.scale.tobytes())
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-12 * max(spread / 1e3, 1))
    np.testing.assert_allclose(found.scale, rows.std(axis=0), rtol=1e-6)
    scores = found.apply(rows.reshape(n, 3, 1))
    assert (scores.dtype, scores.shape) == (np.float32, (n, 3))
    if shift == 0:
        np.testing.assert_allclose(scores.std(axis=0), 1.0, rtol=1e-5)


@given(st.floats(1e-100, 1e140), st.integers(2, 60), st.integers(2, 70))
def test_values_that_differ_by_little_are_scaled_whatever_their_mean(mean, n, block):
    """Down to the last bits of float64, of which a mean of the values themselves would keep nothing."""
    steps = np.random.default_rng(n).permutation(n)
    column = mean + 4 * np.spacing(mean) * steps
    expected = (steps - steps.mean()) / steps.std()
    if len(np.unique(column)) == n:  # no bit was lost to the next power of 2
        np.testing.assert_allclose(fit(column[:, None], block).apply(column[:, None])[:, 0], expected, atol=0.3)


def test_what_is_constant_counts_for_nothing():
    tiny = 1e-300 * np.random.default_rng(5).standard_normal(50)  # its squares are zero
    rows = np.column_stack([np.full(50, 0.1), np.zeros(50), tiny, np.arange(50.0)])
    assert np.isinf(fit(rows, 7).scale).tolist() == [True, True, True, False]
    assert not fit(rows, 7).apply(rows + 5)[:, :3].any()


def test_takes_values_far_beyond_the_fitted_ones_without_a_warning():
    scores = Standardisation(np.zeros(2), np.array([1.0, np.inf]))
    assert scores.apply(np.array([[1e200, 1e200]])).tolist() == [[np.inf, 0.0]]


@pytest.mark.parametrize("block", [7, 50])
@pytest.mark.parametrize("scale", [1e160, 1e200, 1e308])
def test_a_column_whose_moments_overflow_is_named(scale, block):
    rows = np.random.default_rng(4).uniform(-1, 1, (50, 3))
    rows[:, 1] *= scale
    with pytest.raises(DataError, match=r"column 1.*rescale"):
        fit(rows, block)
