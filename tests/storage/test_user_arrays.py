"""Arrays written by other people: read as zarr reads them; a chunk that is missing or lies is an error, never zeros."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import zstd
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from storage.errors import CorruptDataError
from storage.user_arrays import open_user_arrays

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
def test_slices(tmp_path: Path, codecs: str, separator: str, order: tuple[int, int], dtype: str) -> None:
    keys = {"name": "default", "separator": separator}
    transposed = {"chunk_key_encoding": keys, "filters": [TransposeCodec(order=order)]}
    root = foreign(tmp_path / "u.zarr", VALUES.astype(dtype), COMPRESSORS[codecs], **transposed)
    arrays = open_user_arrays(root)
    assert sorted(arrays) == ["train/X", "train/y"]
    X = arrays["train/X"]
    assert (X.shape, X.dtype, len(X)) == ((21, 7), np.dtype("float32"), 21)
    for rows in (slice(None), slice(3, 9), slice(20, 21), slice(5, 5), slice(7, 2), slice(-4, None)):
        np.testing.assert_array_equal(X[rows], VALUES[rows])
    np.testing.assert_array_equal(arrays["train/y"][2:19], np.arange(2, 19))
    for other in (slice(0, 9, 2), [21], [-1], [0.5], 3):
        with pytest.raises(ValueError, match="train/X"):
            X[other]


def test_every_missing_chunk_is_an_error(tmp_path: Path) -> None:
    root = foreign(tmp_path / "u.zarr")
    X = open_user_arrays(root)["train/X"]
    chunks = sorted(path for path in (root / "train/X/c").rglob("*") if path.is_file())
    assert len(chunks) == 6 * 3
    for path in chunks:
        content = path.read_bytes()
        path.unlink()
        first = 4 * int(path.parent.name)
        for rows in (slice(None), slice(first, first + 1)):
            with pytest.raises(CorruptDataError, match=f"array train/X, .*{path.relative_to(root)}: is missing"):
                X[rows]
        path.write_bytes(content)
    np.testing.assert_array_equal(X[:], VALUES)


def test_chunks_left_out_as_empty_are_refused_with_advice(tmp_path: Path) -> None:
    array = zarr.create_array(
        str(tmp_path / "e.zarr"), shape=(8,), chunks=(4,), dtype="int32", zarr_format=3, fill_value=0,
        config={"write_empty_chunks": False},
    )  # fmt: skip
    array[:] = [0, 0, 0, 0, 1, 2, 3, 4]
    lone = open_user_arrays(tmp_path / "e.zarr")
    assert list(lone) == [""]
    np.testing.assert_array_equal(lone[""][4:], [1, 2, 3, 4])
    with pytest.raises(CorruptDataError, match="write_empty_chunks"):
        lone[""][:]


@pytest.mark.parametrize("codecs", COMPRESSORS)
def test_a_truncated_chunk_is_an_error(tmp_path: Path, codecs: str) -> None:
    root = foreign(tmp_path / "u.zarr", codecs=COMPRESSORS[codecs])
    path = root / "train/X/c/1/2"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptDataError, match="train/X"):
        open_user_arrays(root)["train/X"][:]


ONES = np.ones((16, 3))
N_BYTES = 16 * 3 * 8


def with_chunk(root: Path, codecs: list[Any], content: bytes) -> Path:
    """Write an array of one chunk, and something else into the file of that chunk."""
    foreign(root, ONES, codecs, ONES.shape)
    (root / "train/X/c/0/0").write_bytes(content)
    return root


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
def test_a_chunk_that_is_not_what_shape_and_dtype_say(name: str, tmp_path: Path) -> None:
    root = with_chunk(tmp_path / "a.zarr", *LIES[name])
    with pytest.raises(CorruptDataError, match="X/c/0/0") as caught:
        open_user_arrays(root)["train/X"][:]
    assert "\n" not in str(caught.value)


def test_a_promise_far_beyond_the_bytes_is_not_believed(tmp_path: Path) -> None:
    """Chunks that are honest, each for itself, and together more than a row of sensible data."""
    root = foreign(tmp_path / "a.zarr", np.zeros((1, 9), "uint8"), chunks=(1, 1))
    node = json.loads((root / "train/X/zarr.json").read_text())
    node["chunk_grid"]["configuration"]["chunk_shape"] = [2**24, 1]
    (root / "train/X/zarr.json").write_text(json.dumps(node))
    for column in range(9):
        (root / f"train/X/c/0/{column}").write_bytes(zstd.compress(bytes(2**24)))
    with pytest.raises(CorruptDataError, match="promise 150994944 bytes"):
        open_user_arrays(root)["train/X"][0:1]
