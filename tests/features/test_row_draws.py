"""Coins of rows: by their keys alone, and on both sides wherever there are two keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError
from features.row_draws import draw_folds, draw_held_out, draw_sample, group_keys, held_out_limit, row_keys, units_of

KEYS = row_keys(np.arange(20_000.0)[:, None])


@given(seed=st.integers(0, 2**70), fraction=st.floats(0.001, 0.9))
def test_hold_out_and_sample_are_shares_of_the_rows_drawn_apart(seed, fraction):
    limit = held_out_limit(seed, fraction, [KEYS[:7], KEYS[7:]])
    held_out, sampled = draw_held_out(seed, limit, KEYS), draw_sample(seed, fraction, KEYS)
    assert limit == fraction
    assert abs(held_out.mean() - fraction) < 0.02
    assert abs(sampled.mean() - fraction) < 0.02
    assert abs(sampled[draw_held_out(seed, 0.1, KEYS)].mean() - fraction) < 0.06
    assert draw_sample(seed, 1.0, KEYS).all()


@given(seed=st.integers(0, 9), copies=st.lists(st.integers(1, 4), min_size=5, max_size=60))
def test_each_fold_has_its_share_of_the_keys_of_each_class(seed, copies):
    one, classes = KEYS[: len(copies)], np.arange(len(copies)) % 3
    order = np.random.default_rng(seed).permutation(sum(copies))
    folds = draw_folds(seed, 5, np.repeat(one, copies)[order], np.repeat(classes, copies)[order])
    pairs = set(zip(np.repeat(np.arange(len(one)), copies)[order].tolist(), folds.tolist(), strict=True))
    assert len(pairs) == len(one), "copies of a key are in one fold"
    for k in range(3):
        assert np.ptp(np.bincount([fold for row, fold in pairs if row % 3 == k], minlength=5)) <= 1
    assert np.ptp(np.bincount([fold for _, fold in pairs], minlength=5)) <= 1


@given(st.lists(st.sampled_from([-0.0, 0.0, 1.0, -1.5, 2.0**-1074, 1e308]), min_size=4, max_size=16), st.integers(0, 9))
def test_equal_rows_have_one_coin_wherever_they_stand(values, seed):
    rows = np.array(values[: len(values) // 2 * 2]).reshape(-1, 2)
    keys = row_keys(rows)
    for i in range(len(rows)):
        assert np.array_equal(keys == keys[i], (rows == rows[i]).all(axis=1))
    held_out = draw_held_out(seed, 0.5, keys)
    assert np.array_equal(held_out[::-1], draw_held_out(seed, 0.5, row_keys(rows[::-1])))


def test_keys_are_those_of_the_numbers_in_any_dtype_and_shape():
    images = np.random.default_rng(0).integers(0, 256, (1500, 4, 3)).astype(np.uint8)
    images[1400] = images[3]
    keys = row_keys(images)
    assert np.array_equal(keys, row_keys(images.reshape(1500, 12).astype(np.float32)))
    assert len(np.unique(keys)) == 1499
    assert keys[1400] == keys[3]
    assert len(np.unique(row_keys(np.eye(50)))) == 50, "the places of the numbers count"


@given(n_keys=st.integers(2, 12), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_some_rows_are_held_out_and_some_are_not_where_two_differ(n_keys, fraction, seed):
    keys = row_keys(np.arange(float(n_keys))[:, None])
    assert draw_held_out(seed, held_out_limit(seed, fraction, [keys, keys]), keys).any()
    assert not draw_held_out(seed, held_out_limit(seed, fraction, [keys]), keys).all()
    assert held_out_limit(seed, fraction, [keys[:1], keys[:1]]) == 0.0
    assert not draw_held_out(seed, 0.0, keys).any()


def test_groups_have_the_keys_of_what_they_read_as():
    words = group_keys(np.array(["a", "b", "a", "12"]))
    assert words[0] == words[2] != words[1]
    assert group_keys(np.array([12, 7]))[0] == words[3]
    of_one = [np.array([7, 0]), np.array([7.0, -0.0]), np.array(["7", "0"]), np.array([b"7", b"0"], "S3")]
    of_one += [np.array(["7.0", "-0.0"]), np.array([7, 0], np.longdouble)]
    small = [np.array([0.1], np.float32), np.array([np.float32(0.1)], np.float64)]
    assert len({group_keys(groups).tobytes() for groups in of_one}) == 1
    assert group_keys(small[0]) == group_keys(small[1])
    large = [np.array([10**17]), np.array([1e17]), np.array(["1e+17"])]
    assert len({group_keys(groups).tobytes() for groups in large}) == 1
    codes = np.array(["007", "7", "0e12", "00e1", "1e5", "7.5", "7.50", f"{10**17}.0", f"{10**17 + 1}.0"])
    assert len(set(group_keys(codes).tolist())) == len(codes), "what only looks like a number stays text"
    assert np.array_equal(group_keys(np.array([True, False])), group_keys(np.array(["True", "False"])))


@pytest.mark.parametrize(
    "missing", [[1.0, np.nan], ["a", "NaN"], ["a", ""], [b"a", b""], [7, None], ["a", None], ["a", "N/A"]]
)
def test_a_row_without_a_group_is_told(missing):
    groups = np.array(missing)
    with pytest.raises(DataError, match="row 1 has no group"):
        group_keys(groups.astype(str) if groups.dtype.kind == "O" else groups)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_equal_rows_are_a_unit_that_the_first_of_them_begins(values):
    firsts, of_rows = units_of(row_keys(np.array([[value, np.nan] for value in values], float).reshape(-1, 2)))
    assert firsts.tolist() == [row for row, value in enumerate(values) if value not in values[:row]]
    assert [values[row] for row in firsts[of_rows]] == values
