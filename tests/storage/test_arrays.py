"""Named arrays: exact round trips, bytes that depend on the arrays alone, bounded reading of damaged or lying files."""

import pickle
import zipfile

import numpy as np
import pytest

from runs import files_of
from sources import npy_bytes
from storage import arrays
from storage.arrays import read_arrays, write_arrays
from storage.errors import CorruptDataError

ARRAYS = {
    "weights": np.linspace(0, 1, 12).reshape(3, 4),
    "index": np.array([3, -1], np.int64),
    "x32": np.arange(6, dtype="float32").reshape(1, 2, 3),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3)),
    "flags": np.array([True, False]),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big": np.arange(3, dtype=">i4"),
}


@pytest.mark.parametrize("name", ["a.npz", "folder"])
@pytest.mark.parametrize("mapped", [False, True])
def test_arrays_round_trip(tmp_path, name, mapped):
    write_arrays(tmp_path / name, ARRAYS)
    read = read_arrays(tmp_path / name, mapped=mapped)
    assert sorted(read) == sorted(ARRAYS)
    for key, values in ARRAYS.items():
        np.testing.assert_array_equal(read[key], values)
        assert read[key].dtype == values.dtype.newbyteorder("<")
        assert read[key].shape == values.shape
    if name == "a.npz":
        with np.load(tmp_path / name, allow_pickle=False) as other:
            np.testing.assert_array_equal(other["weights"], ARRAYS["weights"])
    elif mapped:
        assert isinstance(read["weights"], np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            read["weights"][0] = 1


@pytest.mark.parametrize("name", ["a.npz", "folder"])
def test_bytes_depend_on_the_arrays_alone(tmp_path, name, monkeypatch):
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    write_arrays(tmp_path / "1" / name, ARRAYS)
    monkeypatch.setattr("time.time", lambda: 2e9)
    reordered = {key: ARRAYS[key].copy(order="F") for key in reversed(ARRAYS)}
    write_arrays(tmp_path / "2" / name, reordered)
    contents = [files_of(tmp_path / side) for side in "12"]
    assert contents[0] == contents[1]
    assert len(contents[0]) == (1 if name == "a.npz" else len(ARRAYS) + 1)


NUMBERS = npy_bytes("<f8", (3,), bytes(24))
STRANGE = {
    "more than there is": npy_bytes("<f8", (2**20,), bytes(8)),
    "negative shape": npy_bytes("<f8", (-1, -1), bytes(8)),
    "object dtype": npy_bytes("|O", (1,), pickle.dumps([1])),
    "no npy at all": b"hello world",
    "long header": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
}


@pytest.mark.parametrize(
    "entries", [*({"x": of} for of in STRANGE.values()), {}, {"y": NUMBERS}, dict.fromkeys("xy", NUMBERS)]
)
def test_what_is_no_array_or_not_the_one_that_was_written_is_damage(tmp_path, entries):
    write_arrays(tmp_path / "a.npz", {"x": np.ones(3)})
    with zipfile.ZipFile(tmp_path / "a.npz") as whole, zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("names.npy", whole.read("names.npy"))
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    with pytest.raises(CorruptDataError) as caught:
        read_arrays(tmp_path / "b.npz")
    assert caught.value.exit_code == 65


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", STRANGE)
def test_a_file_that_is_no_array_is_damage(tmp_path, name, mapped):
    (tmp_path / "x.npy").write_bytes(STRANGE[name])
    with pytest.raises(CorruptDataError):
        arrays.read_npy(tmp_path / "x.npy", mapped=mapped)
