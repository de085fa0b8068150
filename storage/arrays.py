"""Named arrays: one .npz, or a folder of .npy files to be mapped, as NumPy has them; and references to them.

The same arrays give the same bytes: an .npz has its entries sorted and uncompressed, dated 1980-01-01, in C order.
Nothing is pickled.
"""

import contextlib
import errno
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.errors import CorruptDataError, MissingDataError, remedy_at
from storage.files import open_plain, read_errors, replacing
from storage.folders import compare, new_folder, read_manifest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")
Arrays = dict[str, NDArray[Any]]
_KINDS = "fiub"  # floats, integers, booleans; objects would need pickle
_NAMES = "names"  # the entry of an .npz that names all: a damaged directory can hide one
_HEADER_BYTES = 128  # of an .npy without values, which cannot be mapped
# NumPy reads headers by the parser of Python, which in CPython before 3.11.5 fails in threads (its issue 106905).
_parsing = Lock()


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], *, metadata: Mapping[str, Any] | None = None, durable: bool = True
) -> None:
    """Write named arrays durably: an .npz if the name ends so, else a folder of .npy files to be mapped.

    The folder has a manifest of kind "arrays" with `metadata`. An .npz with `durable=False` has no fsync: for what a
    resumed run can check and make again.

    Raises ValueError where a dtype is no number, CannotWriteError.
    """
    if path.suffix == ".npz":
        wanted_bytes = sum(np.asarray(values).nbytes for values in arrays.values())
        with replacing(path, wanted_bytes, sync_file=durable, sync_folder=durable) as stream:
            entries: dict[str, Any] = {_NAMES: np.array(sorted(arrays), str)}
            entries |= {name: _as_written(name, arrays[name]) for name in sorted(arrays)}
            np.savez(stream, **entries)
        return
    with new_folder(path, kind="arrays", metadata=metadata) as folder:
        for name, values in arrays.items():
            written = _as_written(name, values)
            with replacing(folder / f"{name}.npy", written.nbytes, sync_folder=False) as stream:
                np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(written))
                stream.write(written.reshape(-1).view(np.uint8).data)


def _as_written(name: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in _KINDS:
        raise ValueError(f"array {name}: wanted floats, integers or booleans, found dtype {values.dtype}")
    return np.asarray(values, values.dtype.newbyteorder("="), order="C")


def read_arrays(path: Path, *, mapped: bool = False) -> Arrays:
    """Read what `write_arrays` wrote; `mapped` maps the files of the folder form read-only instead.

    An .npz entry is checked by its CRC. In the folder form sizes are checked against the manifest, and contents too
    unless `mapped` (then `check_folder` is the caller's).

    Raises MissingDataError, CorruptDataError, UnavailableStoreError where it is absent, damaged, cannot be read.
    """
    return dict(read_each_array(path)) if path.suffix == ".npz" else read_folder(path, mapped=mapped)[0]


def read_folder(path: Path, *, mapped: bool = False) -> tuple[Arrays, Mapping[str, Any]]:
    """Return the arrays and the metadata of a folder of `write_arrays`. Raises as `read_arrays`."""
    manifest = read_manifest(path)
    problems = compare(path, manifest.files, contents=not mapped)
    if problems:
        raise CorruptDataError(f"{path}: damaged arrays ({problems[0]}); {remedy_at(path)}")
    names = sorted(name for name in manifest.files if name.endswith(".npy"))
    arrays = {name.removesuffix(".npy"): read_npy(path / name, mapped=mapped) for name in names}
    return arrays, manifest.metadata


def read_each_array(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and values of each array of an .npz, sorted, one at a time in memory. Raises as `read_arrays`."""
    with _damage_of(path), open_plain(path) as stream, np.load(stream, allow_pickle=False) as archive:
        first, *names = archive.files
        with _parsing:
            if first != _NAMES or archive[_NAMES].tolist() != names:
                raise ValueError("its entries are not those that were written")
        for name in names:
            with _parsing:
                values = archive[name]
            if not isinstance(values, np.ndarray):
                raise ValueError(f"{name} is no array")
            yield name, values


def read_npy(path: Path, *, mapped: bool) -> np.ndarray:
    """Read one .npy file, or map it read-only."""
    with _damage_of(path), _parsing:
        if mapped and path.stat().st_size > _HEADER_BYTES:
            return np.lib.format.open_memmap(path, mode="r")
        with open_plain(path) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)


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
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = str(error) or type(error).__name__
        raise CorruptDataError(f"{path}: damaged arrays ({reason}); {remedy_at(path)}") from None


@dataclass(frozen=True)
class StoredFile:
    """Arrays in a file or folder of a run."""

    path: Path

    def read(self, *, mapped: bool = False) -> Arrays:
        """Return the arrays; `mapped` maps those of a folder read-only. Raises CorruptDataError, also for absence."""
        try:
            return read_arrays(self.path, mapped=mapped)
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
