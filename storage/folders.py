"""Folders that are either whole under their name or not there, and what sweeps after a kill.

A folder is filled aside, every file in it fsynced, its `MANIFEST.json` written and fsynced last, renamed, and its
parent fsynced. The manifest states the size and sha256 of every file and carries its own digest: a folder is whole when
its manifest is there and every file is as it says.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage import files as disk
from storage.errors import CorruptDataError, LockedError, MissingDataError, UnavailableStoreError, remedy_at
from storage.files import (
    aside_of,
    fsync_folder,
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

FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes and sha256 (64 lowercase hex digits) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of one committed folder; `files` maps plain relative names to their digests."""

    kind: str
    files: Mapping[str, FileDigest]
    metadata: Mapping[str, Any]


def digest_file(path: Path) -> FileDigest:
    """Hash one file; a pass over its bytes with the GIL released. Raises MissingDataError, UnavailableStoreError."""
    with read_errors(path), open_plain(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileDigest(stream.tell(), digest)


def read_manifest(root: Path) -> Manifest:
    """Read `root/MANIFEST.json` and check its form and its own digest; no other file is looked at.

    Raises MissingDataError where there is none: the folder was never committed; CorruptDataError where it is malformed,
    damaged or of another format version.
    """
    path = root / MANIFEST_NAME
    try:
        body = read_record(path)
        if body.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"format version {body.get('format_version')!r}, this program reads {FORMAT_VERSION}")
        files = {name: FileDigest(*entry) for name, entry in body["files"].items()}
        return Manifest(body["kind"], files, body["metadata"])
    except MissingDataError:
        raise MissingDataError(f"{path}: does not exist; the folder was never completed") from None
    except (CorruptDataError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
        remedy = remedy_at(root, f"delete the folder {root} and build it again")
        raise CorruptDataError(f"{path}: damaged manifest ({reason}); {remedy}") from None


def verify(root: Path, *, contents: bool) -> list[str]:
    """Compare a folder with its manifest and return what is wrong, one line each; empty if it holds.

    With `contents` every file is hashed, else presence and size are checked. Other files are not looked at.
    """
    try:
        manifest = read_manifest(root)
    except (CorruptDataError, MissingDataError, UnavailableStoreError) as error:
        return [str(error)]
    return compare(root, manifest.files, contents=contents)


def compare(root: Path, files: Mapping[str, FileDigest], *, contents: bool) -> list[str]:
    """Compare the files of a folder with what is known of them, as `verify` does."""
    return [problem for name in sorted(files) if (problem := _problem(root, name, files[name], contents))]


def _problem(root: Path, name: str, entry: FileDigest, contents: bool) -> str:
    path = root / name
    try:
        # A link, also one in place of a folder below, could lead out; a pipe would hang: only plain files count.
        status, below = path.lstat(), "/" in name
        if not stat.S_ISREG(status.st_mode) or (below and not path.resolve().is_relative_to(root.resolve())):
            return f"{name}: not a plain file of {root}"
        if status.st_size != entry.bytes:
            return f"{name}: has {status.st_size} bytes, wanted {entry.bytes}"
        if contents and digest_file(path).sha256 != entry.sha256:
            return f"{name}: its content does not match its digest"
    except (FileNotFoundError, NotADirectoryError):
        return f"{name}: missing"
    except (OSError, ValueError, MissingDataError, UnavailableStoreError) as error:  # ValueError: NUL in a name
        return f"{name}: {error}"
    return ""


def check_folder(folder: Path, elsewhere: str = "restore it or build it again") -> None:
    """Raise CorruptDataError, see `remedy_at`, unless every byte of a folder is as its manifest says; one pass."""
    problems = verify(folder, contents=True)
    if problems:
        raise CorruptDataError(f"{folder}: damaged ({problems[0].partition(';')[0]}); {remedy_at(folder, elsewhere)}")


def seal(
    folder: Path, *, kind: str, metadata: Mapping[str, Any] | None = None, known: Mapping[str, FileDigest] | None = None
) -> None:
    """End the filling of a folder: sweep what was left aside, fsync everything, then write the manifest, last.

    `known` gives digests taken when the bytes were written; those files are not read again. Raises CannotWriteError,
    CorruptDataError where a file of `known` is missing or has another size.
    """
    known = known or {}
    with write_errors(folder):
        remove_stale(folder)
        disk.fsync_tree(folder)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if not path.is_dir())
    names = [name for name in names if name != MANIFEST_NAME]
    files = {name: known[name] if name in known else digest_file(folder / name) for name in names}
    for name, entry in known.items():
        if name not in files or (folder / name).stat().st_size != entry.bytes:
            raise CorruptDataError(f"{folder / name}: written, but now missing or of another size")
    body = {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "files": {name: [entry.bytes, entry.sha256] for name, entry in files.items()},
        "metadata": dict(metadata or {}),
    }
    write_record(folder / MANIFEST_NAME, body, compact=True)


