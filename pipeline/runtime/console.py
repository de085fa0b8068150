"""The console: text for whoever looks on, who may leave; the line of a stage; and what a command answers with.

Work goes on without a reader, and ends by its own result: an exit code, and one line for the user where that is an
error. On a terminal and in a notebook the line of a stage is drawn again in place until it stays with its time;
elsewhere it is written once a minute, and a last time. What a run prints meanwhile goes above it.
"""

import atexit
import errno
import gc
import logging
import os
import shutil
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from features.words import printable
from pipeline.config.settings import worded
from pipeline.errors import ExitCode
from pipeline.runtime.progress import repeating
from storage.files import LIMITS

_GONE = (errno.EPIPE, errno.EIO)  # A pipe and a terminal raise these once the reader has left.
LINE_SECONDS = 60.0  # Where no line can be drawn again, a new one is written at this interval.
DRAW_SECONDS = 0.5  # A line is drawn again at this interval.
_FAILING = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EBADMSG)
# Of an error of the system by its number: the exit code, and what to do. Our own errors tell of writing.
_OF_SYSTEM = {
    **{number: (ExitCode.UNAVAILABLE, remedy) for number, remedy in LIMITS.items()},
    **dict.fromkeys(_FAILING, (ExitCode.UNAVAILABLE, "see whether the disk is whole and connected, or use a copy")),
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS), (ExitCode.CANNOT_CREATE, "free some space or choose another disk")
    ),
    errno.EFBIG: (ExitCode.CANNOT_CREATE, LIMITS[errno.EFBIG]),
    errno.ELOOP: (ExitCode.CANNOT_CREATE, "these are links that lead to each other; choose another path"),
    errno.EAGAIN: (ExitCode.OUT_OF_MEMORY, "allow more processes or memory (ulimit -u, ulimit -v), or lower --workers"),
}


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


class StageLine:
    """The line of a stage while a `with` block runs: its name, its seconds, and what `words` tells.

    last : tells what stays beside the time when the stage is done
    """

    def __init__(
        self, stream: TextIO | Console, stage: str, words: Callable[[], str], last: Callable[[], str] = str
    ) -> None:
        self._stream, self._stage, self._words, self._last = Console(stream), stage, words, last
        self._in_place = self._stream.isatty() or "ipykernel.zmqshell" in sys.modules  # a notebook
        self._drawing = repeating(DRAW_SECONDS if self._in_place else LINE_SECONDS, self._draw)
        self._lock, self._drawn = threading.Lock(), 0  # characters of the line

    def __enter__(self) -> "StageLine":
        self._started = time.monotonic()
        self._drawing.__enter__()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._drawing.__exit__(None, None, None)
        words = "stopped" if kind else self._last()
        ended = self._fitted(words) if self._in_place else f"{self._stage}: {words or 'done'}, {self._seconds():.1f} s"
        self.print_above(ended)

    def print_above(self, message: str) -> None:
        """Print a message in place of the line, which is drawn again below it."""
        with self._lock:
            self._write(f"{self._erased()}{message}\n")

    def _draw(self) -> None:
        words = self._words()
        with self._lock:
            if not self._in_place:
                self._write(f"{self._stage}: {words}, {self._seconds():.0f} s so far\n")
                return
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


def answered(work: Callable[[], int | None], *, is_run: bool = False) -> int:
    """Do the work of a command and return its exit code, 0 where it returns none; errors become one line.

    A bug comes with its traceback unless a log has it. Of a run, a stop is no error; nor is a reader who leaves:
    consoles take the place of standard output and error. Of what libraries leave undone nothing is told.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    atexit.register(_end_silently)
    before = sys.stdout, sys.stderr
    consoles = sys.stdout, sys.stderr = Console(before[0]), Console(before[1])
    try:
        code = work() or ExitCode.DONE
        sys.stdout.flush()
        return int(code)
    except (Exception, KeyboardInterrupt) as error:
        number, line = describe(error)
        notes = getattr(error, "__notes__", [])
        if number is ExitCode.BUG and not notes:
            traceback.print_exc()
        prefix = "" if is_run and number is ExitCode.STOPPED else "error: "
        print(prefix + " ".join([line, *notes]), file=sys.stderr)
        return int(number)
    finally:
        for console in consoles:
            console.flush()
        sys.stdout, sys.stderr = before


def _end_silently() -> None:
    gc.freeze()  # Python looks through all that was imported for cycles before it ends, which takes 0.15 s.
    warnings.simplefilter("ignore")
    sys.unraisablehook = threading.excepthook = lambda _: None  # type: ignore[assignment]


def describe(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code and the one line for the user that belong to an exception; an unknown one is a bug."""
    line = printable(worded(" ".join(str(error).split()))) or type(error).__name__
    code, number = getattr(error, "exit_code", None), getattr(error, "errno", None)
    if code is not None:
        return ExitCode(int(code)), line
    if isinstance(error, UnicodeEncodeError):
        return ExitCode.USAGE, f"{error.object[:80]!r} is not UTF-8; rename the file or folder"
    if isinstance(error, PermissionError):
        return ExitCode.CANNOT_CREATE, f"{error.filename}: permission denied; choose a path you have the rights for"
    if isinstance(error, OSError) and number == errno.ENAMETOOLONG:
        return ExitCode.USAGE, f"{error.filename!s:.60}...: the name is too long for a file; choose a shorter one"
    if isinstance(error, BlockingIOError) or line.startswith("can't start new thread"):  # a fork, a thread
        number = errno.EAGAIN
    elif line.startswith("Symlink loop"):  # RuntimeError up to Python 3.12
        number = errno.ELOOP
    if number in _OF_SYSTEM:
        found, remedy = _OF_SYSTEM[number]
        return found, f"{line}; {remedy}"
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith(("pipeline", "features", "storage")):
        environment = "run `make run` once, then `. .venv/bin/activate`"
        return ExitCode.UNAVAILABLE, f"{error.name} is not installed for {sys.executable}: {environment}"
    if isinstance(error, MemoryError) or any("failed to map segment" in str(cause) for cause in causes_of(error)):
        return ExitCode.OUT_OF_MEMORY, f"out of memory: {line}; lower --workers or --centers"
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.STOPPED, "interrupted"
    if line.startswith("cannot cache function"):  # numba, of a folder that cannot be written to, and none instead
        return ExitCode.CANNOT_CREATE, "compiled code can be kept nowhere; set NUMBA_CACHE_DIR, or free some space"
    return ExitCode.BUG, f"{type(error).__name__}: {line}"


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
