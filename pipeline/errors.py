"""Errors a user meets and the exit code of each (the table is in docs/operations.md).

A message names a setting by its key, in backticks, with a value or without: `kernel.sigma2=auto`, `centers.count`.
Whoever shows it puts it into the words of the reader with `reworded`: options of a command, parameters of an estimator.
"""

import re
from collections.abc import Callable
from enum import IntEnum

_SETTING = re.compile(r"`([a-z]+\.[a-z_0-9]+)(?:=([^`]*))?`")


def reworded(message: str, named: Callable[[str, str | None], str]) -> str:
    """Return a message with each setting as `named` calls it, from its key and its value or None."""
    return _SETTING.sub(lambda found: named(found[1], found[2]), message)


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
    """A failure with one line for the user and an exit code.

    for_runs : further advice, for those who have all settings: an estimator has some of them
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str = "", for_runs: str = "") -> None:
        super().__init__(message + (for_runs and f", or {for_runs}"))
        self.message = message


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
