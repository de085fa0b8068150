"""Damage to a chunk is always an error that names array, rows and file; never other numbers."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.errors import CorruptDataError
from storage.zarr_arrays import ArraySpec, StoredArray, create_arrays, open_arrays

VALUES = np.random.default_rng(1).standard_normal((22, 3)).astype("float32")
CHUNKS = [f"train/X/c/{chunk}/0" for chunk in range(4)]  # six rows each, the last one padded


@pytest.fixture
def written(tmp_path: Path) -> tuple[StoredArray, dict[str, str]]:
    create_arrays(tmp_path / "a.zarr", [ArraySpec("train/X", VALUES.shape, "float32", 6)], {})
    array = open_arrays(tmp_path / "a.zarr")["train/X"]
    return array, array.write(0, VALUES)


def assert_damage_is_named(array: StoredArray, name: str) -> None:
    chunk = int(name.split("/")[-2])
    rows = (6 * chunk, min(6 * chunk + 6, 22))
    for read in (
        lambda: array.read(0, 22),
        lambda: array.read(rows[0] + 1, rows[0] + 2),
        lambda: array.take(np.array([3, 10, 15, 21])),
    ):
        with pytest.raises(CorruptDataError) as caught:
            read()
        assert caught.value.exit_code == 65
        assert f"array train/X, rows {rows[0]}..{rows[1]}, chunk file {name}: " in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    others = np.array([row for row in range(22) if not rows[0] <= row < rows[1]])
    np.testing.assert_array_equal(array.take(others), VALUES[others])


INSTEAD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "no bytes": lambda path: path.touch(),
    "71 bytes": lambda path: path.write_bytes(bytes(71)),
    "75 bytes": lambda path: path.write_bytes(bytes(75)),
    "77 bytes": lambda path: path.write_bytes(bytes(77)),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("what", INSTEAD)
def test_what_is_no_whole_chunk_is_damage_and_never_zeros(written: tuple, name: str, what: str) -> None:
    array, _ = written
    (array.root / name).unlink()
    INSTEAD[what](array.root / name)
    assert_damage_is_named(array, name)
    with pytest.raises(CorruptDataError, match=name):  # as where it goes after sizes were checked
        array._read_chunk(CHUNKS.index(name), np.empty((6, 3), "float32"), None)


@pytest.mark.parametrize("position", range(76))
def test_any_flipped_byte(written: tuple, position: int) -> None:
    array, _ = written
    name = CHUNKS[position % 4]
    data = bytearray((array.root / name).read_bytes())
    data[position] ^= 1 << position % 8
    (array.root / name).write_bytes(data)
    assert_damage_is_named(array, name)


def test_a_valid_chunk_without_its_digest_is_not_trusted(written: tuple) -> None:
    """Of another block, or never committed."""
    array, digests = written
    (array.root / CHUNKS[0]).write_bytes((array.root / CHUNKS[1]).read_bytes())
    for read in (lambda: array.read(0, 22, digests), lambda: array.take(np.array([0]), digests)):
        with pytest.raises(CorruptDataError, match=f"{CHUNKS[0]}: .* sha256"):
            read()
    del digests[CHUNKS[3]]
    np.testing.assert_array_equal(array.read(6, 18, digests), VALUES[6:18])
    with pytest.raises(CorruptDataError, match="never committed"):
        array.read(6, 19, digests)
