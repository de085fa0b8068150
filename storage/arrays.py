"""Named arrays: one .npz, or a folder of .npy files to be mapped, with facts in its manifest.

The same arrays give the same bytes: an .npz has its entries sorted, stored uncompressed, dated 1980-01-01, little
endian, C order. Readers are bounded and use no pickle.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from storage.errors import CorruptDataError, MissingDataError, remedy_at
from storage.files import open_plain, read_errors, replacing
from storage.folder_layouts import check_plain_name
from storage.folders import compare, new_folder, read_manifest

_KINDS = "fiub"  # floats, integers, booleans: what a header may claim; objects would need pickle
_MAXIMUM_ENTRIES = 1000
_MAXIMUM_HEADER_CHARACTERS = 4096
_ENTRY_BYTES = 30 + 46  # zip: the header of an entry and its line in the directory, without the names
_END_BYTES = 22
_PIECE_BYTES = 64 * 2**20
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '(?P<descr>\|[biu]1|<[fiu][248])', 'fortran_order': False, "
    rb"'shape': \((?P<shape>|\d{1,18},|\d{1,18}(?:, \d{1,18})+)\), \} *\n"
)


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], *, metadata: Mapping[str, Any] | None = None, durable: bool = True
) -> None:
    """Write named arrays durably: an .npz if the name ends so, else a folder of .npy files to be mapped.

    The folder has a manifest of kind "arrays" with `metadata`. An .npz with `durable=False` has no fsync: for what a
    resumed run can check and make again.

    Raises ValueError where a name is not plain, a dtype is no number, or `metadata` is given with an .npz;
    CannotWriteError.
    """
    if path.suffix == ".npz":
        if metadata is not None:
            raise ValueError(f"{path}: metadata is only kept by the folder form; drop it or the .npz suffix")
        wanted_bytes = sum(np.asarray(values).nbytes for values in arrays.values())
        with replacing(path, wanted_bytes, sync_file=durable, sync_folder=durable) as stream:
            _write_npz(stream, arrays)
        return
    with new_folder(path, kind="arrays", metadata=metadata) as folder:
        for name, values in arrays.items():
            written = _as_written(name, values)
            with replacing(folder / f"{name}.npy", written.nbytes, sync_folder=False) as stream:
                stream.write(_npy_header(written.dtype, written.shape))
                stream.write(_bytes_of(written))


def read_arrays(path: Path, *, mapped: bool = False, remedy: str | None = None) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote; `mapped` maps the files of the folder form read-only instead.

    An .npz entry is checked by its CRC. In the folder form sizes are checked against the manifest, and contents too
    unless `mapped` (then `check_folder` is the caller's).

    Raises MissingDataError, CorruptDataError, UnavailableStoreError where it is absent, damaged, cannot be read. With a
    `remedy`, absence is damage too, and the message ends with it.
    """
    try:
        if path.suffix == ".npz":
            return dict(read_each_array(path))
        return read_folder(path, mapped=mapped)[0]
    except (CorruptDataError, MissingDataError) as error:
        if remedy is None:
            raise
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
        raise CorruptDataError(f"{path}: {reason}; {remedy}") from None


def read_folder(path: Path, *, mapped: bool = False) -> tuple[dict[str, np.ndarray], Mapping[str, Any]]:
    """Return the arrays and the metadata of a folder of `write_arrays`. Raises as `read_arrays`."""
    manifest = read_manifest(path)
    problems = compare(path, manifest.files, contents=not mapped)
    if problems:
        raise CorruptDataError(f"{path}: damaged arrays ({problems[0]}); {remedy_at(path)}")
    names = sorted(name for name in manifest.files if name.endswith(".npy"))
    arrays = {name.removesuffix(".npy"): read_npy(path / name, mapped=mapped) for name in names}
    return arrays, manifest.metadata


def read_each_array(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and values of each array of an .npz in the order of the names, one at a time in memory.

    Nothing larger than the file is allocated, nothing is unpickled. Raises as `read_arrays`; CorruptDataError also
    where an entry is compressed, or a header claims what the file does not hold.
    """
    with _damage_of(path), open_plain(path) as stream, zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        _check_entries(entries, os.fstat(stream.fileno()).st_size)
        for info in entries:
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as entry:  # checks its header against the directory, and its CRC at its end
                shape, dtype = _read_header(name, entry, info.file_size)
                yield name, _read_values(name, entry, shape, dtype)


def read_npy(path: Path, *, mapped: bool) -> np.ndarray:
    """Read one .npy file, or map it read-only, after its header has been checked against the file's size."""
    with _damage_of(path), open_plain(path) as stream:
        shape, dtype = _read_header(path.name, stream, os.fstat(stream.fileno()).st_size)
        if not mapped:
            return _read_values(path.name, stream, shape, dtype)
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=stream.tell(), shape=shape)


@contextlib.contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Turn what readers raise over the content of a file into CorruptDataError; other errors as `read_errors`."""
    try:
        with read_errors(path):
            try:
                yield
            except OSError as error:
                if error.errno in (None, errno.EINVAL):  # a seek to where a damaged directory points
                    raise ValueError("its directory points outside it") from None
                raise
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        reason = str(error) or type(error).__name__
        raise CorruptDataError(f"{path}: damaged arrays ({reason}); {remedy_at(path)}") from None


def _write_npz(stream: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays to a seekable stream; no copy of an array that is contiguous and little endian."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            values = _as_written(name, arrays[name])
            header, data = _npy_header(values.dtype, values.shape), _bytes_of(values)
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            info.file_size = len(header) + data.nbytes  # known before, so that it may exceed 4 GiB
            with archive.open(info, "w") as entry:
                entry.write(header)
                for start in range(0, data.nbytes, _PIECE_BYTES):
                    entry.write(data[start : start + _PIECE_BYTES])


def _as_written(name: str, values: np.ndarray) -> np.ndarray:
    """Return an array in C order and little endian. Raises ValueError where name or dtype is not allowed."""
    if "/" in check_plain_name(name):
        raise ValueError(f"array name: wanted a name without folders, found {name!r}")
    values = np.asarray(values)
    if values.dtype.kind not in _KINDS:
        raise ValueError(f"array {name}: wanted floats, integers or booleans, found dtype {values.dtype}")
    return np.asarray(values, values.dtype.newbyteorder("<"), order="C")


def _bytes_of(values: np.ndarray) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of the .npy form of an array (version 1.0)."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return header.getvalue()


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
    view = _bytes_of(values)
    position = 0
    while position < view.nbytes:
        # An entry of an .npz is read by way of a copy, of a MiB at a time.
        count = stream.readinto(view[position : position + 2**20])  # type: ignore[attr-defined]  # opened for bytes
        if not count:
            raise EOFError(f"array {name} ends early")
        position += count
    return values
