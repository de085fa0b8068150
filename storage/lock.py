"""A lock on a folder that dies with its process, however that dies.

flock(2) on a small file that is never deleted: the kernel frees the lock when the last descriptor closes, so there is
nothing to clean up after kill -9 and no unlock command. The file names its holder. If it were deleted, two processes
could lock two different files of the same name.

Some network file systems know no flock, or keep it on each machine alone. Therefore a holder also touches the file
every few seconds: a text that names another machine (without flock: any other holder) counts as a lock until that sign
of life has been missing for SILENT_SECONDS, and a holder whose text was replaced learns it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from storage import files as disk
from storage.errors import LockedError, UnavailableStoreError
from storage.files import make_folder, write_errors

BEAT_SECONDS = 5.0  # between two signs of life
SILENT_SECONDS = 60.0  # without a sign of life, after which a holder whom the kernel cannot answer for is gone
_POLL_SECONDS = 0.05
# A status command that asks who holds the lock holds it for microseconds itself; and a new holder needs a moment to
# write its name. Both are over long before this.
_GRACE_SECONDS = 0.3
_SETTLE_SECONDS = 1.0  # without flock: whoever took the lock at the same time has written its name by then
_INFO_BYTES = 511  # padded, so that of texts written at the same time the last one is whole
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class FolderLock:
    """Hold the exclusive lock `path` inside a `with` block.

    The file is created, with its folder, if missing, and never deleted. On entry raises LockedError naming host and pid
    of the holder, CannotWriteError where the file cannot be created.

    Parameters
    ----------
    purpose : str
        What it is held for, in a few words, for the message that others get.
    wait_seconds : float
        How long to wait for another holder before giving up; up to SILENT_SECONDS longer where it may be on another
        machine.
    on_wait : Callable
        Called many times a second while waiting; what it raises ends the waiting.
    on_loss : Callable
        Called with a reason, from another thread, if another process takes the lock all the same.
    warn : Callable
        Called with one line where the lock is not as sure as it should be.
    """

    def __init__(
        self,
        path: Path,
        purpose: str,
        *,
        wait_seconds: float = 0.0,
        on_wait: Callable[[], None] = lambda: None,
        on_loss: Callable[[str], None] = lambda reason: None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.path, self.purpose, self.wait_seconds = path, purpose, wait_seconds
        self._on_wait, self._on_loss, self._warn = on_wait, on_loss, warn
        self._descriptor: int | None = None
        self._info: dict[str, Any] = {}
        self._released = threading.Event()
        self._beating = threading.Thread()

    def __enter__(self) -> Self:
        """Take the lock and write who holds it into the file."""
        if self._descriptor is not None:
            raise ValueError(f"{self.path}: this lock object is already held; make another one")
        make_folder(self.path.parent)
        with write_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                locked = self._acquire(descriptor)
                self._info = {
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "started": datetime.now(UTC).isoformat(timespec="seconds"),
                    "purpose": self.purpose,
                    "token": secrets.token_hex(8),
                }
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(self._info).encode().ljust(_INFO_BYTES) + b"\n", 0)
                if not locked:
                    time.sleep(_SETTLE_SECONDS)
                    if _holder_in(self.path) != self._info:  # another process took the lock at the same moment
                        raise self._locked_error()
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        _held.add(self)
        self._released.clear()
        self._beating = threading.Thread(target=self._beat, args=(descriptor,), name="lock", daemon=True)
        self._beating.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Free the lock; the file stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:  # in a forked child, which never held it
            return
        _held.discard(self)
        self._released.set()
        self._beating.join()
        try:
            with contextlib.suppress(OSError):
                if not self._is_lost():
                    os.ftruncate(descriptor, 0)
                # Explicitly: a child forked meanwhile by foreign code may share the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int) -> bool:
        """Return once the lock is ours: True where the kernel keeps it, False where its file system knows no locks."""
        deadline = time.monotonic() + max(self.wait_seconds, _GRACE_SECONDS)
        rival: _Rival | None = None
        while True:
            locked = _try_lock(descriptor, fcntl.LOCK_EX)
            info = _holder_in(self.path)
            if locked is not False:
                if info is None or not _may_live(info, locked):
                    break
                if rival is None:
                    rival = _Rival(self.path, info)
                    if rival.silent_seconds() < SILENT_SECONDS:
                        why = "locks may not reach that machine" if locked else "its file system offers no locks"
                        until = f"waiting up to {SILENT_SECONDS:.0f} s for another"
                        self._warn(f"{self.path}: {rival.words()}; {why}: {until}")
                if rival.silent_seconds() >= SILENT_SECONDS:
                    self._warn(f"{self.path}: {rival.words()}; taken over. If it still runs, stop it")
                    break
            if time.monotonic() >= deadline and (locked is False or rival is None or rival.lives):
                raise self._locked_error(f"; {rival.words()}" if rival and locked is not False else "")
            self._on_wait()
            time.sleep(_POLL_SECONDS)
        if locked is None:
            self._warn(
                f"{self.path}: its file system offers no locks; a second process in this folder is noticed by signs of "
                f"life only, every {BEAT_SECONDS:.0f} s: start one at a time, or choose a folder on another file system"
            )
        return bool(locked)

    def _beat(self, descriptor: int) -> None:
        while not self._released.wait(BEAT_SECONDS):
            if self._is_lost():
                time.sleep(_POLL_SECONDS)  # who takes over empties the file first, then writes
                other = _holder_in(self.path)
                who = "another process" if other is None else f"process {other['pid']} on {other['host']}"
                self._on_loss(f"{who}, which took over {self.path}")
                return
            with contextlib.suppress(OSError):
                os.utime(descriptor)

    def _is_lost(self) -> bool:
        """Return whether the file no longer holds our text: whoever took over may have ended and emptied it."""
        try:
            return _read(self.path) != self._info
        except OSError:  # a file that cannot be read tells nothing
            return False

    def _locked_error(self, sign: str = "") -> LockedError:
        info = _holder_in(self.path) or {}
        host, pid = str(info.get("host", "unknown host")), int(info.get("pid", 0))
        return LockedError(
            f"{self.path}: locked by process {pid or 'unknown'} on {host} "
            f"({info.get('purpose', 'unknown purpose')}, since {info.get('started', 'unknown')}{sign}); "
            "wait for it or stop it, or use another folder",
            host=host,
            pid=pid,
        )


class _Rival:
    """A holder for whom no lock of the kernel answers: it lives as long as its file is touched."""

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.lives = False  # a touch was seen
        self._path, self._name = path, f"process {info['pid']} on {info['host']}"
        self._touched = _touched(path)
        self._since = time.monotonic() - min(max(_clock_of(path) - self._touched, 0.0), SILENT_SECONDS)

    def silent_seconds(self) -> float:
        """Return for how long it gave no sign of life, SILENT_SECONDS at most where that was before we looked."""
        if (touched := _touched(self._path)) != self._touched:
            self._touched, self._since, self.lives = touched, time.monotonic(), True
        return time.monotonic() - self._since

    def words(self) -> str:
        """Return who it is and when it was last seen."""
        silent = time.monotonic() - self._since
        ago = f"{silent:.0f} s" if silent < SILENT_SECONDS else f"more than {SILENT_SECONDS:.0f} s"
        return f"the last sign of life of {self._name} was {ago} ago"


def holder(path: Path) -> dict[str, Any] | None:
    """Return who holds the lock now (host, pid, started, purpose), or None if it is free or does not exist.

    A holder for whom the kernel does not answer also has `silent_seconds`, the age of its last sign of life.

    Raises UnavailableStoreError where the file exists and cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        deadline = time.monotonic() + _GRACE_SECONDS
        while (locked := _try_lock(descriptor, fcntl.LOCK_SH)) is False:
            info = _holder_in(path)
            if info is not None or time.monotonic() >= deadline:
                return info or {"host": "unknown host", "pid": 0}
            time.sleep(_POLL_SECONDS)
        info = _holder_in(path)
        if info is None or not _may_live(info, locked):
            return None
        silent = max(time.time() - _touched(path), 0.0)
        return info | {"silent_seconds": silent} if silent < SILENT_SECONDS else None
    finally:
        os.close(descriptor)  # frees the shared lock as well


def _try_lock(descriptor: int, kind: int) -> bool | None:
    """Return whether the lock was got; None where the file system knows none."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _may_live(info: dict[str, Any], locked: bool | None) -> bool:
    """Return whether the holder that a text names may live, though we could lock the file (or nobody can)."""
    return locked is None or info["host"] != socket.gethostname()


def _touched(path: Path) -> float:
    """Return when a file was touched last. Opened, since that is when network file systems ask the server."""
    try:
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_mtime
    except OSError:
        return 0.0


def _clock_of(path: Path) -> float:
    """Return the time that the file system of `path` gives to what is touched now: clocks of machines differ."""
    probe = disk.temporary_path(path)
    descriptor = disk.low_create(probe)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        disk.low_unlink(probe)


def _holder_in(path: Path) -> dict[str, Any] | None:
    """Return the holder that a lock file names, None where it names none or cannot be read."""
    try:
        return _read(path)
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as stream:
        text = stream.read(8 * _INFO_BYTES)
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(info, dict) and isinstance(info.get("pid"), int) and isinstance(info.get("host"), str)
    return info if whole else None


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock: left open, it would outlive the parent's death. Closing does not free it.
    for lock in list(_held):
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
