"""Our arrays on disk: an ordinary zarr v3 group whose chunks are whole rows, uncompressed, with crc32c.

zarr creates the store; chunks are written and read here, byte for byte in the form that zarr itself gives them
(the tests compare both ways), because zarr neither fsyncs nor refuses a missing chunk. One writer owns whole
chunks. Arrays of other people are opened by `open_user_arrays`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage import disk_writes as disk
from storage import zarr_metadata
from storage.blocks import gather_rows
from storage.chunks import CRC_BYTES, ChunkReader, write_chunk
from storage.errors import CannotWriteError
from storage.manifest import check_plain_name
from storage.user_arrays import UserArray, open_user_arrays

__all__ = [
    "ArraySpec",
    "StoredArray",
    "StoredArrays",
    "UserArray",
    "chunk_rows_for",
    "create_arrays",
    "open_arrays",
    "open_user_arrays",
]

_AIM_BYTES = 4 * 2**20


@dataclass(frozen=True)
class ArraySpec:
    """An array before it exists: `path` in the store ("train/X"), shape, dtype name, rows per chunk."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int

    def __post_init__(self) -> None:
        """Refuse what could not be stored."""
        check_plain_name(self.path)
        if self.dtype not in zarr_metadata.OUR_DTYPES:
            raise ValueError(
                f"array {self.path}: dtype {self.dtype} is not one of {', '.join(zarr_metadata.OUR_DTYPES)}"
            )
        if not self.shape or self.shape[0] < 0 or any(length < 1 for length in self.shape[1:]):
            raise ValueError(f"array {self.path}: shape {self.shape} has no rows dimension or an empty row")
        if self.chunk_rows < 1:
            raise ValueError(f"array {self.path}: chunk_rows must be at least 1, found {self.chunk_rows}")
        if self.chunk_bytes > zarr_metadata.MAXIMUM_CHUNK_BYTES:
            raise ValueError(f"array {self.path}: chunks of {self.chunk_bytes} bytes; take fewer chunk_rows")

    @property
    def chunk_bytes(self) -> int:
        """Return the bytes of one whole chunk, without its crc."""
        return self.chunk_rows * math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


def chunk_rows_for(row_bytes: int, n_rows: int) -> int:
    """Return the rows of a chunk near 4 MiB (within 1 to 8 MiB if rows and array allow): a power of two.

    Rows larger than 4 MiB get chunks of one row; an array smaller than that chunk gets one chunk of `n_rows`
    rows.
    """
    if row_bytes < 1 or n_rows < 0:
        raise ValueError(f"chunk size: wanted row_bytes >= 1 and n_rows >= 0, found {row_bytes} and {n_rows}")
    # Nearest power of two on a logarithmic scale: chunks between 2.8 and 5.7 MiB.
    exponent = max(0, round(math.log2(_AIM_BYTES / row_bytes))) if row_bytes < _AIM_BYTES else 0
    return max(1, min(1 << exponent, n_rows))


