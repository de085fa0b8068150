"""What a command answers with: one line and a code for an error, and a traceback where nothing else tells of a bug."""

import errno
from unittest.mock import Mock

import pytest

from features.errors import DataError, MissingInputError, UnavailableError, UsageError
from pipeline.errors import ConfigMismatchError, InvalidDataError, PlanError, StoppedError
from pipeline.runtime.console import answered, describe
from storage.errors import CannotWriteError, CorruptDataError


def caused_by(cause: Exception) -> Exception:
    error = OSError("cannot load a library")
    error.__cause__ = cause
    return error


CASES: list[tuple[BaseException, int, str]] = [
    (PlanError("the plan\n  needs more"), 71, "the plan needs more"),
    (StoppedError("stopped by SIGTERM"), 75, "stopped by SIGTERM"),
    (InvalidDataError("one class"), 65, "one class"),
    (ConfigMismatchError("other settings"), 78, "other settings"),
    (DataError("row 3"), 65, "row 3"),
    (MissingInputError("no such file"), 66, "no such file"),
    (UnavailableError("no answer"), 69, "no answer"),
    (UsageError("unknown name"), 2, "unknown name"),
    (OSError(errno.ENOSPC, "No space left on device", "/full/file"), 73, "free some space"),
    (OSError(errno.EFBIG, "File too large", "/large/file"), 73, "allow larger files (ulimit -f)"),
    (OSError(errno.EMFILE, "Too many open files", "/one/more"), 69, "allow more open files (ulimit -n)"),
    (OSError(errno.EIO, "Input/output error", "/data"), 69, "see whether the disk is whole"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 71, "(ulimit -u, ulimit -v)"),
    (RuntimeError("can't start new thread"), 71, "(ulimit -u, ulimit -v)"),
    (RuntimeError("cannot cache function 'f': no locator available"), 73, "set NUMBA_CACHE_DIR"),
    (PermissionError(errno.EACCES, "denied", "/closed/file"), 73, "/closed/file: permission denied"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "the name is too long"),
    (OSError(errno.ELOOP, "Too many levels of symbolic links", "/loop"), 73, "links that lead to each other"),
    (RuntimeError("Symlink loop from '/loop'"), 73, "links that lead to each other"),
    (MemoryError("8 GiB"), 71, "out of memory: 8 GiB"),
    (KeyboardInterrupt(), 75, "interrupted"),
    (DataError("/a/\x1b[2J\u202e: damaged"), 65, "/a/\\x1b[2J\\u202e: damaged"),
    (caused_by(ImportError("a.so: failed to map segment from shared object")), 71, "out of memory"),
    (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
    (RuntimeError(), 70, "RuntimeError"),
    (CorruptDataError("/there: what is wrong"), 65, "/there: what is wrong"),
    (CannotWriteError("/there: what is wrong"), 73, "/there: what is wrong"),
]


@pytest.mark.parametrize(("error", "code", "words"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_line_and_a_code(error, code, words, capsys):
    number, line = describe(error)
    assert number == code
    assert words in line
    assert "\n" not in line
    assert answered(Mock(side_effect=error)) == code
    assert capsys.readouterr().err.endswith(f"error: {line}\n")


@pytest.mark.parametrize(
    ("error", "line"), [(StoppedError("stopped"), "stopped"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_stop_is_no_error_of_what_can_go_on(error, line, capsys):
    assert answered(Mock(side_effect=error), is_run=True) == 75
    assert capsys.readouterr().err == f"{line}\n"


def test_a_bug_comes_with_its_traceback_unless_a_log_has_it(capsys):
    bug = RuntimeError("never")
    assert answered(Mock(side_effect=bug)) == 70
    assert capsys.readouterr().err.startswith("Traceback")
    bug.add_note("(traceback in log.jsonl)")
    assert answered(Mock(side_effect=bug)) == 70
    assert capsys.readouterr().err == "error: RuntimeError: never (traceback in log.jsonl)\n"
