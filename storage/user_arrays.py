"""Arrays that somebody else stored in zarr v3: read-only, through zarr, after a check of their metadata.

zarr 3.1 reads a missing chunk as the fill value without a warning, so a lost file would train a wrong model. Every
chunk that a read touches must exist; a store written without its empty chunks looks the same as a damaged one and is
refused. blosc reads past the end of a truncated chunk, so its header is checked first. Bit flips under zstd or blosc
go unnoticed unless crc32c is among the codecs. What a chunk holds must be the same whenever it is decoded.
"""

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from storage import zarr_metadata
from storage.errors import CorruptDataError, MissingDataError
from storage.files import cannot_read, read_errors
from storage.zarr_arrays import gather_rows

_TOGETHER_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 10  # that zarr reads and decodes at a time (its setting async.concurrency)


class UserArray:
    """A read-only array, read by rows: `array[start:stop]`, `array[numbers]`.

    Each thread caches the last run of chunks that it decoded; threads that read the same chunks share them.

    checksums: crc32c of each run of chunks as it was first decoded, or as whoever opened the array knows it; 0 where it
    was not read yet.
    """

    def __init__(self, root: Path, path: str, array: Any) -> None:
        self.root = root
        self.path = path
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.chunk_rows: int = array.chunks[0]
        self._chunk_bytes: int = math.prod(array.chunks) * self.dtype.itemsize
        codecs = [codec["name"] for codec in array.metadata.to_dict()["codecs"]]
        self._is_blosc = "blosc" in codecs
        self._trailer_bytes = 4 if codecs[-1] == "crc32c" else 0
        self._is_compressed = not set(zarr_metadata.COMPRESSORS).isdisjoint(codecs)
        self.checksums = np.zeros(-(-self.shape[0] // self.chunk_rows), np.uint32)
        self._array = array
        self._kept: dict[int, tuple[int, NDArray[Any]]] = {}  # by thread: number and rows of a run of chunks
        self._decoding = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of each reading thread's cache: the rows of one chunk, over all columns."""
        return min(self.chunk_rows, self.shape[0]) * math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def decoding_bytes(self) -> int:
        """Return the bytes that decoding takes beside its result: the stored chunks, and the decoded ones."""
        side_by_side = sum(1 for _ in self._chunk_names(0, 1))
        return min(side_by_side, _CHUNKS_AT_ONCE) * self._chunk_bytes * (2 if self._is_compressed else 1)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of a slice (step 1), or those of some numbers, as a new array.

        Of rows that are far apart no chunks between them are decoded; near ones are read together, 8 MiB at once.

        Raises CorruptDataError naming array, rows and chunk file where a chunk is missing, cannot be decoded, or does
        not hold what it held when it was read first, UnavailableStoreError where the disk fails.
        """
        if not isinstance(rows, slice):
            out, block_rows = np.empty((len(rows), *self.shape[1:]), self.dtype), self.chunk_rows
            if len(rows) and 2 * len(rows) > np.ptp(rows):
                block_rows *= max(1, _TOGETHER_BYTES // max(1, self.kept_bytes))
            gather_rows(rows, block_rows, lambda low, high: self[low:high], out)
            return out
        assert rows.step in (None, 1)
        start, stop, _ = rows.indices(self.shape[0])
        stop, size = max(start, stop), self.chunk_rows
        # Chunks of which all rows are wanted are read directly, those at the two ends through the cache.
        first = min(-(-start // size) * size, stop)
        last = max(stop if stop == self.shape[0] else stop - stop % size, first)
        if (first, last) == (start, stop):
            return self._read(start, stop)
        parts = ((self._part, start, first), (self._read, first, last), (self._part, last, stop))
        return np.concatenate([read(low, high) for read, low, high in parts if low < high])

    def _part(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows of one chunk, decoded unless some thread has it in its cache."""
        number, reader = start // self.chunk_rows, threading.get_ident()
        low = number * self.chunk_rows
        with self._decoding:  # one at a time, which bounds the memory
            rows = next((rows for kept, rows in self._kept.values() if kept == number), None)
            if rows is None:
                self._kept.pop(reader, None)  # before the next ones come
                rows = self._read(low, min(low + self.chunk_rows, self.shape[0]))
            self._kept[reader] = (number, rows)
        return rows[start - low : stop - low]

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        for name in self._chunk_names(start, stop):
            self._check_chunk(name, start, stop)
        try:
            values = np.asarray(self._array[start:stop])
        except OSError as error:
            raise cannot_read(self.root / self.path, error) from error
        except Exception as error:  # codecs raise whatever they like on damaged bytes
            names = ", ".join(itertools.islice(self._chunk_names(start, stop), 3))
            raise self._corrupt(names, start, stop, f"cannot be decoded ({str(error)[:120]}); restore it") from error
        for low in range(start, stop, self.chunk_rows):
            self._check_same(low, values[low - start : low - start + self.chunk_rows])
        return values

    def _check_same(self, start: int, rows: NDArray[Any]) -> None:
        """Keep the checksum of a run of chunks that is read first; raise CorruptDataError where it was another."""
        form = google_crc32c.value(f"{self.dtype.str} {self.shape}".encode())
        found = google_crc32c.extend(form, np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
        number = start // self.chunk_rows
        if len(self.checksums) <= number or int(self.checksums[number]) not in (0, found):
            reason = "changed while it was read; leave it alone meanwhile, and run again"
            raise self._corrupt(next(self._chunk_names(start, start + 1)), start, start + len(rows), reason)
        self.checksums[number] = found

    def _check_chunk(self, name: str, start: int, stop: int) -> None:
        """Raise CorruptDataError unless a chunk file is a plain one, and as long as its blosc header claims."""
        path, size = self.root / name, -1
        with contextlib.suppress(MissingDataError), read_errors(path):
            size = path.stat().st_size if path.is_file() else -1
        if size < 0:
            remedy = "write the store with config={'write_empty_chunks': True}, else restore the file"
            raise self._corrupt(name, start, stop, f"is missing; if it was left out for being all zeros, {remedy}")
        if self._is_blosc:
            with read_errors(path), path.open("rb") as stream:
                header = stream.read(16)
            if len(header) < 16 or int.from_bytes(header[12:], "little") + self._trailer_bytes != size:
                reason = f"is not the blosc chunk its header claims ({size} bytes); restore it"
                raise self._corrupt(name, start, stop, reason)

    def _chunk_names(self, start: int, stop: int) -> Iterator[str]:
        chunks = self._array.chunks
        rows = range(start // chunks[0], -(-stop // chunks[0])) if stop > start else range(0)
        others = [range(-(-length // size)) for length, size in zip(self.shape[1:], chunks[1:], strict=True)]
        prefix = f"{self.path}/" if self.path else ""
        for coordinates in itertools.product(rows, *others):
            yield prefix + self._array.metadata.encode_chunk_key(coordinates)

    def _corrupt(self, name: str, start: int, stop: int, what: str) -> CorruptDataError:
        array = self.path or "(root)"
        return CorruptDataError(f"{self.root}: array {array}, rows {start}..{stop}, chunk file {name}: {what}")


def open_user_arrays(
    path: Path, choose: Callable[[Collection[str]], Collection[str]] | None = None
) -> dict[str, UserArray]:
    """Open the arrays of a zarr v3 store by their paths in it ("X", "train/y"); a lone array has the name "".

    `choose` gets the names of all and returns the wanted ones; no others are looked at. Raises MissingDataError where
    there is no such folder, CorruptDataError where it is zarr v2, or has a dtype, codec or attribute that is not read.
    """
    nodes = zarr_metadata.read_nodes(path)
    wanted = nodes if choose is None else choose(nodes)
    nodes = {name: node for name, node in nodes.items() if name in wanted}
    for name, node in nodes.items():
        zarr_metadata.check_foreign_array(path / name, node)
    # After the checks: nothing of an unchecked store reaches zarr, and tasks on our own stores do not pay for it.
    import zarr

    arrays = {}
    for name in nodes:
        try:
            arrays[name] = UserArray(path, name, zarr.open_array(str(path / name), mode="r", zarr_format=3))
        except Exception as error:  # zarr has no common base for bad metadata
            raise zarr_metadata.invalid(path / name, f"zarr refuses it: {str(error)[:200]}") from error
    return arrays
