"""Arrays written by other people: read as zarr reads them, but a missing chunk is an error, never zeros."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from storage.errors import CorruptDataError
from storage.zarr_arrays import open_user_arrays

VALUES = np.random.default_rng(2).standard_normal((21, 7)).astype("float32")
CODECS = {
    "zstd": ZstdCodec(),
    "blosc": BloscCodec(),
    "gzip": GzipCodec(level=1),
    "crc32c": Crc32cCodec(),
}


def foreign(root: Path, codec: str = "zstd", chunks: tuple[int, int] = (4, 3), separator: str = "/") -> Path:
    group = zarr.create_group(str(root), zarr_format=3)
    options = {"compressors": [CODECS[codec]], "fill_value": 0, "config": {"write_empty_chunks": True}}
    group.create_array(
        "train/X", shape=VALUES.shape, dtype="float32", chunks=chunks,
        chunk_key_encoding={"name": "default", "separator": separator}, **options,
    )[:] = VALUES  # fmt: skip
    group.create_array("train/y", shape=(21,), dtype="uint16", chunks=(5,), **options)[:] = np.arange(21)
    return root


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("separator", ["/", "."])
def test_slices(tmp_path: Path, codec: str, separator: str) -> None:
    arrays = open_user_arrays(foreign(tmp_path / "u.zarr", codec, separator=separator))
    assert sorted(arrays) == ["train/X", "train/y"]
    X = arrays["train/X"]
    assert (X.shape, X.dtype, X.ndim, len(X)) == ((21, 7), np.dtype("float32"), 2, 21)
    for rows in (slice(None), slice(3, 9), slice(20, 21), slice(5, 5), slice(7, 2), slice(-4, None)):
        np.testing.assert_array_equal(X[rows], VALUES[rows])
    np.testing.assert_array_equal(arrays["train/y"][2:19], np.arange(2, 19))


@pytest.mark.parametrize("rows", [slice(0, 9, 2), [21], [-1], [0.5], 3])
def test_other_indices_are_refused(tmp_path: Path, rows: object) -> None:
    with pytest.raises(ValueError, match="train/X"):
        open_user_arrays(foreign(tmp_path / "u.zarr"))["train/X"][rows]


def test_every_missing_chunk_is_an_error(tmp_path: Path) -> None:
    root = foreign(tmp_path / "u.zarr")
    X = open_user_arrays(root)["train/X"]
    chunks = sorted(path for path in (root / "train/X/c").rglob("*") if path.is_file())
    assert len(chunks) == 6 * 3
    for path in chunks:
        content = path.read_bytes()
        path.unlink()
        first = 4 * int(path.parent.name)
        name = path.relative_to(root).as_posix()
        for rows in (slice(None), slice(first, first + 1)):
            with pytest.raises(CorruptDataError, match="missing") as caught:
                X[rows]
            assert (caught.value.array, caught.value.file) == ("train/X", name)
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


@pytest.mark.parametrize("codec", CODECS)
def test_a_truncated_chunk_is_an_error(tmp_path: Path, codec: str) -> None:
    root = foreign(tmp_path / "u.zarr", codec)
    path = root / "train/X/c/1/2"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptDataError, match="train/X"):
        open_user_arrays(root)["train/X"][:]
