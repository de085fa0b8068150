"""Named arrays as bytes: a deterministic .npz without times, and its bounded reader without pickle.

The same arrays give the same bytes: entries sorted, stored uncompressed, dated 1980-01-01, little endian, C
order.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.manifest import check_plain_name
from storage.plain_files import open_plain
from storage.remedies import remedy_at

_KINDS = "fiub"  # floats, integers, booleans: what a header may claim; objects would need pickle
_MAXIMUM_ENTRIES = 1000
_MAXIMUM_HEADER_CHARACTERS = 4096
_DATE = (1980, 1, 1, 0, 0, 0)
_ENTRY_BYTES = 30 + 46  # zip: the header of an entry and its line in the directory, without the names
_END_BYTES = 22
_LENGTHS_AT = 26  # in the header of an entry, of its name and what follows that
_PIECE_BYTES = 64 * 2**20
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '(?P<descr>\|[biu]1|<[fiu][248])', 'fortran_order': False, "
    rb"'shape': \((?P<shape>|\d{1,18},|\d{1,18}(?:, \d{1,18})+)\), \} *\n"
)


def write_npz(stream: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays to a seekable stream; no copy of an array that is contiguous and little endian.

    Raises
    ------
    ValueError
        If a name is not plain or a dtype is not a float, an integer or a boolean.
    """
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            header, data = npy_parts(name, arrays[name])
            info = zipfile.ZipInfo(f"{name}.npy", _DATE)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            info.file_size = len(header) + data.nbytes
            with archive.open(info, "w") as entry:
                entry.write(header)
                for start in range(0, data.nbytes, _PIECE_BYTES):
                    entry.write(data[start : start + _PIECE_BYTES])


def npy_parts(name: str, values: np.ndarray) -> tuple[bytes, memoryview]:
    """Return the header and the data of the .npy form of one array (version 1.0, C order, little endian)."""
    if "/" in check_plain_name(name):
        raise ValueError(f"array name: wanted a name without folders, found {name!r}")
    values = np.asarray(values)
    if values.dtype.kind not in _KINDS:
        raise ValueError(f"array {name}: wanted floats, integers or booleans, found dtype {values.dtype}")
    little = values.dtype.newbyteorder("<")
    flat = np.ascontiguousarray(values, dtype=little).reshape(-1)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": little.str, "fortran_order": False, "shape": values.shape})
    return header.getvalue(), flat.view(np.uint8).data


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read what `write_npz` wrote; errors as `read_entries`."""
    return dict(read_entries(path))


def read_entries(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the values of each array that `write_npz` wrote, in the order of the names.

    Nothing larger than the file is allocated, nothing is unpickled.

    Raises
    ------
    MissingDataError
        If the file does not exist.
    CorruptDataError
        If it is damaged (every entry has a CRC), compressed, or its headers claim what the file does not
        hold.
    """
    try:
        with open_plain(path) as stream, zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            _check_entries(entries, os.fstat(stream.fileno()).st_size)
            for info in entries:
                with archive.open(info):  # checks its header against the directory
                    pass
                yield info.filename.removesuffix(".npy"), _read_entry(stream, info)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: wanted the arrays in it, it does not exist", path=str(path)) from None
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
    except OSError as error:
        if error.errno is None or error.errno == 22:  # a seek to where a damaged directory points
            raise _damaged(path, "its directory points outside it") from None
        raise UnavailableStoreError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error


def check_npz(path: Path) -> None:
    """Check every byte of what `write_npz` wrote: equal arrays have equal bytes. Cost: a second copy in memory.

    Of a file above 64 MiB the entries' CRCs alone are checked, which leaves out times and attributes in its headers.

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        As `read_npz`.
    """
    arrays = read_npz(path)
    if path.stat().st_size > _PIECE_BYTES:
        return
    again = io.BytesIO()
    write_npz(again, arrays)
    if again.getbuffer() != path.read_bytes():
        raise _damaged(path, "its headers are not as they were written")


