"""The console: text for whoever looks on, who may leave. Work goes on without a reader, and ends by its own result."""

import atexit
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Console:
    """A stream of text that may be closed, full, gone, or was never there (None): what it does not take is dropped.

    lost : why it did not take the last text that was dropped
    """

    def __init__(self, stream: "TextIO | Console | None") -> None:
        self._stream: Any = stream._stream if isinstance(stream, Console) else stream
        self.lost: Exception | None = None

    def write(self, text: str) -> int:
        """Write text; letters that the encoding of the stream lacks are written as Python escapes them."""
        try:
            self._attempt(lambda: self._stream.write(text))
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, errors="backslashreplace").decode(error.encoding)
            self._attempt(lambda: self._stream.write(plain))
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        self._attempt(lambda: self._stream.flush())

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return bool(self._attempt(lambda: self._stream.isatty()))

    def give_up(self) -> None:
        """Write what is held back, or send it nowhere: else Python tries again at its end, and complains."""
        self.flush()
        if self.lost is not None:
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self.flush()

    def _attempt(self, action: Callable[[], Any]) -> Any:
        if self._stream is None:
            return None
        try:
            return action()
        except UnicodeEncodeError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a closed file
            self.lost = error
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def of_command() -> Iterator[tuple[Console, Console]]:
    """Put consoles in the place of standard output and error while the block runs; yield the two.

    Where Python was started with closed ones, nothing that is opened later gets their numbers: a library that writes to
    standard error would write into it. What libraries leave undone after an error is not told beside it.
    """
    for library in ("asyncio", "zarr"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    logging.raiseExceptions = False
    atexit.register(_end_silently)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
    before = sys.stdout, sys.stderr
    consoles = Console(before[0]), Console(before[1])
    sys.stdout, sys.stderr = consoles
    try:
        yield consoles
    finally:
        for console in consoles:
            console.give_up()
        sys.stdout, sys.stderr = before


def _end_silently() -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = threading.excepthook = lambda _: None  # type: ignore[assignment]
