"""Errors a user meets and the exit code of each (the table is in README.md, "Exit codes")."""

import errno
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from io import TextIOWrapper
from typing import TextIO

from features.errors import DataError, MissingInputError, UnavailableError, UsageError


class ExitCode(IntEnum):
    """Process exit codes of every command."""

    DONE = 0
    NOT_CONVERGED = 3
    USAGE = 2
    INVALID_DATA = 65
    MISSING_INPUT = 66
    UNAVAILABLE = 69
    BUG = 70
    OUT_OF_MEMORY = 71
    CANNOT_CREATE = 73
    STOPPED = 75
    CONFIGURATION_MISMATCH = 78


class PipelineError(Exception):
    """A failure with one line for the user and an exit code."""

    exit_code: ExitCode = ExitCode.BUG


class ConfigError(PipelineError):
    """An option has a value it cannot have, or does not exist."""

    exit_code = ExitCode.USAGE


class InvalidDataError(PipelineError):
    """The data or the statistics made from them cannot be trained on."""

    exit_code = ExitCode.INVALID_DATA


class MissingRunError(PipelineError):
    """A run folder that was asked for does not exist."""

    exit_code = ExitCode.MISSING_INPUT


class SchedulerError(PipelineError):
    """The dask scheduler cannot be reached, was lost, or has workers of another version."""

    exit_code = ExitCode.UNAVAILABLE


class PlanError(PipelineError):
    """The plan does not fit the memory limit."""

    exit_code = ExitCode.OUT_OF_MEMORY


class StoppedError(PipelineError):
    """The run was stopped on request and can be resumed."""

    exit_code = ExitCode.STOPPED


class FolderInUseError(PipelineError):
    """The run folder already holds another run."""

    exit_code = ExitCode.CANNOT_CREATE


class ConfigMismatchError(PipelineError):
    """A resumed run was given other settings than the ones it was started with."""

    exit_code = ExitCode.CONFIGURATION_MISMATCH


_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_FEATURE_ERRORS: dict[type[Exception], ExitCode] = {
    DataError: ExitCode.INVALID_DATA,
    MissingInputError: ExitCode.MISSING_INPUT,
    UnavailableError: ExitCode.UNAVAILABLE,
    UsageError: ExitCode.USAGE,
}


def any_text_goes(stream: TextIO) -> None:
    """Let a stream write letters that its encoding lacks, such as those of labels, as escapes instead of failing."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def answered(work: Callable[[], int | None]) -> int:
    """Do the work of a command and return its exit code, 0 where it returns none; errors become one line."""
    try:
        code = work()
        sys.stdout.flush()
        return code or int(ExitCode.DONE)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except (Exception, KeyboardInterrupt) as error:
        number, line = describe(error)
        print(f"error: {line}", file=sys.stderr)
        return int(number)


def describe(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code and the one line for the user that belong to an exception.

    Ours, and those of `storage`, carry an `exit_code`; those of `features` are told by their class. What is none of
    these is a bug.
    """
    line = " ".join(str(error).split()) or type(error).__name__
    code = getattr(error, "exit_code", None)
    if code is not None:
        return ExitCode(int(code)), line
    for kind, known in _FEATURE_ERRORS.items():
        if isinstance(error, kind):
            return known, line
    if isinstance(error, PermissionError):
        return ExitCode.CANNOT_CREATE, f"{error.filename}: permission denied; choose a path you have the rights for"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return ExitCode.USAGE, f"{error.filename!s:.60}...: the name is too long for a file; choose a shorter one"
    if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
        return ExitCode.CANNOT_CREATE, f"{line}; free some space or choose another disk"
    if isinstance(error, MemoryError):
        return ExitCode.OUT_OF_MEMORY, f"out of memory: {line}; lower --block-size, --workers or --centers"
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.STOPPED, "interrupted"
    return ExitCode.BUG, f"{type(error).__name__}: {line}"
