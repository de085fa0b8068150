"""What a command answers with: its exit code, and one line for the user where it ends with an error."""

import errno
import sys
import traceback
from collections.abc import Callable, Iterator

from features.cell_text import printable
from pipeline.config.settings import worded
from pipeline.errors import ExitCode
from pipeline.runtime.console import of_command
from storage.files import LIMITS

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_FAILING = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EBADMSG)
_DISK = "see whether the disk is whole and connected, or use a copy elsewhere"


def answered(work: Callable[[], int | None], *, is_run: bool = False) -> int:
    """Do the work of a command and return its exit code, 0 where it returns none; errors become one line.

    A bug comes with its traceback unless a log has it. Of a run, a stop is no error; nor is a reader who leaves.
    """
    with of_command():
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


def describe(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code and the one line for the user that belong to an exception; an unknown one is a bug."""
    line = printable(worded(" ".join(str(error).split()))) or type(error).__name__
    code = getattr(error, "exit_code", None)
    if code is not None:
        return ExitCode(int(code)), line
    if isinstance(error, UnicodeEncodeError):
        return ExitCode.USAGE, f"{error.object[:80]!r} is not UTF-8; rename the file or folder"
    # RuntimeError up to Python 3.12
    if line.startswith("Symlink loop") or getattr(error, "errno", None) == errno.ELOOP:
        return ExitCode.CANNOT_CREATE, f"{line}: links that lead to each other; choose another path"
    if isinstance(error, PermissionError):
        return ExitCode.CANNOT_CREATE, f"{error.filename}: permission denied; choose a path you have the rights for"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return ExitCode.USAGE, f"{error.filename!s:.60}...: the name is too long for a file; choose a shorter one"
    if isinstance(error, OSError) and error.errno in _FULL:
        return ExitCode.CANNOT_CREATE, f"{line}; {LIMITS.get(error.errno, 'free some space or choose another disk')}"
    if isinstance(error, OSError) and error.errno in (*LIMITS, *_FAILING):  # of reading: our own errors tell of writing
        return ExitCode.UNAVAILABLE, f"{line}; {LIMITS.get(error.errno, _DISK)}"
    if isinstance(error, BlockingIOError) or line.startswith("can't start new thread"):  # a fork, a thread
        limits = "allow more processes, threads or memory (ulimit -u, ulimit -v)"
        return ExitCode.OUT_OF_MEMORY, f"{line}; {limits}, or lower --workers"
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
