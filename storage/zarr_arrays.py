"""Our arrays on disk: an ordinary zarr v3 group whose chunks are whole rows, uncompressed, with crc32c.

They are written and read here, in the form that zarr itself gives them (the tests compare), because zarr neither
fsyncs nor refuses a missing chunk, and takes 0.4 s to import. A chunk file holds raw little-endian rows followed by
their crc32c; it is read where its rows are to be: no event loop, no second copy, the GIL free except for the crc
(0.3 ms a chunk). A missing file is damage, never zeros. One writer owns whole chunks.
Format: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage import files as disk
from storage.errors import CorruptDataError, MissingDataError
from storage.files import write_errors, write_json

_NODE_FILE = "zarr.json"
_DTYPES = ("float32", "float64", "int64", "int32", "uint64", "uint8")
_AIM_BYTES = 4 * 2**20
_CRC_BYTES = 4


def row_blocks(n_rows: int, block_rows: int) -> list[slice]:
    """Cut rows 0..n_rows into blocks of `block_rows` rows; the last one may be shorter."""
    return [slice(start, min(start + block_rows, n_rows)) for start in range(0, n_rows, block_rows)]


def gather_rows(
    rows: NDArray[np.int64], block_rows: int, read: Callable[[int, int], NDArray[Any]], out: NDArray[Any]
) -> None:
    """Fill `out` (m, …) with some rows, in the order given, repeats allowed.

    `read(start, stop)` is called once for each block of the grid that has any of them, in order, with the first and the
    last of them (plus one); what it returned is not used after the next call.
    """
    if not len(rows):
        return
    order = np.argsort(rows, kind="stable")
    firsts = np.unique(rows[order] // block_rows, return_index=True)[1]
    for positions in np.split(order, firsts[1:]):
        start = int(rows[positions[0]])
        out[positions] = read(start, int(rows[positions[-1]]) + 1)[rows[positions] - start]


@dataclass(frozen=True)
class ArraySpec:
    """An array before it exists."""

    path: str  # in the store, such as "train/X"
    shape: tuple[int, ...]
    dtype: Any
    chunk_rows: int


def chunk_rows_for(row_bytes: int, n_rows: int) -> int:
    """Return the rows of a chunk near 4 MiB: a power of two, 1 for larger rows, `n_rows` of a smaller array."""
    # Nearest power of two on a logarithmic scale: chunks between 2.8 and 5.7 MiB.
    exponent = max(0, round(math.log2(_AIM_BYTES / row_bytes))) if row_bytes < _AIM_BYTES else 0
    return max(1, min(1 << exponent, n_rows))


def create_arrays(root: Path, specs: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> None:
    """Write the metadata of a zarr v3 group and its arrays, durably, that of the root last. Raises CannotWriteError."""
    group: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    nodes = {parent: group for spec in specs for parent in Path(spec.path).parents}
    for spec in specs:
        nodes[Path(spec.path)] = _array_node(spec.shape, np.dtype(spec.dtype).name, spec.chunk_rows)
    nodes[Path()] = group | {"attributes": attributes}
    for path in sorted(nodes, reverse=True):
        disk.make_folder(root / path)
        write_json(root / path / _NODE_FILE, nodes[path])


@dataclass(frozen=True)
class StoredArray:
    """One array of ours: rows along the first axis, `chunk_rows` rows in each chunk file."""

    root: Path
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    digests: Mapping[str, str] | None = field(default=None, compare=False, repr=False)  # as `write` returned them
    kept: dict[int, NDArray[Any]] = field(default_factory=dict, init=False, compare=False, repr=False)  # a chunk

    @property
    def chunk_file_bytes(self) -> int:
        return self.chunk_rows * math.prod(self.shape[1:]) * self.dtype.itemsize + _CRC_BYTES

    def write(self, start: int, values: ArrayLike) -> dict[str, str]:
        """Write whole chunks from row `start` on, fsync them, and return the crc32c (hex) of each chunk file.

        The last chunk of the array may be shorter. Keys are file names relative to the store's root. Raises
        CannotWriteError naming the file, its bytes and the cause.
        """
        self.kept.clear()
        values, size = np.ascontiguousarray(values), self.chunk_rows
        stop = start + len(values)
        assert (values.dtype, values.shape[1:]) == (self.dtype, self.shape[1:])
        assert 0 <= start <= stop <= self.shape[0]
        assert start % size == 0
        assert stop % size == 0 or stop == self.shape[0]
        digests = {}
        for chunk in self._chunks(start, stop):
            rows = values[chunk * size - start : (chunk + 1) * size - start]
            if len(rows) < size:  # zarr stores the last chunk whole, its end filled with the fill value
                rows = np.concatenate([rows, np.zeros((size - len(rows), *self.shape[1:]), self.dtype)])
            digests[self._name(chunk)] = self._write_chunk(self._name(chunk), rows.reshape(-1).view(np.uint8))
        folders = {(self.root / name).parent for name in digests}
        with write_errors(self.root / self.path):
            # Parents last, once each: a name in `c` counts only when what is behind it is on the disk.
            for folder in [*sorted(folders, reverse=True), *{folder.parent for folder in folders} - folders]:
                disk.fsync_folder(folder)
        return digests

    def _write_chunk(self, name: str, data: NDArray[np.uint8]) -> str:
        """Write the decoded bytes of one chunk; return the crc32c that ends the file. `write` fsyncs the folders."""
        folder = (self.root / name).parent
        if not folder.is_dir():
            disk.make_folder(folder.parent)
            with write_errors(folder), contextlib.suppress(FileExistsError):
                disk.low_mkdir(folder)
        crc = google_crc32c.value(data).to_bytes(_CRC_BYTES, "little")
        with disk.replacing(self.root / name, data.nbytes + _CRC_BYTES, sync_folder=False) as stream:
            stream.write(data.data)
            stream.write(crc)
        return crc.hex()

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows from a first one to before another, or those of some numbers, in their order, with repeats.

        A chunk is verified when it is read; a missing one is an error, never zeros. Where `digests` are known, its
        crc32c must be the one that was written. One that is touched in part is kept until another is, and not looked at
        again meanwhile. Memory: the result and that chunk.

        Raises CorruptDataError naming array, rows and file where a chunk is missing, truncated or altered,
        UnavailableStoreError where the file system refuses.
        """
        if not isinstance(rows, slice):
            assert not rows.size or (rows.min() >= 0 and rows.max() < self.shape[0])
            out = np.empty((rows.size, *self.shape[1:]), self.dtype)
            gather_rows(rows, self.chunk_rows, lambda low, high: self._rows_of(low // self.chunk_rows, low, high), out)
            return out
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        for chunk in self._chunks(start, stop):
            first = chunk * self.chunk_rows
            low, high = max(start, first), min(stop, first + self.chunk_rows)
            target = out[low - start : high - start]
            if len(target) == self.chunk_rows:
                self._read_chunk(chunk, target)
            else:
                target[...] = self._rows_of(chunk, low, high)
        return out

    def _rows_of(self, chunk: int, start: int, stop: int) -> NDArray[Any]:
        """Return some rows of a chunk, which is kept until others are read: the next block often has the rest of it."""
        held = self.kept.get(chunk)
        if held is None:
            self.kept.clear()
            held = np.empty((self.chunk_rows, *self.shape[1:]), self.dtype)
            self._read_chunk(chunk, held)
            self.kept[chunk] = held
        first = chunk * self.chunk_rows
        return held[start - first : stop - first]

    def _name(self, chunk: int) -> str:
        return f"{self.path}/c/{chunk}" + "/0" * (len(self.shape) - 1)

    def _chunks(self, start: int, stop: int) -> range:
        return range(start // self.chunk_rows, -(-stop // self.chunk_rows)) if stop > start else range(0)

    def _read_chunk(self, chunk: int, rows: NDArray[Any]) -> None:
        """Fill `rows` (chunk_rows, …) with a chunk and check its crc32c."""
        name, out = self._name(chunk), rows.reshape(-1).view(np.uint8)
        path = self.root / name
        try:
            with disk.read_errors(path):
                size = path.lstat().st_size  # A pipe or device has 0, a link another: neither is opened.
                if size != self.chunk_file_bytes:
                    raise self._damage(chunk, f"{size} bytes, wanted {self.chunk_file_bytes}")
                with path.open("rb") as stream:
                    stream.readinto(out.data)
                    trailer = stream.read(_CRC_BYTES)
        except MissingDataError:
            raise self._damage(chunk, "it is missing") from None
        if google_crc32c.value(out) != int.from_bytes(trailer, "little"):
            raise self._damage(chunk, "its content does not match its crc32c")
        if self.digests is not None and self.digests.get(name) != trailer.hex():
            raise self._damage(chunk, "it is not the one that was committed")

    def _damage(self, chunk: int, reason: str) -> CorruptDataError:
        start, stop = chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.shape[0])
        where = f"{self.root}: array {self.path}, rows {start}..{stop}, chunk file {self._name(chunk)}"
        return CorruptDataError(f"{where}: {reason}; remove the store and build it again")


def open_arrays(root: Path, digests: Mapping[str, str] | None = None) -> dict[str, StoredArray]:
    """Open a store of ours, its arrays by path ("train/X"); no data is looked at.

    digests: the crc32c of each chunk file by its name, as `StoredArray.write` returned them: chunks have to have it.
    Raises MissingDataError where there is none, CorruptDataError where metadata are not in the form that we write.
    """
    if not root.is_dir():
        raise MissingDataError(f"{root}: does not exist")
    return {array.path: replace(array, digests=digests) for array in _arrays_in(root, Path())}


def _arrays_in(root: Path, place: Path) -> Iterator[StoredArray]:
    file = root / place / _NODE_FILE
    try:
        with disk.read_errors(file):
            node = disk.parse_json(disk.read_plain(file))
        if node["node_type"] != "group":
            shape, (chunk_rows, *_) = tuple(node["shape"]), node["chunk_grid"]["configuration"]["chunk_shape"]
            dtype, are_lengths = node["data_type"], all(type(n) is int and n >= 0 for n in (*shape, chunk_rows - 1))
            if not are_lengths or dtype not in _DTYPES or node != _array_node(shape, dtype, chunk_rows):
                raise ValueError
            yield StoredArray(root, place.as_posix(), shape, np.dtype(dtype).newbyteorder("<"), chunk_rows)
            return
    except (MissingDataError, KeyError, TypeError, ValueError):
        raise CorruptDataError(f"{file}: not in the form that we write; remove the store and build it again") from None
    for entry in sorted((root / place).iterdir()):
        if (entry / _NODE_FILE).exists() and not entry.is_symlink():
            yield from _arrays_in(root, place / entry.name)


def _array_node(shape: tuple[int, ...], dtype: str, chunk_rows: int) -> dict[str, Any]:
    """Return the metadata of an array: chunks of whole rows, little endian, with crc32c."""
    # One byte has no byte order.
    raw = {"name": "bytes"} | ({} if dtype == "uint8" else {"configuration": {"endian": "little"}})
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk_rows, *shape[1:]]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [raw, {"name": "crc32c"}],
        "fill_value": 0,
        "attributes": {},
        "storage_transformers": [],
    }
