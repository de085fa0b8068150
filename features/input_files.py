"""Opening the files of the user, plain ones only: a device has no end, and a pipe waits for a writer."""

import errno
import gzip
import os
import stat
import zlib
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from features.errors import DataError

# Deflate reaches 1032:1, data do not: MNIST is 4.7:1 and 60 000 sorted labels are about 500:1. So a small promise is
# always believed, and a large one only where the compressed bytes make it plausible; 1 GiB of zeros is refused.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading, by way of links if there are any; nothing else is waited for.

    Raises DataError for a pipe, a device or a socket, OSError where it is not there, a folder, or cannot be opened.
    """
    return open(path, "rb", opener=_open_plain)


def _open_plain(name: str, flags: int) -> int:
    not_plain = DataError(f"{name}: is a pipe, a device or a socket; name a plain file")
    try:
        descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise not_plain if error.errno == errno.ENXIO else error from None  # a socket
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder is refused by whoever called us
        os.close(descriptor)
        raise not_plain
    return descriptor


def open_plain_text(path: Path) -> TextIOWrapper:
    """Open a plain file of UTF-8 text, with or without a byte order mark, line ends as they are; see `open_plain`.

    That of a name in .gz is unpacked while it is read, and once before, to its checksum: DataError where it is damaged
    or a bomb comes before anything that its lines could be blamed for.
    """
    stream = open_plain(path)
    if path.suffix.lower() != ".gz":
        return TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    return TextIOWrapper(_Unpacked(stream, path), encoding="utf-8-sig", newline="")


class _Unpacked(gzip.GzipFile):
    """What a gzip file holds, as far as its size on the disk makes it believable: numbers do not pack a hundredfold."""

    def __init__(self, packed: BufferedReader, path: Path) -> None:
        super().__init__(fileobj=packed)
        self._packed, self._path = packed, path
        self._most = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * os.fstat(packed.fileno()).st_size)
        self._left = self._most
        try:
            while self.read1(_PIECE_BYTES):
                pass  # to the end, where the checksum is
        except DataError:
            self.close()
            raise
        self.seek(0)
        self._left = self._most

    def read1(self, size: int = -1) -> bytes:
        try:
            piece = super().read1(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{self._path}: damaged gzip file ({error})") from error
        self._left -= len(piece)
        if self._left < 0:
            raise DataError(f"{self._path}: unpacks to more than {MAX_EXPANSION} times its size; give it unpacked")
        return piece

    def close(self) -> None:
        super().close()
        self._packed.close()
