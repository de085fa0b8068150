"""What the columns of a parquet file unpack to, as the headers of their pages say: that is what readers allocate.

Footer and headers are structures of thrift's compact protocol, read here since a damaged one ends the process in
pyarrow. What is not as it should be is a ValueError.
"""

from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import Any, NamedTuple

UNPACKED, PACKED = 2, 3  # sizes in a page header
VALUES_OF = (5, 8)  # the headers of data pages of both versions, whose first number is how many values they have
HEADER_BYTES = (1 << 9, 1 << 24)  # read of a header, and again if it is longer
DELTA_ENCODINGS = {6, 7}  # of words, each after the one before: pyarrow has no dictionary of them


class Chunk(NamedTuple):
    """What a row group has of a column, or of a part of a nested one: where, and how many values; delta: of words."""

    name: str
    start: int
    length: int
    n_values: int
    delta: bool


def column_chunks(stream: BufferedReader) -> Iterator[Chunk]:
    """Yield the chunks of all row groups, as the footer says."""
    size = stream.seek(0, 2)
    stream.seek(max(size - 8, 0))
    length = int.from_bytes(stream.read(8)[:4], "little")
    stream.seek(max(size - 8 - length, 0))
    for group in _of_type(_read(stream.read(length)).get(4), list):
        for column in _of_type(_of_type(group, dict).get(1), list):
            yield _chunk(_of_type(_of_type(column, dict).get(3), dict))


def _chunk(column: dict[int, Any]) -> Chunk:
    places = [_of_type(column.get(9), int), *filter(None, [column.get(11)])]
    path = _of_type(column.get(3), list)
    name = _of_type(path[0] if path else None, bytes).decode()
    delta = not DELTA_ENCODINGS.isdisjoint(_of_type(column.get(2), list))
    return Chunk(name, min(places), _of_type(column.get(7), int), _of_type(column.get(5), int), delta)


def unpacked_pages(stream: BufferedReader, chunk: Chunk) -> Iterator[int]:
    """Yield the bytes that each page of a chunk unpacks to, until all of its values are there, as readers do."""
    start, end, n_values = chunk.start, chunk.start + chunk.length, chunk.n_values
    while n_values > 0:
        header, start = _header(stream, start, end)
        packed, unpacked = (_of_type(header.get(field), int) for field in (PACKED, UNPACKED))
        start += packed
        n_values -= sum(_of_type(_of_type(header[field], dict).get(1), int) for field in VALUES_OF if field in header)
        if min(packed, unpacked) < 0 or start > end:
            raise ValueError("a page is not where it should be")
        yield unpacked


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError("a header or the footer lacks what each has")
    return value


def _header(stream: BufferedReader, start: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the page header at a place of a file, by the numbers of its fields, and where it ends."""
    for most in HEADER_BYTES:
        stream.seek(max(start, 0))
        try:
            header, length = _struct(stream.read(max(min(most, end - start), 0)), 0)
            return header, start + length
        except (IndexError, RecursionError):
            continue
    raise ValueError("a page header does not end")


def _read(data: bytes) -> dict[int, Any]:
    try:
        return _struct(data, 0)[0]
    except (IndexError, RecursionError):
        raise ValueError("the footer does not end") from None


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    field = 0
    while kind := data[at]:
        field, at = (field + (kind >> 4), at + 1) if kind >> 4 else _zigzag(data, at + 1)
        found[field], at = _value(kind & 15, data, at)
    return found, at + 1


def _value(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind not in _READ:
        raise ValueError("a header or the footer has a field that none has")
    return _READ[kind](data, at)


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    kind, length = data[at] & 15, data[at] >> 4
    length, at = (length, at + 1) if length < 15 else _varint(data, at + 1)
    values = []
    for _ in range(length):
        value, at = (data[at] == 1, at + 1) if kind in (1, 2) else _value(kind, data, at)
        values.append(value)
    return values, at


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


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _varint(data, at)
    return data[at : at + length], at + length


_READ: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    1: lambda data, at: (True, at),
    2: lambda data, at: (False, at),
    3: lambda data, at: (data[at], at + 1),
    **dict.fromkeys((4, 5, 6), _zigzag),
    7: lambda data, at: (None, at + 8),
    8: _text,
    **dict.fromkeys((9, 10), _list),
    12: _struct,
}
