"""Folders: the manifest of a feature store, removal, sweeping after a kill, and locks.

A feature store is filled in place by files that are fsynced, and its `MANIFEST.json` is written and fsynced last. It
states size and digest of every file: a store is whole when its manifest is there and every file is as it says.

The lock on a folder ends with its process, however that dies: flock(2) on a small file that names its holder. The
kernel frees it when the last descriptor closes: nothing to clean up after kill -9, and no unlock command.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from storage import files as disk
from storage.errors import CorruptDataError, LockedError, MissingDataError
from storage.files import (
    aside_of,
    fsync_folder,
    held_locks,
    make_folder,
    open_own,
    open_plain,
    parse_json,
    read_errors,
    read_plain,
    read_record,
    write_errors,
    write_record,
)
from storage.folder_layouts import MANIFEST_NAME


class FileDigest(NamedTuple):
    """Size in bytes of one file, and its digest in hex: sha256; of a chunk of an array as `StoredArray.write` says."""

    bytes: int
    digest: str


def digest_file(path: Path) -> FileDigest:
    """Hash one file; a pass over its bytes with the GIL released. Raises MissingDataError, UnavailableStoreError."""
    with read_errors(path), open_plain(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileDigest(stream.tell(), digest)


def seal(folder: Path, known: Mapping[str, FileDigest]) -> None:
    """End the filling of a folder: sweep files left aside, and write the manifest. All other files are on the disk.

    known: digests taken when the bytes were written; those files are not read again. Raises CannotWriteError,
    CorruptDataError where a file of `known` is missing or has another size, or something is no plain file.
    """
    with write_errors(folder):
        remove_stale(folder)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if not path.is_dir())
    if problems := compare(folder, known, contents=False):
        raise CorruptDataError(f"{folder}: written, but now {problems[0]}")
    files = {name: known.get(name) or digest_file(folder / name) for name in names if name != MANIFEST_NAME}
    write_record(folder / MANIFEST_NAME, {"files": files})


def read_manifest(folder: Path) -> dict[str, FileDigest]:
    """Return the digests of the files of a folder by name, as `seal` wrote them; no file is looked at.

    Raises MissingDataError where the folder was never sealed, CorruptDataError where they are damaged.
    """
    files = read_record(folder / MANIFEST_NAME)["files"]
    return {name: FileDigest(*entry) for name, entry in files.items()}


def compare(folder: Path, files: Mapping[str, FileDigest], *, contents: bool) -> list[str]:
    """Compare the files of a folder with their digests; return the faults, one line each.

    With `contents` every file is hashed, else presence and size are checked. Other files are not looked at. Raises
    UnavailableStoreError.
    """
    problems = {name: _problem(folder / name, files[name], contents) for name in sorted(files)}
    return [f"{name}: {problem}" for name, problem in problems.items() if problem]


def _problem(path: Path, entry: FileDigest, contents: bool) -> str:
    try:
        with read_errors(path):
            status = path.lstat()
        if not stat.S_ISREG(status.st_mode):  # A link could lead out, and a pipe would hang.
            return "not a plain file"
        if status.st_size != entry.bytes:
            return f"has {status.st_size} bytes, wanted {entry.bytes}"
        if contents and digest_file(path) != entry:
            return "its content does not match its digest"
    except MissingDataError:
        return "missing"
    return ""


def remove_folder(path: Path, *, durable: bool = True) -> None:
    """Remove a folder so that it is never half there under its name; one that does not exist is fine.

    Files in it that are open may stay aside for `remove_stale`. After a power loss a folder removed with
    `durable=False` may be there again, and damaged. Raises CannotWriteError.
    """
    aside = disk.temporary_path(path)
    with write_errors(path), contextlib.suppress(FileNotFoundError):
        disk.low_rename(path, aside)
        if durable:
            fsync_folder(path.parent)  # Else the files in it could go before its name does.
        disk.low_remove_tree(aside)


def remove_stale(parent: Path) -> None:
    """Remove the files and folders that killed runs left aside (`aside_of`), in folders below as well.

    Call it only while holding the lock of `parent`: another process may be filling them. Files that are open may stay
    for the next call. Raises CannotWriteError.
    """
    with write_errors(parent), contextlib.suppress(FileNotFoundError):
        for path in sorted(parent.iterdir()):
            is_folder, is_aside = path.is_dir() and not path.is_symlink(), aside_of(path.name)
            if is_folder and is_aside:
                disk.low_remove_tree(path)
            elif is_folder:
                remove_stale(path)
            elif is_aside:
                disk.low_unlink(path)


_POLL_SECONDS = 0.05
_GRACE_SECONDS = 0.3  # `holder` itself has the lock for microseconds, and a new holder needs a moment for its name.
_UNKNOWN: dict[str, Any] = {"host": "unknown host", "pid": 0, "started": "unknown", "purpose": "unknown purpose"}


@contextlib.contextmanager
def hold_lock(
    path: Path,
    purpose: str,
    *,
    wait_seconds: float = 0.0,
    on_wait: Callable[[], None] = lambda: None,
    warn: Callable[[str], None] = lambda message: None,
) -> Iterator[None]:
    """Hold the exclusive lock `path`. The file is created, with its folder, if it is missing, and stays.

    `purpose` is for the message that others get. `on_wait` is called many times a second while waiting for another
    holder; what it raises ends the waiting. `warn` gets one line where the file system offers no locks.

    Raises LockedError naming host and pid of the holder, CannotWriteError where the file cannot be created,
    CorruptDataError where it is no plain file.
    """
    deadline = time.monotonic() + max(wait_seconds, _GRACE_SECONDS)
    with write_errors(path):
        while (descriptor := _open_locked(path, warn)) is None:
            if time.monotonic() >= deadline:
                info = _holder_in(path) or _UNKNOWN
                who = f"process {info['pid'] or 'unknown'} on {info['host']}"
                told = f"{path}: locked by {who} ({info['purpose']}, since {info['started']})"
                raise LockedError(f"{told}; wait for it or stop it, or use another folder")
            on_wait()
            time.sleep(_POLL_SECONDS)
    pid = os.getpid()
    try:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"host": socket.gethostname(), "pid": pid, "started": started, "purpose": purpose})
        with write_errors(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0)
        yield
    finally:
        if os.getpid() == pid:  # A forked child never held it.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                # Explicitly: a child that foreign code forked without Python's hooks may share the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            _close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Return who holds the lock now (host, pid, started, purpose), or None if it is free or does not exist.

    Where the file system offers no locks, it is whoever wrote its name last and did not end by itself. Raises
    UnavailableStoreError where the file exists and cannot be read.
    """
    try:
        with read_errors(path):
            stream = open_plain(path)
    except MissingDataError:
        return None
    with stream:  # Closing frees the shared lock as well.
        deadline = time.monotonic() + _GRACE_SECONDS
        while not (locked := _try_lock(stream.fileno(), fcntl.LOCK_SH)):
            info = _holder_in(path)
            if info is not None or locked is None:
                return info
            if time.monotonic() >= deadline:
                return _UNKNOWN
            time.sleep(_POLL_SECONDS)
        return None


