"""Named arrays and facts: exact round trips, bytes that depend on them alone, bounded reading of damaged files."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sources import npy_bytes
from storage.arrays import check_whole, commit, load
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
FACTS = {"name": "é", "span": (1, np.int64(2)), "loss": 1e-5}


@pytest.mark.parametrize("mapped", [False, True])
def test_arrays_and_facts_round_trip(tmp_path, mapped):
    commit(path := tmp_path / "a.npz", ARRAYS, FACTS)
    check_whole(path)
    read, facts = load(path, mapped=mapped)
    assert list(read) == sorted(ARRAYS)
    assert facts == {**FACTS, "span": [1, 2]}
    with np.load(path, allow_pickle=False) as other:
        for key, values in ARRAYS.items():
            np.testing.assert_array_equal(read[key], values)
            np.testing.assert_array_equal(other[key], values)
            assert read[key].dtype == values.dtype.newbyteorder("<")
            assert read[key].shape == values.shape
    if mapped:
        assert isinstance(read["weights"], np.memmap)
        assert all(values.ctypes.data % 64 == 0 for values in read.values() if values.size)
        with pytest.raises(ValueError, match="read-only"):
            read["weights"][0] = 1


def test_bytes_depend_on_what_is_committed_alone(tmp_path, monkeypatch):
    commit(tmp_path / "1.npz", ARRAYS, FACTS)
    monkeypatch.setattr("time.time", lambda: 2e9)
    reordered = {key: ARRAYS[key].copy(order="F") for key in reversed(ARRAYS)}
    commit(tmp_path / "2.npz", reordered, FACTS)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


NUMBERS = npy_bytes("<f8", (3,), bytes(24))
STRANGE = {
    "more than there is": npy_bytes("<f8", (2**20,), bytes(8)),
    "negative shape": npy_bytes("<f8", (-1, -1), bytes(8)),
    "object dtype": npy_bytes("|O", (1,), pickle.dumps([1])),
    "no npy at all": b"hello world",
    "long header": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
}
ENTRIES = {name: {"x": content} for name, content in STRANGE.items()}
ENTRIES |= {"nothing": {}, "another": {"y": NUMBERS}, "one more": dict.fromkeys("xy", NUMBERS)}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("entries", ENTRIES)
def test_what_is_no_array_or_not_the_one_that_was_written_is_damage(tmp_path, entries, mapped):
    def write(path: Path, facts: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("facts.json", facts)
            for name, content in ENTRIES[entries].items():
                archive.writestr(f"{name}.npy", content)

    commit(tmp_path / "a.npz", {"x": np.ones(3)})
    with zipfile.ZipFile(tmp_path / "a.npz") as whole:
        write(tmp_path / "b.npz", whole.read("facts.json"))
    with pytest.raises(CorruptDataError, match=r"b\.npz: damaged") as caught:
        load(tmp_path / "b.npz", mapped=mapped)
    assert caught.value.exit_code == 65
    for facts in (b"", b"[]", b"null", b"{}", b'{"arrays": 1}', b"[" * 100_000):
        write(tmp_path / "b.npz", facts)
        with pytest.raises(CorruptDataError, match=r"b\.npz: damaged"):
            load(tmp_path / "b.npz")
