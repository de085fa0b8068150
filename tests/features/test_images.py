"""IDX files that keep their promises and those that do not; MNIST, folders in its layout, scikit-learn's digits."""

import gzip
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.transform import resize
from sklearn.datasets import load_digits

from features.errors import DataError, MissingInputError, UsageError
from features.images import read_idx
from features.open_source import open_source
from features.source import SourceSpec
from sources import everything, idx_bytes, write_idx_folder


def write_folder(folder, n_train=30, labels=(3, 7, 200), compressed=True):
    rng = np.random.default_rng(1)
    parts = {
        part: (rng.integers(0, 256, (n, 9, 7)), np.resize(labels, n)) for part, n in (("train", n_train), ("t10k", 12))
    }
    write_idx_folder(folder, compressed=compressed, **parts)
    return parts


def test_idx_folder_faults(tmp_path):
    folder = tmp_path / "shapes"
    write_folder(folder)
    labels = folder / "train-labels-idx1-ubyte.gz"
    for values, words in (
        (np.resize([3, 7], 29), r"30 rows.*\(29,\)"),
        (np.full(30, 3), "one class"),
        (np.resize([3, 7], 30), "label 200"),
    ):
        labels.write_bytes(idx_bytes(values))
        with pytest.raises(DataError, match=words):
            open_source(SourceSpec(str(folder)))
    labels.unlink()
    with pytest.raises(MissingInputError, match="train-labels-idx1-ubyte"):
        open_source(SourceSpec(str(folder)))


@pytest.mark.parametrize("compressed", [True, False])
def test_a_folder_is_read_and_a_subset_of_it_is_seeded_in_the_order_of_the_data(tmp_path, compressed):
    """The seed counts only for a subset."""
    written = write_folder(tmp_path / "shapes", n_train=200, compressed=compressed)
    spec = SourceSpec(str(tmp_path / "shapes"))
    whole = open_source(spec)
    assert (whole.name, whole.task, whole.input_shape, whole.classes) == ("shapes", "multiclass", (9, 7), (3, 7, 200))
    assert (whole.standardise, whole.test.X[:1].dtype) == (False, np.uint8)
    np.testing.assert_array_equal(whole.test.X[:], written["t10k"][0])
    assert whole.identity == open_source(replace(spec, seed=1)).identity
    chosen, digests = [], set()
    for seed in (0, 0, 1):
        source = open_source(replace(spec, n_train=40, seed=seed))
        digests.add(json.dumps(source.identity))
        assert (source.n_train, source.n_test) == (40, 12)
        inputs, targets = source.train.X[:40], source.train.y[:40]
        rows = [int(np.flatnonzero((written["train"][0] == image).all(axis=(1, 2)))[0]) for image in inputs]
        assert rows == sorted(set(rows))
        assert np.array_equal(np.array(source.classes)[targets], written["train"][1][rows])
        chosen.append(rows)
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(digests) == 2
    with pytest.raises(UsageError, match="at most 200"):
        open_source(replace(spec, n_train=201))


def test_digits_without_download():
    source = open_source(SourceSpec("digits"))
    assert (source.n_train, source.n_test) == (1348, 449)
    assert source.input_shape == (28, 28)
    assert source.train.X[:3].dtype == np.uint8
    digits = load_digits()
    large = resize(digits.images / 16, (1797, 28, 28), order=3, mode="constant", anti_aliasing=False)
    pixels = np.rint(np.clip(large, 0, 1) * 255).astype(np.uint8)
    assert source.identity["sha256"] == hashlib.sha256(pixels).hexdigest()
    assert np.array_equal(np.sort(everything(source)[1]), np.sort(digits.target))


def refused(tmp_path, content, message):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, 3)
    assert "\n" not in str(caught.value)
    assert "images" in str(caught.value)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=3), st.booleans(), st.integers(0, 1000))
def test_reads_what_was_written(tmp_path_factory, shape, compressed, seed):
    values = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    content = idx_bytes(values)
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert np.array_equal(read_idx(path, len(shape)), values)


VALUES = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)


FAULTS = {
    "wrong magic": idx_bytes(VALUES, magic=b"\0\0\x0d\x03"),
    "labels where images are expected": idx_bytes(VALUES.reshape(-1)),
    "a promise too long": idx_bytes(VALUES, shape=(4, 4, 5)),
    "a promise too short": idx_bytes(VALUES, shape=(2, 4, 5)),
    "an absurd promise": idx_bytes(VALUES, shape=(2**32 - 1,) * 3),
    "an empty array": idx_bytes(VALUES[:0]),
    "cut in the header": idx_bytes(VALUES)[:9],
    "no bytes": b"",
}


@pytest.mark.parametrize("wrap", [bytes, gzip.compress], ids=["raw", "gzip"])
@pytest.mark.parametrize("fault", FAULTS)
def test_refuses_what_is_not_as_its_header_says(tmp_path, fault, wrap):
    refused(tmp_path, wrap(FAULTS[fault]), "is no IDX file of unsigned bytes in 3 dimensions")


def test_refuses_every_truncation_of_gzip_a_flipped_bit_and_bytes_after_the_stream(tmp_path):
    whole = gzip.compress(idx_bytes(VALUES))
    for length in range(2, len(whole)):
        refused(tmp_path, whole[:length], "cut short|is no IDX file")
    content = bytearray(gzip.compress(idx_bytes(VALUES), compresslevel=0))
    content[-20] ^= 1
    refused(tmp_path, bytes(content), "damaged gzip")
    for tail in (b"garbage", gzip.compress(b"more", mtime=0)):
        refused(tmp_path, whole + tail, "after its end|is no IDX file")
