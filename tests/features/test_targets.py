"""Tasks, classes, ±1 targets and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError, UsageError
from features.targets import class_labels, detect_task, encode, labels_from_decision, one_vs_all, outputs


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        ([0, 1, 1], "binary"),
        ([-1.0, 1.0], "binary"),
        (["a", "b", "a"], "binary"),
        ([True, False], "binary"),
        ([3, 1, 2], "multiclass"),
        (["x", "y", "z"], "multiclass"),
        (list(range(100)), "multiclass"),
        (list(range(101)), "regression"),
        ([0.5, 1.0, 2.0], "regression"),
    ],
)
def test_task_from_labels(labels, task):
    assert detect_task(np.array(labels)) == task


@pytest.mark.parametrize("labels", [[], [1, 1, 1], ["a"], [str(k) for k in range(101)], [[1], [2]]])
def test_labels_nothing_can_be_learned_from(labels):
    with pytest.raises(DataError):
        detect_task(np.array(labels))


def test_classes_are_sorted_python_scalars():
    classes = class_labels(np.array([7, 3, 3, 5]), "multiclass")
    assert classes == (3, 5, 7)
    assert all(type(label) is int for label in classes)
    assert class_labels(np.array(["b", "a"]), "binary") == ("a", "b")
    assert class_labels(np.array([1.5, 2.5]), "regression") == ()


def test_class_labels_refuses():
    for labels, task, error, words in (
        ([0, 1], "ranking", UsageError, "ranking"),
        ([0, 1, 2], "binary", DataError, "two classes"),
        ([4, 4], "multiclass", DataError, "one class"),
    ):
        with pytest.raises(error, match=words):
            class_labels(np.array(labels), task)


def test_encode_names_the_row():
    assert encode(np.array([5, 3, 7]), (3, 5, 7)).tolist() == [1, 0, 2]
    for labels, classes, words in (
        ([3, 9], (3, 5), "y of test: row 1 has label 9"),
        ([0.0, 1.0, np.nan], (), "row 2 is nan"),
        (["a"], (), "numbers"),
    ):
        with pytest.raises(DataError, match=words):
            encode(np.array(labels), classes, "y of test")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=50))
def test_outputs_and_decisions_are_inverse(targets):
    targets = np.array(targets)
    signs = one_vs_all(targets, 7)
    assert signs.dtype == np.float64
    assert (signs.sum(axis=1) == -5.0).all()
    assert np.array_equal(labels_from_decision(signs, "multiclass"), targets)
    binary = targets % 2
    assert np.array_equal(outputs(binary, "binary", 2)[:, 0], 2.0 * binary - 1.0)
    assert np.array_equal(labels_from_decision(outputs(binary, "binary", 2), "binary"), binary)
    values = targets / 3.0
    assert np.array_equal(labels_from_decision(outputs(values, "regression", 0), "regression"), values)


def test_ties_zero_and_a_target_out_of_range():
    assert labels_from_decision(np.array([[1.0, 1.0, 0.0]]), "multiclass").tolist() == [0]
    assert labels_from_decision(np.array([[0.0], [-1e-300]]), "binary").tolist() == [1, 0]
    with pytest.raises(ValueError, match="0 … 2"):
        one_vs_all(np.array([0, 3]), 3)
