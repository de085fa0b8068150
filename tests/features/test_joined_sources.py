"""Training rows that grew read as those of the first data, then those of each addition."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from features.errors import DataError
from features.open_source import joined, open_source, spec_of_addition, viewed
from features.source import Source, SourceSpec


@pytest.fixture
def spec(tmp_path: Path) -> SourceSpec:
    """Images with a test part, whose labels are words that read as numbers, and one that does not."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (12, 3, 3), np.uint8), np.array(["1", "2", "x"] * 4)
    np.savez(tmp_path / "first.npz", X_train=images[:6], y_train=labels[:6], X_test=images[:3], y_test=labels[:3])
    np.savez(tmp_path / "second.npz", X=images[6:7], y=np.array([2]))
    np.savez(tmp_path / "third.npz", X_train=images[7:], y_train=labels[7:], X_test=images, y_test=labels)
    np.savez(tmp_path / "floats.npz", X=images / 255, y=labels)
    return SourceSpec(str(tmp_path / "first.npz"))


def added(spec: SourceSpec, *names: str) -> list[Source]:
    first, folder = open_source(spec), Path(spec.dataset).parent
    return [open_source(spec_of_addition(spec, first, str(folder / name))) for name in names]


def grown(spec: SourceSpec, *names: str) -> Source:
    return joined(open_source(spec), added(spec, *names))


def whole(source: Source) -> tuple[np.ndarray, np.ndarray]:
    return source.read("train", 0, source.n_train)


def test_rows_follow_each_other(spec):
    source = grown(spec, "second.npz", "third.npz")
    assert (source.n_train, source.n_test, source.added, source.classes) == (12, 3, (1, 5), ("1", "2", "x"))
    images, targets = np.random.default_rng(0).integers(0, 255, (12, 3, 3), np.uint8), np.tile([0, 1, 2], 4)
    targets[6] = 1
    for start in range(13):
        for stop in range(start, 13):
            inputs, found = source.read("train", start, stop)
            assert inputs.dtype == np.uint8
            np.testing.assert_array_equal(inputs, images[start:stop])
            np.testing.assert_array_equal(found, targets[start:stop])
    np.testing.assert_array_equal(source.read("test", 1, 3)[0], images[1:3])
    with pytest.raises(IndexError, match="do not exist"):
        source.read("train", 5, 13)


def test_its_identity_names_the_additions_and_a_view_knows_them(spec):
    first, one, two = open_source(spec), grown(spec, "second.npz"), grown(spec, "second.npz", "third.npz")
    additions = added(spec, "second.npz", "third.npz")
    assert len({repr(source.identity) for source in (first, one, two)}) == 3
    assert one.identity == {**first.identity, "added": [additions[0].identity]}
    assert two.memory.held == sum(source.memory.held for source in (first, *additions))
    source = viewed(grown(spec, "third.npz"), replace(spec, positive="x"))
    assert source.added == (5,)
    np.testing.assert_array_equal(whole(source)[1], np.r_[np.tile([0, 0, 1], 2), [0, 1, 0, 0, 1]])


def test_images_on_another_scale_words_and_values_that_are_no_numbers_are_refused_by_name(spec, tmp_path):
    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "numbers.npz", X=X, y=y)
    np.savez(tmp_path / "words.npz", X=X, y=np.array(["0", "1", "0", "zero"]))
    np.savez(tmp_path / "gaps.npz", X=np.where(X == 5, np.nan, X), y=y)
    numbers = replace(spec, dataset=str(tmp_path / "numbers.npz"))
    with pytest.raises(DataError, match="floats: images are float64, those of first uint8"):
        grown(spec, "floats.npz")
    with pytest.raises(DataError, match="labels are text"):
        grown(numbers, "words.npz")
    with pytest.raises(DataError, match="gaps: X: row 2, column 1 is nan"):
        whole(grown(numbers, "gaps.npz"))


def test_columns_of_a_table_are_found_by_name_and_words_encoded_as_those_of_the_first_rows(tmp_path):
    (tmp_path / "first.csv").write_text("a,color,y\n" + "1,red,0\n2,blue,1\n3,red,0\n,blue,1\n" * 2)
    (tmp_path / "second.csv").write_text("y,color,a\n1,green,5\n0,red,\n")
    table = SourceSpec(
        str(tmp_path / "first.csv"), test=str(tmp_path / "first.csv"), categorical="onehot", missing="median"
    )
    source = grown(table, "second.csv")
    names, (inputs, targets) = source.columns.input_names if source.columns else (), whole(source)
    assert sorted(names) == ["a", "a is missing", "color=blue", "color=red"]
    found = {name: inputs[-2:, k].tolist() for k, name in enumerate(names)}
    assert found == {"a": [5.0, 2.0], "a is missing": [0.0, 1.0], "color=blue": [0.0, 0.0], "color=red": [0.0, 1.0]}
    assert targets[-2:].tolist() == [1, 0]
    for rows in ((3, 3), (len(inputs) - 2, len(inputs))):
        np.testing.assert_array_equal(source.read("train", *rows)[0], inputs[slice(*rows)])
    assert source.notes[-1].startswith("rows of second.csv: cells with a category that no training row has: color (1)")
