"""What a run tells: log.jsonl, metrics.jsonl, and a line for each stage.

On a terminal and in a notebook the line is drawn again in place until it stays with its time; elsewhere it is written
once a minute, and a last time. What is printed meanwhile, also by others, goes above it.
"""

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from features.cell_text import printable
from pipeline.config.names import worded
from pipeline.runtime.console import Console
from pipeline.runtime.memory_limits import MemoryMeter
from pipeline.runtime.progress import repeating
from storage.files import LineFile

LINE_SECONDS = 60.0  # between two lines where none can be drawn again
DRAW_SECONDS = 0.5  # between two drawings of one

Callback = Callable[[dict[str, Any]], object]


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
                    self._inside.enter_context(redirect(_Above(other, self)))
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


class _Above:
    def __init__(self, stream: TextIO | Console, line: StageLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Events:
    """Log, metrics and progress of one run. Safe to use from several threads.

    callback : gets every record of both files once it is written, one at a time; none after it has raised an error
    """

    def __init__(
        self,
        log: Path,
        metrics: Path,
        meter: MemoryMeter,
        *,
        quiet: bool,
        stream: TextIO | None = None,
        callback: Callback | None = None,
    ) -> None:
        self.meter = meter
        self._stream = Console(stream or sys.stderr)
        self._quiet, self._callback, self._lock = quiet, callback, threading.Lock()
        self._line: StageLine | None = None  # of the stage under way
        self._words: Callable[[], str] = meter.text  # what its line tells
        self._log, self._metrics = LineFile(log), LineFile(metrics)

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._metrics.close()

    def log(self, message: str, **facts: Any) -> None:
        message = worded(message)
        self.record("message", message=message, **facts)
        if not self._quiet:
            self._print(message)

    def warn(self, message: str, **facts: Any) -> None:
        message = worded(message)
        self.record("warning", message=message, **facts)
        self._print(f"warning: {message}")

    def _print(self, message: str) -> None:
        print(printable(message), file=self._above(), flush=True)

    def _above(self) -> Any:  # the line's own stream may go above another line
        return _Above(self._line._stream, self._line) if self._line else self._stream

    def record(self, event: str, **facts: Any) -> None:
        self._append(self._log, {"event": event, **facts})

    def metric(self, **facts: Any) -> None:
        self._append(self._metrics, facts)

    def _append(self, file: LineFile, facts: dict[str, Any]) -> None:
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts}
        with self._lock:
            file.append(json.dumps(record))
            callback, self._callback = self._callback, None
            if callback is not None:
                callback(record)
                self._callback = callback

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a line for a stage while the block runs; it stays with the time that the stage took."""
        if self._quiet:
            yield
            return
        before = self._line
        try:
            with StageLine(self._above(), name, lambda: self._words()) as self._line:
                yield
        finally:
            self._line = before

    @contextmanager
    def progress(self, stage: str, words: Callable[[], str]) -> Iterator[None]:
        """Show what `words` tells on the line of a stage while the block runs."""
        before, self._words = self._words, lambda: ", ".join(filter(None, (words(), self.meter.text())))
        try:
            with nullcontext() if self._line else self.stage(stage):
                yield
        finally:
            self._words = before
