"""Chunk files: what was written is read, and whatever else is there is damage that names its rows and its file."""

import hashlib
import os
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from storage.chunks import ChunkReader, write_chunk
from storage.errors import CorruptDataError

DATA = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
ROWS = (40, 50)


@pytest.fixture
def digest(tmp_path: Path) -> str:
    """Of the one chunk in the folder."""
    return write_chunk(tmp_path / "chunk", DATA)


def read(folder: Path, digests: dict[str, str] | None = None) -> np.ndarray:
    out = np.zeros(1000, np.uint8)
    ChunkReader(folder, "train/X", 1000, digests).read("chunk", ROWS, out)
    return out


def test_a_chunk_is_its_bytes_and_their_crc(tmp_path: Path, digest: str) -> None:
    content = (tmp_path / "chunk").read_bytes()
    assert content == DATA.tobytes() + google_crc32c.value(DATA.tobytes()).to_bytes(4, "little")
    assert digest == hashlib.sha256(content).hexdigest()
    np.testing.assert_array_equal(read(tmp_path), DATA)
    np.testing.assert_array_equal(read(tmp_path, {"chunk": digest}), DATA)


@pytest.mark.parametrize("place", [0, 500, 999, 1000, 1003])
def test_a_bit_that_is_another_is_seen(tmp_path: Path, digest: str, place: int) -> None:
    content = bytearray((tmp_path / "chunk").read_bytes())
    content[place] ^= 1
    (tmp_path / "chunk").write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"crc32c") as caught:
        read(tmp_path)
    for words in (str(tmp_path), "array train/X", "rows 40..50", "file chunk"):
        assert words in str(caught.value)


@pytest.mark.parametrize("size", [0, 1003, 1005])
def test_a_file_of_another_size_is_damage_before_it_is_read(tmp_path: Path, digest: str, size: int) -> None:
    os.truncate(tmp_path / "chunk", size)
    with pytest.raises(CorruptDataError, match=str(size)):
        ChunkReader(tmp_path, "train/X", 1000).check_size("chunk", ROWS)
    with pytest.raises(CorruptDataError, match=str(size)):
        read(tmp_path)


def test_another_whole_chunk_in_its_place_is_told_by_the_digest(tmp_path: Path, digest: str) -> None:
    write_chunk(tmp_path / "chunk", DATA[::-1].copy())
    read(tmp_path)
    with pytest.raises(CorruptDataError, match="sha256"):
        read(tmp_path, {"chunk": digest})


def test_what_is_no_file_is_damage_and_never_zeros(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="chunk"):
        read(tmp_path)
    os.mkfifo(tmp_path / "chunk")
    with pytest.raises(CorruptDataError, match="chunk"):
        read(tmp_path)
