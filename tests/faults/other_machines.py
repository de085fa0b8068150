"""A lock that another machine holds, or seems to: a text in its file that names it, and signs of life."""

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ELSEWHERE = {"host": "elsewhere", "pid": 7, "started": "2026-01-01T00:00:00+00:00", "purpose": "training"}


@contextmanager
def touching(path: Path) -> Iterator[None]:
    """Give signs of life for a holder on another machine."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def without_flock(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSYS) -> None:
    """Let the file system offer no locks."""

    def flock(descriptor: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
