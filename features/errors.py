"""What can be wrong with an input, one class for each way a caller must react.

The command line maps each class to an exit code: `UsageError` 2, `DataError` 65,
`MissingInputError` 66, `UnavailableError` 69.
"""


class UsageError(ValueError):
    """An option has a value that cannot be used; the message names the option and what to give."""


class DataError(ValueError):
    """Data are corrupt or invalid; the message names the file or array, and the row where one is known."""


class MissingInputError(FileNotFoundError):
    """An input that was asked for is not there; the message names the files and the folder."""


class UnavailableError(Exception):
    """No mirror could be reached or trusted; the message says what to do without a network."""
