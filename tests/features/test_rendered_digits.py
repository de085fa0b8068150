"""Rendered digits: a function of seed, part and row, and a problem worth solving."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline

from features.descriptors.sphog import sphog
from features.errors import DataError
from features.open_source import open_source
from features.source import SourceSpec
from runs import largest_bytes


@given(st.integers(0, 400), st.integers(0, 100), st.integers(1, 60), st.sampled_from(["train", "test"]))
def test_blocks_of_any_size_agree(start, length, block, part):
    source = open_source(SourceSpec("synthetic", n_train=500, n_test=500, seed=4))
    images, targets = source.read(part, start, start + length)
    for low in range(0, length, block):
        high = min(low + block, length)
        again, same = source.read(part, start + low, start + high)
        assert np.array_equal(again, images[low:high])
        assert np.array_equal(same, targets[low:high])


def test_number_of_rows_does_not_change_a_row_and_seeds_and_parts_do():
    few = open_source(SourceSpec("synthetic", n_train=100))
    many = open_source(SourceSpec("synthetic", n_train=10_000_000))
    assert np.array_equal(few.read("train", 0, 100)[0], many.read("train", 0, 100)[0])
    assert many.read("train", 9_999_990, 10_000_000)[0].any()
    with pytest.raises(IndexError, match="100"):
        few.read("train", 0, 101)
    sources = [open_source(SourceSpec("synthetic", seed=seed)) for seed in (0, 1, 2**63)]
    assert len({str(source.identity) for source in (few, *sources)}) == 4
    images = [source.read(part, 0, 50)[0] for source in sources for part in ("train", "test")]
    assert len(np.unique(np.concatenate(images), axis=0)) == 300


def test_looks_like_mnist():
    source = open_source(SourceSpec("synthetic"))
    assert (source.n_train, source.n_test, source.input_shape) == (60_000, 10_000, (28, 28))
    assert source.classes == tuple(range(10))
    images, targets = source.read("train", 0, 5_000)
    assert images.dtype == np.uint8
    assert targets.dtype == np.int64
    assert 25 < images.mean() < 42  # 33.3 for MNIST
    assert 0.13 < (images > 0).mean() < 0.25  # 0.19 for MNIST
    shares = np.bincount(targets) / 5_000
    assert 0.08 < shares.min() <= shares.max() < 0.12
    assert images.reshape(len(images), -1).max(axis=1).min() > 100  # no image is empty


@pytest.mark.ci
def test_a_problem_neither_trivial_nor_hopeless():
    """Ridge regression on 500 Gaussian columns errs on some per cent, and does far better than chance."""
    source = open_source(SourceSpec("synthetic", n_train=4000, n_test=2000))
    images, targets = source.read("train", 0, 4000)
    tests, expected = source.read("test", 0, 2000)
    columns = Nystroem(gamma=1 / 8, n_components=500, random_state=0)
    model = make_pipeline(columns, RidgeClassifier(0.1)).fit(sphog(images), targets)
    assert 0.002 < 1 - model.score(sphog(tests), expected) < 0.08


def test_task_override():
    source = open_source(SourceSpec("synthetic", n_train=20, task="regression"))
    digits = open_source(SourceSpec("synthetic", n_train=20)).read("train", 0, 20)[1]
    targets = source.read("train", 0, 20)[1]
    assert targets.dtype == np.float64
    assert np.array_equal(targets, digits)
    with pytest.raises(DataError, match="two classes"):
        open_source(SourceSpec("synthetic", task="binary"))


def test_ten_million_rows_need_no_more_memory():
    with largest_bytes() as largest:
        source = open_source(SourceSpec("synthetic", n_train=10_000_000))
        for start in (0, 5_000_000, 9_999_000):
            source.read("train", start, start + 1000)
    assert largest[0] < 5_000_000  # half a byte a row
