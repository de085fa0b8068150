"""Rows that are added may be zarr data, as the first ones may; a file that changes is read again."""

from pathlib import Path

import numpy as np
import zarr

from features.source import Source, SourceSpec
from pipeline.datasets.open_data import identify, open_data, release_data


def write(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.create_array("X", data=X, chunks=(3, X.shape[1]))
    group.create_array("y", data=y)


def rows(source: Source) -> np.ndarray:
    return source.read("train", 0, source.n_train)[0]


def test_zarr_rows_join_others_of_any_kind(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    write(tmp_path / "first.zarr", X[:10], y[:10])
    write(tmp_path / "second.zarr", X[10:15], y[10:15])
    np.savez(tmp_path / "third.npz", X=X[15:], y=y[15:])
    first = SourceSpec(str(tmp_path / "first.zarr"))
    spec = SourceSpec(first.dataset, added=(str(tmp_path / "second.zarr"), str(tmp_path / "third.npz")))
    source = open_data(spec, identify(spec))
    assert open_data(spec, identify(spec)) is source
    n_first = open_data(first).n_train
    assert source.added == (5, 5)
    np.testing.assert_array_equal(rows(source), np.concatenate([rows(open_data(first)), X[10:]]))
    np.savez(tmp_path / "third.npz", X=X[15:18], y=y[15:18])
    write(tmp_path / "second.zarr", X[:2], y[:2])
    changed = open_data(spec)
    assert changed.added == (2, 3)
    np.testing.assert_array_equal(rows(changed)[n_first:], np.concatenate([X[:2], X[15:18]]))
    release_data()
