"""Data of the user, opened as a plan has seen them: zarr data by `storage`, all else by `features` alone.

What was found in tables, pictures and IDX files, all but inputs, stands beside the feature stores: it is found by their
path and by what was asked of them, and read again where a file has another size or other times.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.array_sources import ArrayDigests, digest_arrays, open_npz, outline_digests, used_arrays
from features.errors import CHANGED, DataError
from features.input_files import content_stamp, data_files, is_picture_folder, is_table, pictures_below, stamp
from features.open_source import changed, close_files, open_source, stamp_of, with_copies
from features.source import Source, SourceSpec, Tick
from pipeline.runtime import stopping
from pipeline.runtime.console import StageLine
from pipeline.runtime.run_folder import digest_sources
from storage.arrays import Stored, StoredFile, StoredInMemory, commit, load
from storage.errors import CorruptDataError, MissingDataError
from storage.files import digest_of, make_folder, remove_file
from storage.user_arrays import UserArray, open_user_arrays

_opening = Lock()


@dataclass
class Reading:
    """How tables and images are read, what that took so far, and notes of what was seen.

    tells : whether it tells its progress on standard error
    writes : whether what was found is kept
    """

    tells: bool = False
    writes: bool = True
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_tables: int = 0
    n_rows: int = 0
    peak_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def counted(self, path: Path) -> Iterator[Tick]:
        """Count what the reading of a table takes, and tell how far it is; yield what counts its rows."""
        before, wall, cpu = self.n_rows, time.perf_counter(), time.process_time()
        stop = stopping.current()

        def count(n_rows: int) -> None:
            stop.check()
            self.n_rows += n_rows

        def words() -> str:
            n_rows = self.n_rows - before
            return f"{path.name}, {n_rows} rows, {n_rows / (time.perf_counter() - wall):.0f} rows/s"

        try:
            with StageLine(sys.stderr, "read", words, words) if self.tells else nullcontext():
                yield count
        finally:
            self.wall_seconds += time.perf_counter() - wall
            self.cpu_seconds += time.process_time() - cpu
        self.n_tables += 1


@dataclass(frozen=True)
class TableRecords:
    """What was found in tables and images, a file for each, in a folder; `reading` is of those not found there."""

    folder: Path
    writes: bool
    reading: Reading = field(compare=False)

    def read(self, path: Path, request: dict[str, Any], read: Callable[[Tick], Any], form: Any) -> Any:
        """Return what was found at a path for such a request, of a `form` with arrays, or read it now and keep that.

        `request` has all that decides what is found.
        """
        plain = json.loads(json.dumps(request))  # with lists for tuples
        key = digest_of({"code": digest_sources("features"), "path": str(path.absolute()), "request": plain})
        stamps = _stamps(path)
        file = self.folder / f"{key[:32]}-{digest_of({'files': stamps})[:16]}.npz"
        known = _known(file, form)
        if known is not None:
            return known
        earlier = list(self.folder.glob(f"{key[:32]}-*.npz"))
        if earlier:
            self.reading.notes.append(f"{path}: has changed since it was read; it is read again")
        with self.reading.counted(path) as count:
            found = read(count)
        if _stamps(path) != stamps:
            raise DataError(f"{path}: {CHANGED}")
        if self.writes:
            make_folder(self.folder)
            for old in earlier:
                remove_file(old)
            commit(file, *_packed(found))
        return found


def _packed(found: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return all that was found but a sample as arrays and facts, for `_known`; arrays of texts have their places."""
    arrays = {name: values for name, values in vars(found).items() if isinstance(values, np.ndarray)}
    facts = {name: value for name, value in vars(found).items() if name not in arrays and name != "sample"}
    texts = {name: values for name, values in arrays.items() if values.dtype.kind == "U"}
    arrays |= {name: np.unique(values, return_inverse=True)[1] for name, values in texts.items()}
    return arrays, facts | {"texts": {name: np.unique(values).tolist() for name, values in texts.items()}}


def _known(file: Path, form: Any) -> Any:
    """Return what is kept in a file, None where it is not there or damaged."""
    with suppress(MissingDataError, CorruptDataError):
        arrays, facts = load(file)
        texts = {name: np.array(texts)[arrays[name]] for name, texts in facts["texts"].items()}
        return form(**{name: value for name, value in facts.items() if name != "texts"}, **(arrays | texts))
    return None


