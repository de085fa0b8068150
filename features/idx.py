"""Bounded reader of IDX files (the format of MNIST), raw or gzip.

An IDX file is big-endian: two zero bytes, a type (0x08 = unsigned byte, the only one read here), the number
of dimensions, one uint32 per dimension, then the bytes in C order. The header is an unverified claim: it is
compared with the size of the file before any array is allocated, and a gzip stream is inflated in pieces that
never exceed `PIECE_BYTES`.
"""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from features.errors import DataError, MissingInputError
from features.input_files import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION, open_plain

PIECE_BYTES = 1 << 16


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
        with open_plain(path) as stream:
            return parse_idx(stream, n_dimensions, path.name)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingInputError(f"{path}: no such file; expected an IDX file") from error


def parse_idx(stream: BinaryIO, n_dimensions: int, name: str) -> np.ndarray:
    """Read an IDX array from an open file positioned at its start; see `read_idx`.

    `name` is what error messages call the file.
    """
    compressed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    if not compressed:
        return _read_array(stream, stream, n_dimensions, name)
    try:
        with gzip.GzipFile(fileobj=stream) as inflated:
            return _read_array(stream, inflated, n_dimensions, name)
    except EOFError as error:
        raise DataError(f"{name}: the gzip stream is cut short") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: damaged gzip stream, or bytes after its end ({error})") from error


def _read_array(file: BinaryIO, content: BinaryIO | gzip.GzipFile, n_dimensions: int, name: str) -> np.ndarray:
    """Read header and values from `content`, which is the `file` itself or what it unfolds to; both end there."""
    header_bytes = 4 + 4 * n_dimensions
    header = content.read(header_bytes)
    if len(header) < header_bytes:
        raise DataError(f"{name}: ends inside its IDX header ({len(header)} of {header_bytes} bytes)")
    shape = _parse_header(header, n_dimensions, name)
    promised_bytes = math.prod(shape)
    _check_promise(promised_bytes, header_bytes, os.fstat(file.fileno()).st_size, content is not file, name)
    values = np.empty(promised_bytes, dtype=np.uint8)
    filled = 0
    while piece := content.read(PIECE_BYTES):
        if filled + len(piece) > promised_bytes:
            raise DataError(f"{name}: holds more than the {promised_bytes} bytes its IDX header promises")
        values[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        filled += len(piece)
    if filled != promised_bytes:
        raise DataError(f"{name}: its IDX header promises {promised_bytes} bytes, found {filled}")
    return values.reshape(shape)


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
