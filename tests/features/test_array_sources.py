"""Arrays of npz files and of memory: what is read, what is refused, and where the message points.

A disk that fails while data of any kind are read is told as such, with the file, and never as damage.
"""

import errno
import gzip
import json
import os
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.util import img_as_ubyte
from sklearn.utils.class_weight import compute_class_weight

from features import input_files
from features.array_sources import source_of_arrays
from features.errors import DataError, UnavailableError
from features.open_source import open_source
from features.row_draws import draw_held_out, held_out_limit
from features.source import SourceSpec
from features.targets import balanced_factors
from sources import everything, write_idx_folder, write_npy

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.resize([0, 1, 2], 40)
ARRAYS = SourceSpec("a.npz")


def npz(tmp_path, **arrays):
    path = tmp_path / "table.npz"
    np.savez(path, **arrays)
    return SourceSpec(str(path))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0.05, 0.9), st.integers(0, 5), st.booleans())
def test_a_split_is_a_seeded_partition_with_the_share_of_each_class(labels, fraction, seed, classified):
    y = np.array([0, 0, 1, *labels])
    spec = SourceSpec("x.npz", test_fraction=fraction, seed=seed, task="multiclass" if classified else "regression")
    source, again = (source_of_arrays(spec, {"X": np.arange(len(y))[:, None], "y": y}) for _ in range(2))
    found, of_class = everything(source)[0], y if classified else np.zeros_like(y)
    assert np.array_equal(np.sort(found[:, 0]), np.arange(len(y)))
    assert np.array_equal(found, everything(again)[0])
    counts = np.bincount(of_class)
    tested = np.bincount(of_class[source.test.numbers], minlength=len(counts))
    n_test = min(max(1, round(fraction * len(y))), len(y) - 1)
    assert (abs(tested - n_test * counts / len(y)) < 1).all(), "up to rounding"
    assert (tested < counts)[counts > 0].all()


@given(st.integers(12, 60), st.integers(2, 5), st.sampled_from(["binary", "regression"]), st.integers(0, 5))
def test_a_split_has_no_row_in_both_parts(n_rows, n_copies, task, seed):
    """Their labels are coins, which a model could only remember."""
    draw = np.random.default_rng(seed)
    X, y = np.eye(n_rows)[draw.permutation(n_rows * n_copies) // n_copies], draw.permutation(n_rows * n_copies) % 2
    source = source_of_arrays(SourceSpec("x.npz", seed=seed, task=task), {"X": X, "y": y})
    train, test = (X[source.parts[part].numbers].argmax(axis=1) for part in ("train", "test"))
    assert not np.intersect1d(train, test).size
    assert abs(len(test) - len(X) / 4) <= 1 + n_copies
    alike = source_of_arrays(SourceSpec("x.npz", task=task), {"X": np.ones((20, 2)), "y": y[:20]})
    assert alike.notes[-1].startswith("5 of 5 test rows equal a training row")
    X = np.append(np.zeros(400), draw.normal(size=600))[draw.permutation(1000), None]
    assert source_of_arrays(SourceSpec("x.npz", seed=seed), {"X": X, "y": np.arange(1000) % 2}).n_test == 250


@pytest.mark.parametrize("n_values", [2, 3, 6, 30])
def test_rows_of_a_few_categories_are_tested_and_held_out_one_by_one(n_values):
    """Else categories would be seen by the test part alone."""
    rows = np.resize(np.arange(n_values), 600)
    source = source_of_arrays(
        SourceSpec("x.npz"), {"X": rows[:, None], "y": np.random.default_rng(0).integers(0, 2, 600)}
    )
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [source.train.groups]), source.train.groups)
    assert (source.n_test, len(np.unique(rows[source.train.numbers[~held_out]]))) == (150, n_values)
    assert abs(held_out.sum() - 45) < 20


def test_parts_of_their_own_in_npz(tmp_path):
    source = open_source(npz(tmp_path, X_train=X, y_train=Y, X_test=X[:7], y_test=Y[:7]))
    assert (source.n_train, source.n_test) == (40, 7)
    assert np.array_equal(source.train.X[3:9], X[3:9])
    assert np.array_equal(source.test.y[:7], Y[:7])
    assert source.notes[-1].startswith("7 of 7 test rows equal a training row")
    assert (source.name, source.task, source.classes, source.standardise) == ("table", "multiclass", (0, 1, 2), True)
    assert str(tmp_path) not in json.dumps(source.identity)
    with pytest.raises(DataError, match="found X_test"):
        source_of_arrays(ARRAYS, {"X_test": X})


