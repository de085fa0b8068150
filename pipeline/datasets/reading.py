"""What the reading of tables takes and tells: seconds, memory, notes, and lines of progress while it goes on.

What an s3:// URL names is copied before it is read.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from features.table_paths import is_table_file
from pipeline.runtime import stopping
from pipeline.runtime.console import StageLine
from pipeline.runtime.events import MemoryMeter
from storage.object_store import copy_objects, is_url


@dataclass
class ReadingCost:
    """What reading tables took since the last `take`; notes: what was seen."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_tables: int = 0
    n_rows: int = 0
    n_bytes: int = 0  # copied from an object store
    peak_bytes: int = 0
    notes: list[str] = field(default_factory=list)


_cost = ReadingCost()
_tells, _writes = ContextVar("tells", default=False), ContextVar("writes", default=True)


def writes() -> bool:
    """Return whether tables that are read are kept."""
    return _writes.get()


def take() -> ReadingCost:
    """Return what reading took so far, and begin to count anew."""
    global _cost
    taken, _cost = _cost, ReadingCost()
    return taken


def note(line: str) -> None:
    """Tell something that was seen."""
    _cost.notes.append(line)


def count(n_rows: int) -> None:
    """Count rows that were read. Raises StoppedError where work shall stop."""
    stopping.check()
    _cost.n_rows += n_rows


@contextmanager
def preparing(*, quiet: bool, writes: bool) -> Iterator[None]:
    """Tell the progress of tables that are read in the block, unless `quiet`; keep them if `writes` says so.

    The peak of the memory in the block counts as that of reading: rows that were read are split and ordered in it.
    """
    take()  # of what was prepared before
    tells, kept = _tells.set(not quiet), _writes.set(writes)
    try:
        with MemoryMeter() as meter:
            yield
        _cost.peak_bytes = meter.peak_bytes
    finally:
        _tells.reset(tells)
        _writes.reset(kept)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Count what the reading of a table takes, and tell how far it is."""
    before = _cost.n_rows

    def words(seconds: float) -> str:
        n_rows = _cost.n_rows - before
        return f"{path.name}, {n_rows} rows, {n_rows / seconds:.3g}/s"

    with _telling("read", words):
        yield
    _cost.n_tables += 1


def local_path(name: str, folder: Path | None) -> str:
    """Return the path of a copy of what an s3:// URL names, below `folder`; any other name as it is.

    The copy is removed at the end of the process where there is no folder, or nothing is to be written. Raises as
    `storage.object_store.copy_objects`, and StoppedError where work shall stop.
    """
    if not is_url(name):
        return name
    before = _cost.n_bytes

    def words(seconds: float) -> str:
        n_mib = (_cost.n_bytes - before) / 2**20
        return f"{name}, {n_mib:.0f} MiB, {n_mib / seconds:.3g} MiB/s"

    def count(n_bytes: int) -> None:
        stopping.check()
        _cost.n_bytes += n_bytes

    folder = folder if folder and writes() else Path(_passing_folder().name)
    with _telling("copy", words):
        return str(copy_objects(name, folder, is_table_file, count))


@cache
def _passing_folder() -> "TemporaryDirectory[str]":
    """Return a folder that is removed when the process ends."""
    return TemporaryDirectory(prefix="slkl-")


@contextmanager
def _telling(stage: str, words: Callable[[float], str]) -> Iterator[None]:
    """Count what the block takes, and tell what `words` makes of its seconds."""
    wall, cpu = time.perf_counter(), time.process_time()

    def tell() -> str:
        return words(time.perf_counter() - wall)

    try:
        with StageLine(sys.stderr, stage, tell, tell) if _tells.get() else nullcontext():
            yield
    finally:
        _cost.wall_seconds += time.perf_counter() - wall
        _cost.cpu_seconds += time.process_time() - cpu
