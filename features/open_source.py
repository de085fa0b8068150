"""Opening what a `SourceSpec` describes: a published data set, a generated one, or files of the user."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from features import images, paper_tables
from features.errors import DataError, MissingInputError, UsageError
from features.source import NAMED, Joins, Part, RowArray, Source, SourceMemory, SourceSpec
from features.table_paths import KNOWN, exists, is_table, table_files
from features.tables import open_arrays, open_npz

if TYPE_CHECKING:  # imported late, with what reads tables
    from features.table_files import Keeper

_OPENERS = {
    "mnist": images.open_mnist,
    "digits": images.open_digits,
    "usps": paper_tables.open_usps,
    "boston": paper_tables.open_boston,
    "abalone": paper_tables.open_abalone,
    "sinc": paper_tables.open_sinc,
}
_opening = Lock()


def open_source(
    spec: SourceSpec,
    arrays: Mapping[str, RowArray] | None = None,
    digests: Mapping[str, str] | None = None,
    keeper: "Keeper | None" = None,
) -> Source:
    """Open what `spec` describes; kept open in this process for as long as the files keep size and time stamp.

    arrays : opened array-likes ``X, y`` or ``train/X, train/y, test/X, test/y``, in place of the file that
        `spec.dataset` names; X is never read whole, and nothing kept open
    digests : what `features.tables.digest_arrays` returned for `arrays`, which saves a pass over X
    keeper : keeps tables that were read; without one they are in memory

    Raises UsageError for an unknown data set or file type, or more rows asked for than there are; MissingInputError
    where a file is not there; DataError where one is damaged or invalid; UnavailableError where no mirror answers.
    """
    if arrays is not None:
        return viewed(open_arrays(spec, arrays, digests), spec)
    with _opening:  # threads that start together must not each read the same 55 MB
        return _opened(spec, os.environ.get("SLKL_DATA_DIR"), stamp_of(spec), keeper)


@lru_cache(maxsize=2)  # the tasks of a run do not read a file again for every block
def _opened(spec: SourceSpec, data_dir: str | None, stamp: tuple, keeper: "Keeper | None") -> Source:
    return viewed(_open(spec, keeper), spec)


def viewed(source: Source, spec: SourceSpec) -> Source:
    """Return a source as it is, or with the positive label of `spec` as class 1 and all others as -1.

    Raises UsageError where the source has no classes, DataError where no label reads so.
    """
    if spec.positive is None:
        return source
    if source.task == "regression":
        raise UsageError(f"data.positive = {spec.positive}: {source.name} is a regression task; leave it out")
    labels = [str(label) for label in source.classes]
    if spec.positive not in labels:
        known = ", ".join(labels[:20])
        raise DataError(f"data.positive = {spec.positive}: no label of {source.name}; it has {known}")
    positive = labels.index(spec.positive)

    def read(part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = source.read(part, start, stop)
        return inputs, (targets == positive).astype(np.int64)

    identity = source.identity | {"positive": source.classes[positive], "task": "binary", "classes": [-1, 1]}
    return replace(source, task="binary", classes=(-1, 1), read_rows=read, identity=identity)


def spec_of_addition(spec: SourceSpec, first: Source, path: str) -> SourceSpec:
    """Return the description of data at `path` whose rows join those of `first`. Raises UsageError for a data set."""
    if path in NAMED:
        raise UsageError(f"rows to add: {path} is a data set; give the path of a file or folder with the new rows")
    joins = Joins(first.classes, first.columns, first.input_shape[-1])
    return SourceSpec(path, target=spec.target, groups=spec.groups, task=first.task, joins=joins, kept=spec.kept)


def joined(first: Source, additions: Sequence[Source]) -> Source:
    """Return the data whose training rows are those of `first`, then those of the additions, in their order.

    All else is that of the first data, but for the identity, which names each addition. Raises DataError for inputs of
    another shape, or images on another scale.
    """
    sources = (first, *additions)
    dtype, *others = (source.read("train", 0, 1)[0].dtype for source in sources)
    for addition, other in zip(additions, others, strict=True):
        name, shape = addition.name, addition.input_shape
        if shape != first.input_shape:
            raise DataError(f"{name}: inputs have shape {shape}, those of {first.name} {first.input_shape}")
        if (dtype == np.uint8) != (other == np.uint8):
            raise DataError(f"{name}: images are {other}, those of {first.name} {dtype}; give both on one scale")

    def read(part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        if part == "test":
            return first.read(part, start, stop)
        blocks, before = [], 0
        for source in sources:
            low, high = (min(max(row - before, 0), source.n_train) for row in (start, stop))
            if low < high or (start == stop and source is first):
                inputs, targets = source.read(part, low, high)
                blocks.append((inputs.astype(dtype, copy=False), targets))
            before += source.n_train
        inputs, targets = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        return inputs, targets

    notes = [note for source in sources for note in source.notes]
    groups = [source.groups for source in sources if source.groups is not None]
    if first.test_groups is not None and len(groups) > 1:
        n_both = len(np.intersect1d(first.test_groups, np.concatenate(groups[1:])))
        notes += [f"{n_both} groups of the rows added have rows in the test part as well"] if n_both else []
    *sums, decoding = zip(*(astuple(source.memory) for source in sources), strict=True)
    held, kept, decoded = map(sum, sums)
    added = tuple(addition.n_train for addition in additions)
    return replace(
        first,
        n_train=first.n_train + sum(added),
        read_rows=read,
        identity={**first.identity, "added": [addition.identity for addition in additions]},
        row_weights={"test": first.weights("test")},
        file_rows={"test": first.file_rows.get("test")},  # training rows are of several files
        groups=np.concatenate(groups) if groups else None,
        notes=tuple(notes),
        memory=SourceMemory(held, kept, decoded, max(decoding)),  # a thread keeps chunks of all, and decodes one
        added=added,
    )


def _open(spec: SourceSpec, keeper: "Keeper | None") -> Source:
    if spec.dataset == "synthetic":
        # Imported here: its loops need numba, which takes long to import.
        from features.rendered_digits import open_synthetic

        return open_synthetic(spec)
    if spec.dataset in NAMED:
        return _OPENERS[spec.dataset](spec)
    path = Path(spec.dataset)
    if path.is_dir() and is_table(path) and not table_files(path):
        raise UsageError(f"dataset {spec.dataset}: is a folder without files of that type")
    if path.is_dir() and path.suffix != ".zarr" and not is_table(path):
        return images.open_idx_folder(spec, path)
    if path.suffix == ".npz" or is_table(path):
        if not exists(path):
            raise MissingInputError(f"dataset {spec.dataset}: no such file")
        if path.suffix == ".npz":
            return open_npz(spec, path)
        # Imported here: what reads tables takes a while to import.
        from features.table_files import open_table

        return open_table(spec, path, keeper)
    if path.suffix == ".zarr":
        raise UsageError(f"dataset {spec.dataset}: a zarr store must be opened by the caller and passed as arrays")
    if path.exists():
        known = f".npz, {KNOWN}, .zarr, IDX folder"
        raise UsageError(f"dataset {spec.dataset}: file type not known; give {known}")
    if path.suffix or len(path.parts) > 1:
        raise MissingInputError(f"dataset {spec.dataset}: no such file or folder")
    raise UsageError(f"dataset {spec.dataset!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")


def stamp_of(spec: SourceSpec) -> tuple:
    """Return sizes and modification times of the files, so that the same process reads a changed file again."""
    path, stamps = Path(spec.dataset), []
    if spec.dataset in NAMED:
        place = spec.data_dir or os.environ.get("SLKL_DATA_DIR")
        if not place or spec.dataset in ("digits", "synthetic", "sinc"):
            return ()  # generated; or in the cache, where a file has its sha256 or is replaced
        files = sorted([*Path(place).glob("*"), *Path(place).glob(f"{spec.dataset}/*")])
    elif path.is_dir() and (path.suffix == ".zarr" or not is_table(path)):
        files = sorted(path.rglob("*") if path.suffix == ".zarr" else path.glob("*"))
    else:
        tables = [path, *([Path(spec.test)] if spec.test else [])]
        files = [file for table in tables for file in (table_files(table) if is_table(table) else [table])]
    for file in files:
        with suppress(OSError):  # of a dangling link; opening it will say so
            status = file.stat()
            stamps.append((str(file), status.st_size, status.st_mtime_ns))
    return tuple(stamps)
