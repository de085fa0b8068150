"""The console: text for whoever looks on, who may leave. Work goes on without a reader, and ends by its own result."""

import atexit
import errno
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_GONE = (errno.EPIPE, errno.EIO)  # the reader of a pipe, and a terminal


class Console:
    """A stream of text whose reader may leave: what is written after that goes nowhere."""

    def __init__(self, stream: "TextIO | Console") -> None:
        self._stream: Any = stream
        self.lost = False  # whether the reader has left

    def write(self, text: str) -> int:
        """Write text; letters that the encoding of the stream lacks are written as Python escapes them."""
        try:
            self._attempt(lambda: self._stream.write(text))
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, errors="backslashreplace").decode(error.encoding)
            self._attempt(lambda: self._stream.write(plain))
        return len(text)

    def flush(self) -> None:
        self._attempt(lambda: self._stream.flush())

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            # Else Python writes what is held back at its end, and complains.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if error.errno not in _GONE:
                raise
            self.lost = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def of_command() -> Iterator[None]:
    """Put consoles in the place of standard output and error; of what libraries leave undone nothing is told."""
    for library in ("asyncio", "zarr"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    atexit.register(_end_silently)
    before = sys.stdout, sys.stderr
    consoles = sys.stdout, sys.stderr = Console(before[0]), Console(before[1])
    try:
        yield
    finally:
        for console in consoles:
            console.flush()
        sys.stdout, sys.stderr = before


def _end_silently() -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = threading.excepthook = lambda _: None  # type: ignore[assignment]
