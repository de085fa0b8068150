"""Opening what a `SourceSpec` describes: a published data set, a generated one, or files of the user."""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock

from features import published
from features.array_sources import ArrayDigests, open_arrays, open_idx_folder, open_npz
from features.errors import CHANGED, DataError, MissingInputError, UsageError
from features.images import IDX_FILES, idx_file
from features.input_files import KNOWN_PICTURES, KNOWN_TABLES, is_picture_folder, is_table, stamp, table_files, walk
from features.rows import RowArray
from features.source import NAMED, Keeper, Source, SourceSpec

_OPENERS = {
    "mnist": published.open_mnist,
    "digits": published.open_digits,
    "usps": published.open_usps,
    "boston": published.open_boston,
    "abalone": published.open_abalone,
    "sinc": published.open_sinc,
}
_opening = Lock()


def open_source(
    spec: SourceSpec,
    arrays: Mapping[str, RowArray] | None = None,
    digests: ArrayDigests | None = None,
    keeper: Keeper | None = None,
) -> Source:
    """Open what `spec` describes; kept open in this process for as long as the files keep size and time stamps.

    arrays : opened array-likes ``X, y`` or ``train/X, train/y, test/X, test/y``, in place of the file that
        `spec.dataset` names; X is never read whole, and nothing kept open
    digests : what `features.array_sources.digest_arrays` returned for `arrays`, which saves a pass over X
    keeper : keeps what was found in tables and pictures; without one the inputs of tables are in memory

    Raises UsageError for an unknown data set or file type, or more rows asked for than there are; MissingInputError
    where a file is not there; DataError where one is damaged or invalid; UnavailableError where no mirror answers.
    """
    if arrays is not None:
        return with_copies(open_arrays(spec, arrays, digests), spec)
    with _opening:  # threads that start together must not each read the same 55 MB
        return _opened(spec, os.environ.get("SLKL_DATA_DIR"), stamp_of(spec), keeper)


def with_copies(source: Source, spec: SourceSpec) -> Source:
    """Return a source with the deformed copies of its training images that `spec` asks for. Raises UsageError."""
    if spec.copies == 1 and spec.deform is None:
        return source
    from features.deformed_copies import copied  # with numba, which data without copies do without

    return copied(source, spec)


@lru_cache(maxsize=2)  # the tasks of a run do not read a file again for every block
def _opened(spec: SourceSpec, data_dir: str | None, stamps: tuple, keeper: Keeper | None) -> Source:
    source = with_copies(_open(spec, keeper), spec)
    if spec.dataset not in NAMED and stamp_of(spec) != stamps:  # each file of those has its sha256
        raise changed(spec)
    return source


def changed(spec: SourceSpec) -> DataError:
    """Return the error for data that do not stay as they were."""
    return DataError(f"{' or '.join(filter(None, (spec.dataset, spec.test)))}: {CHANGED}")


def close_files() -> None:
    """Close the files that this process has open."""
    _opened.cache_clear()


def _open(spec: SourceSpec, keeper: Keeper | None) -> Source:
    if spec.dataset in NAMED:
        return _OPENERS[spec.dataset](spec)
    path = Path(spec.dataset)
    if path.is_dir() and is_table(path) and not table_files(path):
        raise UsageError(f"dataset {spec.dataset}: is a folder without files of that type")
    if is_picture_folder(path):
        from features.pictures import open_pictures  # with what decodes them

        return open_pictures(spec, path, keeper)
    if path.is_dir() and path.suffix != ".zarr" and not is_table(path):
        return open_idx_folder(spec, path)
    if path.suffix == ".npz" or is_table(path):
        if not path.exists():
            raise MissingInputError(f"dataset {spec.dataset}: no such file")
        if path.suffix == ".npz":
            return open_npz(spec, path)
        # Imported here: what reads tables takes a while to import.
        from features.tables.table_source import open_table

        return open_table(spec, path, keeper)
    if path.suffix == ".zarr":
        raise UsageError(f"dataset {spec.dataset}: a zarr store must be opened by the caller and passed as arrays")
    if path.exists():
        known = f".npz, {KNOWN_TABLES}, .zarr, an IDX folder, or {KNOWN_PICTURES}"
        raise UsageError(f"dataset {spec.dataset}: file type not known; give {known}")
    if path.suffix or len(path.parts) > 1:
        raise MissingInputError(f"dataset {spec.dataset}: no such file or folder")
    raise UsageError(f"dataset {spec.dataset!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")


def stamp_of(spec: SourceSpec) -> tuple:
    """Return sizes and times of the files, so that the same process reads a changed file again.

    Of pictures those of their folders: the content of each is compared whenever it is decoded.
    """
    path, stamps = Path(spec.dataset), []
    if spec.dataset in NAMED:
        place = spec.data_dir or os.environ.get("SLKL_DATA_DIR")
        if not place or spec.dataset in ("digits", "sinc"):
            return ()  # generated; or in the cache, where a file has its sha256 or is replaced
        files = sorted([*Path(place).glob("*"), *Path(place).glob(f"{spec.dataset}/*")])
    elif path.is_dir() and path.suffix == ".zarr":
        files = sorted(path.rglob("*"))
    elif is_picture_folder(path):
        tops = [path, *([Path(spec.test)] if spec.test and Path(spec.test).is_dir() else [])]
        files = [folder for top in tops for folder, _, _ in walk(top)]
    elif path.is_dir() and not is_table(path):
        files = [file for file in (idx_file(path, name) for name in IDX_FILES) if file is not None]
    else:
        tables = [path, *([Path(spec.test)] if spec.test else [])]
        files = [file for table in tables for file in (table_files(table) if is_table(table) else [table])]
    for file in files:
        with suppress(OSError):  # of a dangling link; opening it will say so
            stamps.append(stamp(file))
    return tuple(stamps)
