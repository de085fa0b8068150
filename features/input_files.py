"""Opening the files of the user, plain ones only: a device has no end, and a pipe waits for a writer."""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from features.errors import DataError

# Deflate reaches 1032:1, data do not: MNIST is 4.7:1 and 60 000 sorted labels are about 500:1. So a small promise is
# always believed, and a large one only where the compressed bytes make it plausible; 1 GiB of zeros is refused.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
PACKED_SUFFIXES = (".gz", ".zst")


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading, by way of links if there are any; nothing else is waited for.

    Raises DataError for a pipe, a device or a socket, OSError where it is not there, a folder, or cannot be opened.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` refuses a folder
        raise DataError(f"{path}: is a pipe, a device or a socket; name a plain file")
    return path.open("rb")


def check_promise(path: Path, promised: int) -> None:
    """Raise DataError where a file says that it holds more bytes, or cells, than its size makes plausible."""
    size = path.stat().st_size
    if promised > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size):
        raise DataError(
            f"{path}: promises {promised} bytes or cells from {size} bytes, more than a hundredfold; save it without "
            "compression and dictionaries"
        )


class Unpacked(Protocol):
    """A stream of bytes, read front to back."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most so many; none at the end."""


@contextmanager
def open_unpacked(path: Path) -> Iterator[Unpacked]:
    """Open a plain file to read what it holds front to back; that of a name in .gz or .zst is unpacked meanwhile.

    Such a file is unpacked once before, to its checksums: DataError where it is damaged, or holds more than its size
    makes believable, comes before anything that its lines could be blamed for.
    """
    if path.suffix.lower() not in PACKED_SUFFIXES:
        with open_plain(path) as stream:
            yield stream
        return
    with open_plain(path) as stream:
        status = os.fstat(stream.fileno())
        known = (str(path), status.st_size, status.st_mtime_ns)
        if known not in _checked:
            for _ in _pieces(stream, path):
                pass
            _checked.add(known)
    with open_plain(path) as stream:
        yield _Joined(_pieces(stream, path))


_checked = set[tuple[str, int, int]]()  # packed files that this process has read to their ends


class _Joined:
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int, /) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _pieces(packed: BufferedReader, path: Path) -> Iterator[bytes]:
    """Yield what a packed file holds, as far as its size makes it believable: numbers do not pack a hundredfold."""
    left = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * os.fstat(packed.fileno()).st_size)
    kind = "gzip" if path.suffix.lower() == ".gz" else "zstd"
    try:
        stream = gzip.GzipFile(fileobj=packed) if kind == "gzip" else _zstd(packed)
        while piece := stream.read(_PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                raise DataError(f"{path}: unpacks to more than {MAX_EXPANSION} times its size; give it unpacked")
            yield piece
    except (gzip.BadGzipFile, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path}: damaged {kind} file ({error})") from error


def _zstd(packed: BufferedReader) -> Unpacked:
    import pyarrow  # takes 0.1 s, and images need none

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, mode="r"), "zstd")
