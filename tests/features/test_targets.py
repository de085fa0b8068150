"""Tasks, classes, ±1 targets and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import DataError, UsageError
from features.open_source import open_source
from features.source import SourceSpec
from features.targets import class_array, class_labels, detect_task, encode, labels_from_decision, outputs

LABELS = {
    "binary": ([0, 1, 1], [-1.0, 1.0], ["a", "b", "a"], [True, False]),
    "multiclass": ([3, 1, 2], ["x", "y", "z"], range(100), [0.0, 1.0, 2.0]),
    "regression": (range(101), [0.5, 1.0, 2.0]),
}


@pytest.mark.parametrize("task", LABELS)
def test_task_from_labels(task):
    assert {detect_task(np.array(labels)) for labels in LABELS[task]} == {task}


@pytest.mark.parametrize("labels", [[], [1, 1, 1], ["a"], [str(k) for k in range(101)], [[1], [2]]])
def test_labels_nothing_can_be_learned_from(labels):
    with pytest.raises(DataError):
        detect_task(np.array(labels))


def test_classes_are_sorted_python_scalars_and_fit_their_task():
    classes = class_labels(np.array([7, 3, 3, 5]), "multiclass")
    assert classes == (3, 5, 7)
    assert all(type(label) is int for label in classes)
    for labels, task, error, words in (
        ([0, 1], "ranking", UsageError, "ranking"),
        ([4, 4], "multiclass", DataError, "one class"),
        ([0, 1, 2], "binary", DataError, "two classes"),
        *((["a", f"b{c}b"], "binary", DataError, "control") for c in "\0\t\n\r\x1b\x7f\x85\x9b\u2028\u202e\u2066"),
    ):
        with pytest.raises(error, match=words):
            class_labels(np.array(labels), task)
    words = np.array(["", " é\xa0", '=1,"2"', "می\u200cخواهم"])  # also those that forge nothing
    assert class_labels(words, "multiclass") == tuple(sorted(words.tolist()))
    with pytest.raises(DataError, match="numbers"):
        encode(np.array(["a"]), ())


@pytest.mark.parametrize("classes", [(2, 3), (3, 2**63, 2**63 + 1), (-(2**63), 1 - 2**63), (-1, 2**63, 2**63 + 1)])
def test_whole_numbers_of_64_bits_are_told_apart(tmp_path, classes):
    array = class_array(classes)
    assert [int(label) for label in array.tolist()] == list(classes)
    assert encode(array, tuple(array.tolist())).tolist() == list(range(len(classes)))
    lines = ["a,y", *(f"0.{row},{classes[row % len(classes)]}" for row in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    np.savez(tmp_path / "t.npz", X=np.arange(40.0)[:, None], y=np.resize(array, 40))
    for name in ("t.csv", "t.npz"):
        source = open_source(SourceSpec(str(tmp_path / name)))
        assert source.classes == tuple(array.tolist())  # words, where no array of numbers has them
        assert set(source.train.y[:]) == set(range(len(classes)))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=50))
def test_outputs_and_decisions_are_inverse(targets):
    targets = np.array(targets)
    signs = outputs(targets, "multiclass", 7)
    assert signs.dtype == np.float64
    assert (signs.sum(axis=1) == -5.0).all()
    assert np.array_equal(labels_from_decision(signs, "multiclass"), targets)
    binary = targets % 2
    assert np.array_equal(outputs(binary, "binary", 2)[:, 0], 2.0 * binary - 1.0)
    assert np.array_equal(labels_from_decision(outputs(binary, "binary", 2), "binary"), binary)
    values = targets / 3.0
    assert np.array_equal(labels_from_decision(outputs(values, "regression", 0), "regression"), values)


def test_ties_and_zero():
    assert labels_from_decision(np.array([[1.0, 1.0, 0.0]]), "multiclass").tolist() == [0]
    assert labels_from_decision(np.array([[0.0], [-1e-300]]), "binary").tolist() == [1, 0]
