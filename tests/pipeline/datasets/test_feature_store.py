"""Zarr data are digested once, stores are reopened when rebuilt, and numbers beyond float32 end in words."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from features import rows, tables
from features.extractors import FeatureSpec
from features.sources import SourceSpec
from pipeline import feature_store
from pipeline.feature_store import FeatureRequest, FeatureShape
from pipeline.train import main
from storage.errors import MissingDataError
from storage.layout import FeatureLayout

N = 300


def write_zarr(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=3)
    for name, values in {"X": X, "y": y}.items():
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(64, *values.shape[1:]),
            config={"write_empty_chunks": True},
        )
        array[...] = values


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    write_zarr(tmp_path / "data.zarr", X, X[:, 0] ** 2)
    return tmp_path / "data.zarr"


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the arrays digested since the test began, in a process that has seen no data."""
    feature_store._identity.cache_clear()
    feature_store._open_zarr.cache_clear()
    shapes: list[tuple[int, ...]] = []

    def counting(array: np.ndarray) -> str:
        shapes.append(tuple(array.shape))
        return rows.digest_rows(array)

    monkeypatch.setattr(tables, "digest_rows", counting)
    return shapes


def request_for(data: Path, standardise: bool = True) -> FeatureRequest:
    return FeatureRequest(SourceSpec(str(data)), FeatureSpec("raw"), standardise)


def build(folder: Path, request: FeatureRequest) -> tuple[FeatureLayout, FeatureShape, int]:
    shape = feature_store.describe(request)
    layout = FeatureLayout(folder, shape.digest)
    task, items = feature_store.prepare(layout, shape, request)
    for item in items:
        feature_store.build_item(task, item)
    feature_store.finish(layout, shape)
    return layout, shape, len(items)


def test_zarr_data_are_digested_once_in_a_process(
    data: Path, tmp_path: Path, digested: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "chunk_rows_for", lambda row_bytes, n_rows: 16)
    _, _, n_items = build(tmp_path / "features", request_for(data))
    assert n_items > 4
    assert digested == [(N, 4), (N,)]
    feature_store.describe(request_for(data, standardise=False))  # another request, the same data
    assert len(digested) == 2


def test_tasks_in_another_process_digest_nothing(data: Path, tmp_path: Path, digested: list[tuple[int, ...]]) -> None:
    request = request_for(data)
    shape = feature_store.describe(request)
    layout = FeatureLayout(tmp_path / "features", shape.digest)
    task, items = pickle.loads(pickle.dumps(feature_store.prepare(layout, shape, request)))
    digested.clear()
    feature_store._identity.cache_clear()
    feature_store._open_zarr.cache_clear()
    assert sum(feature_store.build_item(task, item) for item in items) == N
    assert not digested


def test_changed_data_are_another_store(data: Path, tmp_path: Path, digested: list[tuple[int, ...]]) -> None:
    before = feature_store.describe(request_for(data)).digest
    X = np.random.default_rng(1).normal(size=(N, 4))
    shutil.rmtree(data)
    write_zarr(data, X, X[:, 0])
    assert feature_store.describe(request_for(data)).digest != before
    assert len(digested) == 4
    chunk = sorted(data.glob("X/c/*/*"))[0]
    status = chunk.stat()
    os.utime(chunk, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    feature_store.describe(request_for(data))
    assert len(digested) == 6


def test_data_that_are_not_there_are_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"none\.zarr"):
        feature_store.open_data(SourceSpec(str(tmp_path / "none.zarr")))


def test_a_store_built_again_in_a_living_process_is_opened_again(data: Path, tmp_path: Path) -> None:
    request = request_for(data, standardise=False)
    layout, _, _ = build(tmp_path / "features", request)
    opened = feature_store.open_store(layout)
    first = opened.read("train", 0, 20)
    assert feature_store.open_store(layout) is opened
    X = np.random.default_rng(1).normal(size=(N, 4))
    shutil.rmtree(data)
    write_zarr(data, X, X[:, 0])
    other, _, _ = build(tmp_path / "features", request)
    shutil.rmtree(layout.folder)
    shutil.copytree(other.folder, layout.folder)  # the same name, another content
    again = feature_store.open_store(layout).read("train", 0, 20)
    assert not np.array_equal(first, again)
    assert np.array_equal(again, feature_store.open_store(other).read("train", 0, 20))
    shutil.rmtree(layout.folder)
    with pytest.raises(MissingDataError):
        feature_store.open_store(layout)


HOPELESS = {
    "moments beyond float64": (1e200, [], "column 0"),
    "features beyond float32": (1e200, ["--set", "data.standardise=false"], "row 0"),
    "norms beyond float32": (1e30, ["--set", "data.standardise=false"], "standardise"),
    "a width beyond float32": (1.0, ["--sigma2", "1e-300"], "--sigma2"),
    "a width of rounding size": (1.0, ["--sigma2", "1e-9"], "--sigma2"),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_numbers_that_make_no_kernel_end_in_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scale, arguments, words = HOPELESS[case]
    X = np.random.default_rng(0).normal(size=(80, 3))
    np.savez(tmp_path / "data.npz", X=scale * X, y=(X[:, 0] > 0).astype(int))
    folders = ["--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "features")]
    command = [str(tmp_path / "data.npz"), "--centers", "20", "--scheduler", "serial", "-q", *folders, *arguments]
    assert main(command) == 65
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    assert words in error


def test_a_table_far_from_the_origin_trains_as_well_without_standardisation(tmp_path: Path) -> None:
    """Years, say: the float32 kernel of unstandardised inputs around 1e4."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    errors = []
    for offset in (0.0, 1e4):
        np.savez(tmp_path / "data.npz", X=X + offset, y=(np.linalg.norm(X, axis=1) < 1.5).astype(int))
        run = tmp_path / f"run-{offset}"
        folders = ["--run-dir", str(run), "--features-dir", str(tmp_path / "features")]
        arguments = [
            "--centers",
            "80",
            "--sigma2",
            "1",
            "--set",
            "data.standardise=false",
            "--scheduler",
            "serial",
            "-q",
        ]
        assert main([str(tmp_path / "data.npz"), *folders, *arguments]) == 0
        report = json.loads((run / "report.json").read_text())
        errors.append((report["error_rate"], report["solves"][0]["objective"]))
    assert errors[1][0] <= errors[0][0] + 0.02
    assert errors[1][1] == pytest.approx(errors[0][1], rel=1e-2)
