"""Our arrays: exact round trips, an ordinary zarr store, bounded reads; damage to a chunk is never other numbers."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec

from runs import files_of, largest_bytes
from storage.errors import CorruptDataError, MissingDataError
from storage.zarr_arrays import ArraySpec, StoredArray, create_arrays, open_arrays

DTYPES = ("float32", "float64", "int64", "int32", "uint8")


def values_of(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed).integers(0, 200, shape)
    return (numbers / 7).astype(dtype) if dtype.startswith("float") else numbers.astype(dtype)


def stored(root: Path, values: np.ndarray, chunk_rows: int) -> StoredArray:
    create_arrays(root, [ArraySpec("train/X", values.shape, str(values.dtype), chunk_rows)], {"source": "test"})
    return open_arrays(root)["train/X"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(23,), (23, 5), (23, 3, 2), (20, 4), (3, 2)])
def test_our_files_are_those_of_zarr(tmp_path, dtype, shape):
    values = values_of(shape, dtype)
    group = zarr.create_group(str(tmp_path / "theirs"), zarr_format=3, attributes={"source": "test"})
    form: Any = {"compressors": [Crc32cCodec()], "fill_value": 0, "config": {"write_empty_chunks": True}}
    theirs = group.create_array("train/X", shape=shape, chunks=(5, *shape[1:]), dtype=dtype, filters=None, **form)
    theirs[:] = values
    array = stored(tmp_path / "ours", values, 5)
    digests = array.write(0, values)
    np.testing.assert_array_equal(replace(array, digests=digests)[:], values)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours" / "train" / "X", mode="r")[:], values)
    found, expected = (files_of(tmp_path / who) for who in ("ours", "theirs"))
    for files in (found, expected):
        for name in files:
            if name.endswith(".json"):
                files[name] = json.loads(files[name])
    assert found == expected
    assert set(digests) == {name for name in expected if "/c/" in name}
    assert {len(found[name]) for name in digests} == {array.chunk_file_bytes}


Shared = tuple[StoredArray, np.ndarray, dict[str, str]]


@pytest.fixture(scope="module")
def shared_array(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    values = values_of((103, 3), "float32", 5)
    array = stored(tmp_path_factory.mktemp("shared") / "a.zarr", values, 8)
    digests = array.write(40, values[40:])
    digests |= array.write(0, values[:40])
    return array, values, digests


@given(st.integers(0, 103), st.integers(0, 103), st.booleans())
def test_any_row_range_reads_back(shared_array, first, second, verified):
    array, values, digests = shared_array
    start, stop = sorted((first, second))
    np.testing.assert_array_equal(replace(array, digests=digests if verified else None)[start:stop], values[start:stop])


@given(st.lists(st.integers(0, 102), max_size=60))
def test_take_equals_fancy_indexing(shared_array, rows):
    array, values, digests = shared_array
    wanted = np.array(rows, np.int64)
    np.testing.assert_array_equal(array[wanted], values[wanted])
    np.testing.assert_array_equal(replace(array, digests=digests)[wanted], values[wanted])


def test_a_chunk_that_blocks_share_is_read_once_and_again_after_it_was_written(tmp_path, monkeypatch):
    values, read, read_chunk = values_of((103, 3), "float32", 5), list[int](), StoredArray._read_chunk
    array = stored(tmp_path / "a.zarr", values, 8)
    array.write(0, values)
    monkeypatch.setattr(StoredArray, "_read_chunk", lambda *of: read.append(of[1]) or read_chunk(*of))
    for start in range(0, 103, 5):
        np.testing.assert_array_equal(array[start : start + 5], values[start : start + 5])
    assert read == [*range(13)]
    array.write(0, -values)
    np.testing.assert_array_equal(array[100:], -values[100:])


def test_reading_takes_no_second_copy(tmp_path):
    values = values_of((4096, 512), "float32")
    array = stored(tmp_path / "a.zarr", values, 256)
    array.write(0, values)
    chunk_bytes = 256 * 512 * 4
    for start, stop, most_bytes in ((0, 4096, chunk_bytes / 4), (100, 4000, 1.5 * chunk_bytes)):
        with largest_bytes() as largest:
            array[start:stop]
        assert largest[0] < (stop - start) * 512 * 4 + most_bytes


def test_an_empty_array_reads_as_no_rows(tmp_path):
    array = stored(tmp_path / "a.zarr", np.zeros((0, 3), "float32"), 4)
    assert array.write(0, np.zeros((0, 3), "float32")) == {}
    assert array[:0].shape == array[np.array([], np.int64)].shape == (0, 3)


Written = tuple[StoredArray, dict[str, str]]
CUT = np.random.default_rng(1).standard_normal((22, 3)).astype("float32")
CHUNKS = [f"train/X/c/{chunk}/0" for chunk in range(4)]  # six rows each, the last one padded


@pytest.fixture
def written(tmp_path: Path) -> Written:
    array = stored(tmp_path / "a.zarr", CUT, 6)
    return array, array.write(0, CUT)


def assert_damage_is_named(array: StoredArray, name: str) -> None:
    chunk = int(name.split("/")[-2])
    rows = (6 * chunk, min(6 * chunk + 6, 22))
    for read in (
        lambda: array[:],
        lambda: array[rows[0] + 1 : rows[0] + 2],
        lambda: array[np.array([3, 10, 15, 21])],
    ):
        with pytest.raises(CorruptDataError) as caught:
            read()
        assert caught.value.exit_code == 65
        assert f"array train/X, rows {rows[0]}..{rows[1]}, chunk file {name}: " in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    others = np.array([row for row in range(22) if not rows[0] <= row < rows[1]])
    np.testing.assert_array_equal(array[others], CUT[others])


INSTEAD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    **{f"{n} bytes": lambda path, n=n: path.write_bytes(bytes(n)) for n in (0, 71, 75, 77)},
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("what", INSTEAD)
def test_what_is_no_whole_chunk_is_damage_and_never_zeros(written, name, what):
    array, _ = written
    (array.root / name).unlink()
    INSTEAD[what](array.root / name)
    assert_damage_is_named(array, name)


@pytest.mark.parametrize("position", range(76))
def test_any_flipped_byte(written, position):
    array, _ = written
    name = CHUNKS[position % 4]
    data = bytearray((array.root / name).read_bytes())
    data[position] ^= 1 << position % 8
    (array.root / name).write_bytes(data)
    assert_damage_is_named(array, name)


def test_a_valid_chunk_without_its_digest_is_not_trusted(written):
    """Of another block, or never committed."""
    array, digests = written
    array = replace(array, digests=digests)
    (array.root / CHUNKS[0]).write_bytes((array.root / CHUNKS[1]).read_bytes())
    for read in (lambda: array[:], lambda: array[np.array([0])]):
        with pytest.raises(CorruptDataError, match=f"{CHUNKS[0]}: it is not the one that was committed"):
            read()
    del digests[CHUNKS[3]]
    np.testing.assert_array_equal(array[6:18], CUT[6:18])
    with pytest.raises(CorruptDataError, match=f"{CHUNKS[3]}: it is not the one that was committed"):
        array[6:19]


NOT_OURS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another dtype": lambda node: node.update(data_type={"name": "structured", "configuration": {}}),
    "another codec": lambda node: node["codecs"].append({"name": "zstd", "configuration": {"level": 3}}),
    "a negative shape": lambda node: node.update(shape=[-22, 3]),
    "a shape of text": lambda node: node.update(shape=["22", 3]),
    "no shape": lambda node: node.update(shape=[]),
    "chunks of no rows": lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[0, 3]),
    "no array": lambda node: node.update(node_type="pickle"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [*NOT_OURS, "", "[]", "null", "{}", "[" * 100_000, "\xff\x00", "pipe", "/dev/zero"])
def test_metadata_that_we_do_not_write_are_refused(written, text):
    path = written[0].root / "train" / "X" / "zarr.json"
    node = json.loads(path.read_text())
    path.unlink()
    if text == "pipe":
        os.mkfifo(path)
    elif text == "/dev/zero":
        path.symlink_to(text)
    elif text in NOT_OURS:
        NOT_OURS[text](node)
        path.write_text(json.dumps(node))
    else:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptDataError, match=r"train/X/zarr\.json: "):
        open_arrays(written[0].root)


def test_a_store_that_is_not_there_and_a_linked_array(written, tmp_path):
    create_arrays(tmp_path / "b.zarr", [], {})
    (tmp_path / "b.zarr" / "X").symlink_to(written[0].root / "train" / "X")
    assert open_arrays(tmp_path / "b.zarr") == {}
    with pytest.raises(MissingDataError):
        open_arrays(tmp_path / "none")
