"""Data of the user, opened: zarr data by `storage`, all else by `features` alone."""

from functools import lru_cache
from pathlib import Path
from threading import Lock

from features.array_sources import digest_arrays, open_npz
from features.open_source import close_files, open_source, stamp_of, viewed
from features.source import Source, SourceSpec
from features.tables.table_paths import is_table
from pipeline.datasets.table_records import TableRecords
from storage.records import digest_of
from storage.user_arrays import open_user_arrays

_opening = Lock()

# Of zarr data: the digest of names, sizes and time stamps of their files, and the sha256 of each array.
DataIdentity = tuple[str, tuple[tuple[str, str], ...]]


def open_data(spec: SourceSpec, known: DataIdentity | None = None) -> Source:
    """Open any source; zarr data are opened by `storage` and handed to `features` as array-likes.

    Those are digested once while their files do not change, and not at all where their identity is `known`. Raises
    CorruptDataError where they are damaged.
    """
    known = known or identify(spec)
    if known is None:
        kept = spec.kept if is_table(Path(spec.dataset)) else None
        if kept is not None and not any(Path(kept).glob("*")):
            close_files()  # of tables that were deleted
        return open_source(spec, keeper=None if kept is None else TableRecords(Path(kept)))
    with _opening:  # threads that come together must not each keep chunks of their own
        return _open_zarr(spec, known)


def open_outline(spec: SourceSpec) -> Source | None:
    """Open zarr stores and npz files without reading their inputs, for a plan: shapes, labels, memory, but no digests.

    None for other data.
    """
    path = Path(spec.dataset)
    if not _is_zarr(spec):
        is_npz = path.suffix == ".npz" and path.is_file()
        return viewed(open_npz(spec, path, outline=True), spec) if is_npz else None
    arrays = open_user_arrays(path)
    return open_source(spec, arrays, dict.fromkeys(arrays, ""))


def release_data() -> None:
    """Close the zarr data that this process has open, and free the chunks that its threads keep."""
    _open_zarr.cache_clear()


def identify(spec: SourceSpec) -> DataIdentity | None:
    """Return the identity of zarr data, None for others; one pass over their bytes, or their stamps where known."""
    if not _is_zarr(spec):
        return None
    of_arrays = SourceSpec(spec.dataset, weights=spec.weights, groups=spec.groups)
    return _identity(of_arrays, digest_of(repr(stamp_of(spec))))


def _is_zarr(spec: SourceSpec) -> bool:
    return spec.dataset.rstrip("/").endswith(".zarr")


@lru_cache(maxsize=2)
def _open_zarr(spec: SourceSpec, known: DataIdentity) -> Source:
    return open_source(spec, open_user_arrays(Path(spec.dataset)), dict(known[1]))


@lru_cache(maxsize=4)
def _identity(spec: SourceSpec, stamp: str) -> DataIdentity:
    return stamp, tuple(digest_arrays(spec, open_user_arrays(Path(spec.dataset))).items())
