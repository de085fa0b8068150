"""What the pages of a parquet file unpack to, as their own headers say: that is what readers allocate.

Headers are structures of thrift's compact protocol; nothing but numbers is taken from them.
"""

from collections.abc import Callable
from io import BufferedReader
from typing import Any

UNPACKED, PACKED = 2, 3  # sizes in a page header
VALUES_OF = (5, 8)  # the headers of data pages of both versions, whose first number is how many values they have
HEADER_BYTES = (1 << 9, 1 << 24)  # read of a header, and again if it is longer


def unpacked_bytes(stream: BufferedReader, start: int, length: int, n_values: int) -> int:
    """Return what the pages of a column unpack to, until all of its values are there, as readers do.

    Raises ValueError where there are no such pages in `length` bytes from `start` on.
    """
    end, unpacked = start + length, 0
    while n_values > 0:
        header, start = _header(stream, start, end)
        start += header[PACKED]
        unpacked += header[UNPACKED]
        n_values -= sum(header[field][1] for field in VALUES_OF if field in header)
        if min(header[PACKED], header[UNPACKED]) < 0 or start > end:
            raise ValueError("a page is not where it should be")
    return unpacked


def _header(stream: BufferedReader, start: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the page header at a place of a file, by the numbers of its fields, and where it ends."""
    for most in HEADER_BYTES:
        stream.seek(start)
        try:
            header, length = _struct(stream.read(max(min(most, end - start), 0)), 0)
            return header, start + length
        except (IndexError, RecursionError):
            continue
    raise ValueError("a page header does not end")


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    field = 0
    while kind := data[at]:
        field, at = (field + (kind >> 4), at + 1) if kind >> 4 else _zigzag(data, at + 1)
        if kind & 15 not in _READ:
            raise ValueError("a page header has a field that none has")
        found[field], at = _READ[kind & 15](data, at)
    return found, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            break
    return value, at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _text(data: bytes, at: int) -> tuple[None, int]:
    length, at = _varint(data, at)
    return None, at + length


_READ: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    1: lambda data, at: (True, at),
    2: lambda data, at: (False, at),
    3: lambda data, at: (data[at], at + 1),
    **dict.fromkeys((4, 5, 6), _zigzag),
    7: lambda data, at: (None, at + 8),
    8: _text,
    12: _struct,
}