def create_arrays(root: Path, specs: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> None:
    """Create a zarr v3 group with empty arrays, durably and in one step.

    Raises
    ------
    ValueError
        If two specs have the same path or one lies inside another.
    CannotWriteError
        If `root` exists or cannot be written.
    """
    paths = [spec.path for spec in specs]
    groups = {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/") + 1)}
    if len(set(paths)) != len(paths) or groups.intersection(paths):
        raise ValueError(f"{root}: array paths overlap: {sorted(paths)}")
    if root.exists():
        raise CannotWriteError(
            f"{root}: wanted a new store, the folder exists; remove it", path=str(root), cause="exists"
        )
    disk.make_folder(root.parent)
    aside = disk.temporary_path(root)
    try:
        _write_metadata(aside, specs, attributes)
        disk.fsync_tree(aside)
        disk.low_rename(aside, root)
        disk.fsync_folder(root.parent)
    except OSError as error:
        raise disk.cannot_write(root, error) from error


def _write_metadata(folder: Path, specs: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> None:
    # Imported here: reading our own arrays, which every task does, needs no zarr (0.4 s to import).
    import zarr
    from zarr.codecs import Crc32cCodec

    group = zarr.create_group(folder, zarr_format=3, attributes=dict(attributes))
    for spec in specs:
        group.create_array(
            spec.path,
            shape=spec.shape,
            chunks=(spec.chunk_rows, *spec.shape[1:]),
            dtype=spec.dtype,
            filters=None,
            compressors=Crc32cCodec(),
            config={"write_empty_chunks": True},
        )


@dataclass(frozen=True)
class StoredArray:
    """One array of ours: rows along the first axis, `chunk_rows` rows in each chunk file.

    matched : what `ChunkReader` knows of the files that it has read
    """

    root: Path
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    matched: dict[str, tuple[str, bytes]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def chunk_file_bytes(self) -> int:
        """Return the size of every chunk file, its crc32c included."""
        return self.chunk_rows * self.row_bytes + CRC_BYTES

    def write(self, start: int, values: ArrayLike) -> dict[str, str]:
        """Write whole chunks from row `start` on, fsync them, and return the sha256 (hex) of each chunk file.

        One writer owns whole chunks, so the rows must start on a chunk boundary and end on one or at the end
        of the array. Keys are file names relative to the store's root. Cost: one pass for crc32c, one for
        sha256.

        Raises
        ------
        ValueError
            If the rows do not cover whole chunks, or shape or dtype differ.
        CannotWriteError
            Naming the file, its bytes and the cause.
        """
        values = np.ascontiguousarray(values)
        stop = start + len(values)
        if values.dtype != self.dtype or values.shape[1:] != self.shape[1:]:
            raise ValueError(
                f"array {self.path}: wanted {self.dtype} rows of shape {self.shape[1:]}, "
                f"found {values.dtype} {values.shape[1:]}"
            )
        whole = start % self.chunk_rows == 0 and (stop % self.chunk_rows == 0 or stop == self.n_rows)
        if not (0 <= start <= stop <= self.n_rows and whole):
            raise ValueError(
                f"array {self.path}: rows {start}..{stop} are not whole chunks of {self.chunk_rows} rows "
                f"within {self.n_rows}; write blocks that are multiples of it"
            )
        digests = {}
        for chunk, low, high in self._chunks(start, stop):
            name = self._chunk_name(chunk)
            self._make_chunk_folder((self.root / name).parent)
            digests[name] = write_chunk(self.root / name, self._chunk_data(values[low - start : high - start]))
        self._fsync_folders({(self.root / name).parent for name in digests})
        return digests

    def read(
        self,
        start: int,
        stop: int,
        digests: Mapping[str, str] | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Read rows start..stop, every touched chunk verified; a missing chunk is an error, never zeros.

        Parameters
        ----------
        digests : mapping, optional
            What `write` returned; the sha256 of every touched chunk file is verified as well (1.5 GB/s).
        out : array, optional
            C-contiguous, of shape (stop - start, ...) and our dtype; filled and returned.

        Raises
        ------
        ValueError
            If the range or `out` does not fit.
        CorruptDataError
            Naming array, rows and file, if a chunk is missing, truncated or altered.

        Notes
        -----
        Memory: the result and, where a chunk is touched in part, one chunk. Sizes are checked before
        allocation.
        """
        if not 0 <= start <= stop <= self.n_rows:
            raise ValueError(f"array {self.path}: rows {start}..{stop} are not within 0..{self.n_rows}")
        reader = self._reader(digests)
        for chunk, low, high in self._chunks(start, stop):
            reader.check_size(self._chunk_name(chunk), (low, high))
        out = self._output(stop - start, out)
        self._fill(start, stop, reader, out)
        return out

    def _fill(self, start: int, stop: int, reader: ChunkReader, out: NDArray[Any]) -> None:
        """Read rows start..stop into `out`: whole chunks in place, others by way of one buffer."""
        part: NDArray[np.uint8] | None = None
        for chunk, low, high in self._chunks(start, stop):
            name, target = self._chunk_name(chunk), out[low - start : high - start]
            if high - low == self.chunk_rows:
                reader.read(name, (low, high), target.reshape(-1).view(np.uint8))
                continue
            part = self._chunk_buffer() if part is None else part
            reader.read(name, (low, high), part)
            first = low - chunk * self.chunk_rows
            target[...] = self._rows_of(part)[first : first + high - low]

    def take(self, rows: ArrayLike, digests: Mapping[str, str] | None = None) -> NDArray[Any]:
        """Gather rows in the order given, repeats allowed; each touched chunk is read once, one at a time.

        Raises
        ------
        ValueError
            If a row is no integer or not within the array.
        CorruptDataError
            As `read`.
        """
        wanted = np.asarray(rows)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise ValueError(f"array {self.path}: wanted a list of row numbers, found {wanted.dtype} {wanted.shape}")
        wanted = wanted.astype(np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self.n_rows):
            raise ValueError(f"array {self.path}: rows {wanted.min()}..{wanted.max()} are not within 0..{self.n_rows}")
        reader = self._reader(digests)
        for chunk in np.unique(wanted // self.chunk_rows).tolist():
            reader.check_size(self._chunk_name(chunk), self._chunk_rows_range(chunk))
        out = np.empty((wanted.size, *self.shape[1:]), self.dtype)
        buffer = self._chunk_buffer() if wanted.size else np.empty(0, np.uint8)

        def read_chunk(start: int, stop: int) -> NDArray[Any]:
            chunk = start // self.chunk_rows
            reader.read(self._chunk_name(chunk), self._chunk_rows_range(chunk), buffer)
            return self._rows_of(buffer)[start - chunk * self.chunk_rows : stop - chunk * self.chunk_rows]

        gather_rows(wanted, self.chunk_rows, read_chunk, out)
        return out

    def _reader(self, digests: Mapping[str, str] | None) -> ChunkReader:
        return ChunkReader(self.root, self.path, self.chunk_rows * self.row_bytes, digests, self.matched)

    def _chunk_name(self, chunk: int) -> str:
        return f"{self.path}/c/{chunk}" + "/0" * (len(self.shape) - 1)

    def _chunk_rows_range(self, chunk: int) -> tuple[int, int]:
        return chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.n_rows)

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (chunk number, first row, last row + 1) of the parts of start..stop, chunk by chunk."""
        row = start
        while row < stop:
            chunk = row // self.chunk_rows
            high = min(stop, (chunk + 1) * self.chunk_rows)
            yield chunk, row, high
            row = high

    def _chunk_data(self, rows: NDArray[Any]) -> NDArray[np.uint8]:
        if len(rows) == self.chunk_rows:
            return rows.reshape(-1).view(np.uint8)
        # zarr stores the last chunk whole, its end filled with the fill value.
        padded = np.zeros((self.chunk_rows, *self.shape[1:]), self.dtype)
        padded[: len(rows)] = rows
        return padded.reshape(-1).view(np.uint8)

    def _chunk_buffer(self) -> NDArray[np.uint8]:
        return np.empty(self.chunk_rows * self.row_bytes, np.uint8)

    def _rows_of(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        return data.view(self.dtype).reshape(self.chunk_rows, *self.shape[1:])

    def _output(self, n_rows: int, out: NDArray[Any] | None) -> NDArray[Any]:
        shape = (n_rows, *self.shape[1:])
        if out is None:
            return np.empty(shape, self.dtype)
        if out.shape != shape or out.dtype != self.dtype or not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError(
                f"array {self.path}: wanted a writable contiguous out of {self.dtype} {shape}, "
                f"found {out.dtype} {out.shape}"
            )
        return out

    def _make_chunk_folder(self, folder: Path) -> None:
        """Create `c/i` where it is missing, without an fsync: `_fsync_folders` does them all at once."""
        if folder.is_dir():
            return
        if not folder.parent.is_dir():
            disk.make_folder(folder.parent)
        try:
            with contextlib.suppress(FileExistsError):
                disk.low_mkdir(folder)
        except OSError as error:
            raise disk.cannot_write(folder, error) from error

    def _fsync_folders(self, folders: set[Path]) -> None:
        try:
            # Parents last, once each: a name in `c` counts only when what is behind it is on the disk.
            for folder in sorted(folders, reverse=True):
                disk.fsync_folder(folder)
            for folder in {folder.parent for folder in folders} - folders:
                disk.fsync_folder(folder)
        except OSError as error:
            raise disk.cannot_write(self.root / self.path, error) from error


class StoredArrays(Mapping[str, StoredArray]):
    """The arrays of one store by path ("train/X"), and the attributes of its root group."""

    def __init__(self, root: Path, arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any]) -> None:
        self.root = root
        self.attributes = attributes
        self._arrays = dict(arrays)

    def __getitem__(self, path: str) -> StoredArray:
        return self._arrays[path]

    def chunk_file_bytes(self, name: str) -> int:
        """Return the size of a chunk file, by its name as `StoredArray.write` returns it."""
        return self[name.rpartition("/c/")[0]].chunk_file_bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def open_arrays(root: Path) -> StoredArrays:
    """Open a store of ours; its metadata is checked against the allow-lists before any data is looked at.

    Raises
    ------
    MissingDataError
        If there is none.
    CorruptDataError
        If it is not zarr v3 or holds an array in a form that we do not write.
    """
    group, nodes = zarr_metadata.read_nodes(root)
    if group["node_type"] != "group" or not isinstance(group.get("attributes", {}), dict):
        raise zarr_metadata.invalid(root, "wanted a group")
    arrays = {}
    for path, node in nodes.items():
        shape, dtype, chunk_rows = zarr_metadata.check_our_array(root / path, node)
        arrays[path] = StoredArray(root, path, shape, np.dtype(dtype).newbyteorder("<"), chunk_rows)
    return StoredArrays(root, arrays, group.get("attributes", {}))
