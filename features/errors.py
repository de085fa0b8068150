"""What can be wrong with an input: exit codes 2 (UsageError), 65 (Data), 66 (MissingInput), 69 (Unavailable)."""


class UsageError(ValueError):
    """An option has a value that cannot be used; the message names the option and what to give."""


class DataError(ValueError):
    """Data are corrupt or invalid; the message names the file or array, and the row where one is known."""


class MissingInputError(FileNotFoundError):
    """An input that was asked for is not there; the message names the files and the folder."""


class UnavailableError(Exception):
    """No mirror could be reached or trusted; the message says what to do without a network."""
