"""Single files and folders on the disk: write aside, fsync, rename, fsync the folder.

Every change of the disk by this package goes through the `low_*` functions below, called as `disk.low_*`, so
that a test can record, break or replay them. Only
the text in a lock file, on which nothing depends, does not.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import CannotWriteError

TEMPORARY_PREFIX = ".tmp-"
_CAUSES = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "read-only file system",
    errno.EIO: "input/output error of the device",
}


def low_create(path: Path) -> int:
    """Create and open a new file for writing; return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def low_write(descriptor: int, path: Path, data: Any) -> int:
    """Write at the current position; return the number of bytes taken, which may be fewer than offered."""
    return os.write(descriptor, data)


def low_fsync(descriptor: int, path: Path) -> None:
    """Bring the file or folder behind `descriptor` to the disk."""
    os.fsync(descriptor)


def low_rename(source: Path, target: Path) -> None:
    """Rename within one file system, replacing a file or an empty folder."""
    source.rename(target)


def low_mkdir(path: Path) -> None:
    """Create one folder."""
    path.mkdir()


def low_unlink(path: Path) -> None:
    """Remove one file."""
    path.unlink()


def low_remove_tree(path: Path) -> None:
    """Remove a folder and all in it."""
    shutil.rmtree(path)


class _AsideFile(io.RawIOBase):
    """A seekable binary stream over `low_create` and `low_write`, for writers that want a file object."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.descriptor = low_create(path)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self.descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        position = 0
        while position < len(view):
            position += low_write(self.descriptor, self.path, view[position:])
        return position

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self.descriptor)


def cannot_write(path: Path, error: OSError, wanted_bytes: int | None = None) -> CannotWriteError:
    """Turn an OSError met while writing `path` into the error that names path, bytes and cause."""
    cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
    size = "" if wanted_bytes is None else f" {wanted_bytes} bytes"
    advice = "free some space or choose another folder" if "disk" in cause else "choose a folder you can write to"
    return CannotWriteError(
        f"{path}: cannot write{size}: {cause}; {advice}",
        path=str(path),
        wanted_bytes=wanted_bytes,
        cause=cause,
    )


@contextlib.contextmanager
def replacing(
    path: Path, wanted_bytes: int | None = None, *, sync_folder: bool = True, sync_file: bool = True
) -> Iterator[_AsideFile]:
    """Yield a stream whose content becomes `path` in one step at the end; on any error nothing changes.

    `sync_folder=False` leaves the fsync of the folder to the caller, who must do it before claiming
    completion; `sync_file=False` is for what may be lost with the power, but never be half there after a kill.

    Raises
    ------
    CannotWriteError
        Naming path, bytes wanted and cause.
    """
    aside = temporary_path(path)
    try:
        stream = _AsideFile(aside)
        try:
            with stream:
                yield stream
                if sync_file:
                    low_fsync(stream.descriptor, aside)
            low_rename(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                low_unlink(aside)
            raise
        if sync_folder:
            fsync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error, wanted_bytes) from error


def temporary_path(path: Path) -> Path:
    """Return a fresh `.tmp-*` name beside `path`."""
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name[:200]}-{secrets.token_hex(8)}")


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file durably, replacing an older one in one step.

    Raises
    ------
    CannotWriteError
        Naming path, bytes wanted and cause; the older file, if any, is untouched.
    """
    with replacing(path, len(data)) as stream:
        stream.write(data)


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably; one that exists is fine.

    Raises
    ------
    CannotWriteError
        Naming the folder and the cause.
    """
    missing = []
    current = path
    try:
        while not current.exists():
            missing.append(current)
            current = current.parent
        if not current.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process may be as quick
                low_mkdir(folder)
            fsync_folder(folder.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def fsync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        low_fsync(descriptor, path)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Bring every file and folder below `root`, and `root` itself, to the disk. Raises OSError."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in sorted(names):
            path = Path(folder, name)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                low_fsync(descriptor, path)
            finally:
                os.close(descriptor)
        fsync_folder(Path(folder))
