"""What was found in tables, kept beside the feature stores: labels, weights, groups and encoding, but no inputs.

A table is found by the paths of its files and by what was asked of it. It is read again where a file has another size
or time.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from features.errors import DataError
from features.tables.encoding import TableEncoding
from features.tables.readers import Frame
from features.tables.table_paths import table_files
from features.tables.table_source import ReadTable, Tick
from pipeline.datasets import reading
from storage.arrays import read_arrays, write_arrays
from storage.errors import MissingDataError, StorageError
from storage.files import make_folder, remove_file, rename_file, temporary_path, write_errors
from storage.folders import digest_file
from storage.records import digest_of

FORMAT_VERSION = 1


@dataclass(frozen=True)
class TableRecords:
    """What was found in tables, a file for each, in a folder; `writes`: whether what is found now is kept there."""

    folder: Path
    writes: bool = True

    def read(self, path: Path, request: dict[str, Any], read: Callable[[Tick], ReadTable]) -> ReadTable:
        """Return what was found in a table for such a request, without codes, or read it now and keep that.

        `request` has all that decides what is found.
        """
        key = digest_of({"format_version": FORMAT_VERSION, "path": str(path.absolute()), "request": _plain(request)})
        stamps = _stamps(path)
        file = self.folder / f"{key[:32]}-{digest_of({'files': stamps})[:16]}.npz"
        known = _known(file)
        if known is not None:
            return known
        earlier = list(self.folder.glob(f"{key[:32]}-*.npz"))
        if earlier:
            reading.note(f"{path}: has changed since it was read; it is read again")
        with reading.reading(path):
            found = read(reading.count)
        if _stamps(path) != stamps:
            raise DataError(f"{path}: changed while it was read; leave it alone meanwhile, and run again")
        if self.writes:
            make_folder(self.folder)
            for old in earlier:
                remove_file(old)
            write_arrays(file, _as_arrays(found))
        return found


def write_frame(frame: Any, folder: Path) -> Path:
    """Write a data frame as FOLDER/frame-<sha256>.parquet, unless it is there; return the path.

    Raises DataError where it cannot be read as a table, CannotWriteError.
    """
    make_folder(folder)
    aside = temporary_path(folder / "frame.parquet")
    try:
        with write_errors(aside):
            Frame(frame, "data frame").write_parquet(aside)
        path = folder / f"frame-{digest_file(aside).sha256[:16]}.parquet"
        if not path.exists():
            rename_file(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _known(file: Path) -> ReadTable | None:
    """Return what was found in a table, None where nothing is kept, or it is damaged."""
    try:
        facts = read_arrays(file)
        record = json.loads(facts["record"].tobytes())
        encoding = record["encoding"]
        labels = facts["labels"] if record["label_words"] is None else np.array(record["label_words"])[facts["labels"]]
        return ReadTable(
            words=tuple(None if known is None else tuple(known) for known in record["words"]),
            labels=labels,
            weights=facts.get("weights"),
            groups=facts.get("groups"),
            codes_sha256=record["codes_sha256"],
            sha256=record["sha256"],
            ids=tuple(record["ids"]),
            encoding=None if encoding is None else TableEncoding.from_description(encoding),
            unknown=record["unknown"],
        )
    except (MissingDataError, StorageError, DataError, KeyError, IndexError, TypeError, ValueError):
        return None


def _as_arrays(found: ReadTable) -> dict[str, np.ndarray]:
    """Return what was found in a table as named arrays: words as JSON."""
    labels, label_words = found.labels, None
    if labels.dtype.kind == "U":
        distinct, labels = np.unique(labels, return_inverse=True)
        label_words = distinct.tolist()
    record = {name: getattr(found, name) for name in ("words", "codes_sha256", "sha256", "ids", "unknown")}
    record |= {"label_words": label_words, "encoding": found.encoding and found.encoding.described()}
    facts = {"labels": labels, "weights": found.weights, "groups": found.groups}
    facts["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
    return {name: values for name, values in facts.items() if values is not None}


def _plain(values: dict[str, Any]) -> Any:
    """Return values as JSON has them: lists for tuples."""
    return json.loads(json.dumps(values))


def _stamps(path: Path) -> list[list[Any]]:
    """Return name, size and time of each file of a table."""
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in table_files(path)]
