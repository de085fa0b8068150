"""Chunk files of our arrays: raw little-endian rows followed by their crc32c, read and written whole.

Files are read with plain preadv into their destination: no event loop, no second copy, the GIL free except
for the crc (0.3 ms a chunk). A missing file is damage, never zeros.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from storage.disk_writes import replacing
from storage.errors import CorruptDataError, UnavailableStoreError

CRC_BYTES = 4
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in place of a file must not hang us


def write_chunk(path: Path, data: NDArray[np.uint8]) -> str:
    """Write one chunk aside, fsync, rename; return the sha256 of the file. The caller fsyncs the folder.

    Parameters
    ----------
    data : array of uint8, C-contiguous, one dimension
        The decoded bytes of the whole chunk.
    """
    crc = google_crc32c.value(data).to_bytes(CRC_BYTES, "little")
    digest = hashlib.sha256(data.data)
    digest.update(crc)
    with replacing(path, data.nbytes + CRC_BYTES, sync_folder=False) as stream:
        stream.write(data.data)
        stream.write(crc)
    return digest.hexdigest()


class ChunkReader:
    """Read chunks of one array and name the array, the rows and the file in every error.

    Parameters
    ----------
    root : Path
        The store; file names are relative to it.
    array : str
        Path of the array in the store, for messages.
    chunk_bytes : int
        Decoded size of every chunk.
    digests : mapping of file name to sha256 (hex), optional
        When given, each file read must match it.
    matched : dict of file name to (sha256, crc32c), optional
        Files that have matched: they do so while their crc32c stays, since sha256 takes as long as reading.
    """

    def __init__(
        self,
        root: Path,
        array: str,
        chunk_bytes: int,
        digests: Mapping[str, str] | None = None,
        matched: dict[str, tuple[str, bytes]] | None = None,
    ) -> None:
        self.root = root
        self.array = array
        self.chunk_bytes = chunk_bytes
        self.digests = digests
        self.matched = {} if matched is None else matched

    def check_size(self, name: str, rows: tuple[int, int]) -> None:
        """Raise CorruptDataError unless the file is there, plain and of the right size."""
        try:
            self._check_status((self.root / name).stat(), name, rows)
        except OSError as error:
            raise self._unreadable(error, name, rows) from None

    def read(self, name: str, rows: tuple[int, int], out: NDArray[np.uint8]) -> None:
        """Fill `out` (chunk_bytes of uint8, contiguous) with the chunk and check crc32c, and sha256 if known, once.

        Raises
        ------
        CorruptDataError
            If the file is missing, of the wrong size, or its content does not match.
        UnavailableStoreError
            If the file system refuses.
        """
        trailer = bytearray(CRC_BYTES)
        try:
            descriptor = os.open(self.root / name, _FLAGS)
            try:
                self._check_status(os.fstat(descriptor), name, rows)
                self._fill(descriptor, out, trailer, name, rows)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(error, name, rows) from None
        if google_crc32c.value(out) != int.from_bytes(trailer, "little"):
            raise self._damage(name, rows, "its content does not match its crc32c")
        if self.digests is not None and self.matched.get(name) != (self.digests.get(name), bytes(trailer)):
            self._check_digest(name, rows, out, trailer)
            self.matched[name] = self.digests[name], bytes(trailer)

    def _fill(
        self, descriptor: int, out: NDArray[np.uint8], trailer: bytearray, name: str, rows: tuple[int, int]
    ) -> None:
        position = 0
        while position < self.chunk_bytes + CRC_BYTES:
            buffers = [out.data[position:], memoryview(trailer)[max(0, position - self.chunk_bytes) :]]
            count = os.preadv(descriptor, [buffer for buffer in buffers if len(buffer)], position)
            if count == 0:
                raise self._damage(name, rows, f"it ends after {position} bytes")
            position += count

    def _check_status(self, status: os.stat_result, name: str, rows: tuple[int, int]) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._damage(name, rows, "it is no plain file")
        if status.st_size != self.chunk_bytes + CRC_BYTES:
            raise self._damage(name, rows, f"{status.st_size} bytes, wanted {self.chunk_bytes + CRC_BYTES}")

    def _check_digest(self, name: str, rows: tuple[int, int], out: NDArray[np.uint8], trailer: bytearray) -> None:
        assert self.digests is not None
        digest = hashlib.sha256(out.data)
        digest.update(trailer)
        if name not in self.digests:
            raise self._damage(name, rows, "no digest was recorded for it: it was never committed")
        if digest.hexdigest() != self.digests[name]:
            raise self._damage(name, rows, "its content does not match its sha256")

    def _unreadable(self, error: OSError, name: str, rows: tuple[int, int]) -> Exception:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ELOOP):
            return self._damage(name, rows, "it is missing")
        path = str(self.root / name)
        return UnavailableStoreError(f"{path}: cannot be read ({error.strerror}); try again later", path=path)

    def _damage(self, name: str, rows: tuple[int, int], reason: str) -> CorruptDataError:
        return CorruptDataError(
            f"{self.root}: array {self.array}, rows {rows[0]}..{rows[1]}, chunk file {name}: {reason}; "
            "remove the store and build it again",
            array=self.array,
            block=rows,
            file=name,
        )
