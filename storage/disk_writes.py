"""Single files and folders on the disk: write aside, fsync, rename, fsync the folder.

Every change of the disk by this package goes through the `low_*` functions below, called as `disk.low_*`, so
that a test can record, break or replay them. Only
the text in a lock file and the lines of a `LineFile`, on which nothing depends, do not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import CannotWriteError, StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The names under which things are written aside (tmp), or kept for the moment in which they are replaced (old). A file
# of somebody else may begin like ours: only what fits whole is ever touched.
_ASIDE = re.compile(r"\.(?P<kind>tmp|old)-(?P<name>.+)-[0-9a-f]{16}", re.DOTALL)
_SILLY_NAME = r"(.*/)?\.nfs[0-9a-f]+"  # what a network file system keeps of a file that was removed while it was open
_STILL_OPEN = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)
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


def low_write(descriptor: int, path: Path, data: ReadableBuffer) -> int:
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
    """Remove a folder and all in it; what somebody has open and cannot go yet stays, and the folder with it.

    On a network file system (and on FUSE) a file that is open or mapped gets another name when it is removed, and stays
    in its folder until it is closed. Whoever sweeps later removes the rest. Raises OSError for any other reason.
    """
    failed: list[BaseException] = []
    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=lambda function, name, error: failed.append(error))
    else:
        shutil.rmtree(path, onerror=lambda function, name, raised: failed.append(raised[1]))
    for error in failed:
        if not (isinstance(error, OSError) and error.errno in _STILL_OPEN):
            raise error


class _AsideFile(io.RawIOBase):
    """A seekable binary stream over `low_create` and `low_write`, for writers that want a file object.

    Opened by the caller: an object whose file cannot be created would be closed all the same when it is collected.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__()
        self.path = path
        self.descriptor = descriptor

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self.descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)

    def write(self, data: ReadableBuffer) -> int:
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
        stream = _AsideFile(aside, low_create(aside))
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


@dataclass(frozen=True)
class FolderForm:
    """What lies in a folder of ours that is an output: the names of all that does, and what else may, as a pattern.

    is_one: tells whether a folder that has these names is such an output; any error over what it reads means no.
    """

    called: str
    names: tuple[str, ...]
    is_one: Callable[[Path], bool]
    others: str = ""


def check_output(path: Path, form: FolderForm | None = None, *, replace: bool | None) -> None:
    """Raise CannotWriteError where an output would take the place of what is not wholly of its form.

    form: of an output that is a folder. Without `replace` nothing is replaced; None: nor could it be.
    """
    if not (path.exists() or path.is_symlink()):
        return
    if form is None and path.is_dir() and replace is not None:
        raise refusal(path, "is a folder; choose another name")
    if not replace:
        raise refusal(path, "exists; choose another name" + (", or --force to replace it" if replace is False else ""))
    if form is None:
        return
    if path.is_symlink() or not all((path / name).is_file() for name in form.names) or not _is_one(path, form):
        raise refusal(path, f"exists and is no {form.called}; choose another name")
    parents = {str(parent) for name in form.names for parent in Path(name).parents}
    for entry in sorted(path.rglob("*")):
        name = entry.relative_to(path).as_posix()
        if name not in {*form.names, *parents} and not re.fullmatch(f"{form.others}|{_SILLY_NAME}", name):
            raise refusal(
                path, f"holds {name}, which is no part of a {form.called}; move it away, or choose another name"
            )


def _is_one(path: Path, form: FolderForm) -> bool:
    try:
        return form.is_one(path)
    except (LookupError, TypeError, AttributeError, StorageError):
        return False


def refusal(path: Path, reason: str) -> CannotWriteError:
    """Return the error that says why an output is not written."""
    return CannotWriteError(f"{path}: {reason}", path=str(path), cause="refused")


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Tell `sweep_output` that somebody writes to what is open here, which is closed at the end."""
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Aside:
    """What a name of ours says: `name` is what the thing is, or was, to be called; `replaced` if it was there before.

    The name of what is written aside ends after 200 characters.
    """

    name: str
    replaced: bool


def temporary_path(path: Path) -> Path:
    """Return a fresh name beside `path` to write it under, see `aside_of`."""
    return path.with_name(f".tmp-{path.name[:200]}-{secrets.token_hex(8)}")


def replaced_path(path: Path) -> Path:
    """Return the name beside `path` to keep it under while another thing takes its place, see `aside_of`.

    There is one for each `path`: of two, nobody could tell after a power loss which of them is whole.
    """
    return path.with_name(f".old-{path.name}-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}")


def aside_of(name: str) -> Aside | None:
    """Return what a file name of `temporary_path` or `replaced_path` says; None for any other name."""
    parts = _ASIDE.fullmatch(name)
    if parts is None or (parts["kind"] == "old" and replaced_path(Path(parts["name"])).name != name):
        return None
    return Aside(parts["name"], parts["kind"] == "old")


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file durably, replacing an older one in one step.

    Raises
    ------
    CannotWriteError
        Naming path, bytes wanted and cause; the older file, if any, is untouched.
    """
    with replacing(path, len(data)) as stream:
        stream.write(data)


class LineFile:
    """A file of lines that is appended to, each line as it comes: nothing waits in a buffer for a later write.

    A last line that a kill cut off is removed when it is opened. Raises CannotWriteError.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        try:
            self._stream = path.open("wb" if fresh else "ab", buffering=0)
            data = b"" if fresh else path.read_bytes()
            self._size = data.rfind(b"\n") + 1
            if self._size < len(data):
                self._stream.truncate(self._size)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, line: str) -> None:
        """Write one line; on any error the file is as before. Raises CannotWriteError naming the file and the bytes."""
        data = line.encode() + b"\n"
        try:
            position = 0
            while position < len(data):
                position += self._stream.write(data[position:]) or 0
        except OSError as error:
            with contextlib.suppress(OSError):
                self._stream.truncate(self._size)
            raise cannot_write(self.path, error, len(data)) from error
        self._size += len(data)

    def close(self) -> None:
        """Close the file; there is nothing left to write."""
        with contextlib.suppress(OSError):
            self._stream.close()


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
