"""Stopping on request: a signal or the time limit asks for it, and the work looks between its steps.

A handler only sets a flag: saving inside a handler may wait for a lock that the interrupted code holds. Before the work
has begun, a request ends the command at once. Tasks in other processes learn of it from a file: see `Lease`.
"""

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import StoppedError
from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.files import read_errors, read_plain, write_file

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
POLL_SECONDS = 0.01
SAVE_SECONDS = 18  # Tasks may take this to save what they have and end; the command has 25 in all.
LOOK_SECONDS = 0.25  # A task looks at the file of its lease at this interval.


@dataclass
class Lease:
    """The right of tasks to work on a run, until the next lease is taken, by this process or a later one.

    The file holds the number of the latest lease. Numbers only grow, also from a run to another that takes its folder:
    stale content of a network file system, or a missing file, ends no task. `is_over` is asked by tasks alone, which
    look at the file every LOOK_SECONDS.
    """

    path: Path
    number: int
    _looked: float = -LOOK_SECONDS  # when, by the clock of the process that does
    _is_over: bool = False

    @classmethod
    def next(cls, path: Path) -> "Lease":
        """Take the next lease, which ends the earlier ones. The run's lock must be held.

        Raises CannotWriteError, UnavailableStoreError where the earlier one cannot be read.
        """
        lease = cls(path, max(_latest_lease(path) + 1, time.time_ns()))
        write_file(path, f"{lease.number}\n".encode())
        return lease

    def is_over(self) -> bool:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS and not self._is_over:
            self._looked = now
            with suppress(UnavailableStoreError):  # A file server may be away for a moment.
                self._is_over = _latest_lease(self.path) > self.number
        return self._is_over


def _latest_lease(path: Path) -> int:
    with suppress(MissingDataError, ValueError, CorruptDataError), read_errors(path):
        return int(read_plain(path))  # read, not only stat'ed: opening asks a file server, stat may ask a cache
    return 0


@dataclass
class Stop:
    """Whether some work shall stop, and why. Cheap to ask, and safe in every thread.

    lease : of a task, which stops once it is over
    above : of the work that a task is a part of, in this process
    deadline : when the time limit ends, by time.monotonic(), as `began` is
    """

    lease: Lease | None = None
    above: "Stop | None" = None
    reason: str | None = None
    began: float = field(default_factory=time.monotonic)
    deadline: float = math.inf
    is_working: bool = False

    def requested(self) -> str | None:
        """Return why the work shall stop, None while it shall not."""
        reason = self.above.requested() if self.reason is None and self.above is not None else self.reason
        if reason is None and time.monotonic() >= self.deadline:
            return "the time limit"
        return "its driver" if reason is None and self.lease is not None and self.lease.is_over() else reason

    def check(self) -> None:
        """Raise StoppedError where the work shall stop. For places where nothing is half done."""
        reason = self.requested()
        if reason is not None:
            raise StoppedError(f"stopped by {reason}")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let requests wait until the work looks, since there is something to save."""
        self.is_working = True
        try:
            yield
        finally:
            self.is_working = False

    def _take(self, number: int, _: object) -> None:
        if self.reason is not None:  # the command is ending already, and another error would only disturb it
            return
        self.reason = signal.Signals(number).name
        if not self.is_working:
            self.check()


# What the work in this thread, and in threads that help it, looks at.
_current: ContextVar[Stop | None] = ContextVar("current", default=None)


def current() -> Stop:
    """Return what stops the work of this thread; without any, one that nobody asks to stop."""
    return _current.get() or Stop()


def check() -> None:
    """Raise StoppedError where the work of this thread shall stop."""
    current().check()


@contextmanager
def obeying(stop: Stop) -> Iterator[Stop]:
    """Stop what this thread does inside as `stop` says, and for nothing else."""
    before = _current.set(stop)
    try:
        yield stop
    finally:
        _current.reset(before)


@contextmanager
def listening(signals: Iterable[signal.Signals] = SIGNALS, *, is_last: bool = False) -> Iterator[Stop]:
    """Take signals as requests to stop what is done inside; outside the main thread none are taken.

    is_last : the process ends then, and more of these signals do not change how

    Before `working`, a signal raises StoppedError at once. Signals that whoever started the command has blocked are let
    through; a hangup that is ignored, as under `nohup`, stays so.
    """
    stop, on_main_thread = Stop(), threading.current_thread() is threading.main_thread()
    asked = [number for number in signals if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop._take) for number in asked} if on_main_thread else {}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with obeying(stop):
            if on_main_thread:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
            yield stop
    finally:
        if on_main_thread:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_last else handler)


def unclaimed() -> list[signal.Signals]:
    """Return the signals that nobody in this process handles, or holds back, in a way of their own."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return [number for number in SIGNALS if number not in blocked and signal.getsignal(number) in usual]
