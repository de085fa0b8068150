"""What reading tables and pictures found and took: all but inputs is kept, seconds and memory counted.

What was found stands beside the feature stores. Data are found by their path and by what was asked of them. They are
read again where a file has another size or other times.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from features.errors import CHANGED, DataError
from features.input_files import is_picture_folder, pictures_below, stamp, table_files
from features.source import Tick
from pipeline.runtime import stopping
from pipeline.runtime.console import StageLine
from pipeline.runtime.run_folder import digest_sources
from storage.arrays import read_arrays, write_arrays
from storage.errors import MissingDataError, StorageError
from storage.files import digest_of, make_folder, remove_file


@dataclass
class Reading:
    """How tables and pictures are read, what that took so far, and notes of what was seen.

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
    """What was found in tables and pictures, a file for each, in a folder; `reading` is of those not found there."""

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
            write_arrays(file, found.as_arrays())
        return found


def _known(file: Path, form: Any) -> Any:
    try:
        return form.from_arrays(read_arrays(file))
    except (MissingDataError, StorageError, DataError, KeyError, IndexError, TypeError, ValueError):
        return None


def _stamps(path: Path) -> list[list[Any]]:
    files = [path / name for name in pictures_below(path).names] if is_picture_folder(path) else table_files(path)
    return [list(stamp(file)) for file in files if file.exists()]