def read_npy(path: Path, *, mapped: bool) -> np.ndarray:
    """Read one .npy file, or map it read-only, after its header has been checked against the file's size."""
    try:
        with open_plain(path) as stream:
            shape, dtype = _read_header(path.name, stream, os.fstat(stream.fileno()).st_size)
            if not mapped:
                return _read_values(path.name, stream, shape, dtype)
            offset = stream.tell()
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: wanted the array in it, it does not exist", path=str(path)) from None
    except (ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error


def _check_entries(entries: list[zipfile.ZipInfo], file_bytes: int) -> None:
    if len(entries) > _MAXIMUM_ENTRIES:
        raise ValueError(f"{len(entries)} entries, at most {_MAXIMUM_ENTRIES} are read")
    if len({info.filename for info in entries}) != len(entries):
        raise ValueError("an entry occurs twice")
    for info in entries:
        if "/" in check_plain_name(info.filename) or not info.filename.endswith(".npy"):
            raise ValueError(f"entry {info.filename!r} is not a plain .npy name")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError(f"entry {info.filename} is compressed; only stored entries are read")
    # Every byte is accounted for: a damaged directory can hide an entry, and a header can claim any size.
    # Entries above 2 GiB carry longer headers, so there the account is an upper bound.
    accounted = _END_BYTES + sum(_ENTRY_BYTES + 2 * len(info.filename) + info.file_size for info in entries)
    if accounted > file_bytes or (accounted != file_bytes and file_bytes < zipfile.ZIP64_LIMIT // 2):
        raise ValueError(f"its entries account for {accounted} bytes, it has {file_bytes}")


def _read_entry(stream: IO[bytes], info: zipfile.ZipInfo) -> np.ndarray:
    """Return the array of an entry, read into its place: zipfile would copy it twice."""
    stream.seek(info.header_offset + _LENGTHS_AT)
    name_bytes, extra_bytes = struct.unpack("<HH", stream.read(4))
    stream.seek(name_bytes + extra_bytes, os.SEEK_CUR)
    start, name = stream.tell(), info.filename.removesuffix(".npy")
    shape, dtype = _read_header(name, stream, start + info.file_size)
    n_header = stream.tell() - start
    values = _read_values(name, stream, shape, dtype)
    stream.seek(start)
    crc = zlib.crc32(values.reshape(-1).view(np.uint8).data, zlib.crc32(stream.read(n_header)))
    if crc != info.CRC:
        raise ValueError(f"array {name} does not match its CRC")
    return values


def _read_header(name: str, stream: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype that a .npy header claims, in the one spelling that we write.

    numpy would evaluate the header as a Python literal. That is neither needed nor safe in threads: the parser of
    CPython 3.11 may fail in one thread while another one is in it (SystemError, issue 106905).
    """
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise ValueError(f"array {name} is not of .npy version 1.0")
    length = int.from_bytes(stream.read(2), "little")
    if length > _MAXIMUM_HEADER_CHARACTERS:
        raise ValueError(f"array {name} has a header of {length} characters")
    header = _HEADER.fullmatch(stream.read(length))
    if header is None:
        raise ValueError(f"array {name} has a dtype, an order or a header we never write")
    dtype = np.dtype(header["descr"].decode())
    shape = tuple(int(part) for part in header["shape"].split(b",") if part.strip())
    # Compared before anything is allocated: a header may claim any shape.
    if stream.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"array {name} claims shape {shape}, its entry has {size} bytes")
    return shape, dtype


def _read_values(name: str, stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    values = np.empty(shape, dtype)
    view = values.reshape(-1).view(np.uint8).data
    position = 0
    while position < view.nbytes:
        count = stream.readinto(view[position:])  # type: ignore[attr-defined]  # of a file opened for bytes
        if not count:
            raise EOFError(f"array {name} ends early")
        position += count
    return values


def _damaged(path: Path, reason: str) -> CorruptDataError:
    return CorruptDataError(f"{path}: damaged arrays ({reason}); {remedy_at(path)}", file=str(path))
