"""A lock on a folder that dies with its process, however that dies.

flock(2) on a small file that is never deleted: the kernel frees the lock when the last descriptor closes, so
there is nothing to clean up after kill -9 and no unlock command. The file tells who holds it. Deleting the
file would let two processes lock two different files of the same name, so nobody does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from storage.disk import cannot_write, make_folder
from storage.errors import CannotWriteError, LockedError, UnavailableStoreError

_POLL_SECONDS = 0.05
# A status command that asks who holds the lock holds it for microseconds itself; and a new holder needs a
# moment to write its name. Both are over long before this.
_GRACE_SECONDS = 0.3
_MAXIMUM_INFO_BYTES = 4096


class FolderLock:
    """Hold the exclusive lock `path` inside a `with` block.

    Parameters
    ----------
    path : Path
        The lock file; created, with its folder, if missing. Never deleted.
    purpose : str
        What it is held for, in a few words; other processes are told.
    wait_seconds : float
        How long to wait for another holder before giving up.

    Raises
    ------
    LockedError
        On entry, naming host and pid of the holder.
    CannotWriteError
        On entry, if the file cannot be created or its file system knows no locks.
    """

    def __init__(self, path: Path, purpose: str, *, wait_seconds: float = 0.0) -> None:
        self.path = path
        self.purpose = purpose
        self.wait_seconds = wait_seconds
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock and write who holds it into the file."""
        if self._descriptor is not None:
            raise ValueError(f"{self.path}: this lock object is already held; make another one")
        make_folder(self.path.parent)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            self._acquire(descriptor)
            info = {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "purpose": self.purpose,
            }
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(info).encode() + b"\n", 0)
        except OSError as error:
            os.close(descriptor)
            raise cannot_write(self.path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the lock; the file stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:  # in a forked child, which never held it
            return
        _held.discard(self)
        try:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            # Said explicitly: a child forked meanwhile by foreign code may share the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int) -> None:
        deadline = time.monotonic() + max(self.wait_seconds, _GRACE_SECONDS)
        while not _try_lock(descriptor, self.path, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise self._locked_error()
            time.sleep(_POLL_SECONDS)

    def _locked_error(self) -> LockedError:
        info = _read_info(self.path) or {}
        host, pid = str(info.get("host", "unknown host")), int(info.get("pid", 0))
        return LockedError(
            f"{self.path}: locked by process {pid or 'unknown'} on {host} "
            f"({info.get('purpose', 'unknown purpose')}, "
            f"since {info.get('started', 'unknown')}); "
            "wait for it or stop it, or use another folder",
            path=str(self.path),
            host=host,
            pid=pid,
        )


def holder(path: Path) -> dict[str, Any] | None:
    """Return who holds the lock now (host, pid, started, purpose), or None if it is free or does not exist.

    Raises
    ------
    UnavailableStoreError
        If the file exists and cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be opened ({error.strerror})", path=str(path)) from error
    try:
        deadline = time.monotonic() + _GRACE_SECONDS
        while not _try_lock(descriptor, path, fcntl.LOCK_SH):
            info = _read_info(path)
            if info is not None or time.monotonic() >= deadline:
                return info or {"host": "unknown host", "pid": 0}
            time.sleep(_POLL_SECONDS)
        return None
    finally:
        os.close(descriptor)  # frees the shared lock as well


def _try_lock(descriptor: int, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP):
            raise CannotWriteError(
                f"{path}: its file system offers no locks ({error.strerror}); choose a folder on another one",
                path=str(path),
                cause="no locks",
            ) from error
        raise
    return True


def _read_info(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as stream:
            info = json.loads(stream.read(_MAXIMUM_INFO_BYTES))
    except (OSError, ValueError):
        return None
    return info if isinstance(info, dict) and isinstance(info.get("pid"), int) else None


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock: left open, it would outlive the parent's death. Closing does not free
    # it.
    for lock in list(_held):
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
