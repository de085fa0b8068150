"""Arrays of other people: read as zarr reads them; a chunk that is missing or lies is an error, never zeros.

Stores that must not be read, ours or theirs, are refused from their metadata, before data or codecs are touched.
"""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import zstd
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.user_arrays import open_user_arrays
from storage.zarr_arrays import ArraySpec, create_arrays, open_arrays

VALUES = np.random.default_rng(2).standard_normal((21, 7)).astype("float32")
COMPRESSORS: dict[str, list[Any]] = {
    "none": [],
    "zstd": [ZstdCodec()],
    "gzip": [GzipCodec(level=1)],
    "blosc": [BloscCodec()],
    "crc32c": [Crc32cCodec()],
    "zstd over crc32c": [Crc32cCodec(), ZstdCodec()],
    "crc32c over zstd": [ZstdCodec(), Crc32cCodec()],
    "gzip over crc32c": [Crc32cCodec(), GzipCodec()],
    "crc32c over gzip": [GzipCodec(), Crc32cCodec()],
}


def foreign(
    root: Path, values: np.ndarray = VALUES, codecs: Any = COMPRESSORS["zstd"], chunks: tuple = (4, 3), **options: Any
) -> Path:
    """Write train/X and train/y as zarr does."""
    group = zarr.create_group(str(root), zarr_format=3)
    common = {"compressors": codecs, "fill_value": 0, "config": {"write_empty_chunks": True}}
    X = group.create_array("train/X", shape=values.shape, dtype=values.dtype, chunks=chunks, **common, **options)
    X[:] = values
    group.create_array("train/y", shape=(21,), dtype="uint16", chunks=(5,), **common)[:] = np.arange(21)
    return root


@pytest.mark.parametrize("codecs", COMPRESSORS)
@pytest.mark.parametrize(("separator", "order", "dtype"), [("/", (0, 1), "<f4"), (".", (1, 0), ">f4")])
def test_slices(tmp_path, codecs, separator, order, dtype):
    keys = {"name": "default", "separator": separator}
    transposed = {"chunk_key_encoding": keys, "filters": [TransposeCodec(order=order)]}
    root = foreign(tmp_path / "u.zarr", VALUES.astype(dtype), COMPRESSORS[codecs], **transposed)
    arrays = open_user_arrays(root)
    assert sorted(arrays) == ["train/X", "train/y"]
    X = arrays["train/X"]
    assert (X.shape, X.dtype) == ((21, 7), np.dtype("float32"))
    for rows in (slice(None), slice(3, 9), slice(20, 21), slice(5, 5), slice(7, 2), slice(-4, None)):
        np.testing.assert_array_equal(X[rows], VALUES[rows])
    for numbers in ([20, 3, 3, 4], range(2, 19), []):
        np.testing.assert_array_equal(X[np.array(numbers, np.int64)], VALUES[np.array(numbers, np.int64)])
    np.testing.assert_array_equal(arrays["train/y"][2:19], np.arange(2, 19))


def test_every_missing_chunk_is_an_error_with_advice(tmp_path):
    root = foreign(tmp_path / "u.zarr")
    X = open_user_arrays(root)["train/X"]
    chunks = sorted(path for path in (root / "train/X/c").rglob("*") if path.is_file())
    assert len(chunks) == 6 * 3
    for path in chunks:
        content = path.read_bytes()
        path.unlink()
        first = 4 * int(path.parent.name)
        for rows in (slice(None), slice(first, first + 1)):
            with pytest.raises(CorruptDataError, match=f"train/X, .*{path.relative_to(root)}: is missing.*write_empty"):
                X[rows]
        path.write_bytes(content)
    np.testing.assert_array_equal(X[:], VALUES)


def test_a_disk_that_fails_is_no_damage(tmp_path):
    root = foreign(tmp_path / "u.zarr")
    (root / "train/X/c/1/2").unlink()
    (root / "train/X/c/1/2").symlink_to("/proc/self/mem")  # of which nobody can read the first byte
    with pytest.raises(UnavailableStoreError, match="train/X: cannot be read"):
        open_user_arrays(root)["train/X"][:]


N_BYTES = 16 * 3 * 8
LIES = {
    "zstd that states more": ([ZstdCodec()], zstd.compress(bytes(2**20))),
    "zstd cut short": ([ZstdCodec()], zstd.compress(bytes(N_BYTES))[:5]),
    "gzip of more": ([GzipCodec()], gzip.compress(bytes(2**20))),
    "gzip of less": ([GzipCodec()], gzip.compress(bytes(8))),
    "gzip cut short": ([GzipCodec()], gzip.compress(bytes(N_BYTES))[:-3]),
    "no compression at all": ([ZstdCodec()], bytes(N_BYTES)),
    "nothing": ([GzipCodec()], b""),
}


@pytest.mark.parametrize("name", LIES)
def test_a_chunk_that_is_not_what_shape_and_dtype_say(name, tmp_path):
    codecs, content = LIES[name]
    root = foreign(tmp_path / "a.zarr", np.ones((16, 3)), codecs, (16, 3))
    (root / "train/X/c/0/0").write_bytes(content)
    with pytest.raises(CorruptDataError, match="X/c/0/0") as caught:
        open_user_arrays(root)["train/X"][:]
    assert "\n" not in str(caught.value)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    create_arrays(tmp_path / "a.zarr", [ArraySpec("X", (10, 2), "float32", 4)], {})
    open_arrays(tmp_path / "a.zarr")["X"].write(0, np.ones((10, 2), "float32"))
    return tmp_path / "a.zarr"