def _stamps(path: Path) -> list[list[Any]]:
    if not is_picture_folder(path):
        return [[*stamp(file), content_stamp(file)] for file in data_files(path)]
    files = [path / name for name in pictures_below(path).names]  # the content is compared whenever it is decoded
    return [list(stamp(file)) for file in files if file.exists()]


@dataclass(frozen=True)
class ZarrDigests:
    """The sha256 of each array by its name; of array k the checksums of its chunks as "k", its row keys as "rows k"."""

    arrays: tuple[tuple[str, str], ...]
    chunks: Stored
    scale: float | None  # what is white in images, or None


@dataclass(frozen=True)
class PlannedData:
    """The digest of the identity of planned data, and of zarr data the digests of what is in them."""

    identity: str
    zarr: ZarrDigests | None = None


def planned(spec: SourceSpec, identity: Mapping[str, Any], place: Path | None = None) -> PlannedData:
    """Return what tasks need to open the data that have an identity; checksums of chunks go into a file at `place`."""
    zarr = _digests_of(spec) if _is_zarr(spec) else None
    if zarr is not None and place is not None:
        make_folder(place.parent)
        commit(place, zarr.chunks.read())
        zarr = replace(zarr, chunks=StoredFile(place))
    return PlannedData(digest_of(identity), zarr)


def open_data(spec: SourceSpec, data: PlannedData | None = None, reading: Reading | None = None) -> Source:
    """Open any source; zarr data are opened by `storage` and handed to `features` as array-likes."""
    if _is_zarr(spec):
        digests = (data and data.zarr) or _digests_of(spec)
        with _opening:  # threads that come together must not each keep chunks of their own
            source = _open_zarr(spec, digests)
    else:
        path, kept = Path(spec.dataset), spec.kept
        was_deleted = kept is not None and is_table(path) and not any(Path(kept).glob("*"))
        if (is_picture_folder(path) and data is None) or was_deleted:
            close_files()  # of pictures, each of which may have changed
        reading = reading or Reading()
        source = open_source(spec, keeper=None if kept is None else TableRecords(Path(kept), reading.writes, reading))
    if data is not None and digest_of(source.identity) != data.identity:
        raise changed(spec)
    return source


def open_outline(spec: SourceSpec) -> Source | None:
    """Open zarr stores and npz files without reading their inputs, for a plan; return None for other data."""
    path = Path(spec.dataset)
    if not _is_zarr(spec):
        is_npz = path.suffix == ".npz" and path.is_file()
        return with_copies(open_npz(spec, path, outline=True), spec) if is_npz else None
    arrays = _arrays_of(spec)
    return open_source(spec, arrays, outline_digests(arrays, arrays.get("X") or arrays["train/X"]))


def release_data() -> None:
    """Close the zarr data that this process has open, and free the chunks that its threads keep."""
    _open_zarr.cache_clear()


def _digests_of(spec: SourceSpec) -> ZarrDigests:
    """Return the digests of zarr data; one pass over their bytes, or their stamps where known."""
    of_arrays = SourceSpec(spec.dataset, weights=spec.weights, groups=spec.groups)
    return _read_digests(of_arrays, digest_of(repr(stamp_of(spec))))


def _arrays_of(spec: SourceSpec) -> dict[str, UserArray]:
    return open_user_arrays(Path(spec.dataset), partial(used_arrays, spec))


def _is_zarr(spec: SourceSpec) -> bool:
    return spec.dataset.rstrip("/").endswith(".zarr")


@lru_cache(maxsize=2)
def _open_zarr(spec: SourceSpec, digests: ZarrDigests) -> Source:
    arrays, chunks = _arrays_of(spec), digests.chunks.read()
    for number, (name, _) in enumerate(digests.arrays):
        if name not in arrays:
            raise changed(spec)
        arrays[name].checksums = chunks[str(number)]
    rows = {name: chunks[f"rows {k}"] for k, (name, _) in enumerate(digests.arrays) if f"rows {k}" in chunks}
    return open_source(spec, arrays, ArrayDigests(dict(digests.arrays), rows, digests.scale))


@lru_cache(maxsize=4)
def _read_digests(spec: SourceSpec, stamp: str) -> ZarrDigests:
    arrays = _arrays_of(spec)
    sha256, rows, scale = digest_arrays(spec, arrays)
    chunks = {str(number): arrays[name].checksums for number, name in enumerate(sha256)}
    chunks |= {f"rows {k}": rows[name] for k, name in enumerate(sha256) if name in rows}
    return ZarrDigests(tuple(sha256.items()), StoredInMemory({"chunks": chunks}, "chunks"), scale)