def _open_locked(path: Path, warn: Callable[[str], None]) -> int | None:
    """Return the descriptor of the locked file, None where somebody else has the lock. Raises as `open_own`."""
    make_folder(path.parent)
    descriptor = open_own(path, 0)
    held_locks[descriptor] = path
    ours = False
    try:
        locked = _try_lock(descriptor, fcntl.LOCK_EX)
        if locked is None:
            warn(f"{path}: its file system offers no locks; start no second process in this folder")
        # If the folder was removed and made again, another process may hold another file of this name.
        ours = locked is None or (locked and path.exists() and os.path.samestat(os.fstat(descriptor), path.lstat()))
    finally:
        if not ours:
            _close(descriptor)
    return descriptor if ours else None


def _try_lock(descriptor: int, kind: int) -> bool | None:
    """Return whether the lock was obtained; None where the file system has none."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            return None
        raise
    return True


def _holder_in(path: Path) -> dict[str, Any] | None:
    try:
        info = parse_json(read_plain(path))
    except (OSError, ValueError, CorruptDataError):
        return None
    return info if isinstance(info, dict) and info.keys() >= _UNKNOWN.keys() else None


def _close(descriptor: int) -> None:
    held_locks.pop(descriptor, None)
    os.close(descriptor)


def _close_in_child() -> None:
    # A forked child shares the lock: left open, it would outlive the parent's death. Closing does not free it.
    for descriptor in list(held_locks):
        _close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)
