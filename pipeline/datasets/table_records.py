"""What reading tables found and took: labels, weights, groups and encoding are kept, seconds and memory counted.

What was found stands beside the feature stores, without inputs. A table is found by the paths of its files and by what
was asked of it. It is read again where a file has another size or other times.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from features.errors import CHANGED, DataError
from features.input_files import stamp
from features.tables.encoding import TableEncoding
from features.tables.table_paths import table_files
from pipeline.runtime import stopping
from pipeline.runtime.events import StageLine
from pipeline.runtime.memory_limits import MemoryMeter
from pipeline.runtime.own_code import digest_sources
from storage.arrays import read_arrays, write_arrays
from storage.errors import MissingDataError, StorageError
from storage.files import make_folder, remove_file
from storage.records import digest_of

if TYPE_CHECKING:  # with pyarrow, which runs on images do without
    from features.tables.table_source import ReadTable, Tick


@dataclass
class ReadingCost:
    """What reading tables took since it was taken last; notes: what was seen."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_tables: int = 0
    n_rows: int = 0
    peak_bytes: int = 0
    notes: list[str] = field(default_factory=list)


_cost = ReadingCost()
_tells, _writes = False, True  # `preparing` sets them; one run at a time prepares its data


def take_cost() -> ReadingCost:
    """Return what reading took so far, and begin to count anew."""
    global _cost
    taken, _cost = _cost, ReadingCost()
    return taken


@contextmanager
def preparing(*, quiet: bool, writes: bool) -> Iterator[None]:
    """Tell the progress of tables that are read in the block, unless `quiet`; keep them if `writes` says so.

    The peak of the memory in the block counts as that of reading: rows that were read are split and ordered in it.
    """
    global _tells, _writes
    take_cost()  # of what was prepared before
    _tells, _writes = not quiet, writes
    try:
        with MemoryMeter() as meter:
            yield
        _cost.peak_bytes = meter.peak_bytes
    finally:
        _tells, _writes = False, True


@contextmanager
def _counted(path: Path) -> Iterator["Tick"]:
    """Count what the reading of a table takes, and tell how far it is; yield what counts its rows."""
    before, wall, cpu = _cost.n_rows, time.perf_counter(), time.process_time()

    def count(n_rows: int) -> None:
        stopping.check()
        _cost.n_rows += n_rows

    def words() -> str:
        n_rows = _cost.n_rows - before
        return f"{path.name}, {n_rows} rows, {n_rows / (time.perf_counter() - wall):.0f} rows/s"

    try:
        with StageLine(sys.stderr, "read", words, words) if _tells else nullcontext():
            yield count
    finally:
        _cost.wall_seconds += time.perf_counter() - wall
        _cost.cpu_seconds += time.process_time() - cpu
    _cost.n_tables += 1


@dataclass(frozen=True)
class TableRecords:
    """What was found in tables, a file for each, in a folder; `writes`: whether what is found now is kept there."""

    folder: Path
    writes: bool = field(default_factory=lambda: _writes)  # as `preparing` says

    def read(self, path: Path, request: dict[str, Any], read: Callable[["Tick"], "ReadTable"]) -> "ReadTable":
        """Return what was found in a table for such a request, without codes, or read it now and keep that.

        `request` has all that decides what is found.
        """
        plain = json.loads(json.dumps(request))  # with lists for tuples
        key = digest_of({"code": digest_sources("features"), "path": str(path.absolute()), "request": plain})
        stamps = _stamps(path)
        file = self.folder / f"{key[:32]}-{digest_of({'files': stamps})[:16]}.npz"
        known = _known(file)
        if known is not None:
            return known
        earlier = list(self.folder.glob(f"{key[:32]}-*.npz"))
        if earlier:
            _cost.notes.append(f"{path}: has changed since it was read; it is read again")
        with _counted(path) as count:
            found = read(count)
        if _stamps(path) != stamps:
            raise DataError(f"{path}: {CHANGED}")
        if self.writes:
            make_folder(self.folder)
            for old in earlier:
                remove_file(old)
            write_arrays(file, _as_arrays(found))
        return found


def _known(file: Path) -> "ReadTable | None":
    """Return what was found in a table, None where nothing is kept, or it is damaged."""
    from features.tables.table_source import ReadTable  # as above

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
            keys=facts["keys"],
            codes_sha256=record["codes_sha256"],
            sha256=record["sha256"],
            ids=tuple(record["ids"]),
            kinds=record["kinds"],
            encoding=None if encoding is None else TableEncoding.from_description(encoding),
            unknown=record["unknown"],
        )
    except (MissingDataError, StorageError, DataError, KeyError, IndexError, TypeError, ValueError):
        return None


def _as_arrays(found: "ReadTable") -> dict[str, np.ndarray]:
    """Return what was found in a table as named arrays: words as JSON."""
    labels, label_words = found.labels, None
    if labels.dtype.kind == "U":
        distinct, labels = np.unique(labels, return_inverse=True)
        label_words = distinct.tolist()
    record = {name: getattr(found, name) for name in ("words", "codes_sha256", "sha256", "ids", "kinds", "unknown")}
    record |= {"label_words": label_words, "encoding": found.encoding and found.encoding.described()}
    facts = {"labels": labels, "weights": found.weights, "groups": found.groups, "keys": found.keys}
    facts["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
    return {name: values for name, values in facts.items() if values is not None}


def _stamps(path: Path) -> list[list[Any]]:
    """Return the stamp of each file of a table."""
    return [list(stamp(file)) for file in table_files(path)]
