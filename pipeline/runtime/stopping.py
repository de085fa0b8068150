"""Stopping on request: a signal or the time limit asks for it, and the work looks between its steps.

A handler only sets a flag: saving inside a handler may wait for a lock that the interrupted code holds. Before the work
has begun, a request ends the command at once. Tasks in other processes learn of it from a file: see `Lease`.
"""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.errors import StoppedError
from storage.errors import CorruptDataError
from storage.files import read_plain, write_file

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
POLL_SECONDS = 0.01
SAVE_SECONDS = 18  # for tasks to save what they have and end; the command has 25 in all
LOOK_SECONDS = 0.25  # between two looks of a task at the file of its lease

_reason: str | None = None
_began = 0.0  # when somebody began to listen
_deadline: float | None = None
_working = False


@dataclass
class Lease:
    """The right of tasks to work on a run, until the next lease is taken, by this process or a later one.

    The file holds the number of the latest lease. Numbers only grow: stale content of a network file system, or a
    missing file, ends no task. `is_over` is asked by tasks alone, which look at the file every LOOK_SECONDS.
    """

    path: Path
    number: int
    _looked: float = -LOOK_SECONDS  # when, by the clock of the process that does
    _is_over: bool = False

    @classmethod
    def next(cls, path: Path) -> "Lease":
        """Take the next lease, which ends the earlier ones. The run's lock must be held. Raises CannotWriteError."""
        lease = cls(path, _latest_lease(path) + 1)
        write_file(path, f"{lease.number}\n".encode())
        return lease

    def is_over(self) -> bool:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS and not self._is_over:
            self._looked, self._is_over = now, _latest_lease(self.path) > self.number
        return self._is_over


def _latest_lease(path: Path) -> int:
    with suppress(OSError, ValueError, CorruptDataError):
        return int(read_plain(path))  # read, not only stat'ed: opening asks a file server, stat may ask a cache
    return 0


# Of the task that a thread runs, and of threads that help it.
_obeyed: ContextVar[Lease | None] = ContextVar("obeyed", default=None)
_is_unconcerned = ContextVar("is_unconcerned", default=False)


@contextmanager
def obeying(lease: Lease | None) -> Iterator[None]:
    """Stop the task that this thread runs inside once its lease is over; None: nobody can end it from elsewhere."""
    before = _obeyed.set(lease)
    try:
        yield
    finally:
        _obeyed.reset(before)


@contextmanager
def unconcerned() -> Iterator[None]:
    """Let this thread work inside as if nobody asked the runs of this process to stop."""
    before = _is_unconcerned.set(True)
    try:
        yield
    finally:
        _is_unconcerned.reset(before)


@contextmanager
def listening(signals: Iterable[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Take signals as requests to stop; does nothing outside the main thread.

    Before `working`, a signal raises StoppedError at once. Signals that whoever started the command has blocked are let
    through; a hangup that is ignored, as under `nohup`, stays so.
    """
    global _reason, _began
    _reason, _began = None, time.monotonic()
    on_main_thread = threading.current_thread() is threading.main_thread()
    asked = [number for number in signals if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _request) for number in asked} if on_main_thread else {}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if on_main_thread:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
        yield
    finally:
        if on_main_thread:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
        _reason = None


def unclaimed() -> list[signal.Signals]:
    """Return the signals that nobody in this process handles, or holds back, in a way of their own."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return [number for number in SIGNALS if number not in blocked and signal.getsignal(number) in usual]


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Ask for a stop so many seconds after `listening` began, before `working` at once; None: never."""
    global _deadline
    _deadline = None if seconds is None else _began + seconds
    is_timed = seconds is not None and threading.current_thread() is threading.main_thread()
    is_timed &= signal.getsignal(signal.SIGALRM) == signal.SIG_DFL  # else it is somebody else's
    try:
        if is_timed:
            signal.signal(signal.SIGALRM, lambda *_: None if _working else check())
            signal.setitimer(signal.ITIMER_REAL, max(_began + (seconds or 0.0) - time.monotonic(), 1e-3))
        yield
    finally:
        _deadline = None
        if is_timed:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def working() -> Iterator[None]:
    """Let requests wait until the work looks, since there is something to save."""
    global _working
    _working = True
    try:
        yield
    finally:
        _working = False


def requested() -> str | None:
    """Return why the work shall stop, None while it shall not. Cheap, and safe in every thread."""
    if _is_unconcerned.get():
        return None
    if _reason is None and _deadline is not None and time.monotonic() >= _deadline:
        return "the time limit"
    lease = _obeyed.get()
    return _reason or ("its driver" if lease is not None and lease.is_over() else None)


def check() -> None:
    """Raise StoppedError where the work shall stop. For places where nothing is half done."""
    reason = requested()
    if reason is not None:
        raise StoppedError(f"stopped by {reason}")


def _request(number: int, frame: FrameType | None) -> None:
    global _reason
    if _reason is not None:  # the command is ending already, and another error would only disturb it
        return
    _reason = signal.Signals(number).name
    if not _working:
        check()
