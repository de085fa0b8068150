"""Tables that were read once: their codes as zarr, with labels, weights and groups, beside the feature stores.

A table is found by the paths of its files and by what was asked of it. It is read again where a file has another size,
or another time and other bytes; what was read before it stays, as a run may be reading it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError
from features.input_files import open_plain
from features.table_files import CodesInMemory, MakeCodes, ReadTable
from features.table_parts import ArrowPart
from features.table_paths import table_files
from pipeline.datasets import reading
from storage.arrays import read_arrays, write_arrays
from storage.errors import MissingDataError, StorageError
from storage.files import aside_of, make_folder, rename_file, temporary_path, write_errors
from storage.folders import digest_file, new_folder, remove_folder
from storage.output_files import sweep_output
from storage.records import digest_of, read_record, write_record
from storage.zarr_arrays import ArrayWriter, StoredArray, chunk_rows_for, create_arrays, open_arrays

FORMAT_VERSION = 1
_RECORD, _FACTS, _CODES = "table.json", "rows.npz", "codes"
_REMEDY = "remove the folder: the table is read again"


@dataclass(frozen=True, eq=False)
class StoredCodes:
    """Codes (n, columns) f8 on the disk, read by slices of rows; every chunk is checked."""

    array: StoredArray

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the codes."""
        return self.array.dtype

    @property
    def decoding_bytes(self) -> int:
        """Bytes beside the result while rows are read: one chunk."""
        return self.array.chunk_file_bytes

    def __getitem__(self, rows: slice) -> NDArray[np.float64]:
        """Return the codes of some rows."""
        start, stop, _ = rows.indices(self.shape[0])
        return self.array.read(start, max(start, stop))


class _Writer:
    """Collects codes on the disk."""

    def __init__(self, folder: Path, n_columns: int) -> None:
        self._folder = folder / "arrays.zarr"
        self._writer = ArrayWriter(self._folder, _CODES, (n_columns,), np.float64)

    def add(self, codes: NDArray[np.float64]) -> None:
        """Take the codes (rows, columns) of more rows. Raises StoppedError where work shall stop."""
        reading.count(len(codes))
        self._writer.add(codes)

    def finish(self) -> StoredCodes:
        """Return the codes of all rows."""
        create_arrays(self._folder, [self._writer.finish()], {})
        return StoredCodes(open_arrays(self._folder)[_CODES])


class _InMemory(CodesInMemory):
    """Collects codes in memory, and counts them."""

    def add(self, codes: NDArray[np.float64]) -> None:
        """Take the codes of more rows."""
        reading.count(len(codes))
        super().add(codes)


class _Forgotten:
    """Counts the rows of codes, for a plan; what is read of them are zeros."""

    dtype = np.dtype(np.float64)

    def __init__(self, n_columns: int) -> None:
        self.shape = (0, n_columns)
        self.decoding_bytes = 8 * n_columns * chunk_rows_for(8 * n_columns, 1 << 40)

    def add(self, codes: NDArray[np.float64]) -> None:
        """Count more rows."""
        reading.count(len(codes))
        self.shape = (self.shape[0] + len(codes), self.shape[1])

    def finish(self) -> "_Forgotten":
        """Return what has the shape of the codes."""
        return self

    def __getitem__(self, rows: slice) -> NDArray[np.float64]:
        return np.zeros((len(range(*rows.indices(self.shape[0]))), self.shape[1]))


