"""Reading files that somebody else may have put there: plain files only, and never more of them than is sensible.

A link to a device has no end, and a named pipe waits for a writer that never comes. `features.input_files` is the same
door for the data of the user.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from storage.errors import CorruptDataError

# Each value of a JSON text takes up to 24 times its bytes in memory, and has a comma (or is nested, which is bounded).
MAXIMUM_JSON_BYTES = 64 * 2**20
MAXIMUM_JSON_VALUES = 4_000_000


def open_plain(path: Path) -> BufferedReader:
    """Open a file for reading, by way of links if there are any, if it is a plain file; nothing else is waited for.

    Raises
    ------
    CorruptDataError
        If it is a pipe, a device or a socket.
    OSError
        If it does not exist, is a folder, or cannot be opened.
    """
    return open(path, "rb", opener=_open_plain)


def _open_plain(name: str, flags: int) -> int:
    try:
        descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_plain(name) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder is refused by whoever called us
        os.close(descriptor)
        raise _not_plain(name)
    return descriptor


def _not_plain(name: str) -> CorruptDataError:
    return CorruptDataError(f"{name}: is a pipe, a device or a socket; name a plain file", file=str(name))


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Return the content of a plain file of at most `most_bytes`.

    Raises
    ------
    CorruptDataError, OSError
        As `open_plain`; CorruptDataError also where it is larger.
    """
    with open_plain(path) as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        if n_bytes > most_bytes:
            raise CorruptDataError(f"{path}: larger than {most_bytes} bytes, not one of ours", file=str(path))
        return stream.read(n_bytes)  # a read takes the memory that it asks for


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text whose memory is bounded.

    Raises
    ------
    ValueError
        If it is no JSON, nested too deeply, has numbers of thousands of digits or millions of values.
    """
    if len(data) > MAXIMUM_JSON_BYTES or data.count(b",") > MAXIMUM_JSON_VALUES:
        raise ValueError("more values than any file of ours has")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
