"""What can go wrong with bytes on disk, each with the exit code that a command ends with.

Every error carries one line for the user (what was asked, what was found, what to do) and the facts as
attributes. All arguments beside the message are keywords with defaults, so that the errors survive the
pickling by which an executor brings them back from a worker.
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of all errors of this package; `exit_code` is the process exit status it asks for."""

    exit_code: int = 70


class CorruptDataError(StorageError):
    """Stored data is damaged, incomplete or not in a form we accept (exit 65)."""

    exit_code = 65

    def __init__(
        self,
        message: str,
        *,
        array: str | None = None,
        block: tuple[int, int] | None = None,
        file: str | None = None,
    ) -> None:
        super().__init__(message)
        self.array = array
        self.block = block
        self.file = file


class MissingDataError(StorageError):
    """A file or folder that was asked for does not exist (exit 66)."""

    exit_code = 66

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class UnavailableStoreError(StorageError):
    """The data exists but cannot be read now: permission, I/O error, lost mount (exit 69)."""

    exit_code = 69

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class LockedError(StorageError):
    """Another process holds the lock of a folder (exit 73); names its host and pid."""

    exit_code = 73

    def __init__(self, message: str, *, path: str | None = None, host: str = "", pid: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.host = host
        self.pid = pid


class CannotWriteError(StorageError):
    """A file cannot be created or written (exit 73): disk full, permission, read-only, I/O error.

    `wanted_bytes` is the size of what was being written, where known; `cause` a few words.
    """

    exit_code = 73

    def __init__(
        self, message: str, *, path: str | None = None, wanted_bytes: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(message)
        self.path = path
        self.wanted_bytes = wanted_bytes
        self.cause = cause