def test_images_are_not_standardised_and_standardise_target_and_task_may_be_given(tmp_path):
    images = RNG.integers(0, 256, (40, 8, 9)).astype(np.uint8)
    spec = replace(npz(tmp_path, X=images, rings=Y), target="rings")
    source, other = open_source(spec), open_source(replace(spec, task="regression", standardise=True))
    for one_channel in (images[:, None], images[..., None]):
        found = source_of_arrays(ARRAYS, {"X": one_channel, "y": Y})
        assert (found.input_shape, found.standardise) == ((8, 9), False)
        np.testing.assert_array_equal(found.test.X[:7], source_of_arrays(ARRAYS, {"X": images, "y": Y}).test.X[:7])
    assert (source.task, source.standardise, other.standardise, other.classes) == ("multiclass", False, True, ())
    assert (source.train.X[:4].dtype, other.train.y[:4].dtype) == (np.uint8, np.float64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "needs X and y"),
        ({f"a{k}": np.ones(1) for k in range(900)}, "found a0, .* and 892 more"),
        ({"X": X, "y": Y, "X_test": X, "y_test": Y}, r"has X and a test part \(X_test\); call the arrays X_train"),
        ({"X": X, "y": Y[:-1]}, "40 rows"),
        ({"X": X[:, 0], "y": Y}, r"shape \(40,\); give \(n, d\)"),
        ({"X": np.ones((40, 9, 8, 4)), "y": Y}, r"shape .*X\.reshape\(len\(X\), -1\) gives columns"),
        ({"X": np.ones((40, 3, 9, 8)), "y": Y}, r"X\.transpose\(0, 2, 3, 1\) brings"),
        ({"X": np.ones((40, 1, 9, 8, 1)), "y": Y}, r"or \(n, H, W, 3\): X\.reshape"),
        ({"X": X, "y": np.ones(40)}, "one class"),
        ({"X": X.astype(complex), "y": Y}, "complex"),
        ({"X": np.float64(3.0), "y": Y}, "its shape is"),
        ({"X": X, "y": np.array([None] * 40)}, "y holds Python objects; save numbers, or words by"),
        ({"X_train": X, "y_train": Y, "X_test": X[:, :2], "y_test": Y}, "train inputs have shape"),
        ({"X_train": X, "y_train": Y, "X_test": X, "y_test": Y + 1}, "y of test: row 2 has label 3"),
        ({"X": X, "y": np.resize([b"a", b"\xff"], 40)}, "no ASCII text"),
        ({"X": X, "y": np.resize(["a", "\ud800"], 40)}, "y holds a character that no text has"),
        ({"X": X, "y": np.resize(np.array([0x110000, 97], np.uint32).view("U1"), 40)}, "y holds a character that no"),
        ({"X": X.astype(str), "y": Y}, "X holds words; numbers are needed"),
        ({"X": np.arange(120).reshape(40, 3) + 2**60, "y": Y}, "X holds whole numbers such as 115.*float64"),
        ({"X": X, "y": np.resize(["a", "a ", "b"], 40)}, "'a' in row 0 and 'a ' in row 1 are one label"),
        ({"X": X, "y": np.resize(["a", "NA", "b"], 40)}, r"y: row 1 has no label \('NA'"),
        ({"X": X, "y": np.resize(np.arange(2).astype("M8[D]"), 40)}, "y holds times"),
    ],
)
def test_npz_refuses(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        open_source(npz(tmp_path, **arrays)).train.X[:9]


@given(st.integers(0, 39), st.integers(0, 2), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_bad_value_is_named_with_its_row(row, column, value):
    damaged = X.copy()
    damaged[row, column] = value
    source = source_of_arrays(ARRAYS, {"X": damaged, "y": Y})
    with pytest.raises(DataError, match=f"X: row {row}, column {column} is {value}"):
        everything(source)
    with pytest.raises(DataError, match=f"y: row {row} is {value}"):
        source_of_arrays(ARRAYS, {"X": X, "y": np.where(np.arange(40) == row, value, 0.5 * Y)})


def test_types_of_inputs_and_labels(tmp_path):
    for dtype, expected in ((np.float32, np.float32), (np.int16, np.float64), (bool, np.float64), (">f8", np.float64)):
        found = source_of_arrays(ARRAYS, {"X": (X * 9).astype(dtype), "y": Y}).train.X[:3]
        assert found.dtype == expected
    doubles = open_source(npz(tmp_path, X=X.astype(np.longdouble), y=np.resize([0.25, 0.5], 40).astype(np.longdouble)))
    assert json.dumps(doubles.classes) == "[0.25, 0.5]"
    for labels in (np.resize(["é", "\U0001f600"], 40).astype(">U2"), np.resize([b"a", b"b"], 40)):
        texts = {label if isinstance(label, str) else label.decode() for label in labels.tolist()}
        assert set(open_source(npz(tmp_path, X=X, y=labels)).classes) == texts


def test_many_labels_of_images_are_classes():
    labels = np.resize(np.arange(47), 200)
    images, rows = np.zeros((200, 5, 5), np.uint8), np.zeros((200, 5))
    assert source_of_arrays(ARRAYS, {"X": images, "y": labels}).task == "multiclass"
    assert source_of_arrays(ARRAYS, {"X": rows, "y": labels}).task == "regression"
    numbered = np.resize(np.arange(102), 612)
    images = np.resize(images, (612, 5, 5))
    assert source_of_arrays(ARRAYS, {"X": images, "y": numbered}).task == "multiclass"
    with_gap = source_of_arrays(ARRAYS, {"X": images, "y": numbered + (numbered > 50)})
    assert with_gap.task == "regression"
    assert "taken for quantities (a regression); where they are classes, `data.task=multiclass`" in with_gap.notes[0]
    rare = {"X": X, "y": np.where(np.arange(40) == 7, 1, 0)}
    assert source_of_arrays(ARRAYS, rare).notes[-1] == "labels with fewer than two training rows: 1 (1)"
    with pytest.raises(DataError, match="training rows all have label 0"):
        source_of_arrays(replace(ARRAYS, n_train=1), rare)


BYTES = np.random.default_rng(7).integers(0, 256, (40, 9, 8)).astype(np.uint8)
BYTES[0, 0, 0] = 255
LISTS = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "picture_lists.py"))
OF_VALUES = {  # of each form of `IMAGE_ARRAYS`: the same images, and the bytes that they are
    "0 and 1": (BYTES > 127, (BYTES > 127) * 255),
    "whole numbers up to 2 … 255": (BYTES, BYTES),
    "whole numbers up to 256 … 65535": (BYTES * np.uint16(16), BYTES),
    "fractions up to 1": (BYTES / 255, img_as_ubyte(BYTES / 255)),
    "fractions up to 128 … 255": (BYTES - BYTES / 2048, BYTES),
    "fractions up to 256 … 65535": (BYTES * 256.0 + 0.5, BYTES),
}


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(("values", "dtypes", "white", "becomes"), LISTS["IMAGE_ARRAYS"])
def test_images_of_each_form_are_the_same_bytes_in_any_dtype(values, dtypes, white, becomes, colour):
    given, truth = (np.stack([of, of[:, ::-1], of], axis=3) if colour else of for of in OF_VALUES[values])
    of_form = {"bool": [bool], "whole numbers": [np.uint16, np.int64, np.uint32], "floats": [np.float32, np.float64]}
    keys = set()
    for dtype in (one for name in dtypes.split(", ") for one in of_form[name]):
        source = source_of_arrays(ARRAYS, {"X": given.astype(dtype), "y": Y})
        images = np.concatenate([source.train.X[:30], source.test.X[:10]])
        rows = np.concatenate([source.train.numbers, source.test.numbers])
        np.testing.assert_array_equal(images, truth[rows])
        assert f"{source.image_scale:g}" in white.split(", ")
        assert source.image_scale == 255 or f"{source.image_scale:g} is white, and becomes 255" in source.notes[0]
        keys.add(source.train.keys_of(0, 30)[0].tobytes())
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (BYTES - 100.0, "X holds -100, and black is 0; shift and divide"),
        (BYTES * 258.0, "pixels up to 65790, more than 16 bits"),
        (BYTES / 65535, "and fractions of them; divide them, so that white is 1"),
        (BYTES / 20, "and fractions of them; divide them, so that white is 1"),
        (np.where(BYTES > 250, 60000, 300.0 + BYTES), "most are below 512, which is black beside them"),
    ],
)
def test_images_on_no_known_scale_are_refused(images, message):
    with pytest.raises(DataError, match=message):
        source_of_arrays(ARRAYS, {"X": images, "y": Y})


