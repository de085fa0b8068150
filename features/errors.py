"""What can be wrong with an input; `exit_code` is the exit status of the process."""

CHANGED = "changed while it was read; leave it alone meanwhile, and run again"


class UsageError(ValueError):
    """An option has a value that cannot be used; the message names the option and what to give."""

    exit_code = 2


class DataError(ValueError):
    """Data are corrupt or invalid; the message names the file or array, and the row where one is known."""

    exit_code = 65


class MissingInputError(FileNotFoundError):
    """An input that was asked for is not there; the message names the files and the folder."""

    exit_code = 66


class UnavailableError(Exception):
    """No mirror could be reached or trusted, or a disk does not give what it has; the message says what to do."""

    exit_code = 69