@contextlib.contextmanager
def new_folder(
    final: Path, *, kind: str = "folder", metadata: Mapping[str, Any] | None = None, replace: bool = True
) -> Iterator[Path]:
    """Yield a folder to fill aside; it becomes `final`, with a manifest, when the block ends.

    An existing `final` is moved aside, the new one moved in, and only then the old one pruned; after a kill between the
    two, `remove_stale` brings it back. Without `replace`, what others have put there meanwhile stays. On any exception
    `final` is as before. Raises CannotWriteError naming the path and the cause.
    """
    make_folder(final.parent)
    aside = disk.temporary_path(final)
    with write_errors(final):
        disk.low_mkdir(aside)
    try:
        yield aside
        seal(aside, kind=kind, metadata=metadata)
        with write_errors(final):
            _move_in(aside, final, replace=replace)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.low_remove_tree(aside)
        raise


def _move_in(aside: Path, final: Path, *, replace: bool) -> None:
    """Rename `aside` to `final`, durably; what was there is moved aside first and pruned last. Raises OSError too."""
    old = disk.replaced_path(final)
    replaces = replace and final.exists()
    if replaces:
        if old.exists():
            _remove_replaced(old, final)  # left by a killed run whose new folder did arrive
        disk.low_rename(final, old)
    try:
        disk.low_rename(aside, final)
    except OSError as error:
        if replaces:
            disk.low_rename(old, final)
        if not replace and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise disk.taken(final) from None
        raise
    fsync_folder(final.parent)
    if replaces:
        _remove_replaced(old, final)


def _remove_replaced(old: Path, final: Path) -> None:
    """Remove what `final` has replaced; first it loses its name, so that no part of it is ever moved back."""
    aside = disk.temporary_path(final)
    disk.low_rename(old, aside)
    disk.low_remove_tree(aside)


def remove_folder(path: Path, *, durable: bool = True) -> None:
    """Remove a folder so that it is never half there under its name; one that does not exist is fine.

    Files in it that are open may stay aside for `remove_stale`. After a power loss a folder removed with
    `durable=False` may be there again, and damaged. Raises CannotWriteError.
    """
    aside = disk.temporary_path(path)
    with write_errors(path), contextlib.suppress(FileNotFoundError):
        disk.low_rename(path, aside)
        if durable:
            fsync_folder(path.parent)  # or the files in it could go before its name does
        disk.low_remove_tree(aside)


def remove_stale(parent: Path) -> None:
    """Remove the files and folders that killed runs left aside (`aside_of`), in folders below as well.

    Call it only while holding the lock of `parent`: another process may be filling them. A folder that was moved aside
    for a replacement that never arrived is moved back instead. Files that are open may stay for the next call. Raises
    CannotWriteError.
    """
    with write_errors(parent), contextlib.suppress(FileNotFoundError):
        for path in sorted(parent.iterdir()):
            name, replaced = aside_of(path.name) or ("", False)
            final, is_folder = path.with_name(name or path.name), path.is_dir() and not path.is_symlink()
            if is_folder and not name:
                remove_stale(path)
            elif is_folder and not replaced:
                disk.low_remove_tree(path)
            elif is_folder and final.exists():
                _remove_replaced(path, final)
            elif is_folder:
                disk.low_rename(path, final)
                fsync_folder(parent)
            elif name and not replaced:  # only folders are moved aside: else this is somebody else's
                disk.low_unlink(path)


_POLL_SECONDS = 0.05
# Who asks for the holder has the lock for microseconds itself, and a new holder needs a moment to write its name.
_GRACE_SECONDS = 0.3
_UNKNOWN: dict[str, Any] = {"host": "unknown host", "pid": 0, "started": "unknown", "purpose": "unknown purpose"}
_held = set[int]()  # descriptors


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
        if os.getpid() == pid:  # a forked child never held it
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
    with stream:  # closing frees the shared lock as well
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
    _held.add(descriptor)
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
    """Return whether the lock was got; None where the file system knows none."""
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
    _held.discard(descriptor)
    os.close(descriptor)


def _close_in_child() -> None:
    # A forked child shares the lock: left open, it would outlive the parent's death. Closing does not free it.
    for descriptor in list(_held):
        _close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)
