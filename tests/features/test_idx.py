"""Files that keep their promises, and files that do not."""

import gzip
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from features.errors import DataError, MissingInputError
from features.images import IDX_FILES, PIECE_BYTES, read_idx
from sources import ZEROS, idx_bytes, refused_in_little_memory


def refused(tmp_path, content, message):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, 3)
    assert "\n" not in str(caught.value)
    assert "images" in str(caught.value)


@example([3 * PIECE_BYTES + 5], True, 0)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=3), st.booleans(), st.integers(0, 1000))
def test_reads_what_was_written(tmp_path_factory, shape, compressed, seed):
    values = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    content = idx_bytes(values)
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert np.array_equal(read_idx(path, len(shape)), values)


VALUES = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)


FAULTS = {
    "wrong magic": (idx_bytes(VALUES, magic=b"\0\0\x0d\x03"), "magic"),
    "labels where images are expected": (idx_bytes(VALUES.reshape(-1)), "magic"),
    "a promise too long": (idx_bytes(VALUES, shape=(4, 4, 5)), "promises 80 bytes, found 60"),
    "a promise too short": (idx_bytes(VALUES, shape=(2, 4, 5)), "40 bytes"),
    "an absurd promise": (idx_bytes(VALUES, shape=(2**32 - 1,) * 3), "promises"),
    "an empty array": (idx_bytes(VALUES[:0]), "empty"),
    "cut in the header": (idx_bytes(VALUES)[:9], "header"),
    "no bytes": (b"", "header"),
}


@pytest.mark.parametrize("wrap", [bytes, gzip.compress], ids=["raw", "gzip"])
@pytest.mark.parametrize("fault", FAULTS)
def test_refuses_what_is_not_as_its_header_says(tmp_path, fault, wrap):
    content, message = FAULTS[fault]
    refused(tmp_path, wrap(content), message)


def test_refuses_a_missing_file_every_truncation_of_gzip_a_flipped_bit_and_bytes_after_the_stream(tmp_path):
    with pytest.raises(MissingInputError, match="images"):
        read_idx(tmp_path / "images", 3)
    whole = gzip.compress(idx_bytes(VALUES))
    for length in range(2, len(whole)):
        refused(tmp_path, whole[:length], "cut short|header")
    content = bytearray(gzip.compress(idx_bytes(VALUES), compresslevel=0))
    content[-20] ^= 1
    refused(tmp_path, bytes(content), "damaged gzip")
    for tail in (b"garbage", gzip.compress(b"more", mtime=0)):
        refused(tmp_path, whole + tail, "after its end|more than")


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets RLIMIT_AS")
@pytest.mark.parametrize(
    "shape",
    [(1 << 28, 1, 1), (2, 28, 28), (2**32 - 1, 2**16, 2**16), None],
    ids=["honest", "small promise", "huge promise", "no header"],
)
def test_a_bomb_is_refused_in_little_memory(tmp_path, shape):
    for name in IDX_FILES:
        (tmp_path / name).touch()
    bomb = tmp_path / "train-images-idx3-ubyte"
    with gzip.open(bomb, "wb", 1) as stream:
        stream.write(b"" if shape is None else idx_bytes(np.empty(0), shape))
        for _ in range(ZEROS >> 20):
            stream.write(bytes(1 << 20))
    assert bomb.stat().st_size < 2 << 20
    assert bomb.name in refused_in_little_memory(tmp_path)
