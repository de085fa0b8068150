"""Bounded reader of IDX files (the format of MNIST), raw or gzip.

An IDX file is big-endian: two zero bytes, a type (0x08 = unsigned byte, the only one read here), the number
of dimensions, one uint32 per dimension, then the bytes in C order. The header is an unverified claim: it is
compared with the size of the file before any array is allocated, and a gzip stream is inflated in pieces that
never exceed `PIECE_BYTES`.
"""

import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from features.errors import DataError, MissingInputError

PIECE_BYTES = 1 << 16
# Deflate reaches 1032:1, pictures do not: MNIST is 4.7:1 and 60 000 sorted labels are about 500:1. So a small
# promise is always believed, and a large one only where the compressed bytes make it plausible; 1 GiB of
# zeros is refused.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 64 << 20


def read_idx(path: Path, n_dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes, raw or gzip (told by its first bytes, not by its name).

    Parameters
    ----------
    path : Path
        The file.
    n_dimensions : int
        Expected number of dimensions: 3 for images, 1 for labels.

    Returns
    -------
    numpy.ndarray
        uint8, with the shape of the header. Memory: the array and 128 KiB.

    Raises
    ------
    MissingInputError
        There is no such file.
    DataError
        Wrong magic, a header that does not agree with the file's size, a stream that is shorter or longer
        than the header says, a damaged stream, or bytes after its end.
    """
    try:
        with path.open("rb") as stream:
            return parse_idx(stream, n_dimensions, path.name)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingInputError(f"{path}: no such file; expected an IDX file") from error


def parse_idx(stream: BinaryIO, n_dimensions: int, name: str) -> np.ndarray:
    """Read an IDX array from an open file positioned at its start; see `read_idx`.

    `name` is what error messages call the file.
    """
    size_bytes = os.fstat(stream.fileno()).st_size
    compressed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    pieces = _inflate(stream, name) if compressed else _raw(stream)
    header_bytes = 4 + 4 * n_dimensions
    head = b""
    while len(head) < header_bytes:
        piece = next(pieces, b"")
        if not piece:
            raise DataError(f"{name}: ends inside its IDX header ({len(head)} of {header_bytes} bytes)")
        head += piece
    shape = _parse_header(head[:header_bytes], n_dimensions, name)
    promised_bytes = math.prod(shape)
    _check_promise(promised_bytes, header_bytes, size_bytes, compressed, name)
    return _fill(head[header_bytes:], pieces, promised_bytes, name).reshape(shape)


def _parse_header(header: bytes, n_dimensions: int, name: str) -> tuple[int, ...]:
    expected = bytes((0, 0, 8, n_dimensions))
    if header[:4] != expected:
        raise DataError(
            f"{name}: IDX magic is 0x{header[:4].hex()}, expected 0x{expected.hex()} "
            f"(unsigned bytes, {n_dimensions} dimension{'s' if n_dimensions > 1 else ''})"
        )
    shape = tuple(int.from_bytes(header[4 + 4 * k : 8 + 4 * k], "big") for k in range(n_dimensions))
    if 0 in shape:
        raise DataError(f"{name}: its IDX header says shape {shape}, which is empty")
    return shape


def _check_promise(promised_bytes: int, header_bytes: int, size_bytes: int, compressed: bool, name: str) -> None:
    if not compressed:
        if promised_bytes + header_bytes != size_bytes:
            raise DataError(
                f"{name}: its IDX header promises {promised_bytes} bytes, found {size_bytes - header_bytes}"
            )
        return
    limit_bytes = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size_bytes)
    if promised_bytes > limit_bytes:
        raise DataError(
            f"{name}: its IDX header promises {promised_bytes} bytes from {size_bytes} compressed ones, "
            f"more than the {limit_bytes} allowed; a file that large is to be unpacked first"
        )


def _fill(start: bytes, pieces: Iterator[bytes], promised_bytes: int, name: str) -> np.ndarray:
    """Copy pieces into one array of exactly the promised size; the stream must end where the array does."""
    values = np.empty(promised_bytes, dtype=np.uint8)
    filled = 0
    piece: bytes | None = start
    while piece is not None:
        if filled + len(piece) > promised_bytes:
            raise DataError(f"{name}: holds more than the {promised_bytes} bytes its IDX header promises")
        values[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        filled += len(piece)
        piece = next(pieces, None)
    if filled != promised_bytes:
        raise DataError(f"{name}: its IDX header promises {promised_bytes} bytes, found {filled}")
    return values


def _raw(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(PIECE_BYTES):
        yield piece


def _inflate(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield one gzip member inflated, at most `PIECE_BYTES` at a time; check its CRC and its end."""
    inflater = zlib.decompressobj(wbits=31)
    compressed = b""
    try:
        while not inflater.eof:
            compressed = compressed or stream.read(PIECE_BYTES)
            if not compressed:
                raise DataError(f"{name}: the gzip stream is cut short")
            piece = inflater.decompress(compressed, PIECE_BYTES)
            compressed = inflater.unconsumed_tail
            if piece:
                yield piece
    except zlib.error as error:
        raise DataError(f"{name}: damaged gzip stream ({error})") from error
    if inflater.unused_data or stream.read(1):
        raise DataError(f"{name}: bytes follow the end of the gzip stream")
