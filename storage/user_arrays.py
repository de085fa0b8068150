"""Arrays that somebody else stored in zarr v3: read-only, through zarr, after a check of their metadata.

zarr 3.1 reads a missing chunk as the fill value without a word, so a lost file would train a wrong model.
Every chunk that a read touches must exist. A store written without its empty chunks cannot be told from a
damaged one: it is refused with the way to rewrite it. blosc reads past the end of a truncated chunk, so its
header is checked first. Bit flips under zstd, gzip or blosc go unnoticed unless crc32c is among the codecs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage import zarr_metadata
from storage.errors import CorruptDataError

_SLACK_BYTES = 64  # a checksum below blosc


class UserArray:
    """A read-only array, sliced by rows: `array[start:stop]` or `array[list of rows]`."""

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
        self._array = array

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return the rows of a slice (step 1) or of a list of row numbers, as a new array.

        Raises
        ------
        ValueError
            If `rows` is neither.
        CorruptDataError
            If a chunk is missing or cannot be decoded; names array, rows and chunk file.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.shape[0])
            if step != 1:
                raise ValueError(f"array {self.path}: wanted a slice with step 1, found {rows}")
            return self._read(start, max(start, stop))
        wanted = np.asarray(rows)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise ValueError(f"array {self.path}: wanted a slice or a list of row numbers, found {rows!r:.60}")
        return self._take(wanted.astype(np.int64))

    def _take(self, wanted: NDArray[np.int64]) -> NDArray[Any]:
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self.shape[0]):
            raise ValueError(f"array {self.path}: row numbers are not within 0..{self.shape[0]}")
        out = np.empty((wanted.size, *self.shape[1:]), self.dtype)
        chunk_of = wanted // self.chunk_rows
        for chunk in np.unique(chunk_of).tolist():
            positions = np.flatnonzero(chunk_of == chunk)
            start = chunk * self.chunk_rows
            block = self._read(start, min(start + self.chunk_rows, self.shape[0]))
            out[positions] = block[wanted[positions] - start]
        return out

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        for name in self._chunk_names(start, stop):
            if not (self.root / name).is_file():
                raise self._corrupt(
                    name,
                    start,
                    stop,
                    "is missing; if it was left out for being all zeros, write the store with "
                    "config={'write_empty_chunks': True}, else restore the file",
                )
            if self._is_blosc:
                self._check_blosc(name, start, stop)
        try:
            return np.asarray(self._array[start:stop])
        except Exception as error:  # codecs raise whatever they like on damaged bytes
            names = ", ".join(itertools.islice(self._chunk_names(start, stop), 3))
            raise self._corrupt(names, start, stop, f"cannot be decoded ({str(error)[:120]}); restore it") from error

    def _check_blosc(self, name: str, start: int, stop: int) -> None:
        """Compare what a blosc header claims with the file and the chunk: the decoder trusts both."""
        with (self.root / name).open("rb") as stream:
            header = stream.read(16)
            size = stream.seek(0, 2)
        claimed_decoded = int.from_bytes(header[4:8], "little")
        claimed_stored = int.from_bytes(header[12:16], "little") + self._trailer_bytes
        too_large = claimed_decoded > self._chunk_bytes + _SLACK_BYTES
        if len(header) < 16 or claimed_stored != size or too_large:
            found = f"is not the blosc chunk its header claims ({size} bytes); restore it"
            raise self._corrupt(name, start, stop, found)

    def _chunk_names(self, start: int, stop: int) -> Iterator[str]:
        chunks = self._array.chunks
        rows = range(start // chunks[0], -(-stop // chunks[0])) if stop > start else range(0)
        others = [range(-(-length // size)) for length, size in zip(self.shape[1:], chunks[1:], strict=True)]
        prefix = f"{self.path}/" if self.path else ""
        for coordinates in itertools.product(rows, *others):
            yield prefix + self._array.metadata.encode_chunk_key(coordinates)

    def _corrupt(self, name: str, start: int, stop: int, what: str) -> CorruptDataError:
        array = self.path or "(root)"
        return CorruptDataError(
            f"{self.root}: array {array}, rows {start}..{stop}, chunk file {name}: {what}",
            array=array,
            block=(start, stop),
            file=name,
        )


def open_user_arrays(
    path: Path, choose: Callable[[Collection[str]], Collection[str]] | None = None
) -> dict[str, UserArray]:
    """Open the arrays of a zarr v3 store by their paths in it ("X", "train/y"); a lone array has the name "".

    `choose` returns those that are wanted of the names that there are; None: all. No others are looked at.

    Raises
    ------
    MissingDataError
        If there is no such folder.
    CorruptDataError
        If it is zarr v2 or has a dtype or codec that is not on the allow-list.
    """
    _, nodes = zarr_metadata.read_nodes(path)
    wanted = nodes if choose is None else choose(nodes)
    nodes = {name: node for name, node in nodes.items() if name in wanted}
    for name, node in nodes.items():
        zarr_metadata.check_foreign_array(path / name, node)
    # Imported after the checks: nothing of an unchecked store reaches zarr, and tasks on our own stores never
    # pay for the import.
    import zarr

    arrays = {}
    for name in nodes:
        try:
            opened = zarr.open_array(str(path / name), mode="r", zarr_format=3)
        except Exception as error:  # zarr has no common base for bad metadata
            raise zarr_metadata.invalid(path / name, f"zarr refuses it: {str(error)[:200]}") from error
        arrays[name] = UserArray(path, name, opened)
    return arrays
