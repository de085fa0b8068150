"""Errors a user meets and the exit code of each (the table is in docs/operations.md).

A message names a setting by its key, in backticks; see `config.settings`.
"""

from enum import IntEnum


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

    def __init_subclass__(cls, exit_code: ExitCode | None = None) -> None:
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str = "", for_runs: str = "") -> None:  # advice for those who have all settings
        super().__init__(message + (for_runs and f", or {for_runs}"))
        self.message = message


class ConfigError(PipelineError, exit_code=ExitCode.USAGE):
    """An option has a value it cannot have, or does not exist."""


class InvalidDataError(PipelineError, exit_code=ExitCode.INVALID_DATA):
    """The data or the statistics made from them cannot be trained on."""


class MissingRunError(PipelineError, exit_code=ExitCode.MISSING_INPUT):
    """A run folder that was asked for does not exist."""


class SchedulerError(PipelineError, exit_code=ExitCode.UNAVAILABLE):
    """The dask scheduler cannot be reached, was lost, or has workers of another version."""


class PlanError(PipelineError, exit_code=ExitCode.OUT_OF_MEMORY):
    """The plan does not fit the memory limit."""


class StoppedError(PipelineError, exit_code=ExitCode.STOPPED):
    """The run was stopped on request and can be resumed."""


class FolderInUseError(PipelineError, exit_code=ExitCode.CANNOT_CREATE):
    """The run folder already holds another run."""


class ConfigMismatchError(PipelineError, exit_code=ExitCode.CONFIGURATION_MISMATCH):
    """A resumed run was given other settings than the ones it was started with."""
