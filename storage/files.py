"""Files: only plain ones are read; they are written whole or not at all (aside, fsync, rename, fsync of the folder).

JSON that programs read back is a record: it carries its own digest.

Every change of the disk by this package goes through the `low_*` functions, called as `files.low_*` from elsewhere, so
that a test can record, break or replay them. Only the text in a lock file and the lines of a `LineFile`, on which
nothing depends, do not.
"""

import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import CannotWriteError, CorruptDataError, MissingDataError, UnavailableStoreError, remedy_at

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Files are written and removed under such names. A file of somebody else may begin alike: only a full match is touched.
_ASIDE = re.compile(r"\.tmp-(?P<name>.+)-[0-9a-f]{16}", re.DOTALL)
_STILL_OPEN = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)
_CAUSES = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "read-only file system",
    errno.EIO: "input/output error of the device",
}
# Remedies where reading or writing reaches a limit of the process or of the system.
LIMITS = {
    errno.EFBIG: "allow larger files (ulimit -f), or choose another file system",
    errno.EMFILE: "allow more open files (ulimit -n), or take fewer workers",
    errno.ENFILE: "end programs that have many files open",
}
held_locks = dict[int, Path]()  # The files of the locks that this process holds, by descriptor.


def low_create(path: Path) -> int:
    """Create and open a new file for writing; return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def low_write(descriptor: int, path: Path, data: "ReadableBuffer") -> int:
    """Write at the current position; return the number of bytes taken, which may be fewer than offered."""
    return os.write(descriptor, data)


def low_fsync(descriptor: int, path: Path) -> None:
    """Bring the file or folder behind `descriptor` to the disk."""
    os.fsync(descriptor)


def low_link(source: Path, target: Path) -> None:
    """Give a file a second name, which must be free."""
    target.hardlink_to(source)


low_rename = Path.rename  # It stays in one file system, and replaces a file or an empty folder.
low_mkdir = Path.mkdir
low_unlink = Path.unlink


def low_remove_tree(path: Path) -> None:
    """Remove a folder and all in it, except open files, which a later sweep removes. Raises OSError.

    On a network file system (and on FUSE) such a file stays in its folder under another name until it is closed.
    """
    failed: list[BaseException] = []
    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=lambda function, name, error: failed.append(error))
    else:
        shutil.rmtree(path, onerror=lambda function, name, raised: failed.append(raised[1]))
    for error in failed:
        if not (isinstance(error, OSError) and error.errno in _STILL_OPEN):
            raise error


def open_plain(path: Path) -> io.BufferedReader:
    """Open a plain file for reading, through links if there are any; `features.input_files` does so for user data.

    Raises CorruptDataError where it is a pipe, a device or a socket, OSError where it is a folder or cannot be opened.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` refuses a folder.
        raise CorruptDataError(f"{path}: is a pipe, a device or a socket; name a plain file")
    return path.open("rb")


def open_own(path: Path, flags: int) -> int:
    """Open, or make, a file of ours that stays open for a while; return its descriptor, without waiting.

    Raises CorruptDataError where it is a link, a folder, a pipe, a device or a socket, OSError.
    """
    if path.is_symlink() or (not path.is_file() and path.exists()):
        raise CorruptDataError(f"{path}: is no plain file, as it was made; remove it")
    # A link or a pipe that takes its place this moment is not followed, and does not block.
    return os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def read_plain(path: Path) -> bytes:
    """Return the content of a plain file. Raises as `open_plain`."""
    with open_plain(path) as stream:
        return stream.read()


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError where it is no JSON, or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of reading `path` into MissingDataError, CorruptDataError or UnavailableStoreError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise MissingDataError(f"{path}: does not exist") from None
    except IsADirectoryError:
        raise CorruptDataError(f"{path}: is a folder; remove it") from None
    except OSError as error:
        raise cannot_read(path, error) from error


def cannot_read(path: Path, error: OSError) -> UnavailableStoreError:
    """Return the error that names path and cause."""
    disk = "see whether its disk is whole and connected, or restore a copy"
    advice = "get the rights for it" if isinstance(error, PermissionError) else LIMITS.get(error.errno or 0, disk)
    return UnavailableStoreError(f"{path}: cannot be read ({error.strerror}); {advice}")


@contextlib.contextmanager
def write_errors(path: Path, wanted_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError of writing `path` into CannotWriteError with path, bytes and cause; raise as `check_held`."""
    check_held(path)
    try:
        yield
    except OSError as error:
        cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
        size = "" if wanted_bytes is None else f" {wanted_bytes} bytes"
        space = "free some space or choose another folder" if "disk" in cause else "choose a folder you can write to"
        advice = LIMITS.get(error.errno or 0, space)
        raise CannotWriteError(f"{path}: cannot write{size}: {cause}; {advice}") from error


def check_held(path: Path) -> None:
    """Raise CannotWriteError where `path` is in a folder that this process has locked, and that was moved or removed.

    Another process may have made, and locked, a folder of its name since then.
    """
    for descriptor, lock in list(held_locks.items()):
        if path.is_relative_to(lock.parent):
            try:
                is_there = os.path.samestat(os.fstat(descriptor), lock.lstat())
            except OSError as error:  # The write itself reports other errors.
                is_there = error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
            if not is_there:
                what = lock.parent if lock.exists() or not lock.parent.exists() else lock
                fault = "was moved or removed while it was used; nothing was written since"
                raise CannotWriteError(f"{what}: {fault}; go on where it is now, or start again")


class _AsideFile(io.FileIO):
    """A new file, written with `low_write`, for writers that want a file object."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb", opener=lambda name, flags: low_create(path))
        self.path = path

    def write(self, data: "ReadableBuffer") -> int:
        view = memoryview(data).cast("B")
        position = 0
        while position < len(view):
            position += low_write(self.fileno(), self.path, view[position:])
        return position


@contextlib.contextmanager
def replacing(
    path: Path,
    wanted_bytes: int | None = None,
    *,
    replace: bool = True,
    sync_folder: bool = True,
    sync_file: bool = True,
) -> Iterator[_AsideFile]:
    """Yield a stream whose content becomes `path` in one step at the end; on any error nothing changes.

    Without `replace`, a file that others put there meanwhile stays. `sync_folder=False` leaves the fsync of the folder
    to the caller; `sync_file=False` is for files that may be lost with the power, but never be half there after a kill.
    Raises CannotWriteError naming path, bytes wanted and cause.
    """
    aside = temporary_path(path)
    with write_errors(path, wanted_bytes):
        stream = _AsideFile(aside)
        try:
            with stream:
                yield stream
                if sync_file:
                    low_fsync(stream.fileno(), aside)
            (low_rename if replace else _name_new)(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                low_unlink(aside)
            raise
        if sync_folder:
            fsync_folder(path.parent)


def _name_new(aside: Path, path: Path) -> None:
    """Rename a file to a free name. Raises CannotWriteError where it is taken, OSError."""
    try:
        low_link(aside, path)
    except OSError:  # The name is taken, or the file system has no links.
        if not os.path.lexists(path):
            low_rename(aside, path)
        elif not os.path.samestat(aside.lstat(), path.lstat()):  # A file server may link twice, and report the second.
            fault = "somebody else made it meanwhile, and it stays"
            raise CannotWriteError(f"{path}: {fault}; choose another name") from None
    with contextlib.suppress(OSError):  # The file has its name, and this one does no harm.
        low_unlink(aside)


def write_file(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a whole file durably, in one step. Raises CannotWriteError as `replacing`."""
    with replacing(path, len(data), replace=replace) as stream:
        stream.write(data)


def remove_file(path: Path) -> None:
    """Remove a file; one that does not exist is fine. Raises CannotWriteError."""
    with write_errors(path), contextlib.suppress(FileNotFoundError):
        low_unlink(path)


def rename_file(path: Path, target: Path) -> None:
    """Give a file another name on the same file system. Raises CannotWriteError."""
    with write_errors(path):
        low_rename(path, target)


def canonical_json(obj: object, indent: int | None = None) -> bytes:
    """Encode as JSON with one spelling per value: sorted keys, UTF-8, spaces only to indent; numpy scalars as numbers.

    Raises ValueError for NaN and infinities, TypeError for a value without a JSON form.
    """
    form: dict[str, Any] = {"indent": indent} if indent else {"separators": (",", ":")}
    return json.dumps(obj, sort_keys=True, ensure_ascii=False, allow_nan=False, default=plain_value, **form).encode()


def plain_value(obj: object) -> object:
    """Return a numpy scalar or a mapping as a JSON value. Raises TypeError for other values."""
    if getattr(obj, "ndim", None) == 0:  # A numpy scalar is told without an import of numpy.
        return obj.item()  # type: ignore[attr-defined]
    if isinstance(obj, Mapping):
        return dict(obj)
    raise TypeError(f"JSON: cannot store a {type(obj).__name__}")


def digest_of(obj: object) -> str:
    """Return the sha256 (hex) of the canonical JSON of `obj`."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def write_json(path: Path, obj: object) -> None:
    """Write JSON with sorted keys, durably, indented. Raises as `canonical_json`."""
    write_file(path, canonical_json(obj, indent=2) + b"\n")


def write_record(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON object that programs read back, with its digest under `digest`. Raises as `write_json`."""
    body = json.loads(canonical_json(body))  # JSON has lists and numbers for tuples and numpy scalars.
    write_json(path, {**body, "digest": digest_of(body)})


def read_record(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote, without its digest; layout and order of the text do not matter.

    Raises MissingDataError, UnavailableStoreError where it cannot be read, CorruptDataError where it is no JSON or does
    not match its digest.
    """
    try:
        with read_errors(path):
            body = parse_json(read_plain(path))
        if body.pop("digest") == digest_of(body):
            return dict(body)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):  # It is no object, or none of ours.
        pass
    raise CorruptDataError(f"{path}: not the record that was written; {remedy_at(path)}")


class LineFile:
    """A file of unbuffered lines; a last line that a kill cut off is removed at opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with write_errors(path):
            self._stream = io.FileIO(open_own(path, os.O_APPEND), "r+")
            with read_errors(path):
                data = self._stream.readall()
            self._size = data.rfind(b"\n") + 1
            if self._size < len(data):
                self._stream.truncate(self._size)

    def append(self, line: str) -> None:
        """Write one line; on any error the file is as before. Raises CannotWriteError naming the file and the bytes."""
        data = line.encode() + b"\n"
        with write_errors(self.path, len(data)):
            try:
                position = 0
                while position < len(data):
                    position += self._stream.write(data[position:]) or 0
            except OSError:
                with contextlib.suppress(OSError):
                    self._stream.truncate(self._size)
                raise
        self._size += len(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()


def make_folder(path: Path, *, parents: bool = True) -> None:
    """Create a folder and, if asked, its parents durably; one that exists is fine. Raises CannotWriteError."""
    with write_errors(path):
        folders = [path, *path.parents] if parents else [path]
        missing = list(itertools.takewhile(lambda folder: not folder.exists(), folders))
        if not missing and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # Another process may be as quick.
                low_mkdir(folder)
            fsync_folder(folder.parent)


def fsync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        low_fsync(descriptor, path)
    finally:
        os.close(descriptor)


def temporary_path(path: Path) -> Path:
    """Return a fresh name beside `path` to write it under, see `aside_of`."""
    return path.with_name(f".tmp-{path.name[:200]}-{secrets.token_hex(8)}")


def aside_of(name: str) -> str | None:
    """Return the final name (its first 200 characters) of a file written aside; None for other names."""
    parts = _ASIDE.fullmatch(name)
    return None if parts is None else parts["name"]
