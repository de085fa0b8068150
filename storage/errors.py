"""What can go wrong with bytes on disk, each with the exit code that a command ends with."""

from __future__ import annotations


class StorageError(Exception):
    """Base of all errors of this package: one line for the user, and facts as attributes, which survive pickling.

    The line says what was wanted, what was found and what to do. `exit_code` is the exit status of the process.
    """

    exit_code: int = 70

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        vars(self).update(facts)


class CorruptDataError(StorageError):
    """Stored data is damaged, incomplete or not in a form we accept (exit 65)."""

    exit_code = 65
    file: str | None = None
    array: str | None = None
    block: tuple[int, int] | None = None  # rows


class MissingDataError(StorageError):
    """A file or folder that was asked for does not exist (exit 66)."""

    exit_code = 66


class UnavailableStoreError(StorageError):
    """The data exists but cannot be read now: permission, I/O error, lost mount (exit 69)."""

    exit_code = 69


class LockedError(StorageError):
    """Another process holds the lock of a folder (exit 73); names its host and pid."""

    exit_code = 73
    host: str = ""
    pid: int = 0


class CannotWriteError(StorageError):
    """A file cannot be created or written (exit 73): disk full, permission, read-only, I/O error."""

    exit_code = 73
    path: str | None = None
