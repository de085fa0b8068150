"""The one form of what is committed: a file NAME.npz with named arrays and facts; and references to such files.

It is an ordinary .npz of NumPy, whose first entry is facts.json (`unzip -p NAME.npz facts.json` shows it). Every entry
has a checksum. The same arrays and facts give the same bytes: entries are sorted and uncompressed, dated 1980-01-01, in
C order. Values begin at multiples of 64 bytes, where they can be mapped. Nothing is pickled.
"""

import contextlib
import errno
import json
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.errors import CorruptDataError, MissingDataError, remedy_at
from storage.files import open_plain, parse_json, plain_value, read_errors, replacing

if TYPE_CHECKING:
    from io import BufferedReader

    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")
Arrays = dict[str, NDArray[Any]]
_KINDS = "fiub"  # These are floats, integers and booleans; objects would need pickle.
_FACTS = "facts.json"
_ALIGNMENT = 64  # An .npy aligns its values to these bytes.
_DAMAGE = (zipfile.BadZipFile, struct.error, RuntimeError, EOFError, LookupError, ValueError, TypeError)
# NumPy reads headers by the parser of Python, which in CPython before 3.11.5 fails in threads (its issue 106905).
_parsing = Lock()


class Contents(NamedTuple):
    """What is committed in a file: arrays by name, and facts as JSON knows them."""

    arrays: Arrays
    facts: Mapping[str, Any]


def commit(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    facts: Mapping[str, Any] | None = None,
    *,
    durable: bool = True,
    replace: bool = True,
) -> None:
    """Write a file NAME.npz, whole or not at all; with `durable=False` without fsync, for what can be made again.

    Without `replace`, what others have put there meanwhile stays. Raises ValueError where a dtype is no number or a
    fact has no form in JSON, CannotWriteError.
    """
    written = {name: _as_written(name, arrays[name]) for name in sorted(arrays)}
    # With the names: a damaged directory of a zip can hide an entry.
    about = json.dumps({"arrays": [*written], "facts": facts or {}}, default=plain_value)
    wanted_bytes = sum(values.nbytes for values in written.values())
    with (
        replacing(path, wanted_bytes, replace=replace, sync_file=durable, sync_folder=durable) as stream,
        zipfile.ZipFile(stream, "w") as archive,
    ):
        archive.writestr(zipfile.ZipInfo(_FACTS), about)
        for name, values in written.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                entry.write(_header(values, stream.tell()))
                entry.write(values.reshape(-1).view(np.uint8).data)


def _as_written(name: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in _KINDS:
        raise ValueError(f"array {name}: wanted floats, integers or booleans, found dtype {values.dtype}")
    return np.asarray(values, values.dtype.newbyteorder("="), order="C")


def _header(values: np.ndarray, position: int) -> bytes:
    """Return the header of an .npy that begins at a position of a file, as long as alignment of its values wants."""
    text = str(np.lib.format.header_data_from_array_1_0(values)).encode()
    n_spaces = -(position + 11 + len(text)) % _ALIGNMENT
    return np.lib.format.magic(1, 0) + struct.pack("<H", len(text) + n_spaces + 1) + text + b" " * n_spaces + b"\n"


def load(path: Path, *, mapped: bool = False) -> Contents:
    """Return what is committed in a file, each entry checked by its checksum.

    `mapped` maps the values read-only instead, unchecked: `check_whole` is the caller's. Raises MissingDataError where
    it is absent, CorruptDataError where it is damaged, UnavailableStoreError where it cannot be read.
    """
    with _opened(path) as (stream, archive, contents):
        for name in contents.arrays:
            contents.arrays[name] = _mapped(stream, archive, name) if mapped else _read(archive, name)
    return contents


def each_array(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and values of each array of a file, sorted, one at a time in memory. Raises as `load`."""
    with _opened(path) as (_, archive, contents):
        for name in contents.arrays:
            yield name, _read(archive, name)


def check_whole(path: Path) -> None:
    """Read a file once, in little memory; raise as `load` unless all of it is as it was committed."""
    with _opened(path) as (_, archive, _):
        if (damaged := archive.zip.testzip()) is not None:
            raise ValueError(f"{damaged} does not match its checksum")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple["BufferedReader", Any, Contents]]:
    """Open a file; yield its stream, NumPy's archive of it, and its contents with names in place of arrays."""
    with _damage_of(path), open_plain(path) as stream, np.load(stream, allow_pickle=False) as archive:
        first, *names = archive.files
        about = parse_json(archive[first])
        if first != _FACTS or about["arrays"] != names:
            raise ValueError("its entries are not those that were written")
        yield stream, archive, Contents(dict.fromkeys(names, np.empty(0)), about["facts"])


def _read(archive: Any, name: str) -> np.ndarray:
    with _parsing:
        values = archive[name]
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{name} is no array")
    return values


def _mapped(stream: "BufferedReader", archive: Any, name: str) -> np.ndarray:
    """Map an entry read-only; one without values, which cannot be mapped, is read."""
    stream.seek(archive.zip.getinfo(f"{name}.npy").header_offset + 26)
    stream.seek(sum(struct.unpack("<HH", stream.read(4))), os.SEEK_CUR)  # its name, and what zip says of it
    np.lib.format.read_magic(stream)
    with _parsing:
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in _KINDS:
        raise ValueError(f"{name} has dtype {dtype}")
    return np.memmap(stream, dtype, "r", stream.tell(), shape) if 0 not in shape else _read(archive, name)


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
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise CorruptDataError(f"{path}: damaged arrays ({reason}); {remedy_at(path)}") from None


@dataclass(frozen=True)
class StoredFile:
    """Arrays in a file of a run."""

    path: Path

    def read(self, *, mapped: bool = False) -> Arrays:
        """Return the arrays; `mapped` maps them read-only. Raises CorruptDataError, also for absence."""
        try:
            return load(self.path, mapped=mapped).arrays
        except MissingDataError:
            raise CorruptDataError(f"{self.path}: does not exist; {remedy_at(self.path)}") from None


@dataclass(frozen=True, eq=False)
class StoredInMemory:
    """Arrays of this process, which may be committed later."""

    committed: Mapping[str, Arrays]
    name: str

    def read(self, *, mapped: bool = False) -> Arrays:
        return self.committed[self.name]


# Named arrays, by reference: a path is small and picklable, arrays in memory stay in their process.
Stored = StoredFile | StoredInMemory


def as_arrays(value: "DataclassInstance") -> Arrays:
    """Return a dataclass of arrays and numbers as arrays, one by the name of each field."""
    return {field.name: np.asarray(getattr(value, field.name)) for field in fields(value)}


def as_dataclass(arrays: Mapping[str, NDArray[Any]], kind: type[D]) -> D:
    """Return the dataclass of a `kind` that `as_arrays` turned into arrays; other arrays may be among them."""
    found = {field.name: arrays[field.name] for field in fields(kind) if field.name in arrays}
    return kind(**{name: values if np.ndim(values) else values.item() for name, values in found.items()})


def as_json(value: object) -> NDArray[np.uint8]:
    """Return what JSON knows as an array of the bytes of its text; `from_json` reads it."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_json(text: NDArray[np.uint8]) -> Any:
    """Return what `as_json` made an array of."""
    return json.loads(text.tobytes())
