"""Folders of .npy files: the arrays of NumPy, by rows; one that is damaged or changes is refused, with its name."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from features import array_files
from features.array_files import NpyRows
from features.errors import CHANGED, DataError, MissingInputError, UsageError
from features.open_source import close_files, open_source
from features.source import SourceSpec
from pipeline.datasets.open_data import Reading, open_data, open_outline
from sources import npy_bytes, opened, same, write_npy

X = np.random.default_rng(0).normal(size=(300, 4))
Y = np.arange(300) % 3


def written(path: Path, values: np.ndarray, version: tuple[int, int] = (1, 0)) -> NpyRows:
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, values, version)
    return NpyRows(path)


@pytest.mark.filterwarnings("ignore:Stored array in format")  # which older versions of NumPy do not read
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i8", ">i8", ">u2", "?", "<f2", "<f4", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_rows_are_those_of_numpy_in_many_threads(tmp_path, monkeypatch, dtype, version):
    values = (100 * np.random.default_rng(1).random((50, 3, 2))).astype(dtype)
    rows = written(tmp_path / "X.npy", values, version)
    assert (rows.shape, rows.dtype) == (values.shape, values.dtype)
    some: list[Any] = [slice(None), slice(3, 9), slice(49, 90), slice(5, 5), slice(7, 2), slice(-4, None)]
    some += [np.array(numbers, np.int64) for numbers in ([20, 3, 3, 4, 49], range(2, 19), [])]
    for together in (1, 40, 1 << 20):  # bytes
        monkeypatch.setattr(array_files, "TAKE_BYTES", together)
        with ThreadPoolExecutor(4) as threads:
            for asked, found in zip(4 * some, threads.map(rows.__getitem__, 4 * some), strict=True):
                assert found.dtype == values.dtype
                np.testing.assert_array_equal(found, values[asked])


OF_ROWS = {"X": X, "y": Y, "t": Y.astype(str), "w": Y + 0.5, "g": np.arange(300) // 9}
OF_PARTS = {f"{name}_{part}": values for part in ("train", "test") for name, values in OF_ROWS.items()}
OF_IMAGES = {"X": (X * 9).astype(np.uint8).reshape(300, 2, 2), "y": Y}


@pytest.mark.parametrize(
    ("arrays", "options"),
    [
        (OF_ROWS, {}),
        (OF_ROWS, {"weights": "w", "target": "t"}),
        (OF_ROWS, {"groups": "g", "n_train": 90}),
        (OF_PARTS, {"weights": "w", "n_train": 90}),
        (OF_IMAGES, {"seed": 1}),
    ],
)
def test_a_folder_is_the_same_data_as_an_npz_of_its_arrays_and_is_hashed_once(tmp_path, arrays, options):
    np.savez(tmp_path / "d.npz", **arrays)
    write_npy(tmp_path / "d", **arrays)
    spec, whole = (
        SourceSpec(str(tmp_path / "d"), **options),
        open_source(SourceSpec(str(tmp_path / "d.npz"), **options)),
    )
    same(open_source(spec), whole)
    for k in range(4):
        if k == 2:  # the same values, written anew
            np.save(tmp_path / "d" / f"{next(iter(arrays))}.npy", next(iter(arrays.values())))
        close_files()
        reading = Reading()
        same(open_data(replace(spec, kept=str(tmp_path / "kept")), reading=reading), whole)
        assert reading.n_readings == (k in (0, 2))
    outline = open_outline(spec)
    assert outline is not None
    assert (outline.n_train, outline.input_shape, outline.task) == (whole.n_train, whole.input_shape, whole.task)
    held = whole.memory.held - open_source(spec).memory.held
    assert held == sum(values.nbytes for name, values in arrays.items() if name[0] == "X"), "inputs are in no memory"


def refused(path: Path, match: str, error: type[Exception] = DataError) -> None:
    with pytest.raises(error, match=match) as caught:
        opened(path)
    assert "\n" not in str(caught.value)


HEADER = npy_bytes("<f8", (300, 4))
DAMAGE: dict[str, tuple[bytes, str]] = {
    "no header": (b"x" * 300, "cannot be read as an .npy file"),
    "code": (HEADER.replace(b"(300, 4)", b"(f(), 4)"), "cannot be read as an .npy file"),
    "a version to come": (HEADER[:6] + b"\x09" + HEADER[7:], "cannot be read as an .npy file"),
    "too few bytes": (HEADER + X.tobytes()[:-1], "has 9727 bytes, and its header promises 9728"),
    "objects": (npy_bytes("|O", (300, 4), X.tobytes()), "X holds Python objects; save numbers"),
    "records": (npy_bytes([("a", "<f8"), ("b", "<f8")], (300, 2), X.tobytes()), "X holds .*; numbers or texts are"),
    "times": (npy_bytes("<M8[s]", (300, 4), X.tobytes()), "X holds datetime64"),
    "words": (npy_bytes("<U2", (300, 4), X.tobytes()), "X holds words; numbers are needed"),
    "no rows": (npy_bytes("<f8", (0, 4)), r"X holds no rows: its shape is \(0, 4\)"),
    "a single value": (npy_bytes("<f8", (), X.tobytes()), r"X holds no rows: its shape is \(\)"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_no_array_of_numbers_by_rows_is_refused(tmp_path, name):
    content, told = DAMAGE[name]
    write_npy(tmp_path / "d", y=Y)
    (tmp_path / "d" / "X.npy").write_bytes(content)
    refused(tmp_path / "d", told)


@pytest.mark.timeout(20)
def test_fortran_order_other_kinds_of_files_and_stores_of_zarr_are_refused_with_a_remedy(tmp_path):
    folder = tmp_path / "d"
    write_npy(folder, X=np.asfortranarray(X), y=Y)
    refused(folder, r"d/X\.npy: is in Fortran order.*numpy\.save\('X\.npy', numpy\.ascontiguousarray\(array\)\)")
    write_npy(folder, X=X, y=np.asfortranarray(Y[:, None]))
    assert open_source(SourceSpec(str(folder))).n_train == 225
    refused(folder / "X.npy", r"needs X and y, .*; found X$")
    (folder / "rows.csv").write_text("a,y\n")
    refused(folder, r"d: has X\.npy beside rows\.csv; give each kind a folder of its own")
    (folder / "rows.csv").unlink()
    for name in "ab":
        (folder / name).mkdir()
        (folder / name / "1.png").touch()
    refused(folder, r"d: has X\.npy beside folders of pictures; give each kind a folder of its own")
    for name, file in (("d.zarr", "x"), ("e", "zarr.json"), ("f", ".zgroup"), ("g", ".zarray")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
        refused(
            tmp_path / name,
            rf"are not read; save its arrays as \.npy files of one folder: .*zarr\.open\('{name}'\)",
            UsageError,
        )
    write_npy(tmp_path / "pipe", y=Y)
    os.mkfifo(tmp_path / "pipe" / "X.npy")
    refused(tmp_path / "pipe", r"X\.npy: is a pipe")


CHANGES: dict[str, Callable[[Path], object]] = {
    "other values": lambda path: np.save(path, X + 1),
    "cut short": lambda path: os.truncate(path, 500),
    "removed": Path.unlink,
    "replaced": lambda path: (np.save(path.with_name("new.npy"), X), path.with_name("new.npy").replace(path)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_when_it_was_opened_is_told(tmp_path, change):
    rows = written(tmp_path / "X.npy", X)
    np.testing.assert_array_equal(rows[:], X)
    CHANGES[change](tmp_path / "X.npy")
    for some in (slice(0, 300), np.array([7, 299])):
        with pytest.raises(DataError, match=rf"X\.npy: {CHANGED}"):
            rows[some]


def test_rows_that_were_written_through_a_map_are_told(tmp_path, monkeypatch):
    """Their file keeps its size and times until the map is flushed."""
    write_npy(tmp_path / "d", X=X, y=Y)
    source = open_data(SourceSpec(str(tmp_path / "d"), kept=str(tmp_path / "tables")))
    stamp = array_files.stamp(tmp_path / "d" / "X.npy")
    monkeypatch.setattr(array_files, "stamp", lambda path: stamp)
    write_npy(tmp_path / "d", X=X[::-1], y=Y)
    for part in (source.train, source.test):
        with pytest.raises(DataError, match=CHANGED.partition(";")[0]):
            part.X[:9]


def test_only_arrays_that_are_used_decide(tmp_path):
    """Others may change, or be links to nothing; of a link in place of an array is said what it is."""
    write_npy(tmp_path / "d", X=X, y=Y)
    (tmp_path / "d" / "old.npy").symlink_to(tmp_path / "nowhere.npy")
    spec, readings = SourceSpec(str(tmp_path / "d"), kept=str(tmp_path / "tables")), [Reading(), Reading()]
    for reading in readings:
        open_data(spec, reading=reading)
        close_files()
        np.save(tmp_path / "d" / "other.npy", X)
    assert [reading.n_readings for reading in readings] == [1, 0]
    assert not readings[1].notes
    (tmp_path / "d" / "y.npy").unlink()
    (tmp_path / "d" / "y.npy").symlink_to(tmp_path / "nowhere.npy")
    with pytest.raises(MissingInputError, match=r"y\.npy: is a link to what is not there"):
        open_data(spec)