def alter(store: Path, change: Callable[[dict], object]) -> None:
    path = store / "X" / "zarr.json"
    node = json.loads(path.read_text())
    change(node)
    path.write_text(json.dumps(node))


HOSTILE = {
    "object dtype": lambda node: node.update(data_type="object"),
    "structured dtype": lambda node: node.update(data_type={"name": "structured", "configuration": {}}),
    "unknown codec": lambda node: node["codecs"].append({"name": "exec", "configuration": {"code": "1"}}),
    "numcodecs pickle": lambda node: node.update(codecs=[{"name": "numcodecs.pickle"}]),
    "sharding": lambda node: node.update(codecs=[{"name": "sharding_indexed", "configuration": {}}]),
    "codecs no list": lambda node: node.update(codecs="bytes"),
    "format 2": lambda node: node.update(zarr_format=2),
    "format true": lambda node: node.update(zarr_format=True),
    "node type": lambda node: node.update(node_type="pickle"),
    "negative shape": lambda node: node.update(shape=[-10, 2]),
    "text shape": lambda node: node.update(shape=["10", 2]),
    "shape of other rank": lambda node: node.update(shape=[10]),
    "zero chunk": lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[0, 2]),
    "irregular grid": lambda node: node.update(chunk_grid={"name": "rectilinear", "configuration": {}}),
    "no grid": lambda node: node.pop("chunk_grid"),
    "transformer": lambda node: node.update(storage_transformers=[{"name": "x"}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_is_refused_by_both_doors(store, name, monkeypatch):
    alter(store, HOSTILE[name])
    monkeypatch.setattr(zarr, "open_array", lambda *_, **__: pytest.fail("zarr saw a store that was not checked"))
    for door in (open_arrays, open_user_arrays):
        with pytest.raises(CorruptDataError) as caught:
            door(store)
        assert caught.value.exit_code == 65
        assert "\n" not in str(caught.value)


CHANGING = {
    **{"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -9999, "missing_value": -1, "_Unsigned": "true"},
    **{
        "scale": 2.0,
        "Offset": 1.0,
        "SCALE_FACTOR": 0.5,
        "nodata": 0,
        "valid_range": [0, 9],
        "units": "days since 1970-01-01",
        "_FillValue in base64": "AAAAAACIw8A=",
    },
}
HARMLESS: dict[str, Any] = {"units": "K", "scale_factor": 1.0, "offset": 0, "long_name": "pressure"}
HARMLESS |= {"_FillValue": "NaN", "missing_value": "AAAAAAAA+H8="}


@pytest.mark.parametrize("name", CHANGING)
def test_attributes_that_change_values_are_refused(tmp_path, name):
    array = zarr.create_array(str(tmp_path / "X.zarr"), data=VALUES)
    array.update_attributes(HARMLESS)
    np.testing.assert_array_equal(open_user_arrays(tmp_path / "X.zarr")[""][:], VALUES)
    array.update_attributes({name.split()[0]: CHANGING[name]})
    with pytest.raises(CorruptDataError, match=f"its attribute {name.split()[0]} .*without the attribute"):
        open_user_arrays(tmp_path / "X.zarr")


@pytest.mark.filterwarnings("ignore:The data type")  # of words, which zarr has no specification of
@pytest.mark.parametrize("dtype", ["<U2", "S2", str])
def test_words_are_refused_with_the_numpy_that_numbers_them(dtype, tmp_path):
    zarr.create_array(str(tmp_path / "y.zarr"), shape=(2,), dtype=dtype)[:] = np.array(["a", "b"], dtype)
    with pytest.raises(CorruptDataError, match=r"dtype '[a-z0-9_]+' is not .*; number its words, alike in all parts"):
        open_user_arrays(tmp_path / "y.zarr")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", "{}", "[" * 100_000, '{"zarr_format": 3}', "\xff\x00"])
@pytest.mark.parametrize("node", ["zarr.json", "X/zarr.json"])
def test_garbage_metadata(store, text, node):
    (store / node).write_bytes(text.encode("latin-1"))
    for door in (open_arrays, open_user_arrays):
        with pytest.raises(CorruptDataError):
            door(store)


def test_a_v2_store_is_refused_without_looking_at_its_filters(store, tmp_path):
    """Also an array of one inside a group of v3."""
    (store / "evil").mkdir()
    (store / "evil" / ".zarray").write_text("{}")
    root = tmp_path / "v2.zarr"
    group = zarr.create_group(str(root), zarr_format=2)
    group.create_array("X", shape=(4,), chunks=(2,), dtype="int32")[:] = 1
    for path in (root, root / "X", store):
        for door in (open_arrays, open_user_arrays):
            with pytest.raises(CorruptDataError, match="v2"):
                door(path)


def test_a_linked_array_is_not_followed(store, tmp_path):
    create_arrays(tmp_path / "b.zarr", [], {})
    (tmp_path / "b.zarr" / "X").symlink_to(store / "X")
    assert list(open_arrays(tmp_path / "b.zarr")) == []


def test_a_store_that_does_not_exist_or_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    for door in (open_arrays, open_user_arrays):
        for name in ("file", "none"):
            with pytest.raises(MissingDataError) as caught:
                door(tmp_path / name)
            assert caught.value.exit_code == 66


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["zarr.json", "X/zarr.json", "X/c/0/0"])
@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_pipes_and_devices_in_a_store_are_not_opened(store, tmp_path, name, target):
    os.mkfifo(tmp_path / "pipe")
    (store / name).unlink()
    (store / name).symlink_to(tmp_path / target)
    with pytest.raises(CorruptDataError, match=name):
        open_user_arrays(store)["X"][0:4]
    with pytest.raises(CorruptDataError, match=name):
        open_arrays(store)["X"][:4]
