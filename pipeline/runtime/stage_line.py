"""The line of a stage on the console.

On a terminal and in a notebook the line is drawn again in place until it stays with its time; elsewhere it is written
once a minute, and a last time. What is printed meanwhile, also by others, goes above it.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from pipeline.runtime.console import Console
from pipeline.runtime.progress import repeating

LINE_SECONDS = 60.0  # between two lines where none can be drawn again
DRAW_SECONDS = 0.5  # between two drawings of one


class StageLine:
    """The line of a stage while a `with` block runs: its name, its seconds, and what `words` tells.

    last : tells what stays beside the time when the stage is done
    """

    def __init__(
        self, stream: TextIO | Console, stage: str, words: Callable[[], str], last: Callable[[], str] = str
    ) -> None:
        self._stream, self._stage, self._words, self._last = Console(stream), stage, words, last
        self._in_place = self._stream.isatty() or "ipykernel.zmqshell" in sys.modules  # a notebook
        self._lock, self._inside = threading.RLock(), ExitStack()
        self._drawn, self._torn = 0, False  # characters of the line; whether others have begun a line and not ended it

    def __enter__(self) -> "StageLine":
        self._started = time.monotonic()
        if self._in_place:
            for redirect, other in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
                if other.isatty():
                    self._inside.enter_context(redirect(Above(other, self)))
        self._inside.enter_context(repeating(DRAW_SECONDS if self._in_place else LINE_SECONDS, self._draw))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._inside.close()
        with self._lock:
            self._write(self._erased() + ("\n" if self._torn else ""))
            words = "stopped" if kind else self._last()
            if self._in_place:
                self._write(self._fitted(words) + "\n")
            else:
                self._write(f"{self._stage}: {words or 'done'}, {self._seconds():.1f} s\n")

    def write_above(self, stream: TextIO | Console, text: str) -> int:
        """Write text of others to a stream, in place of the line, which is drawn again below a line that they end."""
        with self._lock:
            self._write(self._erased())
            self._torn = not text.endswith("\n") if text else self._torn
            return stream.write(text)

    def _draw(self) -> None:
        words = self._words()
        with self._lock:
            if not self._in_place:
                self._write(f"{self._stage}: {words}, {self._seconds():.0f} s so far\n")
            elif not self._torn:
                line = self._fitted(words)
                self._write(self._erased() + line)
                self._drawn = len(line)

    def _erased(self) -> str:
        """Return what to write where the line is no longer to be seen: spaces, the one way that a notebook knows."""
        drawn, self._drawn = self._drawn, 0
        return f"\r{' ' * drawn}\r" if drawn else ""

    def _fitted(self, words: str) -> str:
        """Return the line, cut to the width of the terminal: what wraps cannot be drawn again in place."""
        line = f"{self._stage:<10}{self._seconds():>8.1f} s  {words}".rstrip()
        room = shutil.get_terminal_size().columns - 1
        return line if len(line) <= room else f"{line[: room - 1]}…"

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Above:
    """A stream whose text goes above a line."""

    def __init__(self, stream: TextIO | Console, line: StageLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
