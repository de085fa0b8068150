"""Stopping on request: a signal or the time limit asks for it, and the work looks between its steps.

A handler sets a flag and nothing else: what saves from inside a handler may wait for a lock that the interrupted code
holds. Before the work has begun there is nothing to save, and a request ends the command at once.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import StoppedError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

_reason: str | None = None
_deadline: float | None = None
_working = False


@contextmanager
def listening() -> Iterator[None]:
    """Take SIGTERM, SIGUSR1 and SIGINT as requests to stop.

    Before `working`, a signal raises StoppedError where it finds the command. Only the main thread of a process gets
    signals; in another one this does nothing.
    """
    global _reason
    _reason = None
    on_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, _request) for number in SIGNALS} if on_main_thread else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _reason = None


@contextmanager
def working(time_limit: float | None = None) -> Iterator[None]:
    """Let requests wait until the work looks, since there is something to save; the time limit starts here."""
    global _working, _deadline
    _working, _deadline = True, None if time_limit is None else time.monotonic() + time_limit
    try:
        yield
    finally:
        _working, _deadline = False, None


def requested() -> str | None:
    """Return why the work shall stop, None while it shall not. Cheap, and safe in every thread."""
    if _reason is None and _deadline is not None and time.monotonic() >= _deadline:
        return "the time limit"
    return _reason


def check() -> None:
    """Raise StoppedError where the work shall stop. For places where nothing is half done."""
    reason = requested()
    if reason is not None:
        raise StoppedError(f"stopped by {reason}")


def _request(number: int, frame: FrameType | None) -> None:
    global _reason
    _reason = signal.Signals(number).name
    if not _working:
        check()
