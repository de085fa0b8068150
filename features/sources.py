"""Where examples come from: one small description, one way to open it, one way to read a block of rows.

A `SourceSpec` is plain data: tasks carry it and open the source themselves. Sources read from files are kept
open per process (the last two), so that the tasks of one run do not read a file again for every block.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from features.errors import MissingInputError, UsageError

Part = Literal["train", "test"]
NAMED = ("mnist", "usps", "boston", "abalone", "sinc", "digits", "synthetic")


@dataclass(frozen=True)
class SourceSpec:
    """What to read; picklable and JSON-able.

    Parameters
    ----------
    dataset : str
        One of `NAMED`, or the path of a folder in MNIST's IDX layout, of an ``.npz`` or a ``.csv`` file. Any other
        path (zarr) needs the opened arrays, see `open_source`.
    data_dir : str or None
        Folder that holds the files of a published data set, or a folder of its name with them.
    n_train, n_test : int or None
        `synthetic` and `sinc`: how many to generate. Others: take only the first rows of the seeded order.
    test_fraction : float
        Share of the test part where the data have no split of their own.
    target : str or None
        Column (name or number) of a csv file, or key of an npz file, that holds y.
    task : str or None
        ``multiclass``, ``binary`` or ``regression`` instead of what the labels suggest.
    standardise : bool or None
        None: False for images and `sinc`, True for tables.
    positive : str or None
        The label to set against all others, as it reads; labels become 1 and -1.
    noise : float or None
        `sinc`: variance of the noise on the training targets.
    seed : int
        Of the split, of the order from which n_train and n_test take, and of what is generated.
    """

    dataset: str
    data_dir: str | None = None
    n_train: int | None = None
    n_test: int | None = None
    test_fraction: float = 0.25
    target: str | None = None
    task: str | None = None
    standardise: bool | None = None
    positive: str | None = None
    noise: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that cannot be used, naming the option."""
        for option, size in (("n_train", self.n_train), ("n_test", self.n_test)):
            if size is not None and size < 1:
                raise UsageError(f"{option} is {size}; it must be at least 1")
        if not 0.0 < self.test_fraction < 1.0:
            raise UsageError(f"test_fraction is {self.test_fraction}; it must lie between 0 and 1")
        if self.noise is not None and not 0.0 <= self.noise < float("inf"):
            raise UsageError(f"noise is {self.noise}; it must be a variance of at least 0")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it must not be negative")
        if not self.dataset:
            raise UsageError(f"dataset is empty; give one of {', '.join(NAMED)} or a path")


class Source(Protocol):
    """Examples with a task and a train/test split, read by row blocks; safe to read from several threads."""

    @property
    def name(self) -> str:
        """Short name, never a path."""

    @property
    def task(self) -> str:
        """``multiclass``, ``binary`` or ``regression``."""

    @property
    def classes(self) -> tuple:
        """Sorted labels as Python scalars; () for regression."""

    @property
    def n_train(self) -> int:
        """Rows of the training part."""

    @property
    def n_test(self) -> int:
        """Rows of the test part."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (H, W) for images, (d,) for tables."""

    @property
    def standardise(self) -> bool:
        """Whether inputs are to be z-scored with the statistics of the training part."""

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (stop - start, *input_shape) and targets (stop - start,).

        Inputs are uint8 for images, float32 or float64 otherwise; targets are an int64 index into `classes`,
        or float64 for regression. Raises `DataError` naming array and row where a value is not finite,
        `IndexError` where the rows do not exist.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Return, as JSON-able values, all that determines what `read` returns; no path, no time."""


_cache: dict[tuple, Source] = {}
_cache_lock = threading.Lock()
_CACHE_SIZE = 2


def open_source(
    spec: SourceSpec, arrays: Mapping[str, Any] | None = None, digests: Mapping[str, str] | None = None
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
        from features.tables import open_arrays

        return _viewed(open_arrays(spec, arrays, digests), spec)
    # Under one lock: threads that start together must not each read the same 55 MB.
    with _cache_lock:
        key = (spec, os.environ.get("SLKL_DATA_DIR"), _stamp(spec))
        if key not in _cache:
            source = _viewed(_open(spec), spec)
            while len(_cache) >= _CACHE_SIZE:
                del _cache[next(iter(_cache))]
            _cache[key] = source
        return _cache[key]


def _viewed(source: Source, spec: SourceSpec) -> Source:
    if spec.positive is None:
        return source
    from features.binary_view import one_against_rest

    return one_against_rest(source, spec.positive)


def _open(spec: SourceSpec) -> Source:
    """Dispatch on the data set; local imports because scikit-learn and numba are slow to import."""
    if spec.dataset == "synthetic":
        from features.synthetic import open_synthetic

        return open_synthetic(spec)
    if spec.dataset in ("mnist", "digits"):
        from features import images

        return images.open_mnist(spec) if spec.dataset == "mnist" else images.open_digits(spec)
    if spec.dataset in NAMED:
        from features import paper_tables

        openers = {
            "usps": paper_tables.open_usps,
            "boston": paper_tables.open_boston,
            "abalone": paper_tables.open_abalone,
            "sinc": paper_tables.open_sinc,
        }
        return openers[spec.dataset](spec)
    path = Path(spec.dataset)
    if path.is_dir() and path.suffix != ".zarr":
        from features.images import open_idx_folder

        return open_idx_folder(spec, path)
    if path.suffix in (".npz", ".csv"):
        if not path.is_file():
            raise MissingInputError(f"dataset {spec.dataset}: no such file")
        from features.tables import open_csv, open_npz

        return open_npz(spec, path) if path.suffix == ".npz" else open_csv(spec, path)
    if path.suffix == ".zarr":
        raise UsageError(f"dataset {spec.dataset}: a zarr store must be opened by the caller and passed as arrays")
    if path.exists():
        raise UsageError(f"dataset {spec.dataset}: file type not known; give .npz, .csv, .zarr or an IDX folder")
    if path.suffix or len(path.parts) > 1:
        raise MissingInputError(f"dataset {spec.dataset}: no such file or folder")
    raise UsageError(f"dataset {spec.dataset!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")


def _stamp(spec: SourceSpec) -> tuple:
    """Size and modification time of the files, so that a changed file is read again in the same process."""
    if spec.dataset not in NAMED:
        path = Path(spec.dataset)
        files = sorted(path.glob("*")) if path.is_dir() else [path]
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