@dataclass(frozen=True)
class TableStore:
    """Tables that were read, in a folder; `writes`: whether what is read is kept there."""

    folder: Path
    writes: bool = True

    def read(self, path: Path, request: dict[str, Any], read: Callable[[MakeCodes], ReadTable]) -> ReadTable:
        """Return a table as it was read for such a request, or read it now and keep it.

        `request` has all that decides what is read; "encoded": whether its inputs are learned from the codes.
        """
        files = table_files(path)
        key = digest_of({"format_version": FORMAT_VERSION, "path": str(path.absolute()), "request": dict(request)})
        encoded = bool(request["encoded"])
        if self.writes:
            self._sweep(key)
        kept = sorted(self.folder.glob(f"{key}-*/{_RECORD}"), key=lambda record: record.stat().st_mtime_ns)
        stamps, digests = _stamps(files), cache(lambda: _digests(files))
        for record in reversed(kept):
            known = self._known(record.parent, stamps, digests)
            if known is not None:
                return known
        if kept:
            reading.note(f"{path}: has changed since it was read; it is read again")
        if not self.writes:
            with reading.reading(path):
                return read(_InMemory if encoded else _Forgotten)
        folder = self.folder / f"{key}-{digest_of({'sha256s': digests()})[:16]}"  # others may be reading another one
        with reading.reading(path), new_folder(folder, kind=None) as aside:
            table = read(lambda n_columns: _Writer(aside, n_columns))
            if _stamps(files) != stamps:
                raise DataError(f"{path}: changed while it was read; leave it alone meanwhile, and run again")
            _write(aside, table, {"files": stamps, "sha256s": digests()})
        for record in kept[:-1]:  # the last one may be in use
            if record.parent != folder:
                remove_folder(record.parent)
        again = self._known(folder, stamps, digests)
        assert again is not None
        return again

    def _sweep(self, key: str) -> None:
        """Remove what killed runs left of a table; another may be reading it just now."""
        asides = [aside_of(entry.name) for entry in self.folder.iterdir()] if self.folder.exists() else []
        for name in {aside.name for aside in asides if aside is not None and aside.name.startswith(key)}:
            sweep_output(self.folder / name)

    def _known(self, folder: Path, stamps: list[list[Any]], digests: Callable[[], list[str]]) -> ReadTable | None:
        """Return a table that was kept, unless its files are others now, or it is damaged."""
        try:
            record = read_record(folder / _RECORD, remedy=_REMEDY)
        except (MissingDataError, StorageError):
            return None
        if record["files"] != stamps:
            if [entry[:2] for entry in record["files"]] != [entry[:2] for entry in stamps]:
                return None
            if record["sha256s"] != digests():
                return None
            if self.writes:
                write_record(folder / _RECORD, {**record, "files": stamps})  # touched, or copied anew
        try:
            facts = read_arrays(folder / _FACTS)
            codes = StoredCodes(open_arrays(folder / "arrays.zarr")[_CODES])
        except (StorageError, KeyError):
            return None
        labels = facts["labels"]
        if record["label_words"] is not None:
            labels = np.array(record["label_words"])[labels]
        words = tuple(None if known is None else tuple(known) for known in record["words"])
        of_rows = facts.get("weights"), facts.get("groups")
        return ReadTable(codes, words, labels, *of_rows, record["sha256"], tuple(record["ids"]))


def write_frame(frame: Any, folder: Path) -> Path:
    """Write a data frame as FOLDER/frame-<sha256>.parquet, unless it is there; return the path.

    Raises DataError where it cannot be read as a table, CannotWriteError.
    """
    make_folder(folder)
    aside = temporary_path(folder / "frame.parquet")
    try:
        with write_errors(aside):
            ArrowPart(frame, "data frame").write_parquet(aside)
        path = folder / f"frame-{digest_file(aside).sha256[:16]}.parquet"
        if not path.exists():
            rename_file(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _write(folder: Path, table: ReadTable, files: Mapping[str, Any]) -> None:
    """Write the facts of the rows of a table, and last the record that makes them count."""
    labels, label_words = table.labels, None
    if labels.dtype.kind == "U":
        distinct, labels = np.unique(labels, return_inverse=True)
        label_words = distinct.tolist()
    facts = {"labels": labels, "weights": table.weights, "groups": table.groups}
    write_arrays(folder / _FACTS, {name: values for name, values in facts.items() if values is not None})
    record = {"words": table.words, "label_words": label_words, "sha256": table.sha256, "ids": table.ids, **files}
    write_record(folder / _RECORD, json.loads(json.dumps(record)))


def _stamps(files: list[Path]) -> list[list[Any]]:
    """Return name, size and time of each file."""
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _digests(files: list[Path]) -> list[str]:
    """Return the sha256 of each file."""
    digests = []
    for file in files:
        with open_plain(file) as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests
