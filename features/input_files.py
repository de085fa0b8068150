"""Opening the files of the user, plain ones only: a device has no end, and a pipe waits for a writer."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Any, NoReturn

from features.errors import DataError, UnavailableError

_PIECE_BYTES = 1 << 20
PACKED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}  # and what Arrow calls them
_SURROGATES = re.compile("[\\ud800-\\udfff]")  # which stand for bytes of a name that are no UTF-8


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading, by way of links if there are any; nothing else is waited for.

    Raises DataError for a pipe, a device or a socket, OSError where it is not there, a folder, or cannot be opened. Its
    reads raise UnavailableError where the disk fails.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` refuses a folder
        raise DataError(f"{path}: is a pipe, a device or a socket; name a plain file")
    return BufferedReader(_File(path))


class _File(FileIO):
    """A file whose disk may fail while it is read: an error that names it, and that no reader takes for damage."""

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise self._failure(error) from error

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> UnavailableError:
        advice = "see whether its disk is whole and connected, or use a copy elsewhere"
        return UnavailableError(f"{self.name}: cannot be read ({error.strerror}); {advice}")


def stamp(path: Path) -> tuple[str, int, int, int]:
    """Return what tells whether a file was written to since: path, size, times of its content and of its entry.

    Programs set the first time back, as `cp -p` and `tar` do, but not the second. Raises OSError.
    """
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield a folder and each below it, by way of links too, with the names of the folders and of the files in it.

    Folders that begin with . or _ are of other programs; the caller may take others off the list. Raises DataError for
    a link to a folder that is read anyhow, PermissionError for a folder that cannot be listed.
    """
    met = {parent: parent for parent in folder.resolve().parents}
    for name, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        path = Path(name)
        if other := met.get(path.resolve()):
            raise read_twice(path, other)
        met[path.resolve()] = path
        folders[:] = [one for one in folders if not one.startswith((".", "_"))]
        yield path, folders, files


def read_twice(path: Path, other: Path) -> DataError:
    """Return the error for two paths of one file or folder, which names the one that is, or is in, a link."""
    both = {*path.parents} & {*other.parents}
    apart = (one for one in (path, other, *path.parents, *other.parents) if one not in both)
    link = next(filter(Path.is_symlink, apart), path)
    real = other if path.is_relative_to(link) else path
    return DataError(f"{link}: is a link, by which {real} would be read twice; remove the link, not what it points to")


def _refuse(error: OSError) -> NoReturn:
    raise error


def check_text(folder: Path, names: Iterable[str]) -> None:
    """Raise DataError for a name of a file that is no UTF-8 text."""
    if bad := next(filter(_SURROGATES.search, names), None):
        raise DataError(f"{folder}: the name of {bad!r:.200} is no UTF-8 text; rename it")


def open_unpacked(path: Path) -> BufferedReader:
    """Open a plain file to read front to back; .gz and .zst are unpacked, and reads of damage raise DataError."""
    file = open_plain(path)
    return BufferedReader(_Unpacked(file, path), _PIECE_BYTES) if path.suffix.lower() in PACKED_SUFFIXES else file


class _Unpacked(RawIOBase):
    def __init__(self, packed: BufferedReader, path: Path) -> None:
        self._packed, self._path = packed, path
        import pyarrow  # takes 0.1 s, and images need none

        kind = PACKED_SUFFIXES[path.suffix.lower()]
        self._stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, mode="r"), kind)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except OSError as error:
            packed = self._path.suffix.lower()
            remedy = f"copy it again, or take {packed} off its name if it is not packed"
            raise DataError(f"{self._path}: damaged {packed} file ({error}); {remedy}") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._packed.close()
        super().close()
