"""Opening what a `SourceSpec` describes: a published data set, a generated one, or files of the user.

Sources are kept open per process (the last two), so that the tasks of one run do not read a file again for every
block.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from features import images, paper_tables
from features.binary_view import one_against_rest
from features.errors import MissingInputError, UsageError
from features.source import NAMED, RowArray, Source, SourceSpec
from features.table_cells import is_table
from features.table_files import open_table
from features.tables import open_arrays, open_npz

_OPENERS = {
    "mnist": images.open_mnist,
    "digits": images.open_digits,
    "usps": paper_tables.open_usps,
    "boston": paper_tables.open_boston,
    "abalone": paper_tables.open_abalone,
    "sinc": paper_tables.open_sinc,
}
_cache: dict[tuple, Source] = {}
_cache_lock = threading.Lock()
_CACHE_SIZE = 2


def open_source(
    spec: SourceSpec, arrays: Mapping[str, RowArray] | None = None, digests: Mapping[str, str] | None = None
) -> Source:
    """Open what `spec` describes.

    Parameters
    ----------
    spec : SourceSpec
        The description.
    arrays : mapping or None
        Opened array-likes (shape, dtype, slicing by rows) with keys ``X, y`` or ``train/X, train/y, test/X,
        test/y``, instead of the file that `spec.dataset` names. X is never read whole. Not cached.
    digests : mapping or None
        What `features.tables.digest_arrays` returned for `arrays`, which saves a pass over X.

    Returns
    -------
    Source
        Cached per process for as long as the files keep size and time stamp.

    Raises
    ------
    UsageError
        Unknown data set, a file type that is not read here, more rows asked for than there are.
    MissingInputError
        A file or folder is not there.
    DataError
        A file is damaged or its values are invalid.
    UnavailableError
        A published data set is not on this machine and no mirror answers.
    """
    if arrays is not None:
        return viewed(open_arrays(spec, arrays, digests), spec)
    # Under one lock: threads that start together must not each read the same 55 MB.
    with _cache_lock:
        key = (spec, os.environ.get("SLKL_DATA_DIR"), stamp_of(spec))
        if key not in _cache:
            source = viewed(_open(spec), spec)
            while len(_cache) >= _CACHE_SIZE:
                del _cache[next(iter(_cache))]
            _cache[key] = source
        return _cache[key]


def open_outline(spec: SourceSpec) -> Source | None:
    """Return a source whose labels, shapes and memory are those of `open_source`, though its inputs are not read.

    For what is held whole and tells its size: npz files; None for all else. Errors as `open_source`.
    """
    path = Path(spec.dataset)
    if path.suffix != ".npz" or not path.is_file():
        return None
    return viewed(open_npz(spec, path, outline=True), spec)


def viewed(source: Source, spec: SourceSpec) -> Source:
    """Return a source as `spec` asks for it: with one label against all others, or as it is."""
    return source if spec.positive is None else one_against_rest(source, spec.positive)


def _open(spec: SourceSpec) -> Source:
    if spec.dataset == "synthetic":
        # Imported here: its loops need numba, for which whoever reads other data shall not wait.
        from features.synthetic.rendered_digits import open_synthetic

        return open_synthetic(spec)
    if spec.dataset in NAMED:
        return _OPENERS[spec.dataset](spec)
    path = Path(spec.dataset)
    if path.is_dir() and is_table(path):
        raise UsageError(f"dataset {spec.dataset}: is a folder; give a single file of that type")
    if path.is_dir() and path.suffix != ".zarr":
        return images.open_idx_folder(spec, path)
    if path.suffix == ".npz" or is_table(path):
        if not path.exists():
            raise MissingInputError(f"dataset {spec.dataset}: no such file")
        return open_npz(spec, path) if path.suffix == ".npz" else open_table(spec, path)
    if path.suffix == ".zarr":
        raise UsageError(f"dataset {spec.dataset}: a zarr store must be opened by the caller and passed as arrays")
    if path.exists():
        raise UsageError(
            f"dataset {spec.dataset}: file type not known; give .npz, .csv, .tsv (or .gz), .parquet, .zarr, IDX folder"
        )
    if path.suffix or len(path.parts) > 1:
        raise MissingInputError(f"dataset {spec.dataset}: no such file or folder")
    raise UsageError(f"dataset {spec.dataset!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")


def stamp_of(spec: SourceSpec) -> tuple:
    """Return sizes and modification times of the files, so that a changed file is read again in the same process."""
    if spec.dataset not in NAMED:
        path = Path(spec.dataset)
        files = sorted(path.glob("*")) if path.is_dir() else [path, *([Path(spec.test)] if spec.test else [])]
    else:
        place = spec.data_dir or os.environ.get("SLKL_DATA_DIR")
        if not place or spec.dataset in ("digits", "synthetic", "sinc"):
            return ()  # generated; or in the cache, where a file has its sha256 or is replaced
        files = sorted([*Path(place).glob("*"), *Path(place).glob(f"{spec.dataset}/*")])
    stamps = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        stamps.append((file.name, status.st_size, status.st_mtime_ns))
    return tuple(stamps)
