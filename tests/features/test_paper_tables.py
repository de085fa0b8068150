"""USPS, boston and abalone as published, sinc as generated, and one class against the rest."""

from dataclasses import replace

import numpy as np
import pytest

from features.errors import DataError, UsageError
from features.open_source import open_source
from features.source import SourceSpec
from sources import everything


def whole(source, part):
    return source.read(part, 0, source.n_train if part == "train" else source.n_test)


@pytest.mark.ci
def test_real_usps(data_dir):
    source = open_source(SourceSpec("usps", data_dir=str(data_dir)))
    assert (source.n_train, source.n_test, source.input_shape) == (7291, 2007, (16, 16))
    assert (source.task, source.classes, source.standardise) == ("multiclass", tuple(range(10)), False)
    inputs, targets = whole(source, "train")
    assert inputs.dtype == np.float32
    assert (inputs.min(), inputs.max()) == (-1.0, 1.0)
    assert np.bincount(targets).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(whole(source, "test")[1]).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    table = np.loadtxt(data_dir / "usps" / "zip.train.gz", max_rows=3)
    assert np.array_equal(inputs[:3].reshape(3, 256), table[:, 1:].astype(np.float32))


def test_real_boston(data_dir):
    source = open_source(SourceSpec("boston", data_dir=str(data_dir), seed=3))
    assert (source.n_train, source.n_test, source.input_shape) == (350, 156, (13,))
    assert (source.task, source.classes, source.standardise) == ("regression", (), True)
    inputs, targets = everything(source)
    assert targets.mean() == pytest.approx(22.5328, abs=1e-4)
    assert targets.var() == pytest.approx(84.4196, abs=1e-4)
    table = np.loadtxt(data_dir / "boston" / "housing.data")
    rows = np.column_stack([inputs, targets])
    assert np.array_equal(rows[np.lexsort(rows.T)], table[np.lexsort(table.T)])


def test_real_abalone(data_dir):
    source = open_source(SourceSpec("abalone", data_dir=str(data_dir)))
    assert (source.n_train, source.n_test, source.input_shape) == (3000, 1177, (10,))
    assert (source.task, source.standardise) == ("regression", True)
    inputs, targets = everything(source)
    assert inputs[:, :3].sum(axis=0).tolist() == [1528, 1307, 1342]  # M, F, I
    assert np.count_nonzero(inputs[:, 5] == 0) == 2  # two rows of height 0
    assert targets.mean() == pytest.approx(9.9337, abs=1e-4)
    other = open_source(SourceSpec("abalone", data_dir=str(data_dir), seed=1))
    assert other.identity != source.identity


def test_sinc_is_what_it_says_by_seed_noise_and_size():
    source = open_source(SourceSpec("sinc"))
    assert (source.n_train, source.n_test, source.input_shape) == (1000, 1000, (2,))
    assert (source.task, source.standardise) == ("regression", False)
    for part, noise in (("train", 0.1), ("test", 0.0)):
        inputs, targets = whole(source, part)
        assert np.abs(inputs).max() <= 5
        radius = np.linalg.norm(inputs, axis=1)
        assert np.var(targets - np.sin(radius) / radius) == pytest.approx(noise, rel=0.1, abs=1e-20)
    many = open_source(SourceSpec("sinc", n_train=50, n_test=400_000))
    assert (many.n_train, many.n_test) == (50, 400_000)
    _, targets = whole(many, "test")
    assert np.mean(targets**2) == pytest.approx(0.0954, abs=5e-4)  # the other reading of 10 dB is a tenth of this
    one, same, other = (np.column_stack(whole(open_source(SourceSpec("sinc", seed=s)), "train")) for s in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one[:, :2], other[:, :2])
    quiet = open_source(SourceSpec("sinc", noise=0.0, n_test=7))
    inputs, targets = whole(quiet, "train")
    assert np.array_equal(inputs, one[:, :2])
    radius = np.linalg.norm(inputs, axis=1)
    np.testing.assert_allclose(targets, np.sin(radius) / radius, rtol=0, atol=1e-14)
    assert quiet.identity != open_source(SourceSpec("sinc", n_test=7)).identity


def test_one_class_against_the_rest(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (60, 4, 4)).astype(np.uint8), np.arange(60) % 6
    np.savez(tmp_path / "images.npz", X=images, y=labels)
    spec = SourceSpec(str(tmp_path / "images.npz"))
    multiclass, view = open_source(spec), open_source(replace(spec, positive="4"))
    assert (view.name, view.task, view.classes) == ("images", "binary", (-1, 1))
    assert (view.n_train, view.n_test, view.input_shape) == (multiclass.n_train, multiclass.n_test, (4, 4))
    for part in ("train", "test"):
        (images, targets), (same, signs) = whole(multiclass, part), whole(view, part)
        assert np.array_equal(images, same)
        assert np.array_equal(signs, targets == 4)
        assert 0 < signs.sum() < len(signs)
    assert view.identity != open_source(replace(spec, positive="5")).identity
    with pytest.raises(DataError, match="no label of images; it has 0, 1"):
        open_source(replace(spec, positive="four"))
    with pytest.raises(UsageError, match="regression"):
        open_source(SourceSpec("sinc", positive="1"))
    assert open_source(SourceSpec("digits", n_train=50, positive="0")).read("train", 0, 50)[1].sum() > 0