def test_fingerprint_follows_content(tmp_path):
    def identity(inputs, **options):
        return json.dumps(source_of_arrays(SourceSpec("a.npz", **options), {"X": inputs, "y": Y}).identity)

    changed = X.copy()
    changed[39, 2] += 1e-9
    others = [identity(X, **option) for option in ({"seed": 1}, {"test_fraction": 0.5}, {"n_train": 9})]
    assert len({identity(X), identity(changed), *others}) == 5
    spec = npz(tmp_path, X=X, v=X[:, 0] ** 2, w=X[:, 1] ** 2)
    roles = [{"target": "v", "weights": "w"}, {"target": "w", "weights": "v"}, {"target": "v", "groups": "w"}]
    assert len({json.dumps(open_source(replace(spec, **of)).identity) for of in roles}) == 3
    assert identity(X) == identity(X.copy())


def test_weights_leave_rows_out_and_go_with_the_others():
    """In both layouts, with rows of one's own number, of either part, and in what is drawn."""
    draw = np.random.default_rng(0)
    X, y, w = draw.random((60, 2)), draw.integers(0, 3, 60), draw.integers(0, 3, 60).astype(np.float32)
    counted = np.flatnonzero(w)
    spec = SourceSpec("x.npz", weights="w", seed=4)
    split = source_of_arrays(spec, {"X": X, "y": y, "w": w})
    cut = source_of_arrays(spec, {"X": X[counted], "y": y[counted], "w": w[counted, None]})
    parts = {"X_train": X, "y_train": y, "w_train": w, "X_test": X, "y_test": y}
    of_parts = source_of_arrays(replace(spec, n_train=20), parts)
    assert split.n_train + split.n_test == len(counted)
    assert of_parts.test.weights is None
    assert (of_parts.n_train, of_parts.n_test) == (20, 60)
    for part in ("train", "test"):
        for source in (split, cut, of_parts):
            rows, targets = source.parts[part].X[:], source.parts[part].y[:]
            places = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in rows]
            np.testing.assert_array_equal(targets, y[places])
            if source.parts[part].weights is not None:
                np.testing.assert_array_equal(source.parts[part].weights, w[places])
                assert source.parts[part].weights.min() > 0
        np.testing.assert_array_equal(split.parts[part].X[:5], cut.parts[part].X[:5])
    assert split.identity != source_of_arrays(spec, {"X": X, "y": y, "w": w + 1}).identity
    assert any("weights of the rows: w, " in note for note in split.notes)


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=40), st.integers(2, 4))
def test_balanced_factors_are_those_of_scikit_learn(weights, n_classes):
    y = np.arange(len(weights)) % min(n_classes, len(weights))
    expected = compute_class_weight("balanced", classes=np.unique(y), y=y, sample_weight=weights)
    np.testing.assert_allclose(balanced_factors(np.bincount(y, weights)), expected)
    np.testing.assert_allclose(balanced_factors(np.r_[0.0, np.bincount(y, weights)]), [0.0, *expected])  # one is empty


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.npz", "a/X.npy", "a/train-images-idx3-ubyte"])
def test_no_reader_takes_it_for_damage(tmp_path, name, monkeypatch):
    class Failing(input_files._File):
        def readinto(self, buffer: Any) -> int:
            begin = self.tell() if "gz" in name else max(self.tell(), memoryview(buffer).nbytes - 1)
            if begin >= 8192:
                raise self._failure(OSError(errno.EIO, os.strerror(errno.EIO)))
            return super().readinto(buffer)

    path, values = tmp_path / name, np.random.default_rng(0).normal(size=9000)
    if name == "a.npz":
        np.savez(path, X=values[:, None], y=values > 0)
    elif name == "a/X.npy":
        write_npy(path.parent, X=values.reshape(900, 10), y=values[:900] > 0)
    elif name.endswith("ubyte"):
        parts = {part: (np.resize(values, (90, 10, 10)), np.arange(90) % 2) for part in ("train", "t10k")}
        write_idx_folder(path.parent, compressed=False, **parts)
    elif name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"x": values, "target": values}), path)
    else:
        text = "x,target\n" + "".join(f"{value},{value}\n" for value in values)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    monkeypatch.setattr(input_files, "_File", Failing)
    with pytest.raises(UnavailableError, match=f"{path}: cannot be read") as caught:
        open_source(SourceSpec(str(tmp_path / Path(name).parts[0])))
    assert caught.value.exit_code == 69
