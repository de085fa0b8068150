"""What the reading of tables takes and tells: seconds, memory, notes, and lines of progress while it goes on."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.runtime import stopping
from pipeline.runtime.events import StageLine
from pipeline.runtime.memory_limits import MemoryMeter


@dataclass
class ReadingCost:
    """What reading tables took since the last `take`; notes: what was seen."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_tables: int = 0
    n_rows: int = 0
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
    before, wall, cpu = _cost.n_rows, time.perf_counter(), time.process_time()

    def words() -> str:
        n_rows = _cost.n_rows - before
        return f"{path.name}, {n_rows} rows, {n_rows / (time.perf_counter() - wall):.3g}/s"

    try:
        with StageLine(sys.stderr, "read", words, words) if _tells.get() else nullcontext():
            yield
    finally:
        _cost.wall_seconds += time.perf_counter() - wall
        _cost.cpu_seconds += time.process_time() - cpu
    _cost.n_tables += 1
