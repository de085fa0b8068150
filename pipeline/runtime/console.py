"""The line of a stage: on a terminal redrawn in place until it stays with its time, else one a minute and a last one.

What is printed meanwhile, also by others, goes above the line.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

LINE_SECONDS = 60.0  # between two lines where there is no terminal
DRAW_SECONDS = 0.5  # between two drawings of the line of a terminal
_CLEAR = "\r\x1b[K"


class StageLine:
    """The line of a stage while a `with` block runs: its name, its seconds, and what `words` tells.

    last : tells what stays beside the time when the stage is done
    """

    def __init__(self, stream: TextIO, stage: str, words: Callable[[], str], last: Callable[[], str] = str) -> None:
        self._stream, self._stage, self._words, self._last = stream, stage, words, last
        self._is_terminal, self._lock, self._inside = stream.isatty(), threading.RLock(), ExitStack()
        self._drawn = self._torn = False  # torn: others have begun a line and not ended it

    def __enter__(self) -> "StageLine":
        """Begin the line."""
        self._started = time.monotonic()
        if self._is_terminal:
            for redirect, other in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
                if other.isatty():
                    self._inside.enter_context(redirect(self.above(other)))
        self._inside.enter_context(repeating(DRAW_SECONDS if self._is_terminal else LINE_SECONDS, self._draw))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End the line: it stays."""
        self._inside.close()
        with self._lock:
            self._clear()
            if self._torn:
                self._write("\n")
            words = "stopped" if kind else self._last()
            if self._is_terminal:
                self._write(self._fitted(words) + "\n")
            else:
                self._write(f"{self._stage}: {words or 'done'}, {self._seconds():.1f} s\n")

    def above(self, stream: TextIO) -> Any:
        """Return what writes as a stream does, above this line."""
        return _Above(stream, self)

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write text of others to a stream, in place of the line, which is drawn again below a line that they end."""
        with self._lock:
            self._clear()
            self._torn = not text.endswith("\n") if text else self._torn
            return stream.write(text)

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _draw(self) -> None:
        words = self._words()
        with self._lock:
            if not self._is_terminal:
                self._write(f"{self._stage}: {words}, {self._seconds():.0f} s so far\n")
            elif not self._torn:
                self._write(_CLEAR + self._fitted(words))
                self._drawn = True

    def _fitted(self, words: str) -> str:
        """Return the line, cut to the width of the terminal: what wraps cannot be drawn again in place."""
        line = f"{self._stage:<10}{self._seconds():>8.1f} s  {words}".rstrip()
        room = self._columns() - 1
        return line if len(line) <= room else f"{line[: room - 1]}…"

    def _columns(self) -> int:
        with suppress(OSError):
            if columns := os.get_terminal_size(self._stream.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns

    def _clear(self) -> None:
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Above:
    """A stream whose text goes above the line of a stage."""

    def __init__(self, stream: TextIO, line: StageLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def repeating(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` every few seconds from a thread while the block runs."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(seconds):
            with suppress(Exception):  # progress is told again soon, and no error of it may end what is told after
                action()

    thread = threading.Thread(target=loop, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
