"""What any command says of an error, and its exit code: one line, and a bug only what is one."""

import errno

import pytest

from features.errors import DataError, MissingInputError, UnavailableError, UsageError
from pipeline.errors import ConfigMismatchError, InvalidDataError, PlanError, StoppedError
from pipeline.runtime.answers import describe
from storage.errors import CannotWriteError, CorruptDataError

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
    (PermissionError(errno.EACCES, "denied", "/closed/file"), 73, "/closed/file: permission denied"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "the name is too long"),
    (MemoryError("8 GiB"), 71, "out of memory: 8 GiB"),
    (KeyboardInterrupt(), 75, "interrupted"),
    (ValueError("embedded null byte"), 2, "NUL"),
    (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
    (RuntimeError(), 70, "RuntimeError"),
]


@pytest.mark.parametrize(("error", "code", "words"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_line_and_a_code(error: BaseException, code: int, words: str) -> None:
    number, line = describe(error)
    assert number == code
    assert words in line
    assert "\n" not in line


@pytest.mark.parametrize(("kind", "code"), [(CorruptDataError, 65), (CannotWriteError, 73)])
def test_errors_of_the_storage_bring_their_code(kind: type[Exception], code: int) -> None:
    assert describe(kind("/there: what is wrong")) == (code, "/there: what is wrong")
