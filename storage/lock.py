"""A lock on a folder that ends with its process, however that dies: flock(2) on a small file that names its holder.

The kernel frees the lock when the last descriptor closes: nothing to clean up after kill -9, and no unlock command.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.errors import CorruptDataError, LockedError, MissingDataError
from storage.files import make_folder, open_own, open_plain, parse_json, read_errors, read_plain, write_errors

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
